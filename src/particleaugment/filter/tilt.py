"""An update that gives the particles a wanted mean, by the smallest change of their weights that does."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from particleaugment.filter._checks import Numbers, as_float64, as_real
from particleaugment.filter.state import ParticleSet, effective_sample_size
from particleaugment.filter.weights import ReweightInfo

__all__ = ["signal_variance", "tilted_reweight"]


def signal_variance(scores: Tensor, variances: Tensor, degrees: int | None = None) -> float:
    """Return how much of the scores' variance is more than their errors explain, 0 if that could be chance.

    The sample variance of d independent pure-noise scores exceeds its mean by two of its standard errors,
    sqrt(2 / (d-1)) of it each, about once in forty times; what lies below that is counted as noise.

    Args:
        scores: one number per particle.
        variances: the squares of their errors.
        degrees: d, where scores come from fewer independent numbers than there are particles.

    >>> signal_variance(torch.tensor([-1.0, 1.0, -1.0, 1.0]), torch.full((4,), 9.0))
    0.0
    >>> signal_variance(torch.tensor([-1.0, 1.0, -1.0, 1.0]), torch.zeros(4)) > 1
    True
    """
    degrees = min(len(scores), degrees or len(scores))
    if degrees < 2:
        return 0.0
    noise = float(variances.mean()) * (1.0 + 2.0 * math.sqrt(2.0 / (degrees - 1)))
    return max(0.0, float(scores.var(correction=1)) - noise)


def tilted_reweight(
    state: ParticleSet,
    values: Numbers,
    standard_errors: Numbers,
    *,
    target: float,
    least: float = 0.3,
    degrees: int | None = None,
) -> tuple[ParticleSet, ReweightInfo]:
    """Return the particles with weights under which the mean of ``values`` is ``target``, and diagnostics.

    The weights become w exp(-k s): among all weights with that mean of s, those nearest to w in relative entropy. With
    V the values' variance beyond their errors, s is a value drawn towards the mean by V / (V + error^2), and V = 0
    moves nothing. Where the target is out of reach, k goes as far as ``least`` allows.

    Args:
        state: the particles and their weights so far.
        values: one number per particle, finite.
        standard_errors: their standard errors, finite.
        target: the mean wanted.
        least: smallest effective sample size that the update leaves, as a share of r.
        degrees: how many independent numbers the values come from, where fewer than particles.

    >>> s, _ = tilted_reweight(ParticleSet([[0.0], [0.5], [1.0]]), [0.0, 0.5, 1.0], [0.0, 0.0, 0.0], target=0.4)
    >>> [round(w, 2) for w in s.weights.tolist()], round(float((s.weights * s.particles[:, 0]).sum()), 6)
    ([0.44, 0.32, 0.24], 0.4)
    """
    values, errors = as_float64("values", values), as_float64("standard_errors", standard_errors)
    for name, given in (("values", values), ("standard_errors", errors)):
        if given.shape != (state.num_particles,) or not bool(given.isfinite().all()):
            raise ValueError(
                f"{name} must be {state.num_particles} finite numbers, one for each particle, got shape "
                f"{list(given.shape)}; measure every particle of this set, and skip the update if that fails"
            )
    target = as_real("target", target, "it is the mean that the weights should give", low=-math.inf)
    least = as_real("least", least, "it is a share of the particles", low=0.0, high=1.0)
    variance = signal_variance(values, errors.square(), degrees)
    factors = torch.zeros_like(values)
    if variance > 0:
        mean = (state.weights * values).sum()
        shrunk = mean + (values - mean) * variance / (variance + errors.square())
        factors = _tilt(state, shrunk, target, least, math.sqrt(variance))
    updated = ParticleSet(state.particles, state.log_weights + factors)
    return updated, ReweightInfo(
        effective_sample_size=effective_sample_size(updated),
        max_weight=float(updated.weights.max()),
        log_normalizer=float(torch.logsumexp(state.log_weights + factors, dim=0)),
        log_factors=factors,
    )


def _tilt(state: ParticleSet, values: Tensor, target: float, least: float, scale: float) -> Tensor:
    """Return the log-factors of the strongest tilt that neither passes the target nor leaves too few particles."""

    def tilted(strength: float) -> tuple[float, float]:
        weights = torch.softmax(state.log_weights + strength * values, 0)
        return float((weights * values).sum()), 1.0 / (float(weights.square().sum()) * len(values))

    mean, share = tilted(0.0)
    upwards = 1.0 if mean < target else -1.0
    least = min(least, share)

    def allowed(strength: float) -> bool:
        reached, left = tilted(upwards * strength)
        return upwards * (target - reached) > 0 and left >= least

    low, high = 0.0, 1.0 / scale
    while allowed(high) and high < 1e6 / scale:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return upwards * low * (values - mean)
