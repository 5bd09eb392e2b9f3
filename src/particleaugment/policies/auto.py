"""AutoAugment's published sub-policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from torch import Tensor

from particleaugment.core.program import Program
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import Policy, get_semantics
from particleaugment.policies.subpolicies import SubPolicies, SubPolicy
from particleaugment.policies.tables import DrawTables
from particleaugment.util.hints import nearest_name

__all__ = ["PUBLISHED", "AutoAugment", "published"]

# One sub-policy a line: op, probability, level of 0 to 9, twice; levels of ops without an argument are left out.
_CIFAR10 = """
    Invert .1, Contrast .2 6          Rotate .7 2, TranslateX .3 9     Sharpness .8 1, Sharpness .9 3
    ShearY .5 8, TranslateY .7 9      AutoContrast .5, Equalize .9     ShearY .2 7, Posterize .3 7
    Color .4 3, Brightness .6 7       Sharpness .3 9, Brightness .7 9  Equalize .6, Equalize .5
    Contrast .6 7, Sharpness .6 5     Color .7 7, TranslateX .5 8      Equalize .3, AutoContrast .4
    TranslateY .4 3, Sharpness .2 6   Brightness .9 6, Color .2 8      Solarize .5 2, Invert 0
    Equalize .2, AutoContrast .6      Equalize .2, Equalize .6         Color .9 9, Equalize .6
    AutoContrast .8, Solarize .2 8    Brightness .1 3, Color .7 0      Solarize .4 5, AutoContrast .9
    TranslateY .9 9, TranslateY .7 9  AutoContrast .9, Solarize .8 3   Equalize .8, Invert .1
    TranslateY .7 9, AutoContrast .9
"""
_IMAGENET = """
    Posterize .4 8, Rotate .6 9       Solarize .6 5, AutoContrast .6   Equalize .8, Equalize .6
    Posterize .6 7, Posterize .6 6    Equalize .4, Solarize .2 4       Equalize .4, Rotate .8 8
    Solarize .6 3, Equalize .6        Posterize .8 5, Equalize 1       Rotate .2 3, Solarize .6 8
    Equalize .6, Posterize .4 6       Rotate .8 8, Color .4 0          Rotate .4 9, Equalize .6
    Equalize 0, Equalize .8           Invert .6, Equalize 1            Color .6 4, Contrast 1 8
    Rotate .8 8, Color 1 2            Color .8 8, Solarize .8 7        Sharpness .4 7, Invert .6
    ShearX .6 5, Equalize 1           Color .4 0, Equalize .6          Equalize .4, Solarize .2 4
    Solarize .6 5, AutoContrast .6    Invert .6, Equalize 1            Color .6 4, Contrast 1 8
    Equalize .8, Equalize .6
"""
_SVHN = """
    ShearX .9 4, Invert .2            ShearY .9 8, Invert .7           Equalize .6, Solarize .6 6
    Invert .9, Equalize .6            Equalize .6, Rotate .9 3         ShearX .9 4, AutoContrast .8
    ShearY .9 8, Invert .4            ShearY .9 5, Solarize .2 6       Invert .9, AutoContrast .8
    Equalize .6, Rotate .9 3          ShearX .9 4, Solarize .3 3       ShearY .8 8, Invert .7
    Equalize .9, TranslateY .6 6      Invert .9, Equalize .6           Contrast .3 3, Rotate .8 4
    Invert .8, TranslateY 0 2         ShearY .7 6, Solarize .4 8       Invert .6, Rotate .8 4
    ShearY .3 7, TranslateX .9 3      ShearX .1 6, Invert .6           Solarize .7 2, TranslateY .6 7
    ShearY .8 4, Invert .8            ShearX .7 9, TranslateY .8 3     ShearY .8 5, AutoContrast .7
    ShearX .7 2, Invert .1
"""
# The ImageNet policy of the EfficientNet code, which timm calls v0; its levels go to 10.
_V0 = """
    Equalize .8, ShearY .8 4          Color .4 9, Equalize .6          Color .4 1, Rotate .6 8
    Solarize .8 3, Equalize .4        Solarize .4 2, Solarize .6 2     Color .2 0, Equalize .8
    Equalize .4, SolarizeAdd .8 3     ShearX .2 9, Rotate .6 8         Color .6 1, Equalize 1
    Invert .4, Rotate .6 0            Equalize 1, ShearY .6 3          Color .4 7, Equalize .6
    Posterize .4 6, AutoContrast .4   Solarize .6 8, Color .6 9        Solarize .2 4, Rotate .8 9
    Rotate 1 7, TranslateY .8 9       ShearX 0 0, Solarize .8 4        ShearY .8 0, Color .6 4
    Color 1 0, Rotate .6 2            Equalize .8, Equalize 0          Equalize 1, AutoContrast .6
    ShearY .4 7, SolarizeAdd .6 7     Posterize .8 2, Solarize .6 10   Solarize .6 8, Equalize .6
    Color .8 6, Rotate .4 5
"""
PUBLISHED: Mapping[str, str] = {"cifar10": _CIFAR10, "imagenet": _IMAGENET, "svhn": _SVHN, "v0": _V0}
"""The published lists, by name."""


@cache
def published(name: str) -> tuple[SubPolicy, ...]:
    """Return a published list of sub-policies.

    >>> published("cifar10")[1]
    (('Rotate', 0.7, 2.0), ('TranslateX', 0.3, 9.0))
    """
    pairs = [pair.strip() for line in PUBLISHED[name].splitlines() for pair in line.split("  ") if pair.strip()]
    return tuple(tuple(_step(step) for step in pair.split(",")) for pair in pairs)


def _step(text: str) -> tuple[str, float, float]:
    op, probability, *level = text.split()
    return op, float(probability), float(level[0]) if level else 0.0


@dataclass(frozen=True)
class AutoAugment(Policy):
    """AutoAugment with the sub-policies published for a data set.

    Attributes:
        name: ``cifar10``, ``imagenet`` or ``svhn``.
        semantics: Name of the mapping from level to argument; torchvision's by default.

    >>> import torch
    >>> AutoAugment("cifar10").sample(torch.arange(3)).op.shape
    torch.Size([3, 2])
    """

    name: str = "imagenet"
    semantics: str = "torchvision-autoaugment"

    kind: ClassVar[str] = "autoaugment"

    def __post_init__(self) -> None:
        names = [name for name in PUBLISHED if name != "v0"]
        if self.name not in names:
            hint = nearest_name(self.name, names) or f"; the policies are {', '.join(names)}"
            raise ValueError(f"AutoAugment published no policy named {self.name!r}{hint}")
        object.__setattr__(self, "semantics", get_semantics(self.semantics).name)

    @property
    def sub_policies(self) -> SubPolicies:
        """The same policy as an explicit list."""
        return SubPolicies(published(self.name), self.semantics)

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops to draw from."""
        return self.sub_policies.ops

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image, on average."""
        return self.sub_policies.inclusion

    def static(self, epoch: int | None = None) -> tuple[Policy, list[str]]:
        """Return the explicit list; see :meth:`Policy.static`."""
        return self.sub_policies.static(epoch)

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples; see :meth:`Policy.sample`."""
        return self.sub_policies.sample(ids, epoch, seed, size)

    def tables(self, size: tuple[int, int]) -> DrawTables | None:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        return self.sub_policies.tables(size)

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        return self.sub_policies.plan()
