"""The part of a report about a run whose strength of augmentation changes: how hard training was, and how strong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from particleaugment.policies.mixture import Mixture
from particleaugment.report.html import figure, heading, paragraph
from particleaugment.report.metrics import RunHistory
from particleaugment.report.summary import averaged_difficulty
from particleaugment.report.svg import BLUE, INK, PURPLE, inline_svg, log_scale
from particleaugment.search.difficulty import tolerated

__all__ = [
    "difficulty",
    "draw_counts",
    "op_counts",
    "reached",
    "settled_strength",
    "strength",
    "strength_of",
    "strength_story",
]

_GREY, _PLAIN = "#888888", "#c9ccd1"


def strength_story(run: RunHistory) -> list[Markup | None]:
    """Return the part: difficulty, strength, and how many ops images got."""
    steered = difficulty(run)
    return [
        heading("How hard training was") if steered else None,
        paragraph(
            "Difficulty is the training loss under augmentation divided by the loss on plain held-out images. Near 0, "
            "the network memorises its training images. Above 1, they are harder than new images. The filter adds ops "
            "when training is far too easy, and removes ops when it is far too hard."
        )
        if steered
        else None,
        figure(
            steered,
            "Difficulty after each filter step (thin), its running average (thick), the wanted value (dotted), and "
            "where strength stays as it is (light band). In the grey part, strength is fixed, then fades out, and the "
            "network also trains on the held-out images.",
        ),
        heading("How strong augmentation was"),
        paragraph(_course(run)),
        figure(strength(run), "Strength: ops per image, on average. Identity counts as an op."),
        figure(op_counts(run), "Share of the images that got no op, one op, two ops, and so on."),
    ]


def reached(run: RunHistory) -> tuple[str, str] | None:
    """Return the difficulty where steering ended, with its label; None if none was measured."""
    found = averaged_difficulty(run.steps)
    if not found:
        return None
    last, value = found[-1]
    fine = "; {:.2f} to {:.2f} is fine".format(*tolerated(last["wanted"])) if last.get("wanted") is not None else ""
    return f"{value:.2f}", f"difficulty in epoch {last['epoch']}, averaged{fine}"


def strength_of(mixture: Mixture) -> float:
    """Return the mean number of ops that a mixture draws for an image, Identity counted."""
    return sum(mixture.slots)


def settled_strength(run: RunHistory) -> float:
    """Return the strength that the filter ended at or is at, before augmentation fades out."""
    found = [step["strength"] for step in run.steps if "strength" in step]
    return found[-1] if found else strength_of(run.mixtures[run.epochs[-1]["epoch"]])


def _course(run: RunHistory) -> str:
    values = {epoch: strength_of(mixture) for epoch, mixture in run.mixtures.items()}
    first, highest, last = min(values), max(values, key=lambda epoch: values[epoch]), max(values)
    settled, ops = settled_strength(run), len(run.policy.ops)
    faded = f", and fades out to {values[last]:.2f} in epoch {last}"
    end = "" if math.isclose(values[last], settled, abs_tol=0.005) else faded
    return (
        f"Strength was {values[first]:.2f} ops per image in the first epoch and {values[highest]:.2f} at most (epoch "
        f"{highest}). It ends at {settled:.2f}{end}. All {ops} ops are drawn equally often."
    )


def difficulty(run: RunHistory) -> str:
    """Difficulty by epoch, with the wanted value; empty where none was measured."""
    found = averaged_difficulty(run.steps)
    if not found:
        return ""
    steps, averages = zip(*found)

    def draw_difficulty(figure: Any, axes: Any) -> None:
        epochs = [step["epoch"] for step in steps]
        axes.plot(epochs, [step["difficulty"] for step in steps], color=BLUE, linewidth=0.7, alpha=0.5)
        axes.plot(epochs, averages, color=BLUE, linewidth=1.8, label="difficulty")
        wanted = [(step["epoch"], step["wanted"]) for step in steps if step.get("wanted") is not None]
        if wanted:
            measured, values = zip(*wanted)
            axes.plot(measured, values, color=INK, linewidth=1.2, linestyle=":", label="wanted")
            bounds = zip(*map(tolerated, values))
            axes.fill_between(measured, *bounds, color=INK, alpha=0.08, linewidth=0)
        _shade(axes, run)
        axes.set(xlabel="epoch", ylabel="difficulty", xlim=_span(run))
        log_scale(axes)
        axes.legend(frameon=False, ncols=2, loc="best")

    return inline_svg(9, 2.6, draw_difficulty)


def strength(run: RunHistory) -> str:
    """Mean number of ops per image by epoch."""

    def draw_strength(figure: Any, axes: Any) -> None:
        mixtures = run.mixtures
        axes.plot(list(mixtures), [strength_of(one) for one in mixtures.values()], color=PURPLE)
        _shade(axes, run)
        axes.set(xlabel="epoch", ylabel="ops per image", xlim=_span(run))
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))

    return inline_svg(9, 2.1, draw_strength)


def op_counts(run: RunHistory) -> str:
    """Share of images with each number of ops by epoch, as a stacked area."""

    def draw_op_counts(figure: Any, axes: Any) -> None:
        draw_counts(figure, axes, run.mixtures)

    return inline_svg(9, 2.6, draw_op_counts)


def draw_counts(figure: Any, axes: Any, mixtures: Mapping[int, Mixture]) -> None:
    """Draw the share of images with each number of ops as a stacked area, by epoch."""
    epochs = list(mixtures)
    from matplotlib import colormaps

    shares = 100 * np.array([mixture.counts for mixture in mixtures.values()]).T
    most = max(1, *(k for k, row in enumerate(shares) if row.max() > 0.5))
    colours = [_PLAIN, *(colormaps["viridis"](1 - k / most) for k in range(1, most + 1))]
    labels = ["no op", "1 op", *(f"{k} ops" for k in range(2, most + 1))]
    axes.stackplot(epochs, shares[: most + 1], colors=colours, labels=labels[: most + 1], linewidth=0)
    axes.set(xlabel="epoch", ylabel="images, %", ylim=(0, 100), xlim=(epochs[0], max(epochs[-1], epochs[0] + 1)))
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], frameon=False, loc="outside right upper")


def _span(run: RunHistory) -> tuple[float, float]:
    return 1, max(2, run.epochs[-1]["epoch"])


def _shade(axes: Any, run: RunHistory) -> None:
    """Shade the epochs in which nothing is steered any more."""
    steered = [step["epoch"] for step in run.steps if step.get("wanted") is not None]
    still = [step["epoch"] for step in run.steps if step.get("wanted") is None and step["skip_reason"] is None]
    if steered and still and still[-1] > steered[-1]:
        axes.axvspan(steered[-1], run.epochs[-1]["epoch"], color=_GREY, alpha=0.15, linewidth=0)
