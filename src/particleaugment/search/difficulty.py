"""A filter that keeps training about as hard as new samples are.

A network memorises its augmented training samples if they are far easier than new, plain ones. If they are far harder,
it wastes capacity on augmentation. So the filter controls one number, the strength of a uniform mixture of ops. One
step:

1. *measurement*: the difficulty, which is the epoch's mean training loss under augmentation divided by the mean loss on
   a few plain held-out samples. Training computes the first anyway. The second takes one or two small forward passes,
   and is averaged over a twentieth of training;
2. *error*: the logarithm of wanted over measured difficulty. Policies of similar difficulty are about equally good, so
   one of up to :data:`TOLERANCE` counts as none; beyond that, its excess is clipped to [-1, 1];
3. *doubt*: if augmentation destroys the labels from the start, training and held-out loss are equally high, and
   difficulty looks right. But then the network is sure of no held-out sample; see :func:`nothing_is_certain`. The error
   is -1 then;
4. *update*: strength changes by a factor, whose logarithm is the error times ``speed`` over the number of steps;
5. *brake*: if the training loss falls more slowly than training time passes, the run is too short to learn under
   augmentation, and strength drops at once; see :func:`lag`.

Only the held-out loss is averaged: it is noisy, and hardly depends on current strength. The training loss responds to
strength at once, and averaging it would make strength overshoot. The response is about linear, so a factor has the same
effect at every strength, where a fixed amount would make low strengths oscillate.

The wanted difficulty falls over training. Early on, every policy has a difficulty near 1, since both losses are near
chance; later, a network that never sees a sample unchanged still learns its training samples better than new ones.

Strength is the mean number of ops per image. Each image gets between zero and twice that number, all counts equally
likely, so some images stay plain while others change a lot. In the last fifth of training strength is fixed, and the
network trains on all samples. Over the last twentieth, augmentation fades out, so that the network ends on samples like
those that it will be used on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from particleaugment.core.op_table import OPS
from particleaugment.filter._checks import as_real
from particleaugment.policies.mixture import FADED, Mixture, MixtureSchedule, even_counts
from particleaugment.policies.trivial import TrivialAugment
from particleaugment.search.checks import check_count, check_moments, check_size
from particleaugment.search.filter_base import Filter, FilterRecord, FilterState, Subject
from particleaugment.search.plain_losses import held_out_losses
from particleaugment.search.training_signs import (
    LEAST_LOSS,
    averaged,
    expected_loss,
    lag,
    loss_of_chance,
    nothing_is_certain,
)

__all__ = ["DifficultyFilter", "DifficultyRecord", "DifficultyState", "tolerated"]

STEERED = 0.8
"""Share of training over which strength is steered and samples are held out."""
MEMORY = 0.05
"""Share of training over which held-out losses are averaged."""
SHORT, LONG = 50, 100
"""Numbers of epochs up to which a run starts without augmentation, and from which it starts at full strength."""
FULL = 2.0
"""Mean number of ops per image that long runs start at."""
FEWEST, MOST = 64, 1024
"""Bounds on the number of held-out samples if ``measure_size`` is ``auto`` and there are enough samples."""
TOLERANCE = 0.4
"""Error up to which strength stays as it is: training may be one and a half times as hard or as easy as wanted."""
INFORMED = 0.4
"""Share of training after which strength rises at full speed; before that, difficulty is near 1 under every policy."""
FASTEST = 0.5
"""Largest logarithm of the factor by which strength changes in one step."""
BELOW = 0.25
"""Added to strength before it is multiplied, so that it can reach 0 and leave it again."""
BRAKE = 2.0
"""Most ops per image that the brake removes in one step."""


@dataclass(frozen=True, kw_only=True)
class DifficultyState(FilterState):
    """The strength, and the averaged held-out loss that controls it.

    Attributes:
        strength: Mean number of ops per image.
        held_out_loss: Averaged loss on the held-out samples; 0 before the first measurement.
        applied: Share of the strength that is applied, less than 1 while augmentation fades out.
    """

    strength: float = 0.0
    held_out_loss: float = 0.0
    applied: float = 1.0

    def to_dict(self) -> dict[str, Tensor | int | float]:
        """Return what steps change, as plain numbers."""
        numbers = {name: getattr(self, name) for name in ("strength", "held_out_loss", "applied")}
        return super().to_dict() | numbers

    def restored(self, saved: Mapping[str, Any]) -> Self:
        """Return a first state as it was when :meth:`to_dict` was called."""
        strength, held_out_loss, applied = (float(saved[name]) for name in ("strength", "held_out_loss", "applied"))
        if not 0 <= held_out_loss < math.inf:
            raise ValueError(f"held_out_loss must be a finite number that is not negative, got {held_out_loss}")
        if not 0 < applied <= 1:
            raise ValueError(f"applied must be above 0 and at most 1, got {applied}")
        return replace(super().restored(saved), strength=strength, held_out_loss=held_out_loss, applied=applied)


@dataclass(frozen=True, kw_only=True)
class DifficultyRecord(FilterRecord):
    """What a step measured and did.

    Attributes:
        strength: Mean number of ops per image after the step, before it fades out.
        training_loss: Mean training loss of the epoch under augmentation.
        held_out_loss: Expected loss on new samples, estimated from the held-out ones; None in the last fifth of
            training.
        difficulty: Training loss divided by the averaged held-out loss.
        wanted: The wanted difficulty; None in the last fifth of training.
    """

    strength: float
    training_loss: float | None = None
    held_out_loss: float | None = None
    difficulty: float | None = None
    wanted: float | None = None


@dataclass(frozen=True, kw_only=True)
class DifficultyFilter(Filter[DifficultyState]):
    """Steers the strength of augmentation so that training stays about as hard as new samples are.

    ``measure_size`` samples are held out for the first four fifths of training.

    Attributes:
        difficulty: Wanted ratio of training loss under augmentation to loss on plain held-out samples, after four
            fifths of training. Strength stays as it is if difficulty is within a factor of 1.5 of that.
        early_difficulty: Wanted ratio at the start; it falls linearly to ``difficulty``.
        speed: How far the logarithm of strength could move over the whole run if the error were always 1.
        start: Strength at the start. ``auto``: 0 for runs of up to 50 epochs, 2 from 100 epochs on, and in proportion
            in between.
        slots: Maximum number of ops per image; twice the highest strength.
        every: Epochs between filter steps. ``auto``: every epoch, or about a hundred steps if epochs are short.
        warmup: First epoch that may end with a filter step.
        measure_size: Held-out samples: a number, or a fraction of the data. ``auto``: 1 %, at least 64 and at most
            1,024, but never more than a twentieth of the data.
        semantics: Name of the mapping from level to argument.

    >>> filter = DifficultyFilter()
    >>> filter.wanted(epoch=0, epochs=100), filter.wanted(epoch=80, epochs=100)
    (1.1, 0.85)
    >>> state = filter.init(seed=0, ops=("Rotate", "Color"), epochs=100)
    >>> memorising = filter.updated(state, training_loss=0.1, held_out_loss=1.0, epoch=50, epochs=100)
    >>> state.strength, round(memorising.strength, 3)
    (2.0, 3.107)
    """

    difficulty: float = 0.85
    early_difficulty: float = 1.1
    speed: float = 40.0
    start: float | str = "auto"
    slots: int = 8
    every: int | str = "auto"
    warmup: int = 1
    measure_size: int | float | str = "auto"
    semantics: str = "timm-increasing"

    kind: ClassVar[str] = "difficulty"
    needs_training_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("slots", self.slots, 2, 64)
        for name in ("difficulty", "early_difficulty"):
            as_real(name, getattr(self, name), "it is the wanted ratio of two losses", low=1e-3, high=1e3)
        as_real("speed", self.speed, "it is how far the logarithm of strength could move over the run", low=0.0)
        if not isinstance(self.start, str):
            as_real("start", self.start, "it is the mean number of ops per image", low=0.0, high=self.strongest)
        elif self.start != "auto":
            raise ValueError(f"start must be auto, or the mean number of ops per image, got {self.start!r}")
        check_moments(self.every, self.warmup)
        if self.measure_size != "auto":
            check_size("measure_size", self.measure_size)

    # The algorithm.

    def init(self, seed: int, ops: tuple[str, ...], epochs: int) -> DifficultyState:
        """Return the state that a search starts from; by default its ops are TrivialAugment's."""
        drawn = TrivialAugment.ops if ops == OPS else ops
        return DifficultyState(seed=seed, ops=drawn, strength=self.first_strength(epochs))

    def first_strength(self, epochs: int) -> float:
        """Return the strength that a run starts at.

        A network memorises samples that it sees often. In a run of few epochs there is little to prevent, and no time
        to recover from a start that was too strong; strength rises later if training turns out too easy.

        >>> filter = DifficultyFilter()
        >>> filter.first_strength(epochs=40), filter.first_strength(epochs=60), filter.first_strength(epochs=250)
        (0.0, 0.4, 2.0)
        """
        if isinstance(self.start, str):
            return min(self.strongest, FULL * max(0.0, min(1.0, (epochs - SHORT) / (LONG - SHORT))))
        return self.start

    def policy(self, state: DifficultyState) -> Mixture:
        """Return a mixture that applies as many ops per image, on average, as the strength says."""
        slots = even_counts(state.applied * state.strength, self.slots)
        return Mixture(slots=slots, ops=state.ops, semantics=self.semantics)

    def step(
        self, state: DifficultyState, subject: Subject, *, epoch: int, epochs: int
    ) -> tuple[DifficultyState, DifficultyRecord]:
        """Take one step; see the top of this file."""
        applied = min(1.0, max(1, epochs - epoch) / (FADED * epochs))
        state = replace(state, steps=state.steps + 1, applied=applied)
        if not self.holds_out_in(epoch, epochs):
            return state, self.record(state)
        assert subject.training_loss is not None  # needs_training_loss says so
        start = time.perf_counter()
        losses = held_out_losses(subject)
        chance = loss_of_chance(subject.labels)
        held_out_loss, seconds = expected_loss(losses, chance), {"measure": time.perf_counter() - start}
        for name, loss in (("held-out", held_out_loss), ("training", subject.training_loss)):
            if math.isfinite(loss):
                continue
            reason = f"the {name} loss is {loss}, so the difficulty is unknown"
            state = replace(state, skipped=state.skipped + 1)
            return state, self.record(state, skip_reason=reason, seconds=seconds)
        state = self.updated(
            state,
            subject.training_loss,
            held_out_loss,
            epoch=epoch,
            epochs=epochs,
            chance=chance,
            doubt=nothing_is_certain(losses, chance),
        )
        return state, self.record(
            state,
            training_loss=subject.training_loss,
            held_out_loss=held_out_loss,
            difficulty=subject.training_loss / state.held_out_loss,
            wanted=self.wanted(epoch, epochs),
            seconds=seconds,
        )

    def wanted(self, epoch: int, epochs: int) -> float:
        """Return the difficulty that is wanted after an epoch."""
        share = min(1.0, epoch / (STEERED * epochs))
        return self.early_difficulty + share * (self.difficulty - self.early_difficulty)

    def updated(
        self,
        state: DifficultyState,
        training_loss: float,
        held_out_loss: float,
        *,
        epoch: int,
        epochs: int,
        chance: float = math.inf,
        doubt: bool = False,
    ) -> DifficultyState:
        """Return the state after two losses were measured.

        Args:
            state: The state before.
            training_loss: Mean training loss of the epoch under augmentation.
            held_out_loss: Mean loss on the held-out samples.
            epoch: The epoch, counted from 1.
            epochs: Length of the run.
            chance: Loss of a network that has learned nothing, if known.
            doubt: Whether the network is sure of no held-out sample.
        """
        steps, done = epochs / self.interval, epoch / epochs
        held_out_loss = averaged(held_out_loss, state.held_out_loss, MEMORY * steps)
        error = math.log(self.wanted(epoch, epochs) * held_out_loss / max(training_loss, LEAST_LOSS))
        error = max(-1.0, min(1.0, math.copysign(max(0.0, abs(error) - TOLERANCE), error)))
        if error > 0:
            error *= min(1.0, done / INFORMED)
        if doubt:
            error = -1.0
        rate = self.speed / steps
        strength = (state.strength + BELOW) * math.exp(min(FASTEST, rate) * error) - BELOW
        behind = lag(training_loss, chance, done)
        if behind < 0:
            strength = min(strength, state.strength + min(BRAKE, 2 * rate) * behind)
        strength = max(0.0, min(self.strongest, strength))
        return replace(state, strength=strength, held_out_loss=held_out_loss)

    def record(self, state: DifficultyState, **found: Any) -> DifficultyRecord:
        """Return the record of a step."""
        density = self.policy(state).ops_per_image
        return DifficultyRecord(step=state.steps, strength=state.strength, ops_per_image=density, **found)

    def schedule(self, history: Sequence[tuple[int, DifficultyState]], epochs: int) -> MixtureSchedule:
        """Return all mixtures so far as a schedule."""
        mixtures = [(start, self.policy(state)) for start, state in history]
        steps = tuple((start, mixture.level, mixture.slots) for start, mixture in mixtures)
        return MixtureSchedule(steps, epochs, ops=mixtures[-1][1].ops, semantics=self.semantics)

    @property
    def strongest(self) -> float:
        """The highest strength."""
        return self.slots / 2

    # What it needs.

    def held_out_of(self, samples: int) -> int | float:
        """Return how many samples are held out."""
        if isinstance(self.measure_size, str):
            return max(2, min(samples // 20, max(FEWEST, min(MOST, samples // 100))))
        return self.measure_size

    def holds_out_in(self, epoch: int, epochs: int) -> bool:
        """Whether they are left out of training in an epoch."""
        return epoch - 1 < STEERED * epochs

    def check(self, ops: tuple[str, ...], epochs: int) -> None:
        """Raise a ValueError where the settings do not suit the ops."""
        self.policy(self.init(0, ops, epochs))

    def check_loss(self, loss: Callable[..., Any]) -> None:
        """Raise a ValueError where the loss of a perfect network would not be 0."""
        smoothing = getattr(loss, "label_smoothing", 0) or getattr(loss, "keywords", {}).get("label_smoothing", 0)
        if smoothing:
            raise ValueError(
                f"step's loss has label_smoothing={smoothing:g}, which hides how sure the network is of held-out "
                "samples; pass it without, such as nn.CrossEntropyLoss(reduction='none')"
            )


def tolerated(wanted: float) -> tuple[float, float]:
    """Return the lowest and the highest difficulty at which strength stays as it is.

    >>> [round(bound, 2) for bound in tolerated(0.9)]
    [0.6, 1.34]
    """
    return wanted * math.exp(-TOLERANCE), wanted * math.exp(TOLERANCE)
