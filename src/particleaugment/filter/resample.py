"""Resampling: when few particles hold most of the weight, draw a fresh, uniformly weighted set from them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment.core.random import Stream
from particleaugment.filter._checks import Numbers, as_float64, as_real, particle_uniforms
from particleaugment.filter.state import ParticleSet, effective_sample_size

__all__ = ["SCHEMES", "ResampleInfo", "ancestors", "resample"]


class ResampleInfo(NamedTuple):
    """Diagnostics of one :func:`resample`.

    >>> ResampleInfo(False, 2.0, torch.arange(2), 2).resampled
    False
    """

    resampled: bool
    """Whether the set was degenerate enough to be resampled."""
    effective_sample_size: float
    """N_eff before resampling."""
    ancestors: Tensor
    """Index of the particle that each new particle copies, int64 [r]; 0..r-1 when nothing was resampled."""
    num_distinct: int
    """How many particles have a descendant."""


def resample(
    state: ParticleSet, *, alpha: float = 0.8, scheme: str = "systematic", seed: int | Tensor, step: int | Tensor
) -> tuple[ParticleSet, ResampleInfo]:
    """Return r particles drawn by weight, with uniform weights, if N_eff < alpha r; else the same set.

    Args:
        state: the particles and their weights.
        alpha: the threshold, in [0, 1]; 0 never resamples.
        scheme: "systematic", "multinomial", "stratified" or "residual". All are unbiased: particle i is expected
            r w_i times.
        seed: the key of the draws.
        step: the number of the filter step, also part of the key.

    >>> s = ParticleSet([[0.1], [0.2], [0.3], [0.4]], torch.tensor([0.5, 0.0, 0.5, 0.0]).log())
    >>> s, info = resample(s, alpha=0.8, seed=0, step=1)
    >>> s.particles.squeeze(1).tolist(), s.weights.tolist()
    ([0.1, 0.1, 0.3, 0.3], [0.25, 0.25, 0.25, 0.25])
    >>> info.effective_sample_size, info.num_distinct
    (2.0, 2)
    """
    alpha = as_real("alpha", alpha, "it is the share of r below which N_eff triggers resampling", low=0.0, high=1.0)
    _check_scheme(scheme)
    size = effective_sample_size(state)
    if size >= alpha * state.num_particles:
        return state, ResampleInfo(False, size, torch.arange(state.num_particles, device="cpu"), state.num_particles)
    parents = ancestors(state.weights, scheme, seed=seed, step=step)
    return ParticleSet(state.particles[parents]), ResampleInfo(True, size, parents, len(set(parents.tolist())))


def ancestors(weights: Numbers, scheme: str = "systematic", *, seed: int | Tensor, step: int | Tensor) -> Tensor:
    """Return r indices, int64, drawn in proportion to r weights; an index of weight zero is never drawn.

    Systematic draws take index i floor(r w_i) or ceil(r w_i) times. Systematic and stratified indices come sorted.

    >>> ancestors([0.5, 0.0, 0.25, 0.25], seed=0, step=1)
    tensor([0, 0, 2, 3])
    """
    _check_scheme(scheme)
    w = as_float64("weights", weights)
    if w.dim() != 1 or not len(w):
        raise ValueError(
            f"weights must have shape [r] with r at least 1, got {list(w.shape)}; pass one for each particle"
        )
    total = float(w.sum())
    if not bool((w >= 0).all()) or not 0 < total < float("inf"):
        raise ValueError(
            f"weights must be finite, not negative and not all zero, got sum {total!r}; normalise them first"
        )
    uniforms = particle_uniforms(len(w), Stream.RESAMPLE, seed, step, 1).squeeze(1).contiguous()
    return SCHEMES[scheme](w / total, uniforms)


def _systematic(weights: Tensor, uniforms: Tensor) -> Tensor:
    return _pick(weights, (torch.arange(len(weights), device="cpu") + uniforms[0]) / len(weights))


def _stratified(weights: Tensor, uniforms: Tensor) -> Tensor:
    return _pick(weights, (torch.arange(len(weights), device="cpu") + uniforms) / len(weights))


def _multinomial(weights: Tensor, uniforms: Tensor) -> Tensor:
    return _pick(weights, uniforms)


def _residual(weights: Tensor, uniforms: Tensor) -> Tensor:
    expected = len(weights) * weights
    certain = expected.floor()
    slots = torch.arange(int(certain.sum()), dtype=torch.float64, device="cpu")
    copies = torch.searchsorted(certain.cumsum(dim=0), slots, right=True)
    missing = len(weights) - len(copies)
    if missing == 0:
        return copies
    remainder = expected - certain
    return torch.cat([copies, _pick(remainder / remainder.sum(), uniforms[:missing])])


def _pick(weights: Tensor, positions: Tensor) -> Tensor:
    """Return, for each position in [0, 1], the index whose stretch of the cumulative weights holds it."""
    # right=True takes the first index whose cumulative weight lies above the position, so an index of weight zero,
    # whose stretch is empty, cannot be hit, even by a position of exactly zero. Rounding may leave the last cumulative
    # weight below a position: the clamp goes to the last index that has weight, not to the last index.
    last = int(weights.nonzero()[-1])
    return torch.searchsorted(weights.cumsum(dim=0), positions, right=True).clamp(max=last)


SCHEMES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "systematic": _systematic,
    "multinomial": _multinomial,
    "stratified": _stratified,
    "residual": _residual,
}
"""The resampling schemes: normalised weights [r] and uniforms [r] to ancestors [r]."""


def _check_scheme(scheme: str) -> None:
    if scheme not in SCHEMES:
        nearest = difflib.get_close_matches(str(scheme), SCHEMES, n=1, cutoff=0.0)[0]
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}; did you mean {nearest!r}?")
