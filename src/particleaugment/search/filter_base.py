"""What a filter is: frozen settings, and a step from one immutable state to the next.

A new filter is one file in this folder: a class derived from :class:`Filter` with its settings, a class derived from
:class:`FilterState` with everything that it remembers, and a class derived from :class:`FilterRecord` with what a step
reports. :class:`particleaugment.ParticleAugment` and ``train`` know filters by what is declared here alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from particleaugment.policies.policy import Policy
from particleaugment.trainee.protocol import Progress, Trainee
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["Filter", "FilterRecord", "FilterState", "Subject"]


@dataclass(frozen=True, kw_only=True)
class FilterState:
    """Everything that a filter remembers; a step returns another one.

    Attributes:
        seed: Seed of every draw.
        ops: Names of the ops that the policy draws from.
        steps: Steps taken.
        skipped: Steps whose measurement could not be used.
    """

    seed: int
    ops: tuple[str, ...]
    steps: int = 0
    skipped: int = 0

    def to_dict(self) -> dict[str, Tensor | int | float]:
        """Return what steps change, as tensors and plain numbers."""
        return {"steps": self.steps, "skipped": self.skipped}

    def restored(self, saved: Mapping[str, Any]) -> Self:
        """Return a first state as it was when :meth:`to_dict` was called."""
        return replace(self, steps=int(saved["steps"]), skipped=int(saved["skipped"]))


@dataclass(frozen=True, kw_only=True)
class FilterRecord:
    """What one step measured and did, for people; each filter adds its own fields.

    Attributes:
        step: Number of the step, from 1.
        skip_reason: One sentence that says why the measurement was not used, or None.
        ops_per_image: Mean number of ops per image under the new policy.
        seconds: Time per phase.
    """

    step: int
    skip_reason: str | None = None
    ops_per_image: float
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a step measures: a network after an epoch of training, and the samples that it trains on.

    Attributes:
        trainee: The network; measuring leaves it as it was, bit for bit.
        labels: Class labels of all samples, held-out ones included.
        split: The samples that are trained on and those that are held out; None where none are.
        training_loss: Mean training loss of the epoch under augmentation; None if unknown, which happens only to
            filters that do not need it.
        snapshot: Memory to restore the network after a clone's training, reused from step to step.
        progress: Called after every batch; may raise to stop.
    """

    trainee: Trainee
    labels: Tensor
    split: tuple[Tensor, Tensor] | None = None
    training_loss: float | None = None
    snapshot: Snapshot = field(default_factory=Snapshot)
    progress: Progress = lambda phase, done, total: None


State = TypeVar("State", bound=FilterState)


class Filter(ABC, Generic[State]):
    """A filter's settings and its algorithm; subclasses are frozen dataclasses that check themselves.

    Attributes:
        kind: Its name in configurations, on the command line and in tables.
        trains_clone: Whether a step trains a copy of the network, which takes an optimizer.
        needs_training_loss: Whether a step needs :attr:`Subject.training_loss`. Loops then have to call
            :meth:`particleaugment.ParticleAugment.observe` for every batch; ``train`` knows the loss anyway.
        every: Epochs between steps. ``auto``: every epoch, or in ``train`` about a hundred steps if epochs are short.
        warmup: First epoch that may end with a filter step.
        measure_size: Samples that a step measures on: a number or a fraction, or ``auto`` if the filter offers it. A
            filter that measures nothing need not have it.
    """

    kind: ClassVar[str]
    trains_clone: ClassVar[bool] = False
    needs_training_loss: ClassVar[bool] = False
    every: int | str
    warmup: int
    measure_size: int | float | str

    @abstractmethod
    def init(self, seed: int, ops: tuple[str, ...], epochs: int) -> State:
        """Return the state that a search of so many epochs starts from."""

    @abstractmethod
    def policy(self, state: State) -> Policy:
        """Return the policy that training samples are augmented by."""

    @abstractmethod
    def step(self, state: State, subject: Subject, *, epoch: int, epochs: int) -> tuple[State, FilterRecord]:
        """Measure the network after an epoch and return the next state, and what was measured and done.

        Args:
            state: The state before the step.
            subject: What can be measured.
            epoch: The epoch that was just trained, counted from 1.
            epochs: Length of the training run.
        """

    @abstractmethod
    def schedule(self, history: Sequence[tuple[int, State]], epochs: int) -> Policy:
        """Return the policies of a run of so many epochs as one.

        Args:
            history: First epochs, in rising order, and the states in force from them on.
            epochs: Length of the run.
        """

    def held_out_of(self, samples: int) -> int | float:
        """Return how many of so many samples are held out for measuring, as a number or a fraction; 0 for none."""
        return 0

    def holds_out_in(self, epoch: int, epochs: int) -> bool:
        """Whether they are left out of training in an epoch, if there are any; by default in all."""
        return True

    def check(self, ops: tuple[str, ...], epochs: int) -> None:
        """Raise a ValueError where the settings do not suit the ops, or a run of so many epochs."""

    def check_data(self, labels: Tensor, split: tuple[Tensor, Tensor] | None, seed: int) -> None:
        """Raise a ValueError where a step could not be taken with samples of these labels; see :class:`Subject`."""

    def check_loss(self, loss: Callable[..., Any]) -> None:
        """Raise a ValueError where a step cannot measure with this loss function."""

    @property
    def interval(self) -> int:
        """Epochs from one step to the next, as a number."""
        return self.every if isinstance(self.every, int) else 1

    def at_every(self, epochs: int) -> Self:
        """Return the filter with steps at every so many epochs."""
        return replace(self, every=epochs)  # type: ignore[type-var]

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether a step follows an epoch, counted from 1, of a run of ``epochs``; none follows the last."""
        return epoch >= self.warmup and epoch % self.interval == 0 and epoch < epochs
