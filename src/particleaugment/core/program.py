"""A Program: which ops, with which arguments, each image of a batch goes through.

Policies draw programs and executors run them. A program is plain data, so any policy runs on any executor, and two
executors can be compared pixel by pixel on the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from particleaugment.core.op_table import TABLE, Kind, Op, all_ops, by_index, check_argument, lookup
from particleaugment.util.hints import nearest_name

__all__ = ["RESAMPLING", "Program", "resample_code"]

RESAMPLING: tuple[str, ...] = ("nearest", "bilinear", "bicubic")
"""Names of the resampling filters; a filter's code in a program is its position here."""

UNSET = -1
"""The resampling code of a slot that leaves the choice to ``apply``."""

_CUTOUT = lookup("Cutout").index


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Program:
    """For each of B images, K slots run in order; an unused slot holds Identity with argument 0.

    Attributes:
        op: Op indices, int64 ``[B, K]``; :func:`particleaugment.core.op_table.by_index` gives their rows.
        arg: Arguments in physical units, float64 ``[B, K]``.
        resample: Resampling filter per slot as int64 codes ``[B, K]`` (positions in :data:`RESAMPLING`, -1 for the one
            given to ``apply``), or ``None`` when every slot leaves it to ``apply``.
        patch: What Cutout paints, per slot as int64 ``[B, K, 5]``: left, top, right and bottom edge in pixels (right
            and bottom excluded) and the colour as 0xRRGGBB; ``None`` in a program without Cutout.

    Values on the CPU are checked when a program is made; on a GPU only shapes and types are, since looking at the
    values would stall the device.
    """

    op: Tensor
    arg: Tensor
    resample: Tensor | None = None
    patch: Tensor | None = None

    def __post_init__(self) -> None:
        _check_layout(self.op, self.arg, self.resample, self.patch)
        if self.op.device.type == "cpu":
            object.__setattr__(self, "arg", _checked_values(self.op, self.arg))
            _check_codes(self.resample)
            _check_patch(self.patch)
            if self.patch is None and bool((self.op == _CUTOUT).any()):
                raise ValueError("Cutout paints a rectangle: give the program its patch, or draw it with a policy")

    @classmethod
    def trusted(cls, op: Tensor, arg: Tensor, resample: Tensor | None = None, patch: Tensor | None = None) -> Program:
        """Make a program without looking at its values; for policies, whose draws are valid by construction."""
        program = object.__new__(cls)
        for name, value in (("op", op), ("arg", arg), ("resample", resample), ("patch", patch)):
            object.__setattr__(program, name, value)
        return program

    @classmethod
    def from_ops(cls, rows: Sequence[Sequence[Any]]) -> Program:
        """Make a program from one list per image of ``(name, argument)`` pairs.

        Ops without an argument may be given as a bare name. Cutout is ``("Cutout", side, (left, top, right, bottom),
        (red, green, blue))``: the side is a note, the rectangle is what is painted.

        >>> program = Program.from_ops([[("Rotate", 12.0), ("Posterize", 4)], ["Equalize"], []])
        >>> program.op.shape
        torch.Size([3, 2])
        >>> program.describe(0)
        [('Rotate', 12.0), ('Posterize', 4.0)]
        """
        parsed = [[_parse_pair(pair, row_number) for pair in row] for row_number, row in enumerate(rows)]
        slots = max((len(row) for row in parsed), default=0)
        op = torch.zeros(len(parsed), slots, dtype=torch.int64, device="cpu")
        arg = torch.zeros(len(parsed), slots, dtype=torch.float64, device="cpu")
        patch = torch.zeros(len(parsed), slots, 5, dtype=torch.int64, device="cpu")
        for i, row in enumerate(parsed):
            for k, (index, value, painted) in enumerate(row):
                op[i, k], arg[i, k] = index, value
                if painted != _NO_PATCH:
                    patch[i, k] = torch.tensor(painted, device="cpu")
        return cls.trusted(op, arg, patch=patch if bool((op == _CUTOUT).any()) else None)

    @classmethod
    def cat(cls, programs: Sequence[Program]) -> Program:
        """Join programs with the same number of slots along the batch.

        >>> len(Program.cat([Program.from_ops([["Invert"]]), Program.from_ops([["Equalize"]])]))
        2
        """
        resample = patch = None
        if any(program.resample is not None for program in programs):
            resample = torch.cat([program.resample_or_unset() for program in programs])
        if any(program.patch is not None for program in programs):
            patch = torch.cat([program.patch_or_empty() for program in programs])
        return cls.trusted(torch.cat([p.op for p in programs]), torch.cat([p.arg for p in programs]), resample, patch)

    def to(self, device: torch.device | str) -> Program:
        """Return the program on another device."""
        parts = (self.op, self.arg, self.resample, self.patch)
        # A copy to the CPU that does not wait may be read before the GPU has written it.
        waits = torch.device(device).type == "cpu"
        moved = [None if part is None else part.to(device, non_blocking=not waits) for part in parts]
        return Program.trusted(*moved)  # type: ignore[arg-type]  # op and arg are never None

    def resample_or_unset(self) -> Tensor:
        """Return the resampling codes, with -1 everywhere if the program has none."""
        return torch.full_like(self.op, UNSET) if self.resample is None else self.resample

    def patch_or_empty(self) -> Tensor:
        """Return what Cutout paints, with empty rectangles everywhere if the program has none."""
        return self.op.new_zeros((*self.op.shape, 5)) if self.patch is None else self.patch

    def describe(self, index: int) -> list[tuple[str, float]]:
        """Return the ops of one image as ``(name, argument)`` pairs, Identity left out."""
        pairs = zip(self.op[index].tolist(), self.arg[index].tolist())
        return [(by_index(op).name, arg) for op, arg in pairs if by_index(op).kind is not Kind.NONE]

    def equal(self, other: Program) -> bool:
        """Whether two programs do the same ops with the same arguments, bit for bit."""
        return (
            torch.equal(self.op, other.op)
            and torch.equal(self.arg, other.arg)
            and torch.equal(self.resample_or_unset(), other.resample_or_unset())
            and torch.equal(self.patch_or_empty(), other.patch_or_empty())
        )

    def __len__(self) -> int:
        return int(self.op.shape[0])

    def __getitem__(self, index: slice | Tensor) -> Program:
        if not isinstance(index, (slice, Tensor)):
            raise TypeError(f"a program is indexed by a slice or a tensor, got {type(index).__name__}")
        resample = None if self.resample is None else self.resample[index]
        patch = None if self.patch is None else self.patch[index]
        return Program.trusted(self.op[index], self.arg[index], resample, patch)

    def __repr__(self) -> str:
        batch, slots = self.op.shape
        return f"Program({batch} images, {slots} slots, {self.op.device})"


