"""The proving ground in plain words and tables: where each learned arm loses, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

from common import table
from proving_statistics import BEST_FIXED, NONE, TRIVIAL, Figures, MeanDifference, mean_difference, trap_counts

from particleaugment.compare.arm_summary import Difference, interval_text
from particleaugment.compare.statistics import LEVEL, PairedDifference, mean, paired_difference, standard_deviation

__all__ = [
    "Verdict",
    "accuracy",
    "by_task_table",
    "mean_text",
    "points_text",
    "proving_table",
    "trap_sentences",
    "verdicts",
]

FROZEN = "-frozen"
SHORT = 100
"""Number of epochs from which a run is long: those of the difficulty filter then start at full strength."""


def points_text(points: PairedDifference | None, unit: bool = True) -> str:
    """Return a difference with its interval and number of seeds, with or without the word.

    >>> points_text(PairedDifference(3, 0, -0.5, -0.75, -0.25)), points_text(PairedDifference(1, 0, -0.5))
    ('-0.50 [-0.75, -0.25] (3 seeds)', '-0.50, no interval (1 seed)')
    """
    if points is None:
        return ""
    seeds = (" seed" if points.pairs == 1 else " seeds") if unit else ""
    return f"{interval_text(Difference('', '', points))} ({points.pairs}{seeds})"


def mean_text(found: MeanDifference | None) -> str:
    """Return a mean difference over tasks with its interval.

    >>> mean_text(MeanDifference(7, 0.5, 0.25, 0.75))
    '+0.50 [+0.25, +0.75] (7 tasks)'
    """
    if found is None:
        return ""
    tasks = "1 task" if found.tasks == 1 else f"{found.tasks} tasks"
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}] ({tasks})"


def accuracy(figures: Figures, task: str, arm: str) -> str:
    """Return an arm's mean accuracy on a task with its deviation and number of seeds, or nothing."""
    values = list(figures.values(task, arm).values())
    if not values:
        return ""
    deviation = standard_deviation(values)
    return f"{mean(values):.2f}{'' if deviation is None else f' ± {deviation:.2f}'} ({len(values)})"


@dataclass(frozen=True)
class Verdict:
    """What an arm does against another.

    Attributes:
        summary: On how many tasks it loses and wins, and the mean over tasks.
        details: The tasks on which it loses, and those on which it is behind.
    """

    summary: str
    details: tuple[str, ...] = ()


def verdicts(figures: Figures, arm: str) -> list[Verdict]:
    """Say where a learned arm loses to none, to TrivialAugment and to its frozen control."""
    references = {NONE: "none", TRIVIAL: "TrivialAugment", f"{arm}{FROZEN}": f"its frozen control, {arm}{FROZEN}"}
    return [
        _verdict(figures, arm, against, said)
        for against, said in references.items()
        if against in figures.arms and against != arm
    ]


def _verdict(figures: Figures, arm: str, against: str, said: str) -> Verdict:
    found = {task: figures.difference(task, arm, against) for task in figures.tasks}
    points = {task: each for task, each in found.items() if each is not None}
    if not points:
        return Verdict(f"Against {said}: no task has runs of both with the same seed.")
    lost = {task: each for task, each in points.items() if each.high is not None and each.high < 0}
    won = {task: each for task, each in points.items() if each.low is not None and each.low > 0}
    behind = {task: each for task, each in points.items() if task not in lost and round(each.mean, 2) < 0}
    averages = {group: figures.mean_difference(arm, against, group) for group in figures.groups}
    parts = [
        f"{each.mean:+.2f} [{each.low:+.2f}, {each.high:+.2f}] points over {_counted(each.tasks, group)}"
        for group, each in averages.items()
        if each is not None
    ]
    where = f"Of {_counted(len(points), 'tasks')} it loses on {len(lost)} and wins on {len(won)}"
    rest = len(points) - len(lost) - len(won)
    doubt = f"; {rest} cannot tell" if rest else ""
    details = []
    if lost:
        details.append(f"It loses on {_list(figures, lost)}.")
    if behind:
        details.append(f"It is behind, but the interval contains 0 or there is none, on {_list(figures, behind)}.")
    return Verdict(
        f"Against {said}: {'; '.join(parts) or 'no two seeds in common yet'}. {where}{doubt}.", tuple(details)
    )


