"""The op table: what each op is called, what its argument means, and which arguments are valid.

An op's argument is always in physical units. How a *level* on some published scale becomes such an argument is the
business of :mod:`particleaugment.core.semantics`; how an argument becomes pixels, of the executors. Ops of one's own
are added by :func:`register` and kept in :mod:`particleaugment.core.registry`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from particleaugment.util.hints import nearest_name

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from particleaugment.core.semantics import LevelRule

__all__ = [
    "AUTHORS_OPS",
    "AUTOAUGMENT_OPS",
    "NO_UP_OPS",
    "OPS",
    "OP_SETS",
    "TABLE",
    "Kind",
    "Op",
    "by_index",
    "check_argument",
    "check_size",
    "lookup",
    "named_set",
    "op_indices",
    "register",
]


class Kind(Enum):
    """How an op computes a pixel; executors dispatch on it."""

    NONE = "the image itself"
    POINTWISE = "a table of 256 values fixed by the argument"
    HISTOGRAM = "a table of 256 values per channel, made from the image's histogram"
    BLEND = "a blend of the image with a colourless, flat or black version of itself"
    NEIGHBOURHOOD = "a blend of the image with its 3x3 smoothing"
    GEOMETRIC = "an affine resampling"
    MIRROR = "the pixel at the mirrored place"
    PATCH = "a rectangle of one colour, whose place the program holds"
    OWN = "a function that was registered"


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
        values: The only valid arguments, where not every number from ``low`` to ``high`` is one.
    """

    name: str
    index: int
    kind: Kind
    unit: str
    signed: bool
    low: float
    high: float
    neutral: float | None = None
    values: tuple[float, ...] = ()

    @property
    def takes_argument(self) -> bool:
        """Whether the argument means anything; ops without one store 0."""
        return bool(self.unit)

    @property
    def valid(self) -> str:
        """The valid arguments in words; empty for an op without one.

        >>> lookup("Posterize").valid, lookup("Rotate90").valid
        ('0 to 8', '90, 180 or 270')
        """
        if not self.takes_argument:
            return ""
        *first, last = (f"{value:g}" for value in self.values or (self.low, self.high))
        return f"{', '.join(first)} or {last}" if self.values else f"{first[0]} to {last}"


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
    ("Cutout", Kind.PATCH, "side as a fraction of the width", False, 0, 1, None),
    ("FlipX", Kind.MIRROR, "", False, 0, 0, None),
    ("FlipY", Kind.MIRROR, "", False, 0, 0, None),
    ("Rotate90", Kind.GEOMETRIC, "degrees, counter-clockwise", False, 90, 270, None),
)
_VALUES: Mapping[str, tuple[float, ...]] = {"Rotate90": (90.0, 180.0, 270.0)}

TABLE: tuple[Op, ...] = tuple(Op(row[0], i, *row[1:], _VALUES.get(row[0], ())) for i, row in enumerate(_ROWS))
"""Every built-in op by index: the paper's fifteen, then Invert, Cutout, FlipX, FlipY and Rotate90."""

OPS: tuple[str, ...] = tuple(op.name for op in TABLE[:15])
"""The paper's fifteen op names in their order of application."""

AUTHORS_OPS: tuple[str, ...] = (
    ("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast")
    + ("Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY")
)  # fmt: skip
"""The ops of the code that the paper's authors released, which are timm's: Invert, and no Identity."""

AUTOAUGMENT_OPS: tuple[str, ...] = (
    ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "AutoContrast", "Invert", "Equalize", "Solarize")
    + ("Posterize", "Contrast", "Color", "Brightness", "Sharpness", "Cutout")
)  # fmt: skip
"""AutoAugment's sixteen without SamplePairing, which mixes two images; they need a semantics that defines Cutout."""

NO_UP_OPS: tuple[str, ...] = (*OPS, "FlipX", "FlipY", "Rotate90")
"""The paper's fifteen, flips and quarter turns: for square images without an up, from a satellite or a microscope."""

OP_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"paper": OPS, "authors": AUTHORS_OPS, "autoaugment": AUTOAUGMENT_OPS, "no-up": NO_UP_OPS}
)
"""The op sets that have a name."""

_OPS_BY_INDEX = list(TABLE)
_BY_NAME = {op.name: op for op in TABLE}

IDENTITY = _BY_NAME["Identity"].index


