"""Figures as inline SVG: text and axes take the page's own colour, so that they read in dark and light."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

__all__ = ["BLUE", "GREEN", "INK", "ORANGE", "PURPLE", "RED", "inline_svg", "log_scale", "picture"]

# A colour that occurs nowhere else; it becomes the page's text colour.
INK = "#010203"
BLUE, ORANGE, RED, GREEN, PURPLE = "#3b7dd8", "#e08a1e", "#d1495b", "#3a9d6e", "#8a63c9"


def _style(ink: str) -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
    }


def log_scale(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers: powers of ten would be drawn as formulas are written."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def picture(width: float, height: float, draw: Callable[[Any, Any], None]) -> Any:
    """Return a matplotlib figure in the same style, for loggers: dark on white."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_style("black")):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, figure.subplots())
    return figure


def inline_svg(
    width: float, height: float, draw: Callable[[Any, Any], None], columns: int = 1, rows: int = 1
) -> Markup:
    """Return a figure (inches wide and high) that ``draw`` draws, given the figure and its axes."""
    import matplotlib

    with matplotlib.rc_context(_style(INK) | {"svg.hashsalt": draw.__qualname__}):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, columns)
        draw(figure, axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several figures share a page: their ids must not meet.
    salt = re.sub(r"\W", "", draw.__qualname__)
    svg = re.sub(r'\bid="', f'id="{salt}-', svg)
    return Markup(re.sub(r"(url\(#|href=\"#)", rf"\g<1>{salt}-", svg))  # matplotlib has escaped the texts in it
