"""The table of all settings of a run: names, usual values, meanings; the meanings are those of the docstrings."""

from __future__ import annotations

import inspect
import re

from particleaugment.core.ops import OPS
from particleaugment.search.gap import GapFilter
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config, settings_of

__all__ = ["settings_rows"]


def settings_rows() -> list[list[str]]:
    """Return a row for each setting that ``--set`` takes."""
    usual = settings_of(Config(recipe="mine"))
    meanings = _meanings(GapFilter) | _meanings(PaperFilter) | _meanings(Config)
    return [[f"`{name}`", _shown(value), meanings[name]] for name, value in usual.items() if name != "recipe"]


def _meanings(kind: type) -> dict[str, str]:
    """Return what stands under ``Attributes:`` in a docstring, name by name, as Markdown."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, flags=re.MULTILINE)
    return {name: _as_markdown(text) for name, text in found}


def _as_markdown(text: str) -> str:
    line = " ".join(text.split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r" ?\(see :mod:`[\w.]+`\)", "", line)


def _shown(value: object) -> str:
    if value in (OPS, list(OPS)):
        return "the paper's"
    if value == "":
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}`"
