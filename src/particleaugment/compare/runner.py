"""Several runs at a time, each a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from particleaugment.compare.run_record import RunRecord
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.run import RunFolder
from particleaugment.util.atomic import own_folder, regular_file
from particleaugment.util.reading import open_file, read_file
from particleaugment.util.stop import Stop
from particleaugment.util.strict_json import clipped

__all__ = ["Child", "run_children"]

POLL_SECONDS = 0.1
_LAST_LINE = 1 << 16
NOT_VALID = 2
"""The exit code of a request that was not valid: nothing was started."""


@dataclass
class Child:
    """A run in a process of its own.

    Attributes:
        record: The run's figures when it was started.
        run: Its folder.
        log: Where its output goes.
        process: The process.
    """

    record: RunRecord
    run: RunFolder
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, record: RunRecord, run: RunFolder, log: Path, jobs: int) -> Child:
        """Start or continue a run."""
        own_folder(log.parent)
        command = [sys.executable, "-m", "particleaugment.cli.worker", "resume", str(run.path)]
        with open(log, "ab", opener=regular_file) as output:
            # A session of its own, so that Ctrl-C reaches the parent alone, which passes it on once.
            process = subprocess.Popen(
                command,
                env=child_environment(jobs),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(record, run, log, process)

    def end(self) -> int | None:
        """Return the exit code of a process that has ended, or None."""
        code = self.process.poll()
        if code is not None:
            _close(self.process.stdin)
        return code

    def forget_if_not_valid(self, code: int) -> None:
        """Remove the folder of a request that was refused before anything was computed, so that it can be mended."""
        if code == NOT_VALID and not self.run.metrics.exists() and not find_checkpoints(self.run.path):
            shutil.rmtree(self.run.path, ignore_errors=True)

    @property
    def epochs_done(self) -> int:
        """The last epoch that the run's metrics know of."""
        try:
            found = re.findall(rb'"kind": "epoch", "epoch": (\d+)', read_file(self.run.metrics))
        except OSError:
            return 0
        return int(found[-1]) if found else 0

    @property
    def last_line(self) -> str:
        """The last line that the process has written."""
        try:
            with open_file(self.log) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINE))
                lines = file.read(_LAST_LINE).decode("utf-8", errors="replace").strip().splitlines()
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return clipped(lines[-1].strip().removeprefix("particleaugment: ")) if lines else "it wrote nothing"


def child_environment(jobs: int) -> dict[str, str]:
    """Return the environment of a child: the cores are shared out, unless the user has done so."""
    if jobs == 1:
        return dict(os.environ)
    # Threads of several processes on the same cores spend their time waiting for each other.
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    return {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share} | dict(os.environ)


def run_children(
    records: Sequence[RunRecord],
    jobs: int,
    stop: Stop,
    *,
    start: Callable[[RunRecord], Child],
    ended: Callable[[Child, int], None],
    watch: Callable[[Sequence[Child]], None],
) -> None:
    """Run records ``jobs`` at a time until all have ended, or, once a stop is asked for, until all have saved.

    Args:
        records: The runs, in the order in which they start.
        jobs: How many run at a time.
        stop: Tells when to stop.
        start: Starts a run.
        ended: Told of a run that has ended, with its exit code.
        watch: Told of those that are running, often.
    """
    waiting, running = list(records), list[Child]()
    told_to_stop = False
    try:
        while running or (waiting and not stop.asked):
            while waiting and len(running) < jobs and not stop.asked:
                running.append(start(waiting.pop(0)))
            if stop.asked and not told_to_stop:
                told_to_stop = True
                for child in running:
                    child.process.terminate()
            time.sleep(POLL_SECONDS)
            for child in list(running):
                code = child.end()
                if code is not None:
                    running.remove(child)
                    ended(child, code)
            watch(running)
    finally:
        _end_at_once(running)


def _end_at_once(running: Sequence[Child]) -> None:
    for child in running:
        child.process.terminate()
    for child in running:
        try:
            child.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        _close(child.process.stdin)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()
