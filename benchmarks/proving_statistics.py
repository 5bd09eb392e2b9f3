"""What the proving ground's runs say: differences between arms, paired by seed, per task and over tasks."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Protocol

import numpy as np
from proving_results import Run

from particleaugment.compare.statistics import LEVEL, PairedDifference, mean, paired_difference, t_quantile

__all__ = ["BEST_FIXED", "NONE", "TRIVIAL", "Figures", "MeanDifference", "best_fixed", "mean_difference", "trap_counts"]

NONE, TRIVIAL, BEST_FIXED = "none", "trivialaugment", "best-fixed"
TRAP_LOSS = 1.0
"""Points that TrivialAugment must lose to no policy on a trap for the trap to count."""
DRAWS = 10_000

BySeed = Mapping[int, float]


class TaskFacts(Protocol):
    """What is used of a task in ``proving_tasks.TASKS``."""

    @property
    def title(self) -> str: ...
    @property
    def trap(self) -> bool: ...
    @property
    def final_only(self) -> bool: ...
    @property
    def version(self) -> int: ...


class ArmFacts(Protocol):
    """What is used of an arm in ``proving_tasks.ARMS``."""

    @property
    def meaning(self) -> str: ...
    @property
    def fixed(self) -> bool: ...


@dataclass(frozen=True)
class MeanDifference:
    """A difference in points, mean over tasks, with a 95 % interval over seeds; the tasks are taken as they are.

    Attributes:
        tasks: How many tasks it is the mean of: those with two seeds or more in common.
        mean: The mean.
        low: Lower end of the interval.
        high: Its upper end.
    """

    tasks: int
    mean: float
    low: float
    high: float


def best_fixed(values: Mapping[str, BySeed], fixed: Sequence[str]) -> dict[int, tuple[str, float]]:
    """Return what careful tuning would give at each seed: the arm that the other seeds choose, and its accuracy.

    For seed s that is the fixed arm with the highest mean accuracy over all seeds but s, the first of them if several
    have it. An arm is considered where it has s and another seed; with one seed nothing is defined.

    Args:
        values: Accuracy by arm and seed, on one task.
        fixed: The fixed arms, in order.

    >>> best_fixed({"none": {0: 80.0, 1: 84.0}, "trivialaugment": {0: 83.0, 1: 82.0}}, ["none", "trivialaugment"])
    {0: ('none', 80.0), 1: ('trivialaugment', 82.0)}
    """
    found = {}
    for seed in sorted({seed for arm in fixed for seed in values.get(arm, ())}):
        others = {
            arm: [value for other, value in values[arm].items() if other != seed]
            for arm in fixed
            if seed in values.get(arm, ()) and len(values[arm]) > 1
        }
        if others:
            arm = max(others, key=lambda name: mean(others[name]))
            found[seed] = (arm, values[arm][seed])
    return found


def mean_difference(differences: Mapping[str, Sequence[float]], stream: str) -> MeanDifference | None:
    """Return the mean over tasks of their mean differences, with a bootstrap interval over seeds.

    Seeds are resampled within each task, tasks are not. A plain bootstrap of so few values is far too narrow: a
    resampled mean of n values varies (n − 1)/n times as much as a mean of n new ones, and n values estimate their
    deviation poorly. Deviations are therefore scaled by √(n/(n − 1)) and by t/z, Student's quantile with one degree of
    freedom for each seed beyond a task's first over the normal one. Of 95 % intervals over seven tasks with two seeds
    each, 79 % hold the true mean without the scaling, and 94 % with it.

    Args:
        differences: Differences of paired seeds by task; tasks with fewer than two are left out.
        stream: Names the stream of random numbers, so that the interval depends on nothing else.

    >>> mean_difference({"a": [1.0, 2.0], "b": [3.0, 3.0], "c": [9.0]}, "example")
    MeanDifference(tasks=2, mean=2.25, low=1.47..., high=3.02...)
    """
    kept = {task: np.asarray(values, dtype=float) for task, values in sorted(differences.items()) if len(values) > 1}
    if not kept:
        return None
    freedom = sum(len(values) - 1 for values in kept.values())
    widening = t_quantile((1 + LEVEL) / 2, freedom) / NormalDist().inv_cdf((1 + LEVEL) / 2)
    generator = np.random.default_rng(zlib.crc32(stream.encode()))
    drawn = np.zeros(DRAWS)
    for values in kept.values():
        count, centre = len(values), values.mean()
        scaled = centre + (values - centre) * np.sqrt(count / (count - 1)) * widening
        drawn += scaled[generator.integers(count, size=(DRAWS, count))].mean(1) / len(kept)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    centre = mean([float(values.mean()) for values in kept.values()])
    return MeanDifference(len(kept), centre, float(low), float(high))


def trap_counts(values: Mapping[str, BySeed]) -> bool | None:
    """Return whether a trap is one: TrivialAugment loses a point or more to no policy; None while that is not known.

    >>> trap_counts({"none": {0: 97.0, 1: 97.2}, "trivialaugment": {0: 95.5, 1: 96.0}}), trap_counts({})
    (True, None)
    """
    found = paired_difference(values.get(TRIVIAL, {}), values.get(NONE, {}))
    return None if found is None else found.mean <= -TRAP_LOSS


class Figures:
    """The finished runs of the tasks' current versions, by task, arm and seed, and what follows from them.

    Args:
        runs: Runs of one or several result files.
        tasks: Facts about tasks, in order; a task that is not there is plain and comes last, under its name.
        arms: Facts about arms, in order; one that is not there is a learned arm and comes last.
        measured_on: ``judge`` or ``test``; runs that were measured on the other are left out.
    """

    def __init__(
        self, runs: Iterable[Run], tasks: Mapping[str, TaskFacts], arms: Mapping[str, ArmFacts], measured_on: str
    ):
        self.measured_on = measured_on
        self._tasks, self._arms = tasks, arms
        self._means = dict[tuple[str, str, str], MeanDifference | None]()
        given = list(runs)
        wanted = [run for run in given if run["measured_on"] == measured_on]
        self.measured_elsewhere = len(given) - len(wanted)
        newest = dict[str, int]()
        for run in wanted:
            newest[run["task"]] = max(run["task_version"], newest.get(run["task"], 0))
        version = {name: tasks[name].version if name in tasks else found for name, found in newest.items()}
        current = [run for run in wanted if run["task_version"] == version[run["task"]]]
        self.outdated = len(wanted) - len(current)
        self.failed = [run for run in current if run.get("failed") is not None]
        self.runs = [run for run in current if run.get("failed") is None]
        self.tasks = _ordered((run["task"] for run in current), tasks)
        self.arms = _ordered((run["arm"] for run in current), arms)
        self.accuracy = {task: defaultdict[str, dict[int, float]](dict) for task in self.tasks}
        for run in self.runs:
            self.accuracy[run["task"]][run["arm"]][run["seed"]] = run["accuracy"]

    def title(self, task: str) -> str:
        """Return a task's name for people."""
        return self._tasks[task].title if task in self._tasks else task

    def meaning(self, arm: str) -> str:
        """Return what an arm is, in a line."""
        return self._arms[arm].meaning if arm in self._arms else ""

    def is_fixed(self, arm: str) -> bool:
        """Whether an arm's policy stays the same for the whole run."""
        return arm in self._arms and self._arms[arm].fixed

    def is_trap(self, task: str) -> bool:
        """Whether a task's op set has ops that destroy labels."""
        return task in self._tasks and self._tasks[task].trap

    @property
    def learned(self) -> list[str]:
        """The arms that are not fixed."""
        return [arm for arm in self.arms if not self.is_fixed(arm)]

    @cached_property
    def best_fixed(self) -> dict[str, dict[int, tuple[str, float]]]:
        """Arm and accuracy of best-fixed, by task and seed."""
        fixed = [arm for arm in self.arms if self.is_fixed(arm)]
        return {task: best_fixed(values, fixed) for task, values in self.accuracy.items()}

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The tasks that means are taken over: those without traps, the traps that count, and those for the final."""
        kept = [task for task in self.tasks if task in self._tasks and self._tasks[task].final_only]
        found = {
            "tasks without traps": [task for task in self.tasks if not self.is_trap(task) and task not in kept],
            "traps that count": [
                task for task in self.tasks if self.is_trap(task) and trap_counts(self.accuracy[task]) is True
            ],
            "tasks for the final": kept,
        }
        return {name: tasks for name, tasks in found.items() if tasks}

    def values(self, task: str, arm: str) -> BySeed:
        """Return an arm's accuracy by seed on a task; best-fixed is an arm here."""
        if arm == BEST_FIXED:
            return {seed: value for seed, (_, value) in self.best_fixed[task].items()}
        return self.accuracy[task].get(arm, {})

    def difference(self, task: str, arm: str, against: str) -> PairedDifference | None:
        """Return an arm's difference to another on a task, or None where no seed is shared."""
        return paired_difference(self.values(task, arm), self.values(task, against))

    def mean_difference(self, arm: str, against: str, group: str) -> MeanDifference | None:
        """Return an arm's mean difference to another over a group of tasks, or None where no two seeds are shared."""
        place = (arm, against, group)
        if place not in self._means:
            differences = {task: self.paired(task, arm, against) for task in self.groups.get(group, ())}
            self._means[place] = mean_difference(differences, f"{arm} minus {against}")
        return self._means[place]

    def paired(self, task: str, arm: str, against: str) -> list[float]:
        """Return an arm's differences to another on a task, one per seed that both have."""
        ours, theirs = self.values(task, arm), self.values(task, against)
        return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]

    def costs(self, arm: str) -> dict[str, float]:
        """Return an arm's seconds per run over those of ``none`` by task, where both shared the same device alike."""
        found = {}
        for task in self.tasks:
            ours, theirs = self._seconds(task, arm), self._seconds(task, NONE)
            ratios = [mean(ours[place]) / mean(theirs[place]) for place in ours if mean(theirs.get(place, [0.0])) > 0]
            if ratios:
                found[task] = mean(ratios)
        return found

    def _seconds(self, task: str, arm: str) -> dict[tuple[object, ...], list[float]]:
        """Return the seconds of an arm's runs on a task by the device and how many processes shared it."""
        found = defaultdict[tuple[object, ...], list[float]](list)
        for run in self.runs:
            if (run["task"], run["arm"]) == (task, arm):
                device = run["machine"].get("gpu") or run["machine"].get("cpu")
                found[device, run["shared_gpu"]].append(run["seconds"]["total"])
        return found


def _ordered(names: Iterable[str], table: Mapping[str, object]) -> list[str]:
    """Return each name once: those of a table in its order, then the others."""
    found = set(names)
    return [*(name for name in table if name in found), *sorted(found - table.keys())]
