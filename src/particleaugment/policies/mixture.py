"""Mixtures: images get different numbers of ops, drawn uniformly, at levels drawn uniformly up to a maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from particleaugment.core.op_table import lookup, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import (
    RESAMPLE_CHOICES,
    Draws,
    Policy,
    by_name,
    checked_choice,
    checked_fraction,
    checked_ops,
    checked_size,
    get_semantics,
    listed,
)
from particleaugment.policies.rand import _indices
from particleaugment.policies.schedule import EpochPolicies
from particleaugment.policies.subpolicies import SubPolicies
from particleaugment.policies.tables import Draw, DrawTables, both_signs
from particleaugment.policies.trivial import TrivialAugment

__all__ = ["Mixture", "MixtureSchedule", "even_counts"]

FADED = 0.05
"""Share of training, at its end, over which a learned mixture fades out."""
_LEVELS = 31  # steps from no level to the highest
_EXPORTED = 256  # sub-policies that stand for a mixture in other libraries


def even_counts(mean: float, slots: int) -> tuple[float, ...]:
    """Return the slots of a mixture whose images get between zero and twice the mean number of ops, uniformly.

    If twice the mean is not a whole number, it is a blend of the two nearest ones.

    Args:
        mean: Mean number of ops per image, from 0 to half of ``slots``.
        slots: Maximum number of ops per image.

    >>> even_counts(1.5, 4)  # none, one, two or three, a quarter of the images each
    (0.75, 0.5, 0.25, 0.0)
    """
    if not 0 <= mean <= slots / 2:
        raise ValueError(f"the mean number of ops per image must be from 0 to {slots / 2:g}, got {mean}")
    most = int(2 * mean)
    above = 2 * mean - most
    return tuple(
        (1 - above) * max(0.0, 1 - k / (most + 1)) + above * max(0.0, 1 - k / (most + 2)) for k in range(1, slots + 1)
    )


@dataclass(frozen=True, repr=False)
class Mixture(Policy):
    """Up to a few ops per image, drawn uniformly, each at a level drawn uniformly from 0 to the highest.

    The number of ops is drawn for each image, so some images stay plain while others change a lot. An op without a
    level, such as Equalize, is applied with the mixture's level as probability. So a mixture of level 0 does nothing.

    Attributes:
        slots: Probability that an image gets at least one op, at least two, and so on; a program has as many slots.
        level: Highest level, as a fraction of the semantics' top.
        ops: The ops to draw from; TrivialAugment's fourteen if not given.
        semantics: Name of the mapping from level to argument.
        resample: ``default`` leaves the filter to ``apply``; ``random`` draws bilinear or bicubic per op.

    >>> mixture = Mixture(slots=(1.0, 0.4), level=0.5)
    >>> mixture.sample(torch.arange(5)).op.shape
    torch.Size([5, 2])
    >>> mixture
    Mixture(1.20 ops per image, level=0.5, 14 ops, semantics='trivial-wide')
    """

    slots: tuple[float, ...] = (1.0,)
    level: float = 1.0
    ops: tuple[str, ...] = TrivialAugment.ops
    semantics: str = "trivial-wide"
    resample: str = "default"

    kind: ClassVar[str] = "mixture"
    learned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        mapping = get_semantics(self.semantics)
        if not isinstance(self.slots, (list, tuple)) or not 1 <= len(self.slots) <= 64:
            raise ValueError(f"slots must be 1 to 64 probabilities, one per op of an image, got {self.slots!r}")
        checked = {
            "slots": _falling(self.slots),
            "level": checked_fraction("level", self.level),
            "ops": checked_ops(self.ops),
            "semantics": mapping.name,
            "resample": checked_choice("resample", self.resample, RESAMPLE_CHOICES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name in self.ops:
            mapping.rule(name)
            if name == "Cutout":
                raise ValueError("a mixture cannot contain Cutout, whose position would have to be drawn too")

    def _gates(self) -> Tensor:
        """Probability that a slot applies an op once that is drawn, float64 ``[slots, ops]``."""
        slots = torch.tensor(self.slots, dtype=torch.float64, device="cpu")
        # At level 0 nothing is applied: Solarize would still invert what is white.
        instead = [float(self.level > 0) if _has_level(name) else self.level for name in self.ops]
        return slots[:, None] * torch.tensor(instead, dtype=torch.float64, device="cpu")

    def _levels(self) -> Tensor:
        """The levels that are drawn from, float64 ``[steps]``."""
        steps = torch.arange(_LEVELS, dtype=torch.float64, device="cpu")
        return steps * (self.level * get_semantics(self.semantics).top / (_LEVELS - 1))

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples; see :meth:`Policy.sample`."""
        count = len(self.slots)
        streams = dict.fromkeys((Stream.OP, Stream.LEVEL, Stream.SIGN), count) | {Stream.GATE: 1}
        streams[Stream.INTERPOLATION] = count if self.resample == "random" else 0
        draws, device = Draws(ids, epoch, seed, streams), ids.device
        choice = draws.choice(Stream.OP, len(self.ops))
        levels = self._levels().to(device)[draws.choice(Stream.LEVEL, _LEVELS)]
        arguments = get_semantics(self.semantics).arguments(self.ops, choice, levels, draws.signs(), checked_size(size))
        applied = draws[Stream.GATE] < self._gates().to(device)[torch.arange(count, device=device), choice]
        op = torch.where(applied, _indices(self.ops, device)[choice], 0)
        return Program.trusted(op, torch.where(applied, arguments, 0.0), draws.resample())

    def tables(self, size: tuple[int, int]) -> DrawTables:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        choice = torch.arange(len(self.ops), device="cpu").repeat_interleave(_LEVELS)
        return DrawTables(
            Draw.RANDOM_LEVELS,
            len(self.slots),
            torch.tensor(op_indices(self.ops), device="cpu"),
            both_signs(self.semantics, self.ops, choice, self._levels().repeat(len(self.ops)), size),
            gate=self._gates().contiguous(),
            choices=len(self.ops),
            levels=_LEVELS,
            random_code=self.resample == "random",
        )

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        return DrawPlan(
            kind=Draw.RANDOM_LEVELS,
            slots=len(self.slots),
            ops=self.ops,
            mapping=get_semantics(self.semantics),
            levels=self._levels().tolist(),
            gates=self._gates().flatten().tolist(),
            random_code=self.resample == "random",
        )

    @property
    def counts(self) -> tuple[float, ...]:
        """Share of images that get no op, one, two, and so on; Identity counts as an op.

        >>> Mixture(slots=(0.75, 0.5, 0.25)).counts
        (0.25, 0.25, 0.25, 0.25)
        """
        return tuple(more - less for more, less in pairwise((1.0, *self.slots, 0.0)))

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image, on average."""
        return by_name(self.ops, (self._gates().sum(0) / len(self.ops)).tolist())

    def with_ops(self, ops: tuple[str, ...]) -> Self:
        """Return the mixture with other ops; see :meth:`Policy.with_ops`."""
        return replace(self, ops=ops)

    def static(self, epoch: int | None = None) -> tuple[Policy, list[str]]:
        """Return TrivialAugment where that is the same, or else some of its draws; see :meth:`Policy.static`."""
        self.at_or_last(epoch)
        trivial = TrivialAugment(ops=self.ops, resample=self.resample, n=len(self.slots))
        if self.level == 1.0 and set(self.slots) == {1.0} and self.semantics == trivial.semantics:
            return trivial, []
        count = len(self.slots)
        streams = dict.fromkeys((Stream.OP, Stream.LEVEL), count) | {Stream.GATE: 1}
        draws = Draws(torch.arange(_EXPORTED, device="cpu"), 0, 0, streams)
        choice = draws.choice(Stream.OP, len(self.ops))
        applied = draws[Stream.GATE] < self._gates()[torch.arange(count, device="cpu"), choice]
        levels = self._levels()[draws.choice(Stream.LEVEL, _LEVELS)]
        rows = tuple(
            tuple((self.ops[op], 1.0, level) for op, level, kept in zip(*row) if kept and self.ops[op] != "Identity")
            for row in zip(choice.tolist(), levels.tolist(), applied.tolist())
        )
        lost = [f"the mixture itself ({_EXPORTED} draws of its ops and levels stand for it)"]
        return SubPolicies(rows, self.semantics, 0.0, self.resample), lost

    def numbers(self) -> Tensor:
        """Return the level and the slots' probabilities; see :meth:`Policy.numbers`."""
        return torch.tensor([self.level, *self.slots], dtype=torch.float64, device="cpu")

    def with_numbers(self, numbers: Tensor) -> Self:
        """Return the mixture with another level and other probabilities; see :meth:`Policy.with_numbers`."""
        level, *slots = numbers.tolist()
        return replace(self, level=level, slots=tuple(slots))

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        names = ("level", "semantics", "resample")
        return cls(slots=listed(data, "slots"), ops=listed(data, "ops"), **{name: data[name] for name in names})

    def __repr__(self) -> str:
        return (
            f"Mixture({self.ops_per_image:.2f} ops per image, level={self.level:g}, {len(self.ops)} ops, "
            f"semantics={self.semantics!r})"
        )


