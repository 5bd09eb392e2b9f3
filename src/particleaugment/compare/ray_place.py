"""The runs of a comparison on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from particleaugment.compare.arms import Arm, Base
from particleaugment.compare.data_fit import check_data
from particleaugment.compare.ray_cluster import Hosted, RayCluster, Share
from particleaugment.compare.ray_host import FOLDER, Request, put_files
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.runner import Child, thread_settings, worker_arguments
from particleaugment.training.run import RunFolder

__all__ = ["RayChild", "RayPlace"]


class RayPlace:
    """A Ray cluster: each run is a task with its cores and its share of a GPU.

    A node that sees the comparison's folder works in it. Any other works in a copy, which comes back when the run ends
    or stops.

    Args:
        address: What :class:`particleaugment.compare.ray_cluster.RayCluster` takes.
        jobs: The most runs at a time; as many as the cluster has room for if not given.
        cores: Cores per run; if not given, one, or on GPUs an even part of the node's.
        gpus: GPUs per run that trains on one; 1 if not given.
    """

    def __init__(
        self, address: str = "ray", jobs: int | None = None, cores: int | None = None, gpus: float | None = None
    ):
        self.cluster = RayCluster(address)
        self._most, self._cores, self._gpus = jobs, cores, gpus
        self._folder: Path | None = None
        self._mark = ("", "")
        self._shares: dict[bool, Share] = {}

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self.cluster.unmark(self._folder)
        self.cluster.__exit__(kind, error, trace)

    def device(self) -> str:
        """Return what ``device=auto`` means here: what the cluster has, not what this machine has."""
        return "cuda" if self.cluster.has_gpus else "cpu"

    def share(self, device: str) -> Share:
        """Return what a run on a device gets, or raise a ConfigError where no node has that."""
        on_gpu = device == "cuda"
        if on_gpu not in self._shares:
            self._shares[on_gpu] = self.cluster.usual_share(on_gpu, self._cores, self._gpus)
        return self._shares[on_gpu]

    def check_data(self, arms: Sequence[Arm], base: Base) -> None:
        """Check the data where they are: on the cluster."""
        if arms:
            plain = replace(base, filters=dict(base.filters))
            self.cluster.call(check_data, self.share(base.config.training.device), list(arms), plain)

    def describe(self, todo: int) -> str:
        """Say what the cluster is, and how many runs it takes at a time."""
        shares = " or ".join(str(share) for share in self._shares.values())
        return f"{min(self.jobs, todo)} at a time on Ray ({self.cluster.description}; {shares or '1 core'} per run)"

    def use(self, folder: Path) -> None:
        """Take the folder of a comparison, whose runs will be started."""
        self._folder, self._mark = folder, self.cluster.mark(folder)

    @property
    def jobs(self) -> int:
        """How many runs there is room for at the moment, at least 1."""
        room = max((self.cluster.room(share) for share in self._shares.values()), default=1)
        return max(1, room if self._most is None else min(room, self._most))

    def start(self, record: RunRecord, run: RunFolder, log: Path) -> RayChild:
        """Start or continue a run as soon as a node has room."""
        share = self.share(run.config.training.device)
        threads = thread_settings(share.cores)
        path, token = self._mark
        request = Request(
            tuple(worker_arguments(FOLDER)),
            threads | {name: os.environ[name] for name in threads if name in os.environ},
            folder=str(run.path.absolute()),
            mark=path,
            token=token,
        )
        return RayChild(record, run, log, self.cluster, self.cluster.start(request, share, log))


@dataclass(eq=False)
class RayChild(Child):
    """A run on some node of a cluster.

    Attributes:
        cluster: The cluster.
        process: The process there.
    """

    cluster: RayCluster
    process: Hosted

    def end(self) -> int | None:
        """Return the exit code of a process that has ended, or None."""
        self.cluster.look()
        if self.process.files is not None:
            put_files(self.run.path, self.process.files)
            self.process.files = None
        return self.process.code

    def stop(self) -> None:
        """Ask the run to save and end."""
        self.process.stop()

    def end_at_once(self) -> None:
        """End the process, saved or not, and wait for that."""
        self.cluster.end_at_once([self.process])
        self.end()

    @property
    def begun(self) -> bool:
        """Whether it has found room and started."""
        return not self.process.cancelled and (self.process.news is not None or self.process.code is not None)

    @property
    def at_once(self) -> int:
        """How many runs have shared its node, itself included, at most."""
        return 1 if self.process.news is None else self.process.news.at_once

    @property
    def lost(self) -> str:
        """What ended it without its doing."""
        return self.process.lost

    @property
    def saved_elsewhere(self) -> str:
        """The node that it has saved on, where that does not see the comparison's folder."""
        news = self.process.news
        return "" if news is None or news.sees_folder else f"the node {news.node}"

    @property
    def epochs_done(self) -> int:
        """The last epoch that its node has told of."""
        return 0 if self.process.news is None else self.process.news.epochs
