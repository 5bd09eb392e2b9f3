"""What a person sees while a run goes on: a live bar on a terminal, a line per epoch elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from particleaugment.search.difficulty import tolerated
from particleaugment.training.clock import duration
from particleaugment.util.output import Output

__all__ = ["Display", "filter_note"]


def filter_note(ops_per_image: float, skipped: int, strength: float | None, step: Mapping[str, Any]) -> str:
    """Return what a line of progress says about the filter.

    Args:
        ops_per_image: Mean number of ops that the policy applies.
        skipped: Steps skipped so far.
        strength: Strength of augmentation, where the filter steers one.
        step: Fields of the last step; empty before the first.

    >>> filter_note(1.86, 0, 2.0, {"difficulty": 0.834, "wanted": 0.92})
    'strength 2.00 ops/image  difficulty 0.83 (0.62 to 1.37 is fine)'
    """
    if strength is None:
        return f"{ops_per_image:.2f} ops/image  {skipped} steps skipped"
    note = f"strength {strength:.2f} ops/image"
    if step.get("difficulty") is not None:
        low, high = tolerated(step["wanted"])
        note += f"  difficulty {step['difficulty']:.2f} ({low:.2f} to {high:.2f} is fine)"
    return f"{note}  {skipped} steps skipped" if skipped else note


class Display:
    """Shows progress.

    Args:
        quiet: Whether nothing is shown.
        console: Where to, if not on standard output.
        closed: Told when nobody reads standard output any more.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None, closed: Callable[[], None] = lambda: None):
        self.console = console or Output(closed, soft_wrap=True)
        self.quiet = quiet
        self._progress: Progress | None = None
        self._epochs: TaskID | None = None
        self._phase: TaskID | None = None
        self._last_update = 0.0
        self._began, self._done_before = time.monotonic(), 0

    @contextmanager
    def live(self, epochs: int, done: int) -> Iterator[None]:
        """Show a bar for the run (on a terminal) while the block runs."""
        self._began, self._done_before = time.monotonic(), done
        if self.quiet or not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description:<14}"),
            BarColumn(20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            self._progress = progress
            self._epochs = progress.add_task("epochs", total=epochs, completed=done, note="")
            self._phase = progress.add_task("", total=1, note="")
            try:
                yield
            finally:
                self._progress = None

    def phase(self, name: str, done: int, total: int) -> None:
        """Show how far a phase of the epoch has come."""
        if self._progress is None or self._phase is None:
            return
        now = time.monotonic()
        if done < total and now - self._last_update < 0.1:
            return
        self._last_update = now
        self._progress.update(self._phase, description=name, completed=done, total=max(total, 1))

    def epoch(self, number: int, epochs: int, note: str, short: str = "") -> None:
        """Tell that an epoch is done, and without a bar what is left; a bar has room for the short note only."""
        if self.quiet:
            return
        if self._progress is not None and self._epochs is not None:
            self._progress.update(self._epochs, completed=number, note=short or note)
        else:
            left = (time.monotonic() - self._began) / (number - self._done_before) * (epochs - number)
            self.console.print(f"epoch {number}/{epochs}  {note}{f'  {duration(left)} left' if left else ''}")

    def passed(self, number: int) -> None:
        """Move the live bar on by an epoch that nothing is known of."""
        if self._progress is not None and self._epochs is not None:
            self._progress.update(self._epochs, completed=number)

    def say(self, message: str) -> None:
        """Print a sentence; characters that the output cannot show become question marks."""
        if not self.quiet:
            encoding = self.console.encoding
            self.console.print(message.encode(encoding, "replace").decode(encoding))
