"""Several runs at a time, each a process of its own, on this machine or elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from particleaugment.compare.run_record import RunRecord
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.atomic import own_folder, regular_file
from particleaugment.util.reading import open_file, read_file
from particleaugment.util.stop import Stop
from particleaugment.util.strict_json import clipped

__all__ = [
    "Child",
    "LocalChild",
    "LocalPlace",
    "Place",
    "child_environment",
    "epochs_done",
    "has_owner",
    "run_children",
    "thread_settings",
    "worker_arguments",
]

POLL_SECONDS = 0.1
_LAST_LINE = 1 << 16
NOT_VALID = 2
"""The exit code of a request that was not valid: nothing was started."""


@dataclass(eq=False)
class Child(ABC):
    """A run in a process of its own, wherever that is.

    Attributes:
        record: The run's figures when it was started.
        run: Its folder on this machine.
        log: Where its output goes.
    """

    record: RunRecord
    run: RunFolder
    log: Path

    @abstractmethod
    def end(self) -> int | None:
        """Return the exit code of a process that has ended, or None."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the run to save and end."""

    @abstractmethod
    def end_at_once(self) -> None:
        """End the process, saved or not, and wait for that."""

    @property
    @abstractmethod
    def at_once(self) -> int:
        """How many runs have shared its machine, itself included, at most."""

    @property
    def begun(self) -> bool:
        """Whether it has found room and started; one that is stopped before has no result."""
        return True

    @property
    def lost(self) -> str:
        """What ended it without its doing, such as the death of its machine; nothing where it ended by itself."""
        return ""

    @property
    def saved_elsewhere(self) -> str:
        """Where it has saved, if not in the run's folder here; what is lost with that place, is lost."""
        return ""

    @property
    def epochs_done(self) -> int:
        """The last epoch that the run's metrics know of."""
        return epochs_done(self.run.metrics)

    def forget_if_not_valid(self, code: int) -> None:
        """Remove the folder of a request that was refused before anything was computed, so that it can be mended."""
        if code == NOT_VALID and not self.run.metrics.exists() and not find_checkpoints(self.run.path):
            shutil.rmtree(self.run.path, ignore_errors=True)

    @property
    def last_line(self) -> str:
        """The last line that the process has written."""
        try:
            with open_file(self.log) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINE))
                lines = file.read(_LAST_LINE).decode("utf-8", errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return clipped(lines[-1].strip().removeprefix("particleaugment: ")) if lines else "it wrote nothing"


class Place(Protocol):
    """Where runs are executed."""

    @property
    def jobs(self) -> int:
        """How many runs there is room for at the moment, at least 1."""

    def start(self, record: RunRecord, run: RunFolder, log: Path) -> Child:
        """Start or continue a run."""


@dataclass(frozen=True)
class LocalPlace:
    """This machine: each run is a child process.

    Attributes:
        jobs: How many run at a time.
    """

    jobs: int = 1

    def start(self, record: RunRecord, run: RunFolder, log: Path) -> LocalChild:
        """Start or continue a run."""
        own_folder(log.parent)
        command = [sys.executable, *worker_arguments(run.path)]
        with open(log, "ab", opener=regular_file) as output:
            # A session of its own, so that Ctrl-C reaches the parent alone, which passes it on once.
            process = subprocess.Popen(
                command,
                env=child_environment(self.jobs),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LocalChild(record, run, log, process, self.jobs)


@dataclass(eq=False)
class LocalChild(Child):
    """A run in a child process of this one.

    Attributes:
        process: The process.
        jobs: How many run at a time.
    """

    process: subprocess.Popen[bytes]
    jobs: int = 1

    def end(self) -> int | None:
        """Return the exit code of a process that has ended, or None."""
        code = self.process.poll()
        if code is not None:
            _close(self.process.stdin)
        return code

    def stop(self) -> None:
        """Ask the run to save and end."""
        self.process.terminate()

    def end_at_once(self) -> None:
        """End the process, saved or not, and wait for that."""
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _close(self.process.stdin)

    @property
    def at_once(self) -> int:
        """How many runs have shared its machine, itself included, at most."""
        return self.jobs


def worker_arguments(path: Path | str) -> list[str]:
    """Return what follows the interpreter in the command of a run's process."""
    return ["-m", "particleaugment.cli.worker", "resume", str(path)]


def epochs_done(metrics: Path) -> int:
    """Return the last epoch that a file of metrics knows of."""
    try:
        found = re.findall(rb'"kind": "epoch", "epoch": (\d+)', read_file(metrics))
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def child_environment(jobs: int) -> dict[str, str]:
    """Return the environment of a child: the cores are shared out, unless the user has done so."""
    if jobs == 1:
        return dict(os.environ)
    # Threads of several processes on the same cores spend their time waiting for each other.
    return thread_settings((os.cpu_count() or 1) // jobs) | dict(os.environ)


def thread_settings(cores: int) -> dict[str, str]:
    """Return the part of an environment that keeps a process to so many cores."""
    share = str(max(1, cores))
    return {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}


def has_owner(path: Path) -> RunError | None:
    """Return why a run's folder cannot be worked in at the moment: a process holds it; None where none does."""
    if path.exists():
        try:
            with RunFolder.open(path).locked():
                return None
        except RunError as error:
            return error
    return None


def run_children(
    records: Sequence[RunRecord],
    jobs: Callable[[], int],
    stop: Stop,
    *,
    start: Callable[[RunRecord], Child],
    ended: Callable[[Child, int], None],
    watch: Callable[[Sequence[Child]], None],
    begun: Callable[[Child], None] = lambda child: None,
    lost: Callable[[Child], RunRecord | None] = lambda child: None,
) -> None:
    """Run records several at a time until all have ended, or, once a stop is asked for, until all have saved.

    Args:
        records: The runs, in the order in which they start.
        jobs: Returns how many may run at a time.
        stop: Tells when to stop.
        start: Starts a run.
        ended: Called with a run that has ended and its exit code.
        watch: Called with those that are running, often.
        begun: Called with a run that has found room.
        lost: Called with a run whose process was lost; returns the record to start again, or None to give up.
    """
    waiting, running, seen = list(records), list[Child](), list[Child]()
    told_to_stop = False
    try:
        while running or (waiting and not stop.asked):
            while waiting and len(running) < jobs() and not stop.asked:
                running.append(start(waiting.pop(0)))
            if stop.asked and not told_to_stop:
                told_to_stop = True
                for child in running:
                    child.stop()
            time.sleep(POLL_SECONDS)
            for child in list(running):
                code = child.end()
                if child.begun and child not in seen:
                    seen.append(child)
                    begun(child)
                if code is None:
                    continue
                running.remove(child)
                if not child.begun:
                    continue
                again = lost(child) if child.lost and not stop.asked else None
                if again is not None:
                    waiting.insert(0, again)
                else:
                    ended(child, code)
            watch([child for child in running if child.begun])
    finally:
        for child in running:
            child.stop()
        for child in running:
            child.end_at_once()


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()
