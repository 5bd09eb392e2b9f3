"""The op table: what each op is called, what its argument means, and which arguments are valid.

An op's argument is always in physical units. How a *level* on some published scale becomes such an argument is the
business of :mod:`particleaugment.semantics`; how an argument becomes pixels, of :mod:`particleaugment.coefficients` and
the executors.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["OPS", "TABLE", "Kind", "Op", "check_argument", "lookup", "nearest_name", "op_indices"]


class Kind(Enum):
    """How an op computes a pixel; executors dispatch on it."""

    NONE = "the image itself"
    POINTWISE = "a table of 256 values fixed by the argument"
    HISTOGRAM = "a table of 256 values per channel, made from the image's histogram"
    BLEND = "a blend of the image with a colourless, flat or black version of itself"
    NEIGHBOURHOOD = "a blend of the image with its 3x3 smoothing"
    GEOMETRIC = "an affine resampling"


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table.

    Attributes:
        name: The op's name in policies, programs and files.
        index: Its number in ``Program.op``.
        kind: How it computes a pixel.
        unit: The unit of its argument; empty for an op without one.
        signed: Whether policies give the argument a random sign.
        low: Smallest valid argument.
        high: Largest valid argument.
        neutral: An argument at which the op changes nothing (``None`` where there is no such argument).
    """

    name: str
    index: int
    kind: Kind
    unit: str
    signed: bool
    low: float
    high: float
    neutral: float | None = None

    @property
    def takes_argument(self) -> bool:
        """Whether the argument means anything; ops without one store 0."""
        return bool(self.unit)


_ROWS: tuple[tuple[str, Kind, str, bool, float, float, float | None], ...] = (
    ("Identity", Kind.NONE, "", False, 0, 0, 0),
    ("AutoContrast", Kind.HISTOGRAM, "", False, 0, 0, None),
    ("Equalize", Kind.HISTOGRAM, "", False, 0, 0, None),
    ("Rotate", Kind.GEOMETRIC, "degrees, counter-clockwise", True, -360, 360, 0),
    ("Solarize", Kind.POINTWISE, "threshold from which pixels are inverted", False, 0, 256, 256),
    ("SolarizeAdd", Kind.POINTWISE, "value added to pixels under 128", False, 0, 255, 0),
    ("Color", Kind.BLEND, "factor", False, 0, 10, 1),
    ("Contrast", Kind.BLEND, "factor", False, 0, 10, 1),
    ("Brightness", Kind.BLEND, "factor", False, 0, 10, 1),
    ("Sharpness", Kind.NEIGHBOURHOOD, "factor", False, 0, 10, 1),
    ("ShearX", Kind.GEOMETRIC, "pixels sideways per pixel down", True, -2, 2, 0),
    ("ShearY", Kind.GEOMETRIC, "pixels down per pixel sideways", True, -2, 2, 0),
    ("TranslateX", Kind.GEOMETRIC, "fraction of the width", True, -2, 2, 0),
    ("TranslateY", Kind.GEOMETRIC, "fraction of the height", True, -2, 2, 0),
    ("Posterize", Kind.POINTWISE, "bits kept", False, 0, 8, 8),
    ("Invert", Kind.POINTWISE, "", False, 0, 0, None),
)

TABLE: tuple[Op, ...] = tuple(Op(row[0], index, *row[1:]) for index, row in enumerate(_ROWS))
"""Every op, in the order of their indices: the paper's fifteen, then Invert."""

OPS: tuple[str, ...] = tuple(op.name for op in TABLE[:15])
"""The paper's fifteen op names in their order of application."""

_BY_NAME = {op.name: op for op in TABLE}

IDENTITY = _BY_NAME["Identity"].index


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the valid name closest to ``name``, or nothing if none is close.

    >>> nearest_name("rotate", OPS)
    '; did you mean Rotate?'
    """
    candidates = {candidate.lower(): candidate for candidate in valid}
    close = difflib.get_close_matches(str(name).lower(), candidates, n=1)
    return f"; did you mean {candidates[close[0]]}?" if close else ""


def lookup(name: str) -> Op:
    """Return the table row of an op.

    >>> lookup("Posterize").unit
    'bits kept'
    """
    op = _BY_NAME.get(name) if isinstance(name, str) else None
    if op is None:
        hint = nearest_name(name, _BY_NAME) or f"; the ops are {', '.join(_BY_NAME)}"
        raise ValueError(f"there is no op named {name!r}{hint}")
    return op


def op_indices(names: Iterable[str]) -> tuple[int, ...]:
    """Return the table indices of the named ops.

    >>> op_indices(["Identity", "Invert"])
    (0, 15)
    """
    return tuple(lookup(name).index for name in names)


def check_argument(op: Op, value: float) -> float:
    """Return ``value`` as the float that a program stores for ``op``, or raise a ValueError that says what is valid.

    >>> check_argument(lookup("Rotate"), 12)
    12.0
    >>> check_argument(lookup("Equalize"), 7)
    0.0
    """
    try:
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the argument of {op.name} must be a number, got {value!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"the argument of {op.name} must be finite, got {value}")
    if not op.takes_argument:
        return 0.0
    if not op.low <= value <= op.high:
        raise ValueError(f"{op.name} takes {op.low:g} to {op.high:g} ({op.unit}), got {value:g}")
    return float(value)
