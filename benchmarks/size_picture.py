"""README's picture and small table: accuracy with few training images, from the runs of the proving ground.

The learned policy is the arm ``LEARNED`` of benchmarks/results/proving-ground.json where it has runs, and otherwise the
candidate ``CANDIDATE`` of research/results/candidates.json, which had the same rule with other settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import RESULTS, table
from diagrams import readable
from proving_results import Run, load_runs
from proving_tasks import TASKS

from particleaugment.compare.statistics import mean
from particleaugment.report.svg import BLUE, GREEN, ORANGE, inline_svg

__all__ = ["accuracy_by_size", "small_results"]

LEARNED, CANDIDATE = "difficulty", "moderate-steered-2"
CANDIDATES = Path(__file__).parents[1] / "research" / "results" / "candidates.json"
SIZES = ("cifar10-1280", "cifar10-4000", "cifar10-12800")
SHOWN = (*SIZES, "cifar100-10000", "imagenette-2000")
FIXED = {"none": "no policy", "trivialaugment": "TrivialAugment", "randaugment-2-6": "RandAugment, 2 ops, level 6"}
COLOURS = {"none": ORANGE, "trivialaugment": BLUE, LEARNED: GREEN}


def learned_runs(tasks: Iterable[str]) -> list[Run]:
    """Return the learned policy's runs on some tasks: of the arm if all of them have one, else of the candidate."""
    for path, arm in ((RESULTS / "proving-ground.json", LEARNED), (CANDIDATES, CANDIDATE)):
        found = [run for run in load_runs(path) if run["arm"] == arm and _counts(run)]
        if set(tasks) <= {run["task"] for run in found}:
            return found
    raise ValueError(f"neither {LEARNED} nor {CANDIDATE} has runs on all of {', '.join(tasks)}")


def is_candidate(runs: list[Run]) -> bool:
    """Whether runs are those of the candidate, so that pages must say so."""
    return {run["arm"] for run in runs} == {CANDIDATE}


def _counts(run: Run) -> bool:
    current = run["task"] in TASKS and run["task_version"] == TASKS[run["task"]].version
    return current and run["measured_on"] == "judge" and run.get("failed") is None


def accuracies(tasks: tuple[str, ...]) -> dict[str, dict[str, list[float]]]:
    """Return the last epochs' accuracies by arm and task."""
    fixed = [run for run in load_runs(RESULTS / "proving-ground.json") if run["arm"] in FIXED and _counts(run)]
    found: dict[str, dict[str, list[float]]] = {arm: {} for arm in (*FIXED, LEARNED)}
    for arm, runs in ((None, fixed), (LEARNED, learned_runs(tasks))):
        for run in runs:
            found[arm or run["arm"]].setdefault(run["task"], []).append(run["accuracy"])
    return found


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
    found = accuracies(SIZES)

    def draw_accuracy_by_size(figure: Any, axes: Any) -> None:
        places = range(len(SIZES))
        learned = "learned policy, earlier form" if is_candidate(learned_runs(SIZES)) else "learned policy"
        labels = {"none": "no policy", "trivialaugment": "TrivialAugment", LEARNED: learned}
        for arm, label in labels.items():
            values = [found[arm][task] for task in SIZES]
            means = [mean(each) for each in values]
            said = f"{label} ({seeds_text(values)})"
            axes.plot(places, means, color=COLOURS[arm], marker="o", markersize=5, linewidth=1.8, label=said)
            for place, each in zip(places, values, strict=True):
                axes.scatter([place] * len(each), each, color=COLOURS[arm], s=7, alpha=0.5)
        for place, task in enumerate(SIZES):
            gain = mean(found[LEARNED][task]) - mean(found["none"][task])
            axes.annotate(
                f"{gain:+.1f}",
                (place, max(mean(found[arm][task]) for arm in labels)),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
            )
        axes.set_xticks(list(places), [f"{TASKS[task].size:,} images" for task in SIZES])
        axes.set(ylabel="accuracy, %", xlim=(-0.3, len(SIZES) - 0.7), ylim=(55, 95))
        axes.set_title(
            "CIFAR-10, WRN-28-2, held-out images. Numbers: learned policy minus no policy, in points", fontsize=9
        )
        axes.legend(frameon=False, loc="lower right")

    return readable(inline_svg(6.6, 3.0, draw_accuracy_by_size))


def small_results() -> str:
    """README's table: accuracies on five small tasks, with the number of seeds."""
    found = accuracies(SHOWN)
    rows = [
        [said, *(_cell(found[arm].get(task, [])) for task in SHOWN)]
        for arm, said in (FIXED | {LEARNED: "**learned policy**"}).items()
    ]
    text = table(["accuracy, %", *(TASKS[task].title for task in SHOWN)], rows)
    earlier = (
        " The learned policy is an earlier form of the default filter, whose wanted difficulty was constant; the "
        "present form has not been run on these tasks yet."
    )
    said = earlier if is_candidate(learned_runs(SHOWN)) else ""
    return f"{text}\n\nHeld-out training images, last epoch; mean (seeds).{said}"


def _cell(values: list[float]) -> str:
    return f"{mean(values):.1f} ({len(values)})" if values else "–"
