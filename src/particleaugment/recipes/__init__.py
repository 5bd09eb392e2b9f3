"""Recipes: Python functions that return a full configuration and say what it costs and should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from particleaugment.ops import nearest_name
from particleaugment.recipes.cifar10 import cifar10_quick, cifar10_shakeshake, cifar10_wrn28_2, cifar10_wrn28_10
from particleaugment.recipes.cifar100 import cifar100_wrn28_2, cifar100_wrn28_10
from particleaugment.recipes.digits import digits
from particleaugment.recipes.imagenet import folder, imagenet_resnet50
from particleaugment.recipes.presets import PRESETS, preset_settings
from particleaugment.training.config import Config, ConfigError

__all__ = ["PRESETS", "RECIPES", "get_recipe", "preset_settings"]

_FUNCTIONS = (
    digits,
    cifar10_quick,
    cifar10_wrn28_2,
    cifar10_wrn28_10,
    cifar10_shakeshake,
    cifar100_wrn28_2,
    cifar100_wrn28_10,
    imagenet_resnet50,
    folder,
)
RECIPES: Mapping[str, Callable[[], Config]] = MappingProxyType({make().recipe: make for make in _FUNCTIONS})
"""Every recipe by name."""


def get_recipe(name: str) -> Config:
    """Return the configuration of a recipe.

    >>> get_recipe("digits").model
    'wrn-10-1'
    """
    if name not in RECIPES:
        hint = nearest_name(name, RECIPES) or f"; the recipes are {', '.join(RECIPES)}"
        raise ConfigError(f"there is no recipe {name!r}{hint}")
    return RECIPES[name]()
