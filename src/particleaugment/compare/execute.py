"""Training the runs of a comparison that are still to do, and keeping ``compare.json`` up to date meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from particleaugment.compare.comparison import Comparison, ComparisonFolder
from particleaugment.compare.comparison_progress import ComparisonProgress
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.runner import Child, Place, has_owner, run_children
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.clock import duration
from particleaugment.util.stop import Stop

__all__ = ["execute"]

OWNER_SECONDS = 120.0
"""How long to wait for the children of a comparison that was killed: they save and end by themselves."""
MOST_LOSSES = 3
"""How often a run may lose its machine before its next epoch; it is then taken to be the cause."""


def execute(
    folder: ComparisonFolder,
    comparison: Comparison,
    todo: Sequence[RunRecord],
    place: Place,
    stop: Stop,
    console: Console,
) -> Comparison:
    """Train runs, as many at a time as the place takes; a run that fails is reported and the others go on."""
    _wait_for_owners([folder.run_path(record) for record in todo], stop, console)
    execution = _Execution(folder, comparison, todo, place, stop, console)
    with execution.progress.live():
        run_children(
            todo,
            lambda: place.jobs,
            stop,
            start=execution.start,
            begun=execution.begun,
            ended=execution.ended,
            lost=execution.lost,
            watch=execution.progress.watch,
        )
    return execution.comparison


class _Execution:
    def __init__(
        self,
        folder: ComparisonFolder,
        comparison: Comparison,
        todo: Sequence[RunRecord],
        place: Place,
        stop: Stop,
        console: Console,
    ):
        self.folder, self.comparison, self.place, self.stop = folder, comparison, place, stop
        self.progress = ComparisonProgress(todo, console)
        self._losses: dict[tuple[str, int], tuple[int, int]] = {}

    def start(self, record: RunRecord) -> Child:
        record = replace(record, problem=None)
        config = self.comparison.arm(record.arm).config(self.comparison.base, record.seed)
        return self.place.start(record, self.folder.open_run(record, config), self.folder.log_path(record))

    def begun(self, child: Child) -> None:
        self.progress.started(child.record)

    def lost(self, child: Child) -> RunRecord | None:
        """Return the run as it stands, to be started again, unless it has cost its machine too often."""
        record = self._refreshed(child, None)
        key = record.arm, record.seed
        reached, losses = self._losses.get(key, (-1, 0))
        losses = losses + 1 if record.epochs_done <= reached else 1
        self._losses[key] = record.epochs_done, losses
        if losses > MOST_LOSSES:
            return None
        saved = find_checkpoints(child.run.path)
        then = "it continues from its last checkpoint" if saved else "it starts again"
        if child.saved_elsewhere:
            then += (
                f" in this folder, which {child.saved_elsewhere} has no access to"
                if saved
                else (f", because {child.saved_elsewhere} has no access to this folder and kept its checkpoints")
            )
        self.progress.lost(record, f"{child.lost}; {then}")
        return record

    def ended(self, child: Child, code: int) -> None:
        failed = code != 0 and not self.stop.asked
        problem = (child.lost or child.last_line) if failed else None
        child.forget_if_not_valid(code)
        record = self._refreshed(child, problem)
        self.comparison = self.comparison.with_runs([record])
        self.folder.write(self.comparison)
        if record.finished:
            outcome = f"{record.last:.2f} %, {duration(record.total_seconds)}"
        elif failed:
            outcome = "failed" if child.lost else f"failed, exit code {code}"  # why, is told once, at the end
        else:
            outcome = f"stopped and saved, {record.state if record.accuracy else 'before its first evaluation'}"
        self.progress.ended(record, outcome)

    def _refreshed(self, child: Child, problem: str | None) -> RunRecord:
        at_once = max(child.record.at_once, child.at_once)
        return self.folder.refreshed(replace(child.record, at_once=at_once, problem=problem))


def _wait_for_owners(paths: Sequence[Path], stop: Stop, console: Console) -> None:
    limit, told = time.monotonic() + OWNER_SECONDS, False
    for path in paths:
        while not stop.asked and (owned := has_owner(path)) is not None:
            if time.monotonic() > limit:
                raise owned
            if not told:
                console.print(f"{owned}; waiting for it, for {duration(OWNER_SECONDS)} at most", soft_wrap=True)
                told = True
            time.sleep(0.5)
