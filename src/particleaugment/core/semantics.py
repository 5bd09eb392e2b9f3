"""Semantics: how a level on some published scale becomes an op's physical argument.

A semantics is a table with one :class:`LevelRule` per op. Every published mapping has the same shape,

    argument = base ± rounded(level / top · scale)

so adding a semantics is adding a table. ``docs/semantics.md`` compares them. No published mapping has Rotate90, whose
argument has three values; every semantics here gives it the same rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from particleaugment.core.op_table import TABLE, check_size, lookup
from particleaugment.util.hints import nearest_name

__all__ = ["SEMANTICS", "LevelRule", "PatchRule", "Semantics", "get"]


@dataclass(frozen=True, slots=True)
class LevelRule:
    """``base + sign · whole(level / top · scale)``, kept within ``minimum``, ``maximum`` and the op's valid range.

    Attributes:
        scale: What the top level adds to ``base``; negative where the argument falls as the level rises.
        base: The argument at level 0.
        signed: Whether a fair random sign is applied to the scaled level.
        mirrored: Whether the sign is applied to ``base`` as well, that is to the whole argument.
        whole: How the scaled level becomes a whole number: not at all, ``"truncate"`` or ``"round"``.
        minimum: Smallest argument (timm keeps its enhance factors at 0.1 or more).
        maximum: Largest argument (timm adds at most 128 in SolarizeAdd).
        pixels: Whether the scaled level is in pixels, to be divided by the image's side.
        of_side: Whether ``scale`` is a fraction of the side that is made whole in pixels (torchvision's translation).
        turns: Whether the argument is Rotate90's instead: below two thirds of the top level a quarter turn, 90 degrees
            with sign + and 270 with sign -, and 180 from there on.
    """

    scale: float = 0.0
    base: float = 0.0
    signed: bool = False
    mirrored: bool = False
    whole: str = ""
    minimum: float | None = None
    maximum: float | None = None
    pixels: bool = False
    of_side: bool = False
    turns: bool = False


@dataclass(frozen=True, slots=True)
class PatchRule:
    """Where Cutout's square lies, and its colour.

    Attributes:
        colour: Red, green and blue.
        whole_centre: Whether the centre is a pixel of the image and the square reaches half its side, in whole pixels,
            to each direction, its end excluded. Otherwise the centre is a real number from 1 to the side, and the
            corners are cut to whole pixels and both drawn, as Pillow draws a rectangle.
    """

    colour: tuple[int, int, int]
    whole_centre: bool


@dataclass(frozen=True, slots=True, eq=False)
class Semantics:
    """A named table of level rules.

    Attributes:
        name: The name used in policies and files.
        top: The highest level of the scale.
        rules: One rule per op; ops that are missing are not part of this semantics.
        source: Where the mapping was published.
        patch: Where Cutout puts its square, for a semantics that defines it.
    """

    name: str
    top: float
    rules: Mapping[str, LevelRule] = field(repr=False)
    source: str = field(repr=False, default="")
    patch: PatchRule | None = field(repr=False, default=None)

    def rule(self, op_name: str) -> LevelRule:
        """Return the rule of an op, or raise a ValueError if this semantics does not define it."""
        lookup(op_name)
        own = _OWN_RULES.get(op_name, {})
        if isinstance(own, LevelRule):
            return own
        rule = own.get(self.name, self.rules.get(op_name))
        if rule is None:
            others = [name for name, other in SEMANTICS.items() if op_name in other.rules or name in own]
            raise ValueError(
                f"semantics {self.name!r} does not define {op_name}; "
                + (f"these do: {', '.join(others)}" if others else "give it levels in pa.ops.register")
            )
        return rule

    def numbers(self, op_name: str) -> tuple[float, ...]:
        """Return an op's rule in numbers, those of every image size: what single draws are made with.

        >>> get("timm-increasing").numbers("Rotate")[:3]
        (10.0, 30.0, 0.0)
        """
        rule, op = self.rule(op_name), lookup(op_name)
        low = op.low if rule.minimum is None else max(op.low, rule.minimum)
        high = op.high if rule.maximum is None else min(op.high, rule.maximum)
        numbers = (
            self.top, rule.scale, rule.base, rule.of_side, rule.pixels, op_name.endswith("Y"), low, high, rule.signed,
            rule.mirrored, rule.whole == "truncate", rule.whole == "round", rule.turns,
        )  # fmt: skip
        return tuple(float(number) for number in numbers)

    def argument(self, op_name: str, level: float, sign: int = 1, size: tuple[int, int] = (32, 32)) -> float:
        """Return the physical argument of one op at one level.

        >>> get("timm-increasing").argument("Rotate", level=4)
        12.0
        >>> get("timm-increasing").argument("Contrast", level=10, sign=-1)
        0.1
        >>> [get("timm-increasing").argument("Rotate90", level, sign) for level, sign in ((6, 1), (6, -1), (7, -1))]
        [90.0, 270.0, 180.0]
        """
        level_and_sign = torch.tensor([[level], [sign]], dtype=torch.float64, device="cpu")
        choice = torch.zeros(1, dtype=torch.int64, device="cpu")
        return float(self.arguments((op_name,), choice, level_and_sign[0], level_and_sign[1], size))

    def arguments(
        self, op_names: tuple[str, ...], choice: Tensor, levels: Tensor, signs: Tensor, size: tuple[int, int]
    ) -> Tensor:
        """Return the arguments of chosen ops, float64 of the shape of ``choice``.

        Args:
            op_names: The ops to choose from.
            choice: Positions in ``op_names``, int64.
            levels: Float64, broadcastable to ``choice``.
            signs: +1 or -1 in float64, broadcastable to ``choice``; ignored by unsigned rules.
            size: Height and width of the images.
        """
        columns, any_turns = _columns(self, op_names, size, choice.device)
        chosen = columns.gather(1, choice.reshape(1, -1).expand(len(columns), -1)).view(len(columns), *choice.shape)
        top, scale, base, divisor, low, high, signed, mirrored, truncate, rounded, turns = chosen.unbind()
        share = levels / top  # a tensor: CUDA multiplies by the reciprocal of a plain number
        scaled = share * scale
        # level / top is rounded, so a product that should be whole may fall short of it by an ulp.
        nudged = scaled + torch.sign(scaled) * 1e-9
        # Truncation through integers: on a CPU torch.trunc goes to MKL, which wakes threads even for a few numbers, and
        # they then spin for milliseconds on the cores that the executor's own threads need.
        truncated = nudged.to(torch.int64).to(torch.float64)
        scaled = torch.where(truncate > 0, truncated, torch.where(rounded > 0, scaled.round(), scaled))
        scaled = scaled / divisor
        scaled = torch.where(signed > 0, scaled * signs, scaled)
        base = torch.where(mirrored > 0, base * signs, base)
        arguments = base + scaled
        if any_turns:
            quarter = 180.0 - 90.0 * signs
            arguments = torch.where(turns > 0, torch.where(share + 1e-9 < 2.0 / 3.0, quarter, 180.0), arguments)
        return arguments.clamp(min=low, max=high)

    def patches(self, side: Tensor, places: Tensor, size: tuple[int, int]) -> Tensor:
        """Return where Cutout puts its squares, int64 ``[..., 5]``, as :attr:`Program.patch` holds them.

        Args:
            side: The squares' sides as fractions of the width, float64.
            places: Uniforms in [0, 1) of the shape of ``side`` and a last dimension of 2: across and down.
            size: Height and width of the images.
        """
        if self.patch is None:
            raise ValueError(f"semantics {self.name!r} does not define Cutout")
        height, width = size
        pixels = side * width
        across = _span(pixels, places[..., 0], width, self.patch.whole_centre)
        down = _span(pixels, places[..., 1], height, self.patch.whole_centre)
        red, green, blue = self.patch.colour
        colour = torch.full_like(across[0], red << 16 | green << 8 | blue)
        return torch.stack([across[0], down[0], across[1], down[1], colour], dim=-1)


def _span(side: Tensor, place: Tensor, length: int, whole_centre: bool) -> tuple[Tensor, Tensor]:
    """Start and end (excluded) of a square along one axis; both 0 where it has no side."""
    if whole_centre:
        half = side.round().to(torch.int64) // 2
        centre = (place * length).to(torch.int64).clamp(max=length - 1)
        return (centre - half).clamp(min=0), (centre + half).clamp(max=length)
    centre = length + (1.0 - length) * place
    start = (centre - side / 2).clamp(min=0).to(torch.int64)
    end = (start + side).clamp(max=length).to(torch.int64) + 1
    return torch.where(side > 0, start, 0), torch.where(side > 0, end, 0).clamp(max=length)


_OWN_RULES: dict[str, LevelRule | Mapping[str, LevelRule]] = {}


def define_own(op_name: str, rules: LevelRule | Mapping[str, LevelRule]) -> None:
    """Set the levels of a registered op: one rule for every semantics, or rules by the name of the semantics."""
    _OWN_RULES[op_name] = rules
    _columns.cache_clear()


@lru_cache(maxsize=256)
def _columns(
    semantics: Semantics, op_names: tuple[str, ...], size: tuple[int, int], device: torch.device
) -> tuple[Tensor, bool]:
    """The rules of some ops as columns of constants on a device, and whether any turns.

    Cached, so that a captured graph copies nothing.
    """
    check_size(op_names, size)
    height, width = size
    rows = []
    for name in op_names:
        rule, op = semantics.rule(name), lookup(name)
        side = height if name.endswith("Y") else width
        rows.append(
            (
                semantics.top,
                rule.scale * side if rule.of_side else rule.scale,
                rule.base,
                side if rule.pixels or rule.of_side else 1.0,
                op.low if rule.minimum is None else max(op.low, rule.minimum),
                op.high if rule.maximum is None else min(op.high, rule.maximum),
                rule.signed,
                rule.mirrored,
                rule.whole == "truncate",
                rule.whole == "round",
                rule.turns,
            )
        )
    columns = torch.tensor(rows, dtype=torch.float64, device=device).view(len(rows), 11).T.contiguous()
    return columns, any(semantics.rule(name).turns for name in op_names)


_NO_ARGUMENT = {op.name: LevelRule() for op in TABLE if not op.takes_argument}
_ENHANCE = ("Color", "Contrast", "Brightness", "Sharpness")


def _table(
    shear: LevelRule, translate: LevelRule, rotate: LevelRule, enhance: LevelRule, **others: LevelRule
) -> Mapping[str, LevelRule]:
    rules = dict(_NO_ARGUMENT)
    rules |= dict.fromkeys(("ShearX", "ShearY"), shear) | dict.fromkeys(("TranslateX", "TranslateY"), translate)
    rules |= {"Rotate": rotate, "Rotate90": LevelRule(signed=True, turns=True)}
    rules |= dict.fromkeys(_ENHANCE, enhance) | others
    return MappingProxyType(rules)


_TIMM_GEOMETRY = {
    "shear": LevelRule(0.3, signed=True),
    "translate": LevelRule(0.45, signed=True),
    "rotate": LevelRule(30.0, signed=True),
}
_TIMM_ADD = LevelRule(110.0, whole="truncate", maximum=128.0)
_TIMM_FALLING = {"enhance": LevelRule(1.8, base=0.1), "Solarize": LevelRule(256.0, whole="truncate")}


def _torchvision(name: str, top: float, source: str) -> Semantics:
    rules = _table(
        shear=LevelRule(0.3, signed=True),
        translate=LevelRule(150.0 / 331.0, signed=True, whole="truncate", of_side=True),
        rotate=LevelRule(30.0, signed=True),
        enhance=LevelRule(0.9, base=1.0, signed=True),
        Posterize=LevelRule(-4.0, base=8.0, whole="round"),
        Solarize=LevelRule(-255.0, base=255.0),
    )
    return Semantics(name, top, rules, source)


SEMANTICS: Mapping[str, Semantics] = MappingProxyType(
    {
        semantics.name: semantics
        for semantics in (
            Semantics(
                "timm",
                10,
                _table(
                    **_TIMM_GEOMETRY,
                    **_TIMM_FALLING,
                    Posterize=LevelRule(4.0, whole="truncate"),
                    SolarizeAdd=_TIMM_ADD,
                ),
                "timm's RandAugment without inc; its enhance, Posterize and Solarize grow milder as the level rises",
            ),
            Semantics(
                "timm-increasing",
                10,
                _table(
                    **_TIMM_GEOMETRY,
                    enhance=LevelRule(0.9, base=1.0, signed=True, minimum=0.1),
                    Posterize=LevelRule(-4.0, base=4.0, whole="truncate"),
                    Solarize=LevelRule(-256.0, base=256.0, whole="truncate"),
                    SolarizeAdd=_TIMM_ADD,
                ),
                "timm's RandAugment with inc1: severity grows with the level",
            ),
            Semantics(
                "timm-original",
                10,
                _table(
                    **_TIMM_GEOMETRY,
                    **_TIMM_FALLING,
                    Posterize=LevelRule(4.0, base=4.0, whole="truncate"),
                    SolarizeAdd=_TIMM_ADD,
                ),
                "timm's AutoAugment policy 'original': 4 to 8 bits",
            ),
            Semantics(
                "timm-research",
                10,
                _table(
                    **_TIMM_GEOMETRY,
                    **_TIMM_FALLING,
                    Posterize=LevelRule(-4.0, base=4.0, whole="truncate"),
                    SolarizeAdd=_TIMM_ADD,
                ),
                "timm's AutoAugment policies 'originalr' and 'v0r': Posterize falls from 4 bits to 0",
            ),
            _torchvision("torchvision", 30, "torchvision's RandAugment with its 31 bins"),
            _torchvision("torchvision-autoaugment", 9, "torchvision's AutoAugment with its 10 bins"),
            Semantics(
                "trivial-wide",
                30,
                _table(
                    shear=LevelRule(0.99, signed=True),
                    translate=LevelRule(32.0, signed=True, whole="truncate", pixels=True),
                    rotate=LevelRule(135.0, signed=True),
                    enhance=LevelRule(0.99, base=1.0, signed=True),
                    Posterize=LevelRule(-6.0, base=8.0, whole="round"),
                    Solarize=LevelRule(-255.0, base=255.0),
                ),
                "torchvision's TrivialAugmentWide with its 31 bins",
            ),
            Semantics(
                "trivial-standard",
                30,
                _table(
                    shear=LevelRule(0.3, signed=True),
                    translate=LevelRule(10.0, signed=True, whole="truncate", pixels=True),
                    rotate=LevelRule(30.0, signed=True, whole="truncate"),
                    enhance=LevelRule(1.8, base=0.1),
                    Posterize=LevelRule(-4.0, base=8.0, whole="truncate"),
                    Solarize=LevelRule(-256.0, base=256.0, whole="truncate"),
                ),
                "the standard space of the TrivialAugment paper's code, 31 strengths",
            ),
            Semantics(
                "autoaugment-original",
                10,
                _table(
                    shear=LevelRule(0.3, signed=True),
                    translate=LevelRule(10.0, signed=True, whole="truncate", pixels=True),
                    rotate=LevelRule(30.0, signed=True, whole="truncate"),
                    enhance=LevelRule(1.8, base=0.1),
                    Posterize=LevelRule(-4.0, base=4.0, whole="truncate"),
                    Solarize=LevelRule(-256.0, base=256.0, whole="truncate"),
                    Cutout=LevelRule(20.0, whole="truncate", pixels=True),
                ),
                "AutoAugment as first published, for CIFAR-10 in 32x32 pixels",
                PatchRule((125, 122, 113), whole_centre=True),
            ),
            Semantics(
                "fast-autoaugment",
                1,
                _table(
                    shear=LevelRule(0.6, base=-0.3, signed=True, mirrored=True),
                    translate=LevelRule(0.9, base=-0.45, signed=True, mirrored=True),
                    rotate=LevelRule(60.0, base=-30.0, signed=True, mirrored=True),
                    enhance=LevelRule(1.9 - 0.1, base=0.1),
                    Posterize=LevelRule(4.0, base=4.0, whole="truncate"),
                    Solarize=LevelRule(256.0),
                    Cutout=LevelRule(0.2),
                ),
                "Fast AutoAugment's and DADA's; geometric and enhance ops do nothing at level 0.5",
                PatchRule((125, 123, 114), whole_centre=False),
            ),
        )
    }
)
"""Every named semantics."""


def get(name: str | Semantics) -> Semantics:
    """Return a semantics by name.

    >>> get("trivial-wide").top
    30
    """
    if isinstance(name, Semantics):
        return name
    if name not in SEMANTICS:
        hint = nearest_name(name, SEMANTICS) or f"; the semantics are {', '.join(SEMANTICS)}"
        raise ValueError(f"there is no semantics named {name!r}{hint}")
    return SEMANTICS[name]
