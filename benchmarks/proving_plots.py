"""The figures of the proving ground's page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from proving_statistics import BEST_FIXED, NONE, TRIVIAL, Figures, MeanDifference

from particleaugment.compare.comparison_plots import COLOURS, name_rows
from particleaugment.compare.statistics import PairedDifference, mean
from particleaugment.report.svg import INK, inline_svg

__all__ = ["REFERENCES", "difficulties", "mean_rows", "means", "tasks"]

REFERENCES = {NONE: "none", TRIVIAL: "TrivialAugment", BEST_FIXED: "best-fixed"}
WIDTH = 10.0
ROW, HEAD = 0.17, 0.62
COLUMNS = 3
LEGEND_COLUMNS = 5


def means(figures: Figures) -> str:
    """Every arm's mean difference to each reference, one row of panels per group of tasks."""
    shown = {group: mean_rows(figures, group) for group in figures.groups}
    shown = {group: arms for group, arms in shown.items() if arms}
    if not shown:
        return ""

    def draw_means(figure: Any, axes: Any) -> None:
        for (group, arms), row in zip(shown.items(), np.asarray(axes).reshape(len(shown), len(REFERENCES))):
            for against, panel in zip(REFERENCES, row):
                found = {arm: figures.mean_difference(arm, against, group) for arm in arms if arm != against}
                _difference_panel(panel, figures, arms, found, against)
                _rows(panel, arms, most, named=panel is row[0])
            row[0].set_title(f"{group} ({len(figures.groups[group])})", loc="left", fontsize=9, fontweight="bold")

    most = max(map(len, shown.values()))
    return inline_svg(
        WIDTH, len(shown) * (HEAD + 0.25 + ROW * most), draw_means, columns=len(REFERENCES), rows=len(shown)
    )


def mean_rows(figures: Figures, group: str) -> list[str]:
    """Return the arms that have a mean difference over a group of tasks."""
    return [
        arm
        for arm in figures.arms
        if any(figures.mean_difference(arm, against, group) for against in REFERENCES if against != arm)
    ]


def tasks(figures: Figures) -> str:
    """A row of panels per task: every run's accuracy, and the differences to none and to TrivialAugment."""
    panels = [task for task in figures.tasks if any(figures.accuracy[task].values())]
    if not panels:
        return ""
    shown = {task: [arm for arm in figures.arms if figures.values(task, arm)] for task in panels}

    def draw_tasks(figure: Any, axes: Any) -> None:
        for task, row in zip(panels, np.asarray(axes).reshape(len(panels), 3)):
            for place, arm in enumerate(shown[task]):
                values = list(figures.values(task, arm).values())
                row[0].scatter(values, [place] * len(values), s=16, alpha=0.6, linewidths=0, **_mark(figures, arm))
                row[0].plot([mean(values)] * 2, [place - 0.35, place + 0.35], color=INK, linewidth=1.2)
            row[0].set(xlabel="accuracy, %")
            row[0].set_title(_task_title(figures, task), loc="left", fontsize=9, fontweight="bold")
            for against, panel in zip((NONE, TRIVIAL), row[1:]):
                found = {arm: figures.difference(task, arm, against) for arm in shown[task] if arm != against}
                _difference_panel(panel, figures, shown[task], found, against)
            for panel in row:
                _rows(panel, shown[task], most, named=panel is row[0])

    most = max(map(len, shown.values()))
    return inline_svg(WIDTH, len(panels) * (HEAD + ROW * most), draw_tasks, columns=3, rows=len(panels))


def difficulties(figures: Figures) -> str:
    """Difficulty ratio against accuracy of all runs, a panel per task."""
    by_task = {
        task: [run for run in figures.runs if run["task"] == task and run["difficulty"]] for task in figures.tasks
    }
    by_task = {task: runs for task, runs in by_task.items() if runs}
    if not by_task:
        return ""
    names = [arm for arm in figures.arms if any(run["arm"] == arm for runs in by_task.values() for run in runs)]
    rows = math.ceil(len(by_task) / COLUMNS)

    def draw_difficulties(figure: Any, axes: Any) -> None:
        panels = list(np.asarray(axes).reshape(-1))
        for panel, (task, runs) in zip(panels, by_task.items()):
            for arm in names:
                points = [(run["difficulty"], run["accuracy"]) for run in runs if run["arm"] == arm]
                if points:
                    panel.scatter(*zip(*points), s=22, alpha=0.8, linewidths=0, **_mark(figures, arm))
            panel.axvline(1.0, color=INK, linewidth=0.6, linestyle=":")
            panel.set_xscale("log")
            _ratio_ticks(panel, [run["difficulty"] for run in runs])
            panel.set_title(_task_title(figures, task), loc="left", fontsize=8, fontweight="bold")
        for panel in panels[len(by_task) :]:
            panel.set_axis_off()
        for place in range(rows):
            panels[place * COLUMNS].set(ylabel="accuracy, %")
        for place in range(max(0, len(by_task) - COLUMNS), len(by_task)):
            panels[place].set(xlabel="difficulty ratio")
        marks = [panels[0].scatter([], [], s=22, linewidths=0, label=arm, **_mark(figures, arm)) for arm in names]
        figure.legend(handles=marks, frameon=False, ncols=LEGEND_COLUMNS, loc="outside upper left")

    height = 2.2 * rows + 0.2 * math.ceil(len(names) / LEGEND_COLUMNS) + 0.2
    return inline_svg(WIDTH, height, draw_difficulties, columns=COLUMNS, rows=rows)


def _ratio_ticks(axes: Any, ratios: Sequence[float]) -> None:
    low, high = min(*ratios, 0.8) / 1.25, max(*ratios, 1.25) * 1.25
    ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0) if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)


def _difference_panel(
    axes: Any,
    figures: Figures,
    arms: Sequence[str],
    found: Mapping[str, PairedDifference | MeanDifference | None],
    against: str,
) -> None:
    centres = [0.0]
    for place, arm in enumerate(arms):
        each, mark = found.get(arm), _mark(figures, arm)
        if each is None:
            continue
        centres.append(each.mean)
        if each.low is not None:
            axes.plot([each.low, each.high], [place, place], color=mark["color"], linewidth=1.8)
        axes.scatter([each.mean], [place], s=24, zorder=3, facecolors="none" if each.low is None else None, **mark)
    # All means and 0 are shown; what an interval over two seeds has beyond that is cut off.
    low, high = min(centres), max(centres)
    margin = max(0.75, 0.35 * (high - low))
    axes.axvline(0.0, color=INK, linewidth=0.6, linestyle=":")
    axes.set(xlabel=f"points above {REFERENCES[against]}", xlim=(low - margin, high + margin))


def _rows(axes: Any, names: Sequence[str], most: int, *, named: bool) -> None:
    """Name the rows, from the top, where there is room for the most rows that a panel has."""
    name_rows(axes, list(names) if named else [""] * len(names))
    axes.set_ylim(most - 0.5, -0.5)
    axes.grid(axis="y", linewidth=0.3, alpha=0.4)


def _mark(figures: Figures, arm: str) -> dict[str, Any]:
    place = figures.arms.index(arm)
    again = place >= len(COLOURS)
    marker = ("s" if again else "o") if figures.is_fixed(arm) else ("^" if again else "D")
    return {"color": COLOURS[place % len(COLOURS)], "marker": marker}


def _task_title(figures: Figures, task: str) -> str:
    return figures.title(task) + (" (trap)" if figures.is_trap(task) else "")
