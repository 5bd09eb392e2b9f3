"""The figures of a run's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from particleaugment.report.metrics import Floats, RunHistory
from particleaugment.report.svg import BLUE, GREEN, INK, ORANGE, PURPLE, RED, inline_svg, log_scale

__all__ = [
    "curves",
    "delta_of_last_step",
    "effective_sample_size",
    "heat_map",
    "ops_per_image",
    "phases",
]


def curves(run: RunHistory) -> str:
    """Loss and accuracy by epoch."""

    def draw_curves(figure: Any, axes: Any) -> None:
        epochs = [record["epoch"] for record in run.epochs]
        axes[0].plot(epochs, [record["train_loss"] for record in run.epochs], color=BLUE, label="training")
        axes[0].plot(
            epochs, [record["test_loss"] for record in run.epochs], color=ORANGE, label=run.config.data.measured_on
        )
        axes[0].set(xlabel="epoch", ylabel="loss")
        log_scale(axes[0])
        axes[0].legend(frameon=False)
        accuracy = [record["test_accuracy"] for record in run.epochs]
        axes[1].plot(epochs, accuracy, color=GREEN)
        axes[1].set(
            xlabel="epoch",
            ylabel=f"{run.config.data.measured_on} accuracy, %",
            ylim=(max(0, min(accuracy) - 2), min(100, max(accuracy) + 2)),
        )

    return inline_svg(9, 2.8, draw_curves, columns=2)


def heat_map(run: RunHistory) -> str:
    """Each op's inclusion probability by epoch, weighted by particle weight."""

    def draw_heat_map(figure: Any, axes: Any) -> None:
        inclusion = np.array([list(policy.inclusion.values()) for policy in run.policies.values()])
        draw_inclusion(figure, axes, inclusion, run.ops, run.epochs[-1]["epoch"])

    return inline_svg(9, 0.8 + 0.22 * len(run.ops), draw_heat_map)


def draw_inclusion(figure: Any, axes: Any, inclusion: Floats, ops: Sequence[str], last: int) -> None:
    """Draw inclusion probabilities ``[epochs, n]`` as a heat map, from the first epoch to the last."""
    image = axes.imshow(
        inclusion.T, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest",
        extent=(0.5, last + 0.5, len(ops) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(ops)), ops)
    axes.set(xlabel="epoch")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03)
    bar.outline.set_visible(False)
    bar.set_label("probability of being applied to an image")


def ops_per_image(run: RunHistory) -> str:
    """Mean number of ops per image by epoch."""

    def draw_ops(figure: Any, axes: Any) -> None:
        axes.plot([record["epoch"] for record in run.epochs], run.ops_per_image, color=PURPLE)
        axes.set(xlabel="epoch", ylabel="ops per image", ylim=(0, None))

    return inline_svg(9, 1.9, draw_ops)


def effective_sample_size(run: RunHistory) -> str:
    """Effective sample size by step, with marks for resampling and skipped updates."""
    if not all("effective_sample_size" in step for step in run.steps):
        return ""

    def draw_sample_size(figure: Any, axes: Any) -> None:
        epochs = np.array([step["epoch"] for step in run.steps])
        sizes = np.array([step["effective_sample_size"] for step in run.steps])
        skipped = np.array([step["skip_reason"] is not None for step in run.steps])
        resampled = np.array([step["resampled"] for step in run.steps])
        axes.plot(epochs, sizes, color=BLUE)
        axes.scatter(epochs[resampled], sizes[resampled], color=GREEN, s=18, zorder=3, label="resampled")
        axes.scatter(epochs[skipped], sizes[skipped], color=RED, s=14, marker="x", zorder=3, label="update skipped")
        threshold = getattr(run.config.filter, "alpha", 0.0) * run.num_particles
        axes.axhline(threshold, color=INK, linewidth=0.6, linestyle=":", label="resampling threshold")
        axes.set(xlabel="epoch", ylabel="effective sample size", ylim=(0, run.num_particles * 1.05))
        axes.legend(frameon=False, ncols=3, loc="lower left")

    return inline_svg(9, 2.4, draw_sample_size)


def delta_of_last_step(run: RunHistory) -> str:
    """δ of each particle with its standard error, in the last step that had them."""
    measured = [step for step in run.steps if step.get("d0") is not None and None not in step["delta"]]
    if not measured:
        return ""
    step = measured[-1]

    def draw_delta(figure: Any, axes: Any) -> None:
        draw_deltas(axes, step["delta"], step["standard_error"], f"after epoch {step['epoch']}")

    return inline_svg(9, 2.4, draw_delta)


def draw_deltas(axes: Any, deltas: Sequence[float], errors: Sequence[float | None], when: str) -> None:
    """Draw δ of each particle with its standard error, in order of δ."""
    delta = np.array(deltas, dtype=float)
    error = np.array([np.nan if e is None else e for e in errors], dtype=float)
    order = np.argsort(delta)
    axes.errorbar(
        np.arange(1, len(delta) + 1), delta[order], yerr=error[order], fmt="o", color=BLUE, markersize=3,
        elinewidth=0.8,
    )  # fmt: skip
    axes.axhline(1.0, color=axes.xaxis.label.get_color(), linewidth=0.6, linestyle=":")
    axes.set(xlabel=f"particles in order of δ ({when})", ylabel="δ ± standard error")


def phases(run: RunHistory) -> str:
    """Time per phase as one bar."""

    def draw_phases(figure: Any, axes: Any) -> None:
        colours = {"train": BLUE, "evaluate": GREEN, "clone": ORANGE, "measure": RED, "filter": PURPLE}
        left = 0.0
        for phase, value in run.seconds.items():
            axes.barh(0, value, left=left, color=colours.get(phase, "#888888"), label=f"{phase} {value:.1f} s")
            left += value
        axes.set(yticks=[], xlabel="seconds", xlim=(0, left or 1))
        axes.spines["left"].set_visible(False)
        figure.legend(frameon=False, ncols=5, loc="outside upper left")

    return inline_svg(9, 1.3, draw_phases)