def lookup(name: str) -> Op:
    """Return the table row of an op.

    >>> lookup("Posterize").unit
    'bits kept'
    """
    op = _BY_NAME.get(name) if isinstance(name, str) else None
    if op is None:
        hint = nearest_name(name, _BY_NAME) or f"; the ops are {', '.join(_BY_NAME)}"
        raise ValueError(f"there is no op named {name!r}{hint}; register your own ops with pa.ops.register first")
    return op


def by_index(index: int) -> Op:
    """Return the row of an op by its number in ``Program.op``.

    >>> by_index(3).name
    'Rotate'
    """
    if not 0 <= index < len(_OPS_BY_INDEX):
        raise ValueError(f"there is no op number {index}; ops are numbered 0 to {len(_OPS_BY_INDEX) - 1}")
    return _OPS_BY_INDEX[index]


def all_ops() -> tuple[Op, ...]:
    """Return every op, built in and registered, in the order of their indices."""
    return tuple(_OPS_BY_INDEX)


def named_set(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return op names as they are, or the op set if its name stands alone.

    >>> named_set(("authors",)) == AUTHORS_OPS
    True
    >>> named_set(("Rotate", "Invert"))
    ('Rotate', 'Invert')
    """
    return OP_SETS[names[0]] if len(names) == 1 and names[0] in OP_SETS else names


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
    if not op.low <= value <= op.high or (op.values and value not in op.values):
        shown = repr(value) if op.values else f"{value:g}"  # 90.0000001 must not read as 90
        raise ValueError(f"{op.name} takes {op.valid} ({op.unit}), got {shown}")
    return float(value)


def check_size(names: Iterable[str], size: tuple[int, int]) -> None:
    """Raise a ValueError if one of some ops does not take images of a height and width.

    >>> check_size(["Rotate", "FlipX"], (32, 48))
    >>> check_size(["Rotate90"], (32, 48))
    Traceback (most recent call last):
    ...
    ValueError: Rotate90 takes square images, got 32x48 pixels; crop or resize them, or omit Rotate90
    """
    height, width = size
    if height != width and "Rotate90" in names:
        raise ValueError(
            f"Rotate90 takes square images, got {height}x{width} pixels; crop or resize them, or omit Rotate90"
        )


def register(
    name: str,
    batch: Callable[[Tensor, Tensor], Tensor],
    *,
    unit: str = "",
    low: float = 0.0,
    high: float = 0.0,
    signed: bool = False,
    neutral: float | None = None,
    pillow: Callable[[Image, float], Image] | None = None,
    levels: Mapping[str, LevelRule | tuple[float, float]] | None = None,
    keeps_places: bool = False,
) -> Op:
    """Add your own op; policies, particles, programs and policy files then accept its name.

    It runs on the executors ``batch`` and, with a Pillow function, ``pil``. Every process that uses it must register
    it, so call this at import time of a module: data-loader workers started by spawn import the modules they need.
    Registering a name again replaces the op.

    Args:
        name: The op's name.
        batch: Takes images, uint8 ``[B, 3, H, W]`` on any device, and arguments, float64 ``[B]``, and returns the new
            images, treating each image on its own and leaving its input as it is.
        unit: The argument's unit; without one the op takes no argument, and gets zeros.
        low: Smallest valid argument.
        high: Largest valid argument.
        signed: Whether policies give the argument a random sign.
        neutral: An argument at which the op changes nothing.
        pillow: The same op as a function of an RGB Pillow image and an argument.
        levels: By name of a semantics, the argument at level 0 and at the top level, or a ``LevelRule``. Without it
            the argument goes linearly, in every semantics, from ``neutral`` (or 0 if signed, or ``low``) to ``high``.
        keeps_places: Whether it leaves every object where it is, as a change of colour does. Only then can it be
            applied to images that come with masks, boxes or keypoints.

    >>> import particleaugment as pa
    >>> def mirror(images, _):
    ...     return images.flip(-1)
    >>> pa.ops.register("Mirror", mirror, pillow=lambda image, _: image.transpose(0)).kind.value
    'a function that was registered'
    >>> pa.ops.check("Mirror").differing
    0
    >>> pa.RandAugment(n=1, m=4, ops=(*pa.OPS, "Mirror")).ops[-1]
    'Mirror'
    """
    from particleaugment.core import registry

    return registry.register(name, batch, unit, (low, high), signed, neutral, pillow, levels, keeps_places)
