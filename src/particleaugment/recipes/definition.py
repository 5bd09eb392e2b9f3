"""What a recipe is: a configuration, and the paper's filter with the settings of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from particleaugment.search.filters import FILTERS
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config
from particleaugment.training.override import override, with_settings

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        config: Its configuration, with the default filter.
        paper: The paper's filter with the settings of its row in the paper, if it has one.
    """

    config: Config
    paper: PaperFilter

    @property
    def filters(self) -> Mapping[str, Filter[Any]]:
        """The filters that ``filter=KIND`` stands for in this recipe, controls included."""
        own = self.config.filter
        assert isinstance(own, DifficultyFilter)
        found: tuple[Filter[Any], ...] = (
            own,
            self.paper,
            FrozenDifficultyFilter.of(own),
            FrozenPaperFilter.of(self.paper),
            ShuffledPaperFilter.of(self.paper),
            UnskippedPaperFilter.of(self.paper),
            AuthorsFilter.of(self.paper),
        )
        others = {kind: made() for kind, made in FILTERS.items()}
        return MappingProxyType(others | {filter.kind: filter for filter in found})

    def with_filter(self, kind: str) -> Config:
        """Return the configuration with one of :attr:`filters`."""
        return replace(self.config, filter=self.filters[kind])

    def override(self, assignments: Sequence[str]) -> Config:
        """Return the configuration with settings replaced, each given as ``key=value``."""
        return override(self.config, assignments, self.filters)

    def with_settings(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration with settings replaced, by name."""
        return with_settings(self.config, settings, self.filters)
