"""The filter's state: weighted particles, each a vector of application probabilities, one per op."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from particleaugment.core.random import Stream
from particleaugment.filter._checks import Numbers, as_count, as_float64, as_real, particle_uniforms

__all__ = ["ParticleSet", "effective_sample_size", "sparse_init"]


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ParticleSet:
    """An immutable set of r weighted particles over n ops.

    Args:
        particles: application probabilities [r, n] in [0, 1], with r at least 2.
        log_weights: log-weights [r], in any scale (they are normalised here); -inf is weight zero. Uniform if omitted.

    Tensors are copied on the way in and on the way out, so nothing outside can change a set. Equality is by value.

    >>> s = ParticleSet([[0.5, 0.0], [0.0, 1.0]], log_weights=[0.0, math.log(3)])
    >>> s
    ParticleSet(r=2, n=2, N_eff=1.6, ops_per_image=0.875)
    >>> s.weights
    tensor([0.2500, 0.7500], dtype=torch.float64)
    >>> s == ParticleSet.from_dict(s.to_dict())
    True
    """

    _particles: Tensor
    _log_weights: Tensor

    def __init__(self, particles: Numbers, log_weights: Numbers | None = None) -> None:
        x = as_float64("particles", particles)
        _check_particles(x)
        w = as_float64("log_weights", [0.0] * len(x) if log_weights is None else log_weights)
        _check_log_weights(w, len(x))
        object.__setattr__(self, "_particles", x)
        object.__setattr__(self, "_log_weights", _normalised(w))

    @property
    def particles(self) -> Tensor:
        """Application probabilities, float64 [r, n] (a copy)."""
        return self._particles.clone()

    @property
    def log_weights(self) -> Tensor:
        """Normalised log-weights, float64 [r] (a copy)."""
        return self._log_weights.clone()

    @property
    def weights(self) -> Tensor:
        """Weights, float64 [r], summing to one."""
        return torch.softmax(self._log_weights, dim=0)

    @property
    def num_particles(self) -> int:
        """The number of particles, r."""
        return self._particles.shape[0]

    @property
    def num_ops(self) -> int:
        """The number of ops, n."""
        return self._particles.shape[1]

    @property
    def ops_per_image(self) -> float:
        """The expected number of ops applied to an image: the weighted mean of the particles' sums."""
        return float(self.weights @ self._particles.sum(dim=1))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return plain lists that JSON holds exactly; weight zero, log-weight -inf, is written as None.

        >>> ParticleSet([[1.0], [0.5]], [0.0, -math.inf]).to_dict()
        {'particles': [[1.0], [0.5]], 'log_weights': [0.0, None]}
        """
        logs = [None if math.isinf(value) else value for value in self._log_weights.tolist()]
        return {"particles": self._particles.tolist(), "log_weights": logs}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ParticleSet:
        """Return the set that :meth:`to_dict` described, bit for bit.

        >>> ParticleSet.from_dict({"particles": [[1.0], [0.5]], "log_weights": [0.0, None]}).weights.tolist()
        [1.0, 0.0]
        """
        missing = {"particles", "log_weights"} - set(data)
        if missing:
            raise ValueError(
                f"a particle set needs {' and '.join(sorted(missing))}; pass the result of ParticleSet.to_dict()"
            )
        return cls(data["particles"], [-math.inf if value is None else value for value in data["log_weights"]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParticleSet):
            return NotImplemented
        return torch.equal(self._particles, other._particles) and torch.equal(self._log_weights, other._log_weights)

    def __repr__(self) -> str:
        return (
            f"ParticleSet(r={self.num_particles}, n={self.num_ops}, N_eff={effective_sample_size(self):.4g}, "
            f"ops_per_image={self.ops_per_image:.4g})"
        )


def _check_particles(x: Tensor) -> None:
    if x.dim() != 2 or x.shape[1] < 1:
        raise ValueError(
            f"particles must have shape [r, n] with n at least 1, got {list(x.shape)}; pass one row per policy"
        )
    if len(x) < 2:
        raise ValueError(f"a filter needs at least 2 particles, got {len(x)}; add particles (the paper uses 50)")
    outside = ~((x >= 0) & (x <= 1))
    if bool(outside.any()):
        raise ValueError(
            f"particles must be probabilities in [0, 1], got {float(x[outside][0])!r}; clip or drop them first"
        )


def _check_log_weights(w: Tensor, num_particles: int) -> None:
    if w.shape != (num_particles,):
        raise ValueError(
            f"log_weights must have shape [{num_particles}], got {list(w.shape)}; pass one log-weight for each particle"
        )
    bad = w.isnan() | w.isposinf()
    if bool(bad.any()):
        raise ValueError(
            f"log-weights must be finite or -inf, got {float(w[bad][0])!r}; drop the update that made them"
        )
    if bool(w.isneginf().all()):
        raise ValueError(
            "all log-weights are -inf, so no particle has any weight; give at least one a finite log-weight"
        )


def _normalised(w: Tensor) -> Tensor:
    # Normalised log-weights must pass through unchanged, or a set would not survive a round trip bit for bit: rounding
    # leaves their sum within about 1e-15 of one, and anything closer than 1e-13 counts as normalised already.
    if abs(float(torch.logsumexp(w, dim=0))) <= 1e-13:
        return w
    # The maximum goes first: subtracting log-sum-exp directly would lose digits when all log-weights are huge.
    w = w - w.max()
    return w - torch.logsumexp(w, dim=0)


def effective_sample_size(state: ParticleSet) -> float:
    """Return N_eff = 1 / sum_i w_i^2, from 1 (one particle holds all weight) to r (uniform weights, exactly r).

    >>> effective_sample_size(sparse_init(num_particles=50, num_ops=15, nonzero=3, value=0.25, seed=0))
    50.0
    """
    relative = torch.exp(state.log_weights - state.log_weights.max())
    size = float(relative.sum() ** 2 / (relative**2).sum())
    return min(max(size, 1.0), float(state.num_particles))


def sparse_init(
    num_particles: int,
    num_ops: int,
    nonzero: int,
    value: float = 0.25,
    *,
    seed: int | Tensor,
    unit_vectors: bool = False,
) -> ParticleSet:
    """Return uniformly weighted particles, each with ``nonzero`` random components set to ``value`` and the rest zero.

    Args:
        num_particles: r, at least 2.
        num_ops: n, the length of a particle.
        nonzero: l, how many ops of a particle start with a chance of being applied.
        value: that chance, in [0, 1].
        seed: the key of the draws.
        unit_vectors: make the first n particles ``value`` times the n unit vectors, so that each op starts once alone.

    >>> s = sparse_init(num_particles=50, num_ops=15, nonzero=3, value=0.25, seed=0)
    >>> s
    ParticleSet(r=50, n=15, N_eff=50, ops_per_image=0.75)
    >>> sparse_init(num_particles=4, num_ops=3, nonzero=2, value=1.0, seed=0, unit_vectors=True).particles[:3]
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]], dtype=torch.float64)
    """
    r, n, active = as_count("num_particles", num_particles), as_count("num_ops", num_ops), as_count("nonzero", nonzero)
    if r < 2:
        raise ValueError(f"num_particles must be at least 2, got {r}; add particles (the paper uses 50)")
    if n < 1:
        raise ValueError(f"num_ops must be at least 1, got {n}; pass the length of the op set (the paper's is 15)")
    if not 1 <= active <= n:
        raise ValueError(f"nonzero must be in 1..{n}, the number of ops, got {active}; the paper uses 2 to 4 of 15")
    if unit_vectors and r < n:
        raise ValueError(f"unit_vectors needs a particle for each of the {n} ops, got {r}; raise num_particles to {n}")
    start = as_real("value", value, "it is the probability with which a chosen op starts", low=0.0, high=1.0)

    keys = particle_uniforms(r, Stream.INIT, seed, 0, n)
    chosen = keys.argsort(dim=1, stable=True)[:, :active]
    particles = torch.zeros(r, n, dtype=torch.float64, device="cpu").scatter(1, chosen, start)
    if unit_vectors:
        particles[:n] = start * torch.eye(n, dtype=torch.float64, device="cpu")
    return ParticleSet(particles)
