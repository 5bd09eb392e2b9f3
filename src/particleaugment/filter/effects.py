"""From a number per augmented sample to a score per particle, through the effect of each op."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment.filter._checks import Numbers, as_float64

__all__ = ["OpEffects", "op_effects", "particle_scores"]

_RIDGE = 1.0  # as if one more sample without a value had each op


class OpEffects(NamedTuple):
    """What applying each op does to a sample's number, on average.

    >>> OpEffects(torch.zeros(2), torch.eye(2)).effects.tolist()
    [0.0, 0.0]
    """

    effects: Tensor
    """Effect of each op, float64 [n]."""
    covariance: Tensor
    """Covariance of the effects' errors, float64 [n, n]."""


def op_effects(applied: Numbers, values: Numbers) -> OpEffects:
    """Return the ops' effects on a number per sample: ridge regression on which ops were applied, and their errors.

    Args:
        applied: 1 where an op was applied to a sample, else 0: [N, n].
        values: the samples' numbers [N], finite.

    An op that was hardly ever applied has an effect near 0; its error says how little is known of it.

    >>> found = op_effects([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]] * 50, [3.0, 1.0, 1.0, 3.0] * 50)
    >>> [round(effect, 1) for effect in found.effects.tolist()]
    [2.0, 0.0]
    """
    applied, values = as_float64("applied", applied), as_float64("values", values)
    if applied.dim() != 2 or values.shape != applied.shape[:1] or len(values) < 2:
        raise ValueError(
            f"applied must be [N, n] and values [N] with N at least 2, got {list(applied.shape)} and "
            f"{list(values.shape)}; pass one row and one number for each sample"
        )
    if not bool(values.isfinite().all()):
        raise ValueError("values must be finite; skip the measurement where a loss is not")
    centred = applied - applied.mean(0)
    gram = centred.T @ centred + _RIDGE * torch.eye(applied.shape[1], dtype=torch.float64)
    inverse = torch.linalg.inv(gram)
    effects = inverse @ (centred.T @ (values - values.mean()))
    residuals = values - values.mean() - centred @ effects
    # Errors that grow with the op (an augmented sample's number varies more) are taken as they are: White's sandwich.
    middle = centred.T @ (residuals.square().unsqueeze(1) * centred) + residuals.var() * _RIDGE * torch.eye(
        applied.shape[1], dtype=torch.float64
    )
    return OpEffects(effects, inverse @ middle @ inverse)


def particle_scores(particles: Numbers, found: OpEffects) -> tuple[Tensor, Tensor]:
    """Return each particle's expected effect, p_i . effects, and its standard error, both float64 [r].

    >>> found = OpEffects(torch.tensor([1.0, -1.0], dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    >>> scores, errors = particle_scores([[0.5, 0.0], [0.0, 1.0]], found)
    >>> scores.tolist(), errors.tolist()
    ([0.5, -1.0], [0.5, 1.0])
    """
    particles = as_float64("particles", particles)
    variances = torch.einsum("ri,ij,rj->r", particles, found.covariance, particles)
    return particles @ found.effects, variances.clamp(min=0.0).sqrt()
