"""Recipes: Python functions that return a full configuration and say what it costs and should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from particleaugment.ops import nearest_name
from particleaugment.recipes.digits import digits
from particleaugment.training.config import Config, ConfigError

__all__ = ["RECIPES", "get_recipe"]

RECIPES: Mapping[str, Callable[[], Config]] = MappingProxyType({"digits": digits})
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
