"""Recipes: Python functions that return a full configuration and say what it costs and should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from particleaugment.recipes.cifar10 import cifar10_quick, cifar10_shakeshake, cifar10_wrn28_2, cifar10_wrn28_10
from particleaugment.recipes.cifar100 import cifar100_wrn28_2, cifar100_wrn28_10
from particleaugment.recipes.definition import Recipe
from particleaugment.recipes.embedded import digits
from particleaugment.recipes.imagenet import folder, imagenet_resnet50
from particleaugment.training.config import Config, ConfigError
from particleaugment.util.hints import nearest_name

__all__ = ["RECIPES", "Recipe", "get_recipe", "recipe"]

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
RECIPES: Mapping[str, Callable[[], Recipe]] = MappingProxyType({make().config.recipe: make for make in _FUNCTIONS})
"""Every recipe by name."""


def get_recipe(name: str) -> Recipe:
    """Return a recipe by its name.

    >>> get_recipe("cifar10-wrn28-2").config.filter.kind, get_recipe("cifar10-wrn28-2").paper.m
    ('difficulty', 3.0)
    """
    if name not in RECIPES:
        hint = nearest_name(name, RECIPES) or f"; the recipes are {', '.join(RECIPES)}"
        raise ConfigError(f"there is no recipe {name!r}{hint}")
    return RECIPES[name]()


def recipe(name: str, **settings: Any) -> Config:
    """Return the configuration of a recipe, with some settings changed, for :func:`particleaugment.train`.

    Args:
        name: Name of the recipe; ``particleaugment list`` shows them.
        settings: Any settings of the configuration, by name. ``filter`` is a filter object, or the name of one:
            ``filter="paper"`` is the paper's, with the settings of the recipe's row in the paper.

    >>> recipe("digits", epochs=4, policy="trivial").training.epochs
    4
    >>> recipe("cifar100-wrn28-2", filter="paper", eta=0.5).filter.nonzero
    2
    >>> recipe("digits", epoch=4)
    Traceback (most recent call last):
    particleaugment.training.settings.ConfigError: there is no setting 'epoch'; did you mean epochs?
    """
    return get_recipe(name).with_settings(settings)
