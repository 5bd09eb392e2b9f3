"""Controls for comparisons: the filters with one part removed, to find out what that part is worth."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.core.random import Stream, uniform
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.search.difficulty import DifficultyFilter, DifficultyRecord, DifficultyState
from particleaugment.search.filter_base import Subject
from particleaugment.search.paper import PaperFilter, PaperState, ParticleRecord

__all__ = [
    "AuthorsFilter",
    "FrozenDifficultyFilter",
    "FrozenPaperFilter",
    "ShuffledPaperFilter",
    "UnskippedPaperFilter",
]


@dataclass(frozen=True, kw_only=True)
class FrozenDifficultyFilter(DifficultyFilter):
    """Control: the difficulty filter at its initial strength, nothing measured."""

    kind: ClassVar[str] = "difficulty-frozen"
    needs_training_loss: ClassVar[bool] = False

    @classmethod
    def of(cls, filter: DifficultyFilter) -> Self:
        """Return the control of a filter."""
        return cls(**_settings(filter))

    def step(
        self, state: DifficultyState, subject: Subject, *, epoch: int, epochs: int
    ) -> tuple[DifficultyState, DifficultyRecord]:
        """Leave the strength as it is."""
        state = replace(state, steps=state.steps + 1)
        return state, self.record(state)

    def held_out_of(self, samples: int) -> int | float:
        """Return 0: nothing is measured."""
        return 0


class _PaperControl(PaperFilter):
    @classmethod
    def of(cls, filter: PaperFilter) -> Self:
        """Return the control of a filter."""
        return cls(**_settings(filter))


@dataclass(frozen=True, kw_only=True)
class FrozenPaperFilter(_PaperControl):
    """Control: the paper's transition alone, nothing measured and no weight updated."""

    kind: ClassVar[str] = "paper-frozen"
    trains_clone: ClassVar[bool] = False

    def step(
        self, state: PaperState, subject: Subject, *, epoch: int, epochs: int
    ) -> tuple[PaperState, ParticleRecord]:
        """Move the particles."""
        moved = self.moved(state)
        return moved, ParticleRecord(
            step=moved.steps,
            effective_sample_size=pf.effective_sample_size(moved.particles),
            ops_per_image=self.policy(moved).ops_per_image,
        )

    def held_out_of(self, samples: int) -> int | float:
        """Return 0: nothing is measured."""
        return 0

    def check_data(self, labels: Tensor, split: tuple[Tensor, Tensor] | None, seed: int) -> None:
        """Any data will do."""


@dataclass(frozen=True, kw_only=True)
class ShuffledPaperFilter(_PaperControl):
    """Control: the paper's filter with δ permuted among the particles, so selection without information."""

    kind: ClassVar[str] = "paper-shuffled"

    def scores(self, noised: PaperState, delta: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Return δ and its errors in another order."""
        ids = torch.arange(len(delta), device="cpu")
        order = uniform(noised.seed, Stream.SHUFFLE, epoch=noised.steps, ids=ids, slots=1)[:, 0].argsort()
        return delta[order], errors[order]


@dataclass(frozen=True, kw_only=True)
class UnskippedPaperFilter(_PaperControl):
    """The paper's filter without the rule that skips steps; if d0 is negative, the update inverts the ranking."""

    kind: ClassVar[str] = "paper-unskipped"

    def skip_reason(self, found: pf.LossDifference) -> str | None:
        """Skip only what cannot be computed with."""
        return None if bool(found.delta.isfinite().all()) else found.skip_reason


@dataclass(frozen=True, kw_only=True)
class AuthorsFilter(PaperFilter):
    """What the authors' released code does: the filter reset before every step, ops gated twice, level 10.

    Every step starts again from the initial particles, a chosen op is applied only with probability 1/2, the level is
    always 10, and resampling is multinomial.
    """

    m: float = 10.0
    start_value: float = 0.5
    resampling: str = "multinomial"

    kind: ClassVar[str] = "paper-authors"

    @classmethod
    def of(cls, filter: PaperFilter) -> Self:
        """Return what the authors' code makes of a filter."""
        own = ("m", "start_value", "resampling")
        return cls(**{name: value for name, value in _settings(filter).items() if name not in own})

    def policy(self, state: PaperState) -> ParticlePolicy:
        """Return the particles with their probabilities halved."""
        policy = super().policy(state)
        return replace(policy, particles=policy.particles / 2)

    def moved(self, state: PaperState) -> PaperState:
        """Return the first particles after the transition."""
        first = self.scattered(state.seed, state.ops)
        return super().moved(replace(state, particles=first.particles))


def _settings(filter: PaperFilter | DifficultyFilter) -> dict[str, Any]:
    return {field.name: getattr(filter, field.name) for field in fields(filter)}
