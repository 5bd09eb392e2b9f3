"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    description: str, total: int, *, done: int = 0, as_bytes: bool = False, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the block runs; the block is given a function that sets how far it has come.

    >>> with progress_bar("counting", total=3, quiet=True) as update:
    ...     update(3)
    """
    if quiet:
        yield lambda completed: None
        return

    # rich takes a good part of the package's import time, so it comes with the first bar.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda completed: None
        return
    amount: list[ProgressColumn] = [DownloadColumn(), TransferSpeedColumn()] if as_bytes else [MofNCompleteColumn()]
    columns = (TextColumn("{task.description}"), BarColumn(), *amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total, completed=done)
        yield lambda completed: progress.update(task, completed=completed)
