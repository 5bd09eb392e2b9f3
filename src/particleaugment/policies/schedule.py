"""Recorded schedules: the policies of a whole training run, replayed on any network at no search cost."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from particleaugment.core.op_table import OPS
from particleaugment.core.program import Program
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.policy import Policy, checked_count, listed, load

__all__ = ["EpochPolicies", "Schedule", "ScheduleStep"]

P = TypeVar("P", bound=Policy)


class EpochPolicies(Policy, Generic[P]):
    """Policies by epoch: what all schedules share.

    A subclass is a frozen dataclass with these fields, and calls :meth:`_check` when it is made.

    Attributes:
        epochs: Length of the run that it was recorded on.
        replay_epochs: Length of the run that it is replayed on; epochs are rescaled if it differs.
    """

    epochs: int
    replay_epochs: int | None
    learned: ClassVar[bool] = True

    @property
    @abstractmethod
    def starts(self) -> Sequence[int]:
        """First epochs of the policies, in rising order; the first policy is in force before its own, too."""

    @property
    @abstractmethod
    def policies(self) -> Sequence[P]:
        """The policies that are in force from these epochs on."""

    def _check(self) -> None:
        if not self.starts:
            raise ValueError("a schedule needs at least one step")
        for name in ("epochs", "replay_epochs"):
            if getattr(self, name) is not None:
                checked_count(name, getattr(self, name), 10**7)
        starts = [checked_count("from_epoch", start, 10**7) for start in self.starts]
        if any(late <= early for early, late in pairwise(starts)):
            raise ValueError("the steps of a schedule must be in rising order of from_epoch")
        if self.epochs < 1 or (self.replay_epochs is not None and self.replay_epochs < 1):
            raise ValueError("a schedule lasts at least one epoch")

    def at(self, epoch: int) -> P:
        """Return the policy of an epoch, counted from 1."""
        if self.replay_epochs is not None and self.replay_epochs != self.epochs:
            epoch = 1 + (max(epoch, 1) - 1) * self.epochs // self.replay_epochs
        return self.policies[max(0, bisect_right(self.starts, epoch) - 1)]

    def at_or_last(self, epoch: int | None) -> P:
        """Return the policy of an epoch that the schedule has, or the one that it settled on."""
        last = self.replay_epochs or self.epochs
        if epoch is not None and not 1 <= epoch <= last:
            raise ValueError(f"the schedule has the epochs 1 to {last}, got {epoch}")
        return self.at(self.settled(last) if epoch is None else epoch)

    def settled(self, last: int) -> int:
        """Return the epoch, up to ``last``, whose policy stands for what was learned so far: the last one."""
        return last

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image in the settled epoch."""
        return self.at_or_last(None).inclusion

    @property
    def ops_per_image(self) -> float:
        """Mean number of ops applied to an image in the settled epoch, Identity not counted."""
        return self.at_or_last(None).ops_per_image

    @property
    def distinct(self) -> int | None:
        """How many different particles it has in the settled epoch; None for policies without particles."""
        return self.at_or_last(None).distinct

    def moments(self, epochs: int) -> list[tuple[str, Policy]]:
        """Return the policies of the first, the middle and the settled epoch; see :meth:`Policy.moments`."""
        return [(f"epoch {epoch}", self.at(epoch)) for epoch in sorted({1, max(1, epochs // 2), self.settled(epochs)})]

    def static(self, epoch: int | None = None) -> tuple[Policy, list[str]]:
        """Return the policy of an epoch, or the settled one, as other libraries know it; see :meth:`Policy.static`."""
        policy, lost = self.at_or_last(epoch).static()
        if len(self.policies) > 1:
            lost = [f"the schedule ({len(self.policies)} policies over the epochs; {self._which(epoch)})", *lost]
        return policy, lost

    def _which(self, epoch: int | None) -> str:
        """Say which policy was taken, and where there was most augmentation if it is not that."""
        last = self.replay_epochs or self.epochs
        settled = self.settled(last)
        chosen = (
            "this is the last" if epoch is None and settled == last else f"this is that of epoch {epoch or settled}"
        )
        here = self.at_or_last(epoch).ops_per_image
        density = {epoch: self.at(epoch).ops_per_image for epoch in range(1, last + 1, 1 + last // 200)}
        densest = max(density, key=lambda epoch: density[epoch])
        if here > 0.5 * density[densest]:
            return chosen
        return f"{chosen}, with {here:.2f} ops per image; epoch {densest} had {density[densest]:.2f}"

    def rescaled(self, epochs: int) -> Self:
        """Return the schedule stretched or shortened to a run of another length."""
        return replace(self, replay_epochs=epochs)  # type: ignore[type-var]

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples under the policy of ``epoch``; see :meth:`Policy.sample`."""
        return self.at(int(epoch)).sample(ids, epoch, seed, size)

    @classmethod
    def load(cls, path: str | Path, epochs: int | None = None) -> EpochPolicies[Any]:  # type: ignore[override]
        """Read a schedule, of whatever policies, from a run's ``policy.json``, for a run of ``epochs`` if given."""
        schedule = load(path)
        if not isinstance(schedule, EpochPolicies):
            raise ValueError(f"{path} holds a policy of kind {schedule.kind!r}, not a schedule; use load_policy")
        return schedule if epochs is None else schedule.rescaled(epochs)


@dataclass(frozen=True, eq=False)
class ScheduleStep:
    """The particles and weights in force from an epoch on.

    Attributes:
        from_epoch: First epoch, counted from 1, that trains under them.
        particles: Application probabilities, float64 ``[r, n]``.
        weights: Float64 ``[r]``.
    """

    from_epoch: int
    particles: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Schedule(EpochPolicies[ParticlePolicy]):
    """A sequence of particle policies by epoch.

    Attributes:
        steps: What changed when, in rising order of ``from_epoch``; the first is in force from epoch 1 (and before).
        epochs: Length of the run it was recorded on.
        replay_epochs: Length of the run it is replayed on; epochs are rescaled if it differs.
        m: Level of all ops, or one per op.
        semantics: Name of the mapping from level to argument.
        order: ``fixed`` or ``random``.
        ops: Op names of the columns.

    >>> import torch
    >>> step = ScheduleStep(1, torch.full((2, 15), 0.1), torch.ones(2))
    >>> late = ScheduleStep(6, torch.full((2, 15), 0.5), torch.ones(2))
    >>> schedule = Schedule((step, late), epochs=10, m=3)
    >>> schedule.at(5).ops_per_image < schedule.at(6).ops_per_image
    True
    >>> schedule.rescaled(20).at(10) == schedule.at(5)
    True
    """

    steps: tuple[ScheduleStep, ...]
    epochs: int
    replay_epochs: int | None = None
    m: float | Sequence[float] = 3.0
    semantics: str = "timm-increasing"
    order: str = "fixed"
    ops: tuple[str, ...] = OPS
    _policies: tuple[ParticlePolicy, ...] = field(init=False)

    kind: ClassVar[str] = "schedule"

    def __post_init__(self) -> None:
        self._check()
        policies = tuple(self._policy(number, step) for number, step in enumerate(self.steps))
        object.__setattr__(self, "_policies", policies)
        for name in ("m", "ops", "semantics"):
            object.__setattr__(self, name, getattr(policies[0], name))

    def _policy(self, number: int, step: ScheduleStep) -> ParticlePolicy:
        try:
            return ParticlePolicy(step.particles, step.weights, self.m, self.semantics, self.order, self.ops)
        except (TypeError, ValueError) as error:
            raise ValueError(f"steps[{number}]: {error}") from None

    @property
    def starts(self) -> tuple[int, ...]:
        """First epochs of the policies."""
        return tuple(step.from_epoch for step in self.steps)

    @property
    def policies(self) -> tuple[ParticlePolicy, ...]:
        """The policies that are in force from these epochs on."""
        return self._policies

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain JSON data."""
        replay = {} if self.replay_epochs is None else {"replay_epochs": self.replay_epochs}
        return {
            "kind": self.kind,
            "epochs": self.epochs,
            **replay,
            "m": list(self.m) if isinstance(self.m, Sequence) else self.m,
            "semantics": self.semantics,
            "order": self.order,
            "ops": list(self.ops),
            "steps": [
                {
                    "from_epoch": step.from_epoch,
                    "weights": policy.weights.tolist(),
                    "particles": policy.particles.tolist(),
                }
                for step, policy in zip(self.steps, self._policies)
            ],
        }

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        steps = []
        for number, step in enumerate(listed(data, "steps")):
            try:
                steps.append(ScheduleStep(step["from_epoch"], step["particles"], step["weights"]))
            except (KeyError, TypeError):
                raise ValueError(f"step {number} must hold from_epoch, particles and weights") from None
        fields = {name: data[name] for name in ("epochs", "m", "semantics", "order")}
        return cls(tuple(steps), **fields, replay_epochs=data.get("replay_epochs"), ops=listed(data, "ops"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        mine, others = ((each.starts, each.epochs, each.replay_epochs, each.policies) for each in (self, other))
        return mine == others

    def __hash__(self) -> int:
        return hash((self.epochs, self.replay_epochs, self._policies))

    def __repr__(self) -> str:
        return (
            f"Schedule({len(self.steps)} steps over {self.replay_epochs or self.epochs} epochs, {self._policies[-1]!r})"
        )
