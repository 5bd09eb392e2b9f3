"""Recipes: Python functions that return a full configuration and say what it costs and should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from particleaugment.ops import nearest_name
from particleaugment.recipes.cifar10 import cifar10_quick, cifar10_shakeshake, cifar10_wrn28_2, cifar10_wrn28_10
from particleaugment.recipes.cifar100 import cifar100_wrn28_2, cifar100_wrn28_10
from particleaugment.recipes.digits import digits
from particleaugment.recipes.imagenet import folder, imagenet_resnet50
from particleaugment.recipes.presets import DEFAULT_PRESET, PRESETS, preset_settings
from particleaugment.training.config import Config, ConfigError, override

__all__ = ["DEFAULT_PRESET", "PRESETS", "RECIPES", "get_recipe", "preset_settings"]

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
"""Every recipe by name, with the paper's settings where it has a row in the paper; :func:`get_recipe` adds a preset."""


def get_recipe(name: str, preset: str = DEFAULT_PRESET) -> Config:
    """Return the configuration of a recipe under a preset: ``improved``, or ``paper`` for the paper's algorithm.

    >>> get_recipe("cifar10-wrn28-2").measure, get_recipe("cifar10-wrn28-2", "paper").measure
    ('loss', 'clone')
    """
    if name not in RECIPES:
        hint = nearest_name(name, RECIPES) or f"; the recipes are {', '.join(RECIPES)}"
        raise ConfigError(f"there is no recipe {name!r}{hint}")
    return override(RECIPES[name](), list(preset_settings(preset)))
