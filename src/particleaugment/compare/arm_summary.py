"""The figures of a comparison's arms, and the table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from particleaugment.compare.arms import Arm
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.statistics import PairedDifference, mean, paired_difference, standard_deviation

if TYPE_CHECKING:
    from particleaugment.compare.comparison import Comparison, ComparisonFolder

__all__ = [
    "ArmSummary",
    "Difference",
    "accuracy_text",
    "arm_summaries",
    "differences",
    "interval_text",
    "print_comparison",
    "remarks",
    "time_remark",
    "unfinished_remark",
]


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """An arm's figures over its finished runs.

    Attributes:
        arm: Its name.
        runs: Finished runs.
        mean: Mean accuracy of the last epoch.
        standard_deviation: Its standard deviation over seeds; None for one run.
        best_epoch_mean: Mean accuracy of the best epoch, chosen by that accuracy itself: not a result.
        seconds: Mean time of a run, all phases.
        overhead: Mean time of each phase other than training, in percent of training.
        search_overhead: Mean time of the search, in percent of training.
    """

    arm: str
    runs: int
    mean: float
    standard_deviation: float | None
    best_epoch_mean: float
    seconds: float
    overhead: dict[str, float]
    search_overhead: float

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """An arm's last-epoch accuracy minus another's, in points.

    Attributes:
        arm: The arm.
        against: The arm that is subtracted.
        points: The difference, or None where no seed is shared.
    """

    arm: str
    against: str
    points: PairedDifference | None

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain JSON data."""
        return {"arm": self.arm, "against": self.against} | ({} if self.points is None else asdict(self.points))


def arm_summaries(arms: Sequence[Arm], runs: Sequence[RunRecord]) -> list[ArmSummary]:
    """Return the figures of every arm that has a finished run."""
    found = []
    for arm in arms:
        finished = [run for run in runs if run.arm == arm.name and run.finished]
        if finished:
            found.append(_summary(arm.name, finished))
    return found


def _summary(name: str, runs: Sequence[RunRecord]) -> ArmSummary:
    phases = dict.fromkeys(phase for run in runs for phase in run.seconds if phase != "train")
    last = [run.last for run in runs]
    return ArmSummary(
        arm=name,
        runs=len(runs),
        mean=mean(last),
        standard_deviation=standard_deviation(last),
        best_epoch_mean=mean([run.best for run in runs]),
        seconds=mean([run.total_seconds for run in runs]),
        overhead={phase: mean([_percent(run.seconds.get(phase, 0.0), run) for run in runs]) for phase in phases},
        search_overhead=mean([_percent(run.search_seconds, run) for run in runs]),
    )


def _percent(seconds: float, run: RunRecord) -> float:
    training = run.seconds.get("train", 0.0)
    return 100.0 * seconds / training if training else 0.0


def differences(arms: Sequence[Arm], runs: Sequence[RunRecord], against: str) -> list[Difference]:
    """Return every other arm's difference to one arm, over paired seeds."""
    by_arm = {arm.name: {run.seed: run.last for run in runs if run.arm == arm.name and run.finished} for arm in arms}
    return [
        Difference(name, against, paired_difference(values, by_arm[against]))
        for name, values in by_arm.items()
        if name != against and values
    ]


def accuracy_text(summary: ArmSummary) -> str:
    """Return an arm's mean accuracy with its standard deviation, where it has one."""
    deviation = "" if summary.standard_deviation is None else f" ± {summary.standard_deviation:.2f}"
    return f"{summary.mean:.2f}{deviation}"


def interval_text(difference: Difference) -> str:
    """Return a difference with its interval.

    >>> interval_text(Difference("a", "b", PairedDifference(3, 0, 0.5, 0.25, 0.75)))
    '+0.50 [+0.25, +0.75]'
    """
    points = difference.points
    if points is None:
        return "no seed in common"
    if points.low is None or points.high is None:
        return f"{points.mean:+.2f}, no interval"
    return f"{points.mean:+.2f} [{points.low:+.2f}, {points.high:+.2f}]"


def unfinished_remark(run: RunRecord, folder: ComparisonFolder | None = None) -> str:
    """Return where a run that has no result stands, with the path of its log if it has failed and there is one."""
    log = folder.log_path(run) if folder is not None and run.problem is not None else None
    where = f"; log: {log}" if log is not None and log.exists() else ""
    return f"{run.arm}, seed {run.seed}: {run.state}; excluded{where}."


def remarks(comparison: Comparison, folder: ComparisonFolder | None = None) -> list[str]:
    """Return what a reader of the figures has to know besides them, in sentences; with a folder, where logs are."""
    found = [unfinished_remark(run, folder) for run in comparison.unfinished]
    summaries = arm_summaries(comparison.arms, comparison.runs)
    single = [summary.arm for summary in summaries if summary.runs == 1]
    if single:
        found.append(f"Only one finished run, so no deviation and no interval: {', '.join(single)}.")
    for difference in differences(comparison.arms, comparison.runs, comparison.against):
        points = difference.points
        if points is not None and points.left_out:
            alone = "1 run without a partner" if points.left_out == 1 else f"{points.left_out} runs without a partner"
            verb = "is" if points.left_out == 1 else "are"
            pairs = "1 pair remains" if points.pairs == 1 else f"{points.pairs} pairs remain"
            found.append(
                f"{difference.arm} minus {difference.against}: {alone} of the same seed {verb} left out; {pairs}."
            )
    return found


def time_remark(comparison: Comparison) -> str:
    """Return what to know about the times, in a sentence, or nothing."""
    most = max((run.at_once for run in comparison.runs if run.finished), default=1)
    if most == 1:
        return ""
    return f"Up to {most} runs shared the machine, so each took longer than it would alone; compare times with care."


def print_comparison(comparison: Comparison, console: Console, folder: ComparisonFolder | None = None) -> None:
    """Print the table that a comparison ends with, and what to know about it; with a folder, also where logs are."""
    base = comparison.base.config
    title = f"{base.recipe}, {base.training.epochs} epochs, accuracy on {comparison.measured_on} images"
    table = Table(title=title, title_justify="left", box=SIMPLE, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm", overflow="fold")
    table.add_column("n", justify="right")
    table.add_column("last\nepoch, %")
    table.add_column(f"minus {comparison.against}\n[95 % interval]")
    table.add_column("best\nepoch*", justify="right")
    table.add_column("time,\ns", justify="right")
    table.add_column("search\n%**", justify="right")
    by_arm = {d.arm: d for d in differences(comparison.arms, comparison.runs, comparison.against)}
    for summary in arm_summaries(comparison.arms, comparison.runs):
        difference = by_arm.get(summary.arm)
        table.add_row(
            summary.arm,
            str(summary.runs),
            accuracy_text(summary),
            "" if difference is None else interval_text(difference),
            f"{summary.best_epoch_mean:.2f}",
            f"{summary.seconds:.0f}",
            f"{summary.search_overhead:.0f}" if summary.search_overhead else "",
        )
    if table.row_count:
        console.print(table)
        console.print("* selected by the accuracy it reports: not a result  ** share of training time")
    for remark in filter(None, [*remarks(comparison, folder), time_remark(comparison)]):
        console.print(remark, soft_wrap=True)
