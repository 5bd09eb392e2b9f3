"""What filters of particles have in common: their state, their record and their schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from particleaugment import filter as pf
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.schedule import Schedule, ScheduleStep
from particleaugment.search.filter_base import FilterRecord, FilterState

__all__ = ["ParticleRecord", "ParticleState", "particle_schedule"]


@dataclass(frozen=True, kw_only=True)
class ParticleState(FilterState):
    """A filter's particles and their weights.

    Attributes:
        particles: Particles, each a probability per op, and their log-weights.
    """

    particles: pf.ParticleSet

    def to_dict(self) -> dict[str, Tensor | int | float]:
        """Return what steps change, as tensors and plain numbers."""
        return super().to_dict() | {
            "particles": self.particles.particles,
            "log_weights": self.particles.log_weights,
        }

    def restored(self, saved: Mapping[str, Any]) -> Self:
        """Return a first state as it was when :meth:`to_dict` was called."""
        particles = pf.ParticleSet(saved["particles"], saved["log_weights"])
        return replace(super().restored(saved), particles=particles)


@dataclass(frozen=True, kw_only=True)
class ParticleRecord(FilterRecord):
    """What a step did to particles.

    Attributes:
        effective_sample_size: N_eff after the update, before resampling.
        resampled: Whether the particles were resampled.
    """

    effective_sample_size: float
    resampled: bool = False


def particle_schedule(policies: Iterable[tuple[int, ParticlePolicy]], epochs: int, m: float) -> Schedule:
    """Return policies of one level ``m``, ops and order, each with its first epoch, as a schedule."""
    listed = list(policies)
    steps = tuple(ScheduleStep(start, policy.particles, policy.weights) for start, policy in listed)
    last = listed[-1][1]
    return Schedule(steps, epochs, None, m, last.semantics, last.order, last.ops)