def resample_code(name: str) -> int:
    """Return the code of a resampling filter.

    >>> resample_code("bicubic")
    2
    """
    if name not in RESAMPLING:
        hint = nearest_name(name, RESAMPLING) or f"; the filters are {', '.join(RESAMPLING)}"
        raise ValueError(f"there is no resampling filter {name!r}{hint}")
    return RESAMPLING.index(name)


_NO_PATCH = (0, 0, 0, 0, 0)
_FARTHEST = 1 << 24  # Pillow takes edges as floats of single precision
_TOO_FAR = f"the edges of a rectangle must lie within {_FARTHEST:,} pixels of 0"


def _parse_pair(pair: Any, row_number: int) -> tuple[int, float, tuple[int, ...]]:
    if isinstance(pair, str):
        op = lookup(pair)
        if op.takes_argument:
            raise ValueError(
                f"{op.name} of image {row_number} needs an argument ({op.unit}): write ({op.name!r}, value)"
            )
        return op.index, 0.0, _NO_PATCH
    if not isinstance(pair, (tuple, list)) or len(pair) not in (2, 4):
        raise ValueError(f"image {row_number}: expected (op name, argument), got {pair!r}")
    op = lookup(pair[0])
    if (op.kind is Kind.PATCH) != (len(pair) == 4):
        raise ValueError(
            f"image {row_number}: expected "
            + (f"({op.name!r}, argument)" if len(pair) == 4 else "('Cutout', side, rectangle, colour)")
            + f", got {pair!r}"
        )
    return op.index, check_argument(op, pair[1]), _parse_patch(pair, row_number) if len(pair) == 4 else _NO_PATCH


