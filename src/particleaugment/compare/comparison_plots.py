"""The figures of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from particleaugment.compare.arm_summary import arm_summaries, differences
from particleaugment.compare.comparison import Comparison
from particleaugment.compare.statistics import mean
from particleaugment.report.svg import BLUE, GREEN, INK, ORANGE, PURPLE, RED, inline_svg, log_scale

__all__ = ["COLOURS", "accuracies", "curves", "intervals", "name_rows", "times"]

COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, "#4fb3bf", "#b5883a", "#c76aa5", "#7a8794", "#8fae3c", "#5f6fc2")
_DASHES = ("-", "--", ":", "-.")
_LEGEND_COLUMNS = 4
_PHASES = {"train": BLUE, "evaluate": GREEN, "clone": ORANGE, "measure": RED, "filter": PURPLE}


def curves(comparison: Comparison) -> str:
    """Accuracy and training loss by epoch: the mean over seeds, with a band of one standard deviation."""
    colours = _colour_of(comparison)

    def draw_arm_curves(figure: Any, axes: Any) -> None:
        for place, (name, colour) in enumerate(colours.items()):
            runs = [run for run in comparison.of_arm(name) if run.finished]
            accuracy = np.array([run.accuracy for run in runs])
            dashes = _DASHES[place // len(COLOURS) % len(_DASHES)]
            epochs, losses = runs[0].evaluated_epochs, np.array([run.train_loss for run in runs])
            _draw_band(axes[0], epochs, accuracy, colour, dashes, name)
            _draw_band(axes[1], epochs, losses, colour, dashes, name)
        axes[0].set(xlabel="epoch", ylabel=f"{comparison.measured_on} accuracy, %")
        low, high = axes[0].get_ylim()
        axes[0].set_ylim(max(0.0, low), min(100.0, high))
        axes[1].set(xlabel="epoch", ylabel="training loss")
        log_scale(axes[1])
        for part in axes:
            part.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(
            *axes[0].get_legend_handles_labels(), frameon=False, ncols=_LEGEND_COLUMNS, loc="outside upper left"
        )

    legend_rows = math.ceil(len(colours) / _LEGEND_COLUMNS)
    return inline_svg(9, 3.2 + 0.2 * legend_rows, draw_arm_curves, columns=2)


def _draw_band(axes: Any, epochs: Sequence[int], values: Any, colour: str, dashes: str, name: str) -> None:
    centre = values.mean(0)
    marker = "o" if len(epochs) == 1 else None
    axes.plot(epochs, centre, color=colour, linestyle=dashes, label=name, linewidth=1.2, marker=marker)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(epochs, centre - spread, centre + spread, color=colour, alpha=0.18, linewidth=0)


def accuracies(comparison: Comparison) -> str:
    """Every finished run's last-epoch accuracy, and each arm's mean."""
    colours = _colour_of(comparison)

    def draw_accuracies(figure: Any, axes: Any) -> None:
        for place, (name, colour) in enumerate(colours.items()):
            values = [run.last for run in comparison.of_arm(name) if run.finished]
            axes.scatter(values, [place] * len(values), color=colour, s=22, alpha=0.6, linewidths=0)
            axes.plot([mean(values)] * 2, [place - 0.3, place + 0.3], color=INK, linewidth=1.4)
        name_rows(axes, list(colours))
        axes.set(xlabel=f"{comparison.measured_on} accuracy, last epoch, %")

    return inline_svg(9, 0.8 + 0.32 * len(colours), draw_accuracies)


def intervals(comparison: Comparison) -> str:
    """Each arm's difference to the chosen one, with its interval."""
    colours = _colour_of(comparison)
    shown = [
        (difference.arm, difference.points)
        for difference in differences(comparison.arms, comparison.runs, comparison.against)
        if difference.points is not None
    ]
    if not shown:
        return ""

    def draw_intervals(figure: Any, axes: Any) -> None:
        for place, (name, points) in enumerate(shown):
            if points.low is not None:
                axes.plot([points.low, points.high], [place, place], color=colours[name], linewidth=2.2)
            filled = points.low is not None
            axes.scatter(
                [points.mean], [place], s=34, zorder=3, color=colours[name], facecolors=None if filled else "none"
            )
        axes.axvline(0.0, color=INK, linewidth=0.6, linestyle=":")
        name_rows(axes, [name for name, _ in shown])
        axes.set(xlabel=f"points above {comparison.against}, paired seeds, with 95 % interval")

    return inline_svg(9, 0.8 + 0.32 * len(shown), draw_intervals)


def times(comparison: Comparison) -> str:
    """Mean seconds per phase of a run, one bar per arm."""
    names = [summary.arm for summary in arm_summaries(comparison.arms, comparison.runs)]

    def draw_arm_times(figure: Any, axes: Any) -> None:
        by_arm = [[run.seconds for run in comparison.of_arm(name) if run.finished] for name in names]
        phases = dict.fromkeys(phase for runs in by_arm for seconds in runs for phase in seconds)
        left = np.zeros(len(names))
        for phase in phases:
            widths = np.array([mean([seconds.get(phase, 0.0) for seconds in runs]) for runs in by_arm])
            colour = _PHASES.get(phase, "#888888")
            axes.barh(range(len(names)), widths, left=left, height=0.6, color=colour, label=phase)
            left += widths
        name_rows(axes, names)
        axes.set(xlabel="seconds per run, mean over seeds", xlim=(0, None))
        figure.legend(frameon=False, ncols=6, loc="outside upper left")

    return inline_svg(9, 1.0 + 0.32 * len(names), draw_arm_times)


def name_rows(axes: Any, names: list[str]) -> None:
    """Label the rows of a plot from the top, row n at y = n."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _colour_of(comparison: Comparison) -> dict[str, str]:
    names = [summary.arm for summary in arm_summaries(comparison.arms, comparison.runs)]
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
