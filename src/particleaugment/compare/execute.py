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
from particleaugment.compare.runner import Child, run_children
from particleaugment.training.clock import duration
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.stop import Stop

__all__ = ["execute"]

OWNER_SECONDS = 120.0
"""How long to wait for the children of a comparison that was killed: they save and end by themselves."""


def execute(
    folder: ComparisonFolder, comparison: Comparison, todo: Sequence[RunRecord], jobs: int, stop: Stop, console: Console
) -> Comparison:
    """Train runs, ``jobs`` at a time; a run that fails is reported and the others go on."""
    _wait_for_owners([folder.run_path(record) for record in todo], stop, console)
    execution = _Execution(folder, comparison, todo, jobs, stop, console)
    with execution.progress.live():
        run_children(todo, jobs, stop, start=execution.start, ended=execution.ended, watch=execution.progress.watch)
    return execution.comparison


class _Execution:
    def __init__(
        self,
        folder: ComparisonFolder,
        comparison: Comparison,
        todo: Sequence[RunRecord],
        jobs: int,
        stop: Stop,
        console: Console,
    ):
        self.folder, self.comparison, self.jobs, self.stop = folder, comparison, min(jobs, len(todo)), stop
        self.progress = ComparisonProgress(todo, console)

    def start(self, record: RunRecord) -> Child:
        record = replace(record, at_once=max(record.at_once, self.jobs), problem=None)
        config = self.comparison.arm(record.arm).config(self.comparison.base, record.seed)
        child = Child.start(record, self.folder.open_run(record, config), self.folder.log_path(record), self.jobs)
        self.progress.started(record)
        return child

    def ended(self, child: Child, code: int) -> None:
        failed = code != 0 and not self.stop.asked
        problem = child.last_line if failed else None
        child.forget_if_not_valid(code)
        record = self.folder.refreshed(replace(child.record, problem=problem))
        self.comparison = self.comparison.with_runs([record])
        self.folder.write(self.comparison)
        if record.finished:
            outcome = f"{record.last:.2f} %, {duration(record.total_seconds)}"
        elif failed:
            outcome = f"failed, exit code {code}"  # why, is told once, at the end
        else:
            outcome = f"stopped and saved, {record.state}"
        self.progress.ended(record, outcome)


def _wait_for_owners(paths: Sequence[Path], stop: Stop, console: Console) -> None:
    limit, told = time.monotonic() + OWNER_SECONDS, False
    for path in paths:
        while path.exists() and not stop.asked:
            try:
                with RunFolder.open(path).locked():
                    break
            except RunError as error:
                if time.monotonic() > limit:
                    raise
                if not told:
                    console.print(f"{error}; waiting for it, for {duration(OWNER_SECONDS)} at most", soft_wrap=True)
                    told = True
                time.sleep(0.5)