def _falling(slots: Any) -> tuple[float, ...]:
    found = tuple(checked_fraction("a probability of slots", slot) for slot in slots)
    if any(after > before for before, after in pairwise(found)):
        raise ValueError(
            "slots must not increase, since an image with two ops also has at least one, "
            f"got {', '.join(map(str, found))}"
        )
    return found


def _has_level(name: str) -> bool:
    # The turns of Rotate90 are drawn by level, but there is none that turns less.
    return lookup(name).takes_argument and name != "Rotate90"


@dataclass(frozen=True, repr=False)
class MixtureSchedule(EpochPolicies[Mixture]):
    """Mixtures of the same ops by epoch.

    Attributes:
        steps: First epoch, highest level and slots of each mixture, in rising order of epochs.
        epochs: Length of the run that it was recorded on.
        replay_epochs: Length of the run that it is replayed on; epochs are rescaled if it differs.
        ops: The ops to draw from.
        semantics: Name of the mapping from level to argument.

    >>> schedule = MixtureSchedule(((1, 0.0, (1.0, 0.0)), (6, 1.0, (1.0, 0.5))), epochs=10)
    >>> schedule.at(5).ops_per_image, round(schedule.at(6).ops_per_image, 2)
    (0.0, 1.39)
    """

    steps: tuple[tuple[int, float, tuple[float, ...]], ...]
    epochs: int
    replay_epochs: int | None = None
    ops: tuple[str, ...] = TrivialAugment.ops
    semantics: str = "trivial-wide"
    _mixtures: tuple[Mixture, ...] = field(init=False, compare=False)

    kind: ClassVar[str] = "mixture-schedule"

    def __post_init__(self) -> None:
        self._check()
        mixtures = tuple(
            Mixture(slots=slots, level=level, ops=self.ops, semantics=self.semantics) for _, level, slots in self.steps
        )
        if len({len(mixture.slots) for mixture in mixtures}) > 1:
            raise ValueError("the mixtures of a schedule must have the same number of slots")
        object.__setattr__(self, "_mixtures", mixtures)
        steps = tuple((start, mixture.level, mixture.slots) for start, mixture in zip(self.starts, mixtures))
        for name, value in (("steps", steps), ("ops", mixtures[0].ops), ("semantics", mixtures[0].semantics)):
            object.__setattr__(self, name, value)

    def settled(self, last: int) -> int:
        """Return the last epoch before the mixture fades out, where it does."""
        settled = max(1, math.floor((1 - FADED) * last))
        ended = last == (self.replay_epochs or self.epochs)
        return settled if ended and self.at(settled) != self.at(last) else last

    @property
    def starts(self) -> tuple[int, ...]:
        """First epochs of the mixtures."""
        return tuple(step[0] for step in self.steps)

    @property
    def policies(self) -> tuple[Mixture, ...]:
        """The mixtures that are in force from these epochs on."""
        return self._mixtures

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain JSON data."""
        replay = {} if self.replay_epochs is None else {"replay_epochs": self.replay_epochs}
        return {
            "kind": self.kind,
            "epochs": self.epochs,
            **replay,
            "semantics": self.semantics,
            "ops": list(self.ops),
            "steps": [
                {"from_epoch": start, "level": mixture.level, "slots": list(mixture.slots)}
                for start, mixture in zip(self.starts, self.policies)
            ],
        }

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        steps = []
        for number, step in enumerate(listed(data, "steps")):
            try:
                steps.append((step["from_epoch"], step["level"], tuple(step["slots"])))
            except (KeyError, TypeError):
                raise ValueError(f"step {number} must hold from_epoch, level and slots") from None
        fields = {name: data[name] for name in ("epochs", "semantics")}
        return cls(tuple(steps), **fields, replay_epochs=data.get("replay_epochs"), ops=listed(data, "ops"))

    def __repr__(self) -> str:
        length = self.replay_epochs or self.epochs
        return f"MixtureSchedule({len(self.steps)} steps over {length} epochs, {self._mixtures[-1]!r})"