def _counted(count: int, plural: str) -> str:
    """Return a number of tasks with what they are.

    >>> _counted(2, "traps that count"), _counted(1, "traps that count")
    ('2 traps that count', '1 trap that counts')
    """
    return f"{count} {plural}" if count != 1 else f"1 {_SINGULAR.get(plural, plural)}"


_SINGULAR = {
    "tasks": "task",
    "tasks without traps": "task without traps",
    "traps that count": "trap that counts",
    "tasks for the final": "task for the final",
}


def _list(figures: Figures, points: dict[str, PairedDifference]) -> str:
    return "; ".join(f"{figures.title(task)}: {points_text(each)}" for task, each in points.items())


def trap_sentences(figures: Figures) -> list[str]:
    """Say for each trap whether it counts."""
    found = []
    for task in filter(figures.is_trap, figures.tasks):
        counts = trap_counts(figures.accuracy[task])
        loss = points_text(figures.difference(task, TRIVIAL, NONE))
        if counts is None:
            found.append(f"{figures.title(task)}: not known yet, since none and TrivialAugment share no seed.")
        elif counts:
            found.append(f"{figures.title(task)} counts: TrivialAugment minus none is {loss}.")
        else:
            found.append(
                f"{figures.title(task)} does not count, since TrivialAugment loses less than a point to none ({loss}); "
                "make it harder."
            )
    return found


def proving_table(figures: Figures) -> str:
    """Return the accuracies of all arms, and what learned arms gain and lose, in Markdown."""
    if not figures.runs:
        return "No runs yet."
    rows = [
        [f"**{arm}**" if arm in figures.learned else arm, *(accuracy(figures, task, arm) for task in figures.tasks)]
        for arm in (*figures.arms, BEST_FIXED)
    ]
    heads = [f"{figures.title(task)}{' (trap)' if figures.is_trap(task) else ''}" for task in figures.tasks]
    parts = [table(["accuracy, %", *heads], rows)]
    references = {NONE: "none", TRIVIAL: "TrivialAugment", BEST_FIXED: "best-fixed"}
    for group in figures.groups:
        lines = []
        for arm in figures.learned:
            against = (*references, f"{arm}{FROZEN}")
            lines.append([f"**{arm}**", *(mean_text(figures.mean_difference(arm, other, group)) for other in against)])
        if any(cell for line in lines for cell in line[1:]):
            heads = [f"minus {said}" for said in (*references.values(), "its frozen control")]
            parts.append(table([f"learned arm, {group}", *heads], lines))
    parts += trap_sentences(figures)
    devices = sorted({run["machine"].get("gpu") or run["machine"].get("cpu") or "?" for run in figures.runs})
    where = "training images that no run trains on" if figures.measured_on == "judge" else "test images"
    parts.append(
        f"Last epoch, on {where}: mean ± standard deviation (seeds). Learned arms are bold; differences are points "
        f"with their 95 % intervals. {len(figures.runs)} runs on {', '.join(devices)}."
    )
    return "\n\n".join(parts)


def by_task_table(figures: Figures, arm: str) -> str:
    """Return what an arm gains and loses on each task and on all short ones, in Markdown.

    All intervals of tasks in a column hold together at 95 %.
    """
    against = {NONE: "none", TRIVIAL: "TrivialAugment", BEST_FIXED: "best-fixed"}
    level = 1 - (1 - LEVEL) / max(1, len(figures.tasks))
    rows = [
        [
            figures.title(task) + (" (trap)" if figures.is_trap(task) else ""),
            *(
                points_text(
                    paired_difference(figures.values(task, arm), figures.values(task, other), level), unit=False
                )
                for other in against
            ),
        ]
        for task in figures.tasks
    ]
    epochs = {run["task"]: run["epochs"] for run in figures.runs}
    short = [task for task in figures.tasks if epochs.get(task, SHORT) < SHORT and not figures.is_trap(task)]
    if len(short) > 1:
        means = [
            mean_difference({task: figures.paired(task, arm, other) for task in short}, f"{arm} minus {other}, short")
            for other in against
        ]
        rows.append([f"mean of those with fewer than {SHORT} epochs", *map(mean_text, means)])
    said = (
        f"Points, with the number of seeds. The intervals are corrected for {len(figures.tasks)} tasks (Bonferroni): "
        "all of a column hold together at 95 %."
    )
    if len(short) > 1:
        said += " The last row has plain 95 % intervals."
    return table([f"{arm}", *(f"minus {name}" for name in against.values())], rows) + f"\n\n{said}"
