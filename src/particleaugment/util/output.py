"""Standard output, and what becomes of a command when nobody reads it any more, as when ``head`` has ended."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from particleaugment.util.shown import printable_lines
from particleaugment.util.stop import OUTPUT_CLOSED

__all__ = ["Commands", "Output", "say"]


def say(text: str, *, error: bool = False) -> None:
    """Print lines to standard output, or to standard error; escapes in them do not reach the terminal."""
    print(printable_lines(text), file=sys.stderr if error else None)


def _raise_broken_pipe() -> None:
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _discard(file: IO[str]) -> None:
    """Let a file lead nowhere."""
    # What could not be written is still in the file's buffer, and the interpreter tries again when it ends.
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


class Output(Console):
    """Standard output for plain text; when nobody reads it any more, that is told once, and nothing more is written.

    Args:
        closed: Told so; if not given, a BrokenPipeError is raised.
        soft_wrap: Whether lines may be longer than a terminal's.
        quiet: Whether nothing is written.
    """

    def __init__(
        self, closed: Callable[[], None] = _raise_broken_pipe, *, soft_wrap: bool = False, quiet: bool = False
    ):
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap, quiet=quiet)
        self._closed = closed

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Return a text ready to be written; names in it may be of files that somebody else has named."""
        return super().render_str(printable_lines(text), **options)

    def on_broken_pipe(self) -> None:
        """Write nothing more, and tell it."""
        self.quiet = True
        _discard(self.file)
        self._closed()


class Commands(TyperGroup):
    """Commands of which each ends as other programs do when nobody reads its output any more: with 141."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line; help is printed here."""
        with _ending_with_its_output(), _printable_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _ending_with_its_output(), _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _ending_with_its_output() -> Iterator[None]:
    try:
        try:
            yield
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        for file in filter(None, (sys.stdout, sys.stderr)):
            try:
                file.flush()
            except BrokenPipeError:
                _discard(file)
        raise typer.Exit(OUTPUT_CLOSED) from None


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Let errors about the command line, which repeat it, show nothing that a terminal acts on."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            text = printable_lines(error.format_message())
            error.format_message = lambda: text
        raise
