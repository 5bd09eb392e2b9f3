"""The two diagrams of docs/how-it-works.md: the training loop, and the package's layers. pictures.py writes them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from html import escape
from pathlib import Path

__all__ = ["layer_diagram", "loop_diagram", "readable"]

ROOT = Path(__file__).parents[1]
FONT = "font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
LIGHT, DARK = {"ink": "#1f2328", "paper": "#ffffff"}, {"ink": "#d8dde3", "paper": "#14181d"}

LAYERS = {
    "cli": "the command line",
    "bench": "timing on your machine",
    "integrations": "Lightning, Hugging Face",
    "compare": "several arms and seeds, also on Ray",
    "runs": "train, resume, verify",
    "report": "HTML report, TensorBoard, loggers",
    "recipes": "named configurations",
    "training": "training loop, settings, checkpoints",
    "search": "filters, pa.ParticleAugment",
    "filter": "the particle filter: pure functions",
    "trainee": "train and measure, on several ranks",
    "models": "Wide ResNet, Shake-Shake, ResNet",
    "augment": "pa.Augment, crops and flips",
    "data": "data sets, folders, splits",
    "policies": "RandAugment, schedules and others",
    "executors": "pil, native, batch, fused",
    "core": "op table, programs, keyed draws",
    "util": "small helpers",
}


def readable(svg: str) -> str:
    """Give a figure in ``currentColor`` a background and an ink of its own, for light and for dark mode.

    A picture in a file follows the system's mode, not the page's, so it brings its own background.
    """
    rule = "svg {{ color: {ink}; background: {paper} }}"
    style = f"<style>{rule.format(**LIGHT)} @media (prefers-color-scheme: dark) {{ {rule.format(**DARK)} }}</style>"
    head, bracket, rest = svg.partition(">")
    return head + bracket + style + rest


def loop_diagram() -> str:
    """Draw how a sample goes through policy, executor and network, and how the filter closes the loop."""
    parts = [
        _box(15, 40, 160, 62, "Policy", "which ops, how strong"),
        _box(255, 40, 160, 62, "Executor", "CPU or GPU, exact pixels"),
        _box(15, 180, 160, 62, "Filter", "one step per epoch"),
        _box(255, 180, 160, 62, "Network", "trains as usual"),
        _arrow(95, 12, 95, 40),
        _text(103, 24, "sample ids, epoch, seed", small=True),
        _arrow(335, 12, 335, 40),
        _text(343, 24, "uint8 images", small=True),
        _arrow(175, 71, 255, 71, "program", 215, 62),
        _arrow(335, 102, 335, 180),
        _text(343, 145, "augmented", small=True),
        _arrow(255, 211, 175, 211, "losses", 215, 202),
        _arrow(95, 180, 95, 102),
        _text(103, 145, "updated policy", small=True),
    ]
    return _svg(430, 256, parts)


def layer_diagram() -> str:
    """Draw the layers in the order that pyproject.toml gives the import linter."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    names = [layer.rpartition(".")[2] for layer in contract["layers"]]
    assert set(names) == set(LAYERS), "name what each layer is in LAYERS"
    parts = []
    for row, name in enumerate(names):
        top = 10 + 27 * row
        parts.append(f'<rect x="10" y="{top}" width="370" height="23" rx="4" {_frame()}/>')
        parts.append(_text(20, top + 16, f"{name}/", bold=True))
        parts.append(_text(135, top + 16, LAYERS[name], small=True))
    height = 20 + 27 * len(names)
    parts.append(_arrow(398, 16, 398, height - 16))
    parts.append(f'<g transform="rotate(90 408 {height / 2})">{_text(408, height / 2, "imports", small=True)}</g>')
    return _svg(430, height, parts)


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M 0 0.5 L 7.5 4 L 0 7.5 z" fill="currentColor"/></marker></defs>'
    )
    body = "\n".join([marker, *parts])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return readable(f"{head}\n{body}\n</svg>\n")


def _frame() -> str:
    return 'fill="#3b7dd8" fill-opacity="0.10" stroke="#3b7dd8" stroke-width="1.2"'


def _box(left: int, top: int, width: int, height: int, title: str, note: str) -> str:
    middle = left + width / 2
    return (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" {_frame()}/>'
        + _text(middle, top + 27, title, bold=True, anchor="middle")
        + _text(middle, top + 46, note, small=True, anchor="middle")
    )


def _text(x: float, y: float, words: str, *, small: bool = False, bold: bool = False, anchor: str = "start") -> str:
    weight = "600" if bold else "400"
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor" '
        f'style="{FONT}; font-size: {12 if small else 14}px; font-weight: {weight}">{escape(words)}</text>'
    )


def _path(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.3" marker-end="url(#tip)"/>'


def _arrow(x0: float, y0: float, x1: float, y1: float, words: str = "", x: float = 0, y: float = 0) -> str:
    said = _text(x, y, words, small=True, anchor="middle") if words else ""
    return _path(f"M {x0:g} {y0:g} L {x1:g} {y1:g}") + said
