"""Formulas as inline SVG, drawn by matplotlib: the site loads nothing from elsewhere, and needs no TeX."""

from __future__ import annotations

import io
import re
import zlib
from html import escape
from typing import Any

from docutils import nodes
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser

_POINTS = 12.0
_PER_EM = 0.85 * _POINTS  # points of the drawing to one em of the page, whose letters are wider


def drawn(formula: str) -> str:
    """Return a line of a formula as SVG, in the text's colour and on its baseline."""
    font, source = FontProperties(size=_POINTS, math_fontfamily="stix"), f"${formula.strip()}$"
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": formula}):
        width, height, depth, _, _ = MathTextParser("path").parse(source, dpi=72, prop=font)
        figure = Figure(figsize=(width / 72, height / 72))
        figure.text(0, depth / height, source, fontproperties=font, color="#010203")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = svg.replace("#010203", "currentColor")
    # Ids are the same in all drawings, and glyphs that share one may differ.
    salt = f"m{zlib.crc32(formula.encode()):x}-"
    svg = re.sub(r'\bid="', f'id="{salt}', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{salt}", svg)
    style = f"height: {height / _PER_EM:.3f}em; width: auto; vertical-align: {-depth / _PER_EM:.3f}em"
    head = f'<svg role="img" aria-label="{escape(formula.strip())}" style="{style}; overflow: visible"'
    return svg.replace("<svg", head, 1).strip()


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(f'<span class="math">{drawn(node.astext())}</span>')
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    lines = [line for line in node.astext().split("\\\\") if line.strip()]
    for line in lines:
        translator.body.append(f'<div class="math" style="margin: .7em 0 .7em 1.5em">{drawn(line)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Make it the renderer of formulas."""
    app.add_html_math_renderer("mathtext", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
