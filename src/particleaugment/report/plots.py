"""Figures as inline SVG: text and axes take the page's own colour, so that they read in dark and light."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from particleaugment.report.metrics import RunHistory

__all__ = ["curves", "delta_of_last_step", "effective_sample_size", "heat_map", "ops_per_image", "phases"]

# A colour that occurs nowhere else; it becomes the page's text colour.
_INK = "#010203"
_BLUE, _ORANGE, _RED, _GREEN, _PURPLE = "#3b7dd8", "#e08a1e", "#d1495b", "#3a9d6e", "#8a63c9"


def _figure(width: float, height: float, draw: Callable[[Any, Any], None], columns: int = 1) -> str:
    import matplotlib

    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": draw.__qualname__,
            "font.family": "sans-serif",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": _INK,
            "axes.edgecolor": _INK,
            "axes.labelcolor": _INK,
            "xtick.color": _INK,
            "ytick.color": _INK,
            "axes.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
        }
    ):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, columns)
        draw(figure, axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several figures share a page: their ids must not meet.
    salt = re.sub(r"\W", "", draw.__qualname__)
    svg = re.sub(r'\bid="', f'id="{salt}-', svg)
    return re.sub(r"(url\(#|href=\"#)", rf"\g<1>{salt}-", svg)


def curves(run: RunHistory) -> str:
    """Loss and accuracy by epoch."""

    def draw_curves(figure: Any, axes: Any) -> None:
        epochs = [record["epoch"] for record in run.epochs]
        axes[0].plot(epochs, [record["train_loss"] for record in run.epochs], color=_BLUE, label="training")
        axes[0].plot(epochs, [record["test_loss"] for record in run.epochs], color=_ORANGE, label="test")
        axes[0].set(xlabel="epoch", ylabel="loss", yscale="log")
        axes[0].legend(frameon=False)
        accuracy = [record["test_accuracy"] for record in run.epochs]
        axes[1].plot(epochs, accuracy, color=_GREEN)
        axes[1].set(xlabel="epoch", ylabel="test accuracy, %", ylim=(max(0, np.percentile(accuracy, 10) - 5), 100))

    return _figure(9, 2.8, draw_curves, columns=2)


def heat_map(run: RunHistory) -> str:
    """Each op's inclusion probability by epoch, weighted by particle weight."""

    def draw_heat_map(figure: Any, axes: Any) -> None:
        image = axes.imshow(
            run.inclusion.T, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest",
            extent=(0.5, len(run.inclusion) + 0.5, len(run.ops) - 0.5, -0.5),
        )  # fmt: skip
        axes.set_yticks(range(len(run.ops)), run.ops)
        axes.set(xlabel="epoch")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03)
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.set_label("probability of being applied to an image")

    return _figure(9, 0.8 + 0.22 * len(run.ops), draw_heat_map)


def ops_per_image(run: RunHistory) -> str:
    """Mean number of ops per image by epoch."""

    def draw_ops(figure: Any, axes: Any) -> None:
        axes.plot(range(1, len(run.inclusion) + 1), run.ops_per_image, color=_PURPLE)
        axes.set(xlabel="epoch", ylabel="ops per image", ylim=(0, None))

    return _figure(9, 1.9, draw_ops)


def effective_sample_size(run: RunHistory) -> str:
    """Effective sample size by step, with marks for resampling and skipped updates."""

    def draw_sample_size(figure: Any, axes: Any) -> None:
        epochs = np.array([step["epoch"] for step in run.steps])
        sizes = np.array([step["effective_sample_size"] for step in run.steps])
        skipped = np.array([step["skip_reason"] is not None for step in run.steps])
        resampled = np.array([step["resampled"] for step in run.steps])
        axes.plot(epochs, sizes, color=_BLUE)
        axes.scatter(epochs[resampled], sizes[resampled], color=_GREEN, s=18, zorder=3, label="resampled")
        axes.scatter(epochs[skipped], sizes[skipped], color=_RED, s=14, marker="x", zorder=3, label="update skipped")
        threshold = run.config.alpha * run.config.num_particles
        axes.axhline(threshold, color=_INK, linewidth=0.6, linestyle=":", label="resampling threshold")
        axes.set(xlabel="epoch", ylabel="effective sample size", ylim=(0, run.config.num_particles * 1.05))
        axes.legend(frameon=False, ncols=3, loc="lower left")

    return _figure(9, 2.4, draw_sample_size)


def delta_of_last_step(run: RunHistory) -> str:
    """δ of each particle with its standard error, in the last step that had them."""
    measured = [step for step in run.steps if step["delta"] and all(value is not None for value in step["delta"])]
    if not measured:
        return ""
    step = measured[-1]

    def draw_delta(figure: Any, axes: Any) -> None:
        delta = np.array(step["delta"], dtype=float)
        errors = np.array([np.nan if e is None else e for e in step["standard_error"]], dtype=float)
        order = np.argsort(delta)
        axes.errorbar(
            np.arange(1, len(delta) + 1), delta[order], yerr=errors[order], fmt="o", color=_BLUE, markersize=3,
            elinewidth=0.8,
        )  # fmt: skip
        axes.axhline(1.0, color=_INK, linewidth=0.6, linestyle=":")
        axes.set(xlabel=f"particles in order of δ (after epoch {step['epoch']})", ylabel="δ ± standard error")

    return _figure(9, 2.4, draw_delta)


def phases(run: RunHistory) -> str:
    """Time per phase as one bar."""

    def draw_phases(figure: Any, axes: Any) -> None:
        colours = {"train": _BLUE, "evaluate": _GREEN, "clone": _ORANGE, "measure": _RED, "filter": _PURPLE}
        left = 0.0
        for phase, value in run.seconds.items():
            axes.barh(0, value, left=left, color=colours.get(phase, "#888888"), label=f"{phase} {value:.1f} s")
            left += value
        axes.set(yticks=[], xlabel="seconds", xlim=(0, left or 1))
        axes.spines["left"].set_visible(False)
        figure.legend(frameon=False, ncols=5, loc="outside upper left")

    return _figure(9, 1.3, draw_phases)
