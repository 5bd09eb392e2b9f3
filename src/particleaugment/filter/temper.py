"""An update that cannot make selection out of noise: scores are shrunk by their errors before they move a weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from particleaugment.filter._checks import Numbers, as_float64, as_real
from particleaugment.filter.state import ParticleSet, effective_sample_size
from particleaugment.filter.weights import ReweightInfo

__all__ = ["signal_variance", "tempered_reweight"]


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


def tempered_reweight(
    state: ParticleSet,
    scores: Numbers,
    standard_errors: Numbers,
    *,
    eta: float = 0.5,
    forgetting: float = 0.9,
    floor: float = 0.05,
    least: float = 0.9,
    degrees: int | None = None,
) -> tuple[ParticleSet, ReweightInfo]:
    """Return the particles with weights moved by shrunk scores, and diagnostics.

    With V the scores' variance beyond their errors, a score counts as s = (score - mean) V / (V + error^2) / sqrt(V),
    and log w <- forgetting * log w + lambda tanh(s). Lambda is ``eta``, or less where the factors alone would bring the
    effective sample size under ``least`` r: that size caps selection and is never a target. V = 0 selects nothing.

    Args:
        state: the particles and their weights so far.
        scores: one number per particle, higher is better, finite.
        standard_errors: their standard errors, finite.
        eta: the most that one measurement moves a log-weight, above zero.
        forgetting: what remains of the log-weights' differences from step to step, 0 to 1.
        floor: share of the weight that is spread evenly, so that no particle dies of one step.
        least: smallest effective sample size of one step's factors, as a share of r.
        degrees: how many independent numbers the scores come from, where fewer than particles.

    >>> s, info = tempered_reweight(ParticleSet([[0.5], [0.25], [0.1]]), [3.0, 1.0, 2.0], [0.1, 0.1, 0.1])
    >>> s.weights.argsort(descending=True).tolist(), info.effective_sample_size > 2.7
    ([0, 2, 1], True)
    """
    scores, errors = as_float64("scores", scores), as_float64("standard_errors", standard_errors)
    for name, values in (("scores", scores), ("standard_errors", errors)):
        if values.shape != (state.num_particles,) or not bool(values.isfinite().all()):
            raise ValueError(
                f"{name} must be {state.num_particles} finite numbers, one for each particle, got shape "
                f"{list(values.shape)}; measure every particle of this set, and skip the update where that failed"
            )
    eta = as_real("eta", eta, "it is the most that one step moves a log-weight", low=0.0, above=True)
    forgetting = as_real("forgetting", forgetting, "1 forgets nothing", low=0.0, high=1.0)
    floor = as_real("floor", floor, "it is a share of the weight", low=0.0, high=1.0)
    least = as_real("least", least, "it is a share of the particles", low=0.0, high=1.0)

    variance = signal_variance(scores, errors.square(), degrees)
    direction = torch.zeros_like(scores)
    if variance > 0:
        shrunk = (scores - scores.mean()) * variance / (variance + errors.square())
        direction = torch.tanh(shrunk / math.sqrt(variance))
    factors = _capped(direction, eta, least)
    log_weights = forgetting * state.log_weights + factors
    weights = (1.0 - floor) * torch.softmax(log_weights, 0) + floor / state.num_particles
    updated = ParticleSet(state.particles, weights.log())
    return updated, ReweightInfo(
        effective_sample_size=effective_sample_size(updated),
        max_weight=float(updated.weights.max()),
        log_normalizer=float(torch.logsumexp(log_weights, dim=0)),
        log_factors=factors,
    )


def _capped(direction: Tensor, eta: float, least: float) -> Tensor:
    """Return lambda * direction with the largest lambda up to eta whose factors keep the effective sample size."""

    def share(scale: float) -> float:
        weights = torch.softmax(scale * direction, 0)
        return 1.0 / (float(weights.square().sum()) * len(direction))

    if share(eta) >= least:
        return eta * direction
    low, high = 0.0, eta
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= least else (low, middle)
    return low * direction
