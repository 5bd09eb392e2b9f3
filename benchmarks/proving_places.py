"""Where the proving ground's runs are trained: in processes that take one run after the other, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from proving_results import Key, key
from proving_tasks import TASKS

from particleaugment.compare.runner import child_environment


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    task: str
    arm: str
    seed: int
    final: bool

    @property
    def identity(self) -> Key:
        """What its result is kept by."""
        return key(
            {
                "task": self.task,
                "task_version": TASKS[self.task].version,
                "arm": self.arm,
                "seed": self.seed,
                "measured_on": "test" if self.final else "judge",
            }
        )

    def message(self) -> str:
        """The line that a worker is sent."""
        return json.dumps({"task": self.task, "arm": self.arm, "seed": self.seed, "final": self.final}) + "\n"


Answers = Queue[tuple["Worker", dict[str, Any] | None]]


class Worker(ABC):
    """A process that trains one run after the other; its answers arrive in a queue, and None when it has ended.

    Attributes:
        job: The run that it trains.
        last: The one that it trained before, or trains.
    """

    job: Job | None = None
    last: Job | None = None

    def start(self, job: Job) -> None:
        """Have a run trained."""
        self.job = self.last = job
        self.send(job.message())

    @abstractmethod
    def send(self, line: str) -> None:
        """Write a line to its standard input."""

    @abstractmethod
    def end(self) -> None:
        """Ask for an end: what is being trained is saved first."""

    @property
    @abstractmethod
    def at_once(self) -> int:
        """How many processes share its GPU or its node."""

    @property
    def lost(self) -> str:
        """What ended it without its doing; nothing where it ended by itself."""
        return ""


class LocalWorker(Worker):
    """A child process."""

    def __init__(self, command: Sequence[str], jobs: int, log: Path, answers: Answers):
        # A session of its own: Ctrl-C reaches the parent alone, and a worker whose parent is gone saves and ends.
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env=child_environment(jobs),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
        self._jobs = jobs
        threading.Thread(target=self._read, args=(answers,), daemon=True).start()

    def _read(self, answers: Answers) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, json.loads(line)))
        answers.put((self, None))

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def end(self) -> None:
        """Ask for an end: what is being trained is saved first."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    @property
    def at_once(self) -> int:
        """How many processes share the GPU."""
        return self._jobs


class LocalPlace:
    """This machine, with so many processes at a time."""

    def __init__(self, jobs: int):
        self.jobs = jobs

    def worker(self, command: Sequence[str], log: Path, answers: Answers) -> Worker:
        """Start a process."""
        return LocalWorker(command, self.jobs, log, answers)

    def look(self) -> None:
        """Threads read what the processes say."""
