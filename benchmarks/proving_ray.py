"""The proving ground's processes as tasks on a Ray cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from proving_places import Answers, Worker

from particleaugment.compare.ray_cluster import Hosted, RayCluster
from particleaugment.compare.ray_host import Request
from particleaugment.compare.runner import thread_settings


class RayWorker(Worker):
    """A process on some node; it takes up its first run when it is ready."""

    def __init__(self, process: Hosted):
        self.process = process

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        self.process.send(line)

    def end(self) -> None:
        """Ask for an end: what is being trained is saved first."""
        self.process.stop()

    @property
    def at_once(self) -> int:
        """How many processes have shared its node, at most."""
        return 1 if self.process.news is None else self.process.news.at_once

    @property
    def lost(self) -> str:
        """What ended it without its doing."""
        return self.process.lost


class RayPlace:
    """A Ray cluster.

    Args:
        address: What :class:`RayCluster` takes.
        jobs: The most processes at a time; as many as there is room for if not given.
        cores: Cores per process; if not given, one, or on GPUs an even part of the node's.
        gpus: GPUs per process, where the cluster has any; 1 if not given.
        runs: Where unfinished runs are kept.
    """

    def __init__(self, address: str, jobs: int | None, cores: int | None, gpus: float | None, runs: Path):
        self.cluster = RayCluster(address)
        self._wanted, self._runs = (jobs, cores, gpus), runs
        self._workers: dict[RayWorker, Answers] = {}
        self._warned = False

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        jobs, cores, gpus = self._wanted
        self._share = self.cluster.usual_share(self.cluster.has_gpus, cores, gpus)
        room = self.cluster.room(self._share)
        self.jobs = room if jobs is None else min(jobs, room)
        self._mark, self._token = self.cluster.mark(self._runs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.unmark(self._runs)
        self.cluster.__exit__(kind, error, trace)

    def worker(self, command: Sequence[str], log: Path, answers: Answers) -> Worker:
        """Start a process as soon as a node has room."""
        threads = thread_settings(self._share.cores)
        request = Request(
            tuple(command),
            threads | {name: os.environ[name] for name in threads if name in os.environ},
            folder=str(self._runs.absolute()),
            mark=self._mark,
            token=self._token,
            copies=False,
            speaks=True,
        )
        made = RayWorker(self.cluster.start(request, self._share, log))
        self._workers[made] = answers
        return made

    def look(self) -> None:
        """Hand on what the processes have said, and which of them have ended."""
        self.cluster.look()
        for worker, answers in list(self._workers.items()):
            for line in worker.process.lines():
                answers.put((worker, json.loads(line)))
            news = worker.process.news
            if news is not None and not news.sees_folder and not self._warned:
                self._warned = True
                print(f"the node {news.node} does not see {self._runs}: its runs start again if it is lost", flush=True)
            if worker.process.code is not None:
                del self._workers[worker]
                answers.put((worker, None))
