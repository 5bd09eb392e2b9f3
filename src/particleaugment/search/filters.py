"""The filters by name, and their settings as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from particleaugment.search.controls import (
    AuthorsFilter,
    FrozenDifficultyFilter,
    FrozenPaperFilter,
    ShuffledPaperFilter,
    UnskippedPaperFilter,
)
from particleaugment.search.difficulty import DifficultyFilter
from particleaugment.search.filter_base import Filter
from particleaugment.search.paper import PaperFilter

__all__ = ["DEFAULT", "FILTERS", "filter_settings", "meaning_of"]

DEFAULT: Filter[Any] = DifficultyFilter()
"""The filter of ``train``, of recipes and of :class:`particleaugment.ParticleAugment`, unless another is named."""

_CLASSES: tuple[type[Filter[Any]], ...] = (
    DifficultyFilter,
    PaperFilter,
    FrozenDifficultyFilter,
    FrozenPaperFilter,
    ShuffledPaperFilter,
    UnskippedPaperFilter,
    AuthorsFilter,
)
FILTERS: Mapping[str, type[Filter[Any]]] = MappingProxyType({each.kind: each for each in _CLASSES})
"""Every filter by its kind, controls last."""


def meaning_of(kind: str) -> str:
    """Return what a filter is, in a line: the first one of its class's documentation.

    >>> meaning_of("paper")
    "the paper's filter, as written"
    """
    first = (FILTERS[kind].__doc__ or kind).partition("\n")[0].removesuffix(".")
    return first[0].lower() + first[1:]


def filter_settings(filter: Filter[Any]) -> dict[str, Any]:
    """Return a filter's kind and settings as plain values.

    >>> filter_settings(PaperFilter(eta=0.5))["eta"]
    0.5
    """
    settings = asdict(filter)  # type: ignore[call-overload]
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return {"kind": filter.kind, **plain}
