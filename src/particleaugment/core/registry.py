"""Ops of one's own: what :func:`particleaugment.ops.register` keeps."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from particleaugment.core import op_table, semantics
from particleaugment.core.op_table import TABLE, Kind, Op

__all__ = ["check_places", "names_in", "register", "run_batch", "run_pillow"]

BatchFunction = Callable[[Tensor, Tensor], Tensor]
PillowFunction = Callable[[Image.Image, float], Image.Image]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class _Functions(NamedTuple):
    batch: BatchFunction
    pillow: PillowFunction | None
    keeps_places: bool


_FUNCTIONS: dict[int, _Functions] = {}


def register(
    name: str,
    batch: BatchFunction,
    unit: str,
    valid: tuple[float, float],
    signed: bool,
    neutral: float | None,
    pillow: PillowFunction | None,
    levels: Mapping[str, semantics.LevelRule | tuple[float, float]] | None,
    keeps_places: bool,
) -> Op:
    """Add an op to the table; see :func:`particleaugment.core.op_table.register`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"an op's name is a word of letters, digits and underscores, got {name!r}")
    known = op_table._BY_NAME.get(name)
    if known is not None and known.kind is not Kind.OWN:
        raise ValueError(f"{name} is built in; choose another name for your op")
    for role, function in (("batch", batch), ("pillow", pillow)):
        if not callable(function) and not (role == "pillow" and function is None):
            raise TypeError(f"{role} of {name} must be a function, got {type(function).__name__}")
        _check_signature(name, role, function)
    low, high = _checked_range(name, unit, valid, signed)
    if neutral is not None and not low <= neutral <= high:
        raise ValueError(f"neutral of {name} must be in its range {low:g} to {high:g}, got {neutral!r}")
    rules = _checked_levels(name, levels, (low, high), signed, neutral)
    index = len(op_table._OPS_BY_INDEX) if known is None else known.index
    op = Op(name, index, Kind.OWN, unit, signed, low, high, neutral)
    if known is None:
        op_table._OPS_BY_INDEX.append(op)
    op_table._OPS_BY_INDEX[index] = op_table._BY_NAME[name] = op
    _FUNCTIONS[index] = _Functions(batch, pillow, keeps_places)
    semantics.define_own(name, rules)
    return op


_GIVEN = {
    "batch": "images, uint8 [B, 3, H, W], and arguments, float64 [B]",
    "pillow": "a Pillow image and an argument",
}


def _check_signature(name: str, role: str, function: object) -> None:
    """Refuse a function that cannot be called with an image and an argument, both by position."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # None, or a function written in C that does not say
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(
            f"{role} of {name} is called with {_GIVEN[role]}, but takes {signature}; give it these two parameters"
        ) from None


def _checked_range(name: str, unit: str, valid: tuple[float, float], signed: bool) -> tuple[float, float]:
    low, high = (float(bound) for bound in valid)
    if not unit:
        if low or high or signed:
            raise ValueError(f"{name} has a range or a sign but no unit; pass unit=...")
        return 0.0, 0.0
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"the range of {name} must be finite with low below high, got {low:g} to {high:g}")
    if signed and not low < 0 < high:
        raise ValueError(f"{name} is signed, so its range must contain 0, got {low:g} to {high:g}")
    return low, high


def _checked_levels(
    name: str,
    levels: Mapping[str, semantics.LevelRule | tuple[float, float]] | None,
    valid: tuple[float, float],
    signed: bool,
    neutral: float | None,
) -> semantics.LevelRule | dict[str, semantics.LevelRule]:
    if levels is None:
        start = neutral if neutral is not None else 0.0 if signed else valid[0]
        return semantics.LevelRule(valid[1] - start, base=start, signed=signed)
    rules = {}
    for semantics_name, rule in levels.items():
        semantics.get(semantics_name)
        if not isinstance(rule, semantics.LevelRule):
            try:
                start, end = (float(value) for value in rule)
            except (TypeError, ValueError):
                raise ValueError(
                    f"the levels of {name} in {semantics_name} must be the arguments at level 0 and at the top level, "
                    f"or a LevelRule, got {rule!r}"
                ) from None
            rule = semantics.LevelRule(end - start, base=start, signed=signed)
        rules[semantics_name] = rule
    return rules


def names_in(op: Tensor) -> tuple[str, ...]:
    """Return the registered ops among op indices ``[B, K]``; looks at the values only if some op is registered."""
    if not _FUNCTIONS or op.numel() == 0 or int(op.max()) < len(TABLE):
        return ()
    return tuple(op_table.by_index(index).name for index in torch.unique(op[op >= len(TABLE)]).tolist())


def check_places(names: Iterable[str]) -> None:
    """Raise a ValueError if one of some registered ops may move objects, which masks and boxes could not follow."""
    for name in names:
        if not _FUNCTIONS[op_table.lookup(name).index].keeps_places:
            raise ValueError(
                f"{name} is a registered op, which masks, boxes and keypoints cannot follow; if it moves no pixels, "
                "register it with keeps_places=True, otherwise remove it"
            )


def run_batch(index: int, images: Tensor, arg: Tensor) -> Tensor:
    """Apply a registered op to images, uint8 ``[B, 3 or 1, H, W]``; grey ones go through as three equal channels."""
    result = _FUNCTIONS[index].batch(images.expand(-1, 3, -1, -1).contiguous(), arg)
    expected = (len(images), 3, *images.shape[2:])
    if not isinstance(result, Tensor) or result.dtype != torch.uint8 or tuple(result.shape) != expected:
        got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(
            f"the batch function of {op_table.by_index(index).name} must return uint8 {expected}, got {got}"
        )
    return result[:, : images.shape[1]].to(images.device)


def run_pillow(index: int, image: Image.Image, arg: float) -> Image.Image:
    """Apply a registered op to an RGB image by its Pillow function."""
    name, function = op_table.by_index(index).name, _FUNCTIONS[index].pillow
    if function is None:
        raise ValueError(f"{name} has no Pillow function; register it with pillow=..., or use executor 'batch'")
    result = function(image.copy(), arg)
    if not isinstance(result, Image.Image) or result.size != image.size or result.mode != "RGB":
        got = f"{result.mode} {result.size}" if isinstance(result, Image.Image) else type(result).__name__
        raise TypeError(f"the Pillow function of {name} must return an RGB image of size {image.size}, got {got}")
    return result