def _parse_patch(step: Sequence[Any], row_number: int) -> tuple[int, ...]:
    try:
        left, top, right, bottom = (int(edge) for edge in step[2])
        red, green, blue = (int(value) for value in step[3])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"image {row_number}: Cutout needs (left, top, right, bottom) and (red, green, blue), got {step!r}"
        ) from None
    if not all(abs(edge) <= _FARTHEST for edge in (left, top, right, bottom)):
        raise ValueError(f"image {row_number}: {_TOO_FAR}, got {step[2]!r}")
    if not all(0 <= value <= 255 for value in (red, green, blue)):
        raise ValueError(f"image {row_number}: a colour is three whole numbers from 0 to 255, got {step[3]!r}")
    return left, top, right, bottom, red << 16 | green << 8 | blue


def _check_layout(op: Tensor, arg: Tensor, resample: Tensor | None, patch: Tensor | None) -> None:
    for name, value, dtype in (
        ("op", op, torch.int64),
        ("arg", arg, torch.float64),
        ("resample", resample, torch.int64),
        ("patch", patch, torch.int64),
    ):
        if name in ("resample", "patch") and value is None:
            continue
        if not isinstance(value, Tensor) or value.dtype != dtype:
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"Program.{name} must be a {dtype} tensor, got {kind}")
        shape, layout = ((*op.shape, 5), "[images, slots, 5]") if name == "patch" else (op.shape, "[images, slots]")
        if op.dim() != 2 or value.shape != shape or value.device != op.device:
            raise ValueError(
                f"Program.{name} must have shape {layout} like op and be on its device, "
                f"got {tuple(value.shape)} on {value.device} beside {tuple(op.shape)} on {op.device}"
            )


def _check_codes(resample: Tensor | None) -> None:
    if resample is None or resample.numel() == 0:
        return
    low, high = (int(value) for value in resample.aminmax())
    if low < UNSET or high >= len(RESAMPLING):
        bad = low if low < UNSET else high
        raise ValueError(
            f"there is no resampling filter number {bad}; "
            f"filters are numbered 0 to {len(RESAMPLING) - 1}, and {UNSET} leaves the choice to apply"
        )


def _check_patch(patch: Tensor | None) -> None:
    if patch is None or patch.numel() == 0:
        return
    far = [edge for edge in map(int, patch[..., :4].aminmax()) if not -_FARTHEST <= edge <= _FARTHEST]
    wrong = [colour for colour in map(int, patch[..., 4].aminmax()) if not 0 <= colour <= 0xFFFFFF]
    if far:
        raise ValueError(f"{_TOO_FAR}, got {far[0]}")
    if wrong:
        raise ValueError(f"the colour of a rectangle must be 0xRRGGBB, from 0 to 0xFFFFFF, got {wrong[0]:#x}")


def _checked_values(op: Tensor, arg: Tensor) -> Tensor:
    if op.numel() == 0:
        return arg
    by_index(int(op.min()))
    by_index(int(op.max()))
    low, high, takes_argument = (column[op] for column in _limits(all_ops()))
    valid = torch.isfinite(arg) & ((arg >= low) & (arg <= high) | ~takes_argument)
    for row in TABLE:
        if row.values:
            valid &= (op != row.index) | torch.isin(arg, torch.tensor(row.values, dtype=torch.float64, device="cpu"))
    if not bool(valid.all()):
        image, slot = (int(i) for i in torch.nonzero(~valid)[0])
        try:
            check_argument(by_index(int(op[image, slot])), float(arg[image, slot]))
        except ValueError as error:
            raise ValueError(f"image {image}, slot {slot}: {error}") from None
    return torch.where(takes_argument, arg, torch.zeros_like(arg))


@lru_cache(maxsize=4)
def _limits(ops: tuple[Op, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.tensor([op.low for op in ops], dtype=torch.float64, device="cpu"),
        torch.tensor([op.high for op in ops], dtype=torch.float64, device="cpu"),
        torch.tensor([op.takes_argument for op in ops], device="cpu"),
    )
