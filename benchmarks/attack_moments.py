"""Attacks while a run goes on: clocks that jump, pauses in the middle of writing, and a disk that has no room left."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from attack_sandbox import Finding, Sandbox

OPERATIONS = ("open", "fsync", "replace")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.EACCES)


@contextlib.contextmanager
def _jumping(draw: random.Random) -> Iterator[None]:
    """The time of day jumps by up to years at every look, and the other clock takes a leap now and then."""
    real, leap = time.monotonic, draw.choice([0.0, 0.0, 1e3, 1e6])
    ahead = [0.0]

    def monotonic() -> float:
        ahead[0] += leap * (draw.random() < 0.1)
        return real() + ahead[0]

    with (
        patch.object(time, "time", lambda: 1.7e9 + draw.uniform(-1.7e9, 1e10)),
        patch.object(time, "time_ns", lambda: int(1.7e18 + draw.uniform(-1.7e18, 1e18))),
        patch.object(time, "monotonic", monotonic),
    ):
        yield


@contextlib.contextmanager
def _at(operation: str, number: int, act: Callable[[], None]) -> Iterator[None]:
    """Do something before the n-th of such operations on files."""
    real, left = getattr(os, operation), [number]

    def acting(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            act()
        return real(*given, **named)

    with patch.object(os, operation, acting):
        yield


def _pause() -> None:
    with subprocess.Popen(["/bin/sh", "-c", f"sleep 0.05; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def moments(box: Sandbox, draw: random.Random) -> str:
    """Clocks, pauses, and a disk without room or inodes: a sentence at most, and the result is the same in the end."""
    kind = draw.choice(box.workshop.kinds)
    box.copy(f"{kind}-stopped")
    way, place = draw.choice(["clock", "pause", "disk", "disk"]), (draw.choice(OPERATIONS), draw.randint(1, 25))
    if way != "disk":
        with _jumping(draw) if way == "clock" else _at(*place, _pause):
            if box.finish(kind).code:
                raise Finding(f"a {way} has stopped a run")
        return "accepted"
    number = draw.choice(ERRORS)

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with _at(*place, fail):
        failed = box.command("resume", box.run, "-q").code
    if box.command("verify", box.run).code:
        raise Finding(f"error {number} at {place} has left a run that verify finds wrong")
    if box.finish(kind).code:
        raise Finding(f"error {number} at {place} has left a run that cannot be resumed")
    return "refused" if failed else "accepted"
