"""Parts of HTML pages. Templates write every tag and escape every text; there is no other way to make HTML here."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "alarm_box",
    "bullets",
    "cards",
    "command",
    "figure",
    "folded",
    "heading",
    "paragraph",
    "self_contained",
    "settings_table",
    "strips",
    "table",
    "verdict",
]


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("particleaugment.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def _part(name: str, *values: Any, **options: Any) -> Markup:
    macro = getattr(_environment().get_template("parts.html").module, name)
    return macro(*values, **options)  # type: ignore[no-any-return]


def self_contained(title: str, subtitle: str, parts: Iterable[Markup | None]) -> str:
    """Return a page of the given parts that needs nothing besides itself.

    >>> "<p>&lt;b&gt;</p>" in self_contained("title", "subtitle", [paragraph("<b>")])
    True
    """
    shown = [part for part in parts if part is not None]
    return _environment().get_template("page.html").render(title=title, subtitle=subtitle, parts=shown)


def verdict(text: str) -> Markup:
    """Return the sentence that a page begins with: what came out."""
    return _part("verdict", text)


def heading(text: str, level: int = 2) -> Markup:
    """Return a heading."""
    return _part("heading", text, level)


def paragraph(text: str, *, faint: bool = False, code: str = "") -> Markup:
    """Return a paragraph, which may end with a command.

    >>> paragraph("1 < 2")
    Markup('<p>1 &lt; 2</p>')
    """
    return _part("paragraph", text, faint, code)


def figure(svg: str, caption: str) -> Markup | None:
    """Return a drawing, as ``inline_svg`` makes it, with its caption, or None where there is no drawing."""
    return _part("figure", svg, caption) if svg else None


def strips(rows: Sequence[tuple[str, bytes]], description: str, caption: str) -> Markup:
    """Return pictures one under the other, each with its label as text, and a caption."""
    encoded = [(label, base64.b64encode(png).decode()) for label, png in rows]
    return _part("strips", encoded, description, caption)


def alarm_box(sentences: Sequence[str]) -> Markup | None:
    """Return a box with what deserves attention, or None."""
    return _part("alarms", sentences) if sentences else None


def cards(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return values with their labels, side by side."""
    return _part("cards", pairs)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table of plain texts."""
    return _part("table", heads, rows)


def bullets(sentences: Sequence[str]) -> Markup:
    """Return a list."""
    return _part("bullets", sentences)


def command(text: str) -> Markup:
    """Return a command, as one types it."""
    return _part("command", text)


def folded(title: str, *parts: Markup | None, wide: bool = False) -> Markup:
    """Return parts that are folded away under a title."""
    return _part("folded", title, [part for part in parts if part is not None], wide)


def settings_table(settings: Mapping[str, Any]) -> Markup:
    """Return all settings of a configuration, folded away."""
    return folded("All settings", table((), [(name, str(value)) for name, value in settings.items()]))
