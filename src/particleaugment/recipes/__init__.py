"""Recipes: Python functions that return a full configuration and say what it costs and should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from particleaugment.recipes.cifar10 import cifar10_quick, cifar10_shakeshake, cifar10_wrn28_2, cifar10_wrn28_10
from particleaugment.recipes.cifar100 import cifar100_wrn28_2, cifar100_wrn28_10
from particleaugment.recipes.digits import digits
from particleaugment.recipes.imagenet import folder, imagenet_resnet50
from particleaugment.recipes.presets import DEFAULT_PRESET, PRESETS, preset_settings
from particleaugment.training.config import Config, ConfigError, override, settings_of
from particleaugment.util.hints import nearest_name

__all__ = ["DEFAULT_PRESET", "PRESETS", "RECIPES", "get_recipe", "preset_settings", "recipe"]

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


def recipe(name: str, preset: str = DEFAULT_PRESET, **settings: Any) -> Config:
    """Return the configuration of a recipe with some settings changed, to be given to :func:`particleaugment.train`.

    Args:
        name: Name of the recipe; ``particleaugment list`` shows them.
        preset: The filter: ``improved``, or ``paper`` for the paper's algorithm.
        settings: Any settings of the configuration, by name.

    >>> recipe("digits", epochs=4, policy="trivial").epochs
    4
    >>> recipe("digits", epoch=4)
    Traceback (most recent call last):
    particleaugment.training.config.ConfigError: there is no setting 'epoch'; did you mean epochs?
    """
    config = get_recipe(name, preset)
    known = settings_of(config)
    for key in settings:
        if key not in known or key == "recipe":
            raise ConfigError(f"there is no setting {key!r}{nearest_name(key, known)}")
    return replace(config, **settings)
