"""The tables of all settings of a run: names, defaults and meanings, which are taken from the docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

from common import table

from particleaugment.core.op_table import OPS
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import FILTERS
from particleaugment.training.config import TOP, Config

__all__ = ["setting_rows", "settings_tables"]


def settings_tables() -> str:
    """Return a table for each section of a configuration, and for each filter."""
    config, meanings = Config(recipe="mine"), _meanings(Config)
    parts = [_table([[f"`{name}`", _shown(getattr(config, name)), meanings[name]] for name in TOP])]
    for name in ("data", "training", "transforms"):
        parts += [f"## `{name}`", _table(setting_rows(getattr(config, name)))]
    for filter in (kind() for kind in FILTERS.values() if kind.__base__ is Filter):  # a control has its filter's
        parts += [f"## `filter={filter.kind}`", _table(setting_rows(filter))]
    return "\n\n".join(parts)


def setting_rows(section: Any) -> list[list[str]]:
    """Return name, default and meaning of each setting of a section or a filter."""
    meanings, shown = _meanings(type(section)), {"name": "data"}
    return [
        [f"`{shown.get(field.name, field.name)}`", _shown(getattr(section, field.name)), meanings.get(field.name, "")]
        for field in fields(section)
    ]


def _table(rows: list[list[str]]) -> str:
    return table(["setting", "default", "meaning"], rows)


def _meanings(kind: type) -> dict[str, str]:
    """Return what stands under ``Attributes:`` in a docstring, name by name, as Markdown."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, flags=re.MULTILINE)
    return {name: _as_markdown(text) for name, text in found}


def _as_markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _shown(value: object) -> str:
    if value == OPS:
        return "the paper's"
    if value == "":
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value)) if isinstance(value, tuple) else value}`"
