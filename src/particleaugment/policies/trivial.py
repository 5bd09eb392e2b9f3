"""TrivialAugment: one op, one level, both uniform; nothing to tune. Several such ops per image, where wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from particleaugment.core.op_table import op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import (
    RESAMPLE_CHOICES,
    Draws,
    Policy,
    by_name,
    checked_choice,
    checked_count,
    checked_ops,
    checked_size,
    get_semantics,
)
from particleaugment.policies.rand import _indices
from particleaugment.policies.tables import Draw, DrawTables, both_signs

__all__ = ["TrivialAugment"]

_OPS = (
    ("Identity", "AutoContrast", "Equalize", "Rotate", "Solarize", "Color", "Posterize", "Contrast", "Brightness")
    + ("Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY")
)  # fmt: skip
_SPACES = {"wide": "trivial-wide", "standard": "trivial-standard"}


@dataclass(frozen=True, repr=False)
class TrivialAugment(Policy):
    """One op per image, or ``n`` of them, each drawn uniformly at a level drawn uniformly from 31.

    Attributes:
        space: ``wide`` (the published recommendation) or ``standard``.
        resample: ``default`` leaves the filter to ``apply``; ``random`` draws bilinear or bicubic per image.
        ops: The ops to draw from; the published fourteen if not given.
        n: Ops per image, drawn independently; the published policy applies one.

    >>> TrivialAugment().sample(torch.arange(5)).op.shape
    torch.Size([5, 1])
    >>> TrivialAugment(n=2).sample(torch.arange(5)).op.shape
    torch.Size([5, 2])
    """

    space: str = "wide"
    resample: str = "default"
    ops: tuple[str, ...] = _OPS
    n: int = 1

    kind: ClassVar[str] = "trivialaugment"

    def __post_init__(self) -> None:
        checked_choice("space", self.space, tuple(_SPACES))
        checked_choice("resample", self.resample, RESAMPLE_CHOICES)
        object.__setattr__(self, "ops", checked_ops(self.ops))
        if checked_count("n", self.n, 64) < 1:
            raise ValueError("n must be at least 1; for no op at all use Identity()")
        for name in self.ops:
            get_semantics(self.semantics).rule(name)

    def __repr__(self) -> str:
        several = "" if self.n == 1 else f", n={self.n}"
        return f"TrivialAugment(space={self.space!r}, resample={self.resample!r}{several})"

    @property
    def semantics(self) -> str:
        """Name of the mapping from level to argument."""
        return _SPACES[self.space]

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image, on average."""
        return by_name(self.ops, [self.n / len(self.ops)] * len(self.ops))

    def with_ops(self, ops: tuple[str, ...]) -> Self:
        """Return the policy with other ops; see :meth:`Policy.with_ops`."""
        return replace(self, ops=ops)

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples; see :meth:`Policy.sample`."""
        mapping = get_semantics(self.semantics)
        slots = {Stream.OP: self.n, Stream.LEVEL: self.n, Stream.SIGN: self.n}
        slots[Stream.INTERPOLATION] = self.n if self.resample == "random" else 0
        draws = Draws(ids, epoch, seed, slots)
        choice = draws.choice(Stream.OP, len(self.ops))
        levels = draws.choice(Stream.LEVEL, int(mapping.top) + 1).to(torch.float64)
        arg = mapping.arguments(self.ops, choice, levels, draws.signs(), checked_size(size))
        return Program.trusted(_indices(self.ops, ids.device)[choice], arg, draws.resample())

    def tables(self, size: tuple[int, int]) -> DrawTables:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        count = int(get_semantics(self.semantics).top) + 1
        choice = torch.arange(len(self.ops), device="cpu").repeat_interleave(count)
        levels = torch.arange(count, dtype=torch.float64, device="cpu").repeat(len(self.ops))
        return DrawTables(
            Draw.RANDOM_LEVELS,
            self.n,
            torch.tensor(op_indices(self.ops), device="cpu"),
            both_signs(self.semantics, self.ops, choice, levels, size),
            choices=len(self.ops),
            levels=count,
            random_code=self.resample == "random",
        )

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        mapping = get_semantics(self.semantics)
        return DrawPlan(
            kind=Draw.RANDOM_LEVELS,
            slots=self.n,
            ops=self.ops,
            mapping=mapping,
            levels=[float(level) for level in range(int(mapping.top) + 1)],
            random_code=self.resample == "random",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain JSON data."""
        changed: dict[str, Any] = {} if self.ops == _OPS else {"ops": list(self.ops)}
        changed |= {} if self.n == 1 else {"n": self.n}
        return {"kind": self.kind, "space": self.space, "resample": self.resample, **changed}

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(space=data["space"], resample=data["resample"], ops=tuple(data.get("ops", _OPS)), n=data.get("n", 1))
