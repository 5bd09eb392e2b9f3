"""What a person sees while a comparison runs: bars on a terminal, a line per run elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.runner import Child
from particleaugment.training.clock import duration

__all__ = ["ComparisonProgress"]

REFRESH_SECONDS = 1.0


class ComparisonProgress:
    """Shows which run of how many, and what is left.

    Args:
        runs: The runs to do, as they stand.
        console: Where to; a quiet one shows nothing.
    """

    def __init__(self, runs: Sequence[RunRecord], console: Console):
        self.console = console
        self._total = len(runs)
        self._ended = 0
        self._epochs_at_start = {_key(run): run.epochs_done for run in runs}
        self._epochs_left = sum(run.epochs - run.epochs_done for run in runs)
        self._epochs_of_ended = 0
        self._begin = time.monotonic()
        self._numbers = {_key(run): number for number, run in enumerate(runs, 1)}
        self._bars: Progress | None = None
        self._all: TaskID | None = None
        self._tasks: dict[tuple[str, int], TaskID] = {}
        self._last_look = 0.0

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show bars, on a terminal, while the block runs."""
        if self.console.quiet or not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(20),
            TextColumn("{task.completed:.0f}/{task.total:.0f} epochs"),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as self._bars:
            self._all = self._bars.add_task("all runs", total=self._epochs_left, note="")
            try:
                yield
            finally:
                self._bars = None

    def started(self, run: RunRecord) -> None:
        """Tell that a run starts or continues."""
        if self._bars is not None:
            name = f"{run.arm}, seed {run.seed}"
            self._tasks[_key(run)] = self._bars.add_task(name, total=run.epochs, completed=run.epochs_done, note="")
        else:
            where = f" from epoch {run.epochs_done + 1}" if run.accuracy else ""
            self._say(f"{self._place(run)} {run.arm}, seed {run.seed}: started{where}")

    def lost(self, run: RunRecord, what: str) -> None:
        """Tell that a run has lost its machine, and what follows."""
        if self._bars is not None:
            self._bars.remove_task(self._tasks.pop(_key(run)))
        self._say(f"{self._place(run)} {run.arm}, seed {run.seed}: {what}")

    def ended(self, run: RunRecord, outcome: str) -> None:
        """Tell how a run ended."""
        self._ended += 1
        self._epochs_of_ended += run.epochs_done - self._epochs_at_start[_key(run)]
        if self._bars is not None:
            self._bars.remove_task(self._tasks.pop(_key(run)))
        left = self._left(self._epochs_of_ended) if self._ended < self._total else ""
        self._say(f"{self._place(run)} {run.arm}, seed {run.seed}: {outcome}{f'; {left}' if left else ''}")

    def watch(self, running: Sequence[Child]) -> None:
        """Show how far the runs have come."""
        now = time.monotonic()
        if self._bars is None or self._all is None or now - self._last_look < REFRESH_SECONDS:
            return
        self._last_look = now
        done = self._epochs_of_ended
        for child in running:
            epochs = child.epochs_done
            done += epochs - self._epochs_at_start[_key(child.record)]
            self._bars.update(self._tasks[_key(child.record)], completed=epochs)
        note = f"{self._ended} of {self._total} runs ended  {self._left(done)}"
        self._bars.update(self._all, completed=done, note=note)

    def _place(self, run: RunRecord) -> str:
        return f"[{self._numbers[_key(run)]}/{self._total}]"

    def _left(self, epochs_done: int) -> str:
        if epochs_done <= 0:
            return ""
        seconds = (time.monotonic() - self._begin) / epochs_done * (self._epochs_left - epochs_done)
        return f"about {duration(seconds)} left"

    def _say(self, message: str) -> None:
        self.console.print(message, soft_wrap=True)


def _key(run: RunRecord) -> tuple[str, int]:
    return run.arm, run.seed
