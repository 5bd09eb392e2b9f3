"""Stopping politely: the first Ctrl-C or SIGTERM asks the run to save and end, the second ends it at once.

An output that nobody reads any more asks for it too.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

__all__ = ["OUTPUT_CLOSED", "Stop", "StopNow", "Stopped"]

_SIGPIPE = 13  # not every system has the signal
OUTPUT_CLOSED = 128 + _SIGPIPE
"""The conventional exit code of a command whose output nobody reads any more."""


class Stopped(Exception):
    """The run was asked to stop and has to save."""


class StopNow(KeyboardInterrupt):
    """A second signal came: the process ends at once.

    Attributes:
        exit_code: 130 after Ctrl-C, 143 after SIGTERM.
    """

    def __init__(self, number: int):
        super().__init__()
        self.exit_code = 128 + number


class Stop:
    """While it is entered, signals are noted instead of ending the process.

    Attributes:
        signal_number: The signal that asked for the stop, or 0.
        output_closed: Whether nobody reads the output any more.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self.output_closed = False
        self._old: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: whoever runs us there keeps the signals
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number:
            raise StopNow(number)
        self.signal_number = number

    def close_output(self) -> None:
        """Note that nobody reads the output any more; unlike a signal, this leaves the next one the first."""
        self.output_closed = True

    @property
    def asked(self) -> int:
        """The number of the signal that asks for a stop, SIGPIPE's for a closed output, or 0."""
        return self.signal_number or (_SIGPIPE if self.output_closed else 0)

    def check(self) -> None:
        """Raise Stopped if a stop was asked for."""
        if self.asked:
            raise Stopped

    @property
    def exit_code(self) -> int:
        """The conventional exit code: 130 after Ctrl-C, 143 after SIGTERM, 141 after the output was closed."""
        return 128 + (self.asked or signal.SIGINT)
