"""From the effect of each op to a number per particle."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment.filter._checks import Numbers, as_float64

__all__ = ["OpEffects", "particle_scores"]


class OpEffects(NamedTuple):
    """What applying each op does, on average, to what is measured.

    >>> OpEffects(torch.zeros(2), torch.eye(2)).effects.tolist()
    [0.0, 0.0]
    """

    effects: Tensor
    """Effect of each op, float64 [n]."""
    covariance: Tensor
    """Covariance of the effects' errors, float64 [n, n]."""


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
