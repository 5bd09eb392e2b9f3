"""README's picture and table: accuracy on the small tasks of the proving ground, which train on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from common import table
from diagrams import readable
from proving_page import FRESH_FILE, figures_of
from proving_tasks import TASKS

from particleaugment.compare.statistics import mean
from particleaugment.report.svg import BLUE, GREEN, ORANGE, inline_svg

__all__ = ["SIZES", "accuracy_by_size", "small_results"]

LEARNED = "difficulty"
SIZES = ("small-cifar10-300", "small-cifar10-600", "small-cifar10-1200", "small-cifar10-2400")
SHOWN = {
    "small-cifar10-300": "CIFAR-10, 300 images",
    "small-fashion-300": "Fashion-MNIST, 300 images",
    "small-cifar10-3000": "CIFAR-10, 40 epochs",
    "small-cifar100-3000": "CIFAR-100, 50 epochs",
    "small-imagenette-1000": "Imagenette, 60 epochs",
    "small-mnist-200": "MNIST, 160 steps",
    "small-tints-1000": "MNIST, ops that change the class",
}
FIXED = {"none": "no policy", "trivialaugment": "TrivialAugment", "randaugment-2-6": "RandAugment, 2 ops, level 6"}
COLOURS = {"none": ORANGE, "trivialaugment": BLUE, LEARNED: GREEN}


def seeds_text(values: Iterable[list[float]]) -> str:
    """Return how many seeds there are.

    >>> seeds_text([[1.0, 2.0], [1.0, 2.0, 3.0]]), seeds_text([[1.0]])
    ('2 to 3 seeds', 'one seed')
    """
    counts = {len(each) for each in values}
    if counts == {1}:
        return "one seed"
    return f"{min(counts)} seeds" if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds"


def accuracy_by_size() -> str:
    """Draw accuracy over the number of training images of CIFAR-10, without a policy and with two."""
    figures = figures_of([FRESH_FILE])

    def draw_accuracy_by_size(figure: Any, axes: Any) -> None:
        places = range(len(SIZES))
        labels = {"none": "no policy", "trivialaugment": "TrivialAugment", LEARNED: "learned policy"}
        for arm, label in labels.items():
            values = [[*figures.values(task, arm).values()] for task in SIZES]
            means = [mean(each) for each in values]
            said = f"{label} ({seeds_text(values)})"
            axes.plot(places, means, color=COLOURS[arm], marker="o", markersize=5, linewidth=1.8, label=said)
            for place, each in zip(places, values, strict=True):
                axes.scatter([place] * len(each), each, color=COLOURS[arm], s=7, alpha=0.5)
        for place, task in enumerate(SIZES):
            means_of = {arm: mean([*figures.values(task, arm).values()]) for arm in labels}
            axes.annotate(
                f"{means_of[LEARNED] - means_of['none']:+.1f}",
                (place, max(means_of.values())),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
            )
        axes.set_xticks(list(places), [f"{TASKS[task].size:,} images" for task in SIZES])
        axes.set(ylabel="accuracy, %", xlim=(-0.3, len(SIZES) - 0.7), ylim=(30, 75))
        axes.set_title(
            "CIFAR-10, WRN-10-1, held-out images. Numbers: learned policy minus no policy, in points", fontsize=9
        )
        axes.legend(frameon=False, loc="lower right")

    return readable(inline_svg(6.6, 3.0, draw_accuracy_by_size))


def small_results() -> str:
    """README's table: accuracies on small tasks with images that no choice has seen, with the number of seeds."""
    figures = figures_of([FRESH_FILE])
    rows = [
        [said, *(_cell([*figures.values(task, arm).values()]) for task in SHOWN)]
        for arm, said in (FIXED | {LEARNED: "**learned policy**"}).items()
    ]
    said = "WRN-10-1 on a CPU, last epoch, held-out images on which no setting was chosen; mean (seeds)."
    return table(["accuracy, %", *SHOWN.values()], rows) + f"\n\n{said}"


def _cell(values: list[float]) -> str:
    return f"{mean(values):.1f} ({len(values)})" if values else "–"
