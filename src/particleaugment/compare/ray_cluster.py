"""A Ray cluster as a place for processes: started on nodes with room, listened to, stopped, and found out when lost."""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from particleaugment import __version__
from particleaugment.compare.ray_host import Board, News, Outcome, Request, host
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError
from particleaugment.util.atomic import own_folder, regular_file, write_atomically

__all__ = ["Hosted", "RayCluster", "Share", "check_address"]

LOOK_SECONDS = 0.3
COUNT_SECONDS = 3.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
STOPPED = 143
_MARK = ".nodes-see-this"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Share:
    """What a process gets of a node: cores, and GPUs, of which it may be a fraction."""

    cores: int = 1
    gpus: float = 0.0

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{cores} and {self.gpus:g} GPU{'s' * (self.gpus > 1)}" if self.gpus else cores

    def times(self, cores: float, gpus: float) -> int:
        """Return how often a machine has room for it.

        >>> Share(2, 0.25).times(16, 1)
        4
        """
        by_gpus = int(gpus / self.gpus + 1e-9) if self.gpus else int(cores)
        return min(int(cores // self.cores), by_gpus)


class Hosted:
    """A process on some node.

    Attributes:
        key: Its name on the board.
        log: The file that its log is added to.
        news: What it last had to tell; None until it has begun.
        code: Its exit code, once it has ended.
        lost: What ended it without its doing.
        cancelled: Whether it was stopped before it began.
        files: Its folder's files, where it worked in a copy.
    """

    def __init__(self, cluster: RayCluster, key: str, log: Path, request: Request, share: Share):
        self.key, self.log = key, log
        self.news: News | None = None
        self.code: int | None = None
        self.lost = ""
        self.cancelled = False
        self.files: dict[str, bytes] | None = None
        self._cluster, self._request, self._share = cluster, request, share
        self.reference = cluster.submit(key, request, share)
        self._lines: list[str] = []

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        self._cluster.order(self.key, lines=(line,))

    def stop(self) -> None:
        """Ask it to save and end."""
        self._cluster.order(self.key, stop=True)
        if self.news is None and self.code is None:
            self.cancelled = True
            self._cluster.cancel(self.reference, force=False)

    def kill(self) -> None:
        """End it at once."""
        if self.code is None:
            self._cluster.cancel(self.reference, force=True)

    def lines(self) -> list[str]:
        """Return the lines that it has said since the last call."""
        said, self._lines = self._lines, []
        return said

    def hear(self, news: News) -> None:
        """Take news: the log is written, lines are kept."""
        self.news = replace(news, log=b"", lines=())
        self._lines += news.lines
        if news.log:
            self._write(news.log)

    def _write(self, text: bytes) -> None:
        own_folder(self.log.parent)
        with open(self.log, "ab", opener=regular_file) as file:
            file.write(text)

    def conclude(self, outcome: Outcome | None, why: str) -> None:
        """Take the outcome, or, where there is none, the reason; a node that needs the folder's files gets them."""
        if outcome is None:
            self.code, self.lost = STOPPED, "" if self.cancelled else why
        elif why:
            self._write(f"particleaugment: {why}\n".encode())
            self.code = outcome.code
        elif outcome.code is None:
            self._request = self._request.with_files()
            self.reference = self._cluster.submit(self.key, self._request, self._share)
        else:
            self.code, self.files, self.cancelled = outcome.code, outcome.files, False


class RayCluster:
    """A connection to a Ray cluster; while it is entered, processes can be started.

    Args:
        address: ``ray`` for the cluster that ``ray start`` has started here, or, where there is none, one of this
            machine alone; otherwise the address of a cluster, such as ``ray://HOST:10001`` or ``HOST:6379``.
    """

    def __init__(self, address: str = "ray"):
        self.address = address
        self._ray = _import_ray()
        self._owned = not self._ray.is_initialized()
        self._processes: dict[str, Hosted] = {}
        self._nodes: list[dict[str, Any]] = []
        self._last_look = self._last_count = -math.inf
        self._board: Any = None

    def __enter__(self) -> Self:
        ray = self._ray
        if self._owned:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            check_address(os.environ.get("RAY_ADDRESS", "ray") if self.address == "ray" else self.address)
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init(None if self.address == "ray" else self.address, **options)
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
                raise _no_cluster(self.address, reason) from None
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned:
            self._ray.shutdown()

    def nodes(self) -> list[dict[str, Any]]:
        """Return the resources of each node that is alive, as Ray names them; asked for every few seconds only."""
        if time.monotonic() - self._last_count > COUNT_SECONDS:
            self._nodes = [node["Resources"] for node in self._asked(self._ray.nodes) if node["Alive"]]
            self._last_count = time.monotonic()
        return self._nodes

    def room(self, share: Share) -> int:
        """Return how many processes fit into the cluster when it is empty."""
        return sum(share.times(node.get("CPU", 0), node.get("GPU", 0)) for node in self.nodes())

    @property
    def has_gpus(self) -> bool:
        """Whether any node has a GPU."""
        return any(node.get("GPU", 0) for node in self.nodes())

    @property
    def description(self) -> str:
        """The cluster in a few words."""
        nodes = self.nodes()
        cores, gpus = (int(sum(node.get(name, 0) for node in nodes)) for name in ("CPU", "GPU"))
        kinds = sorted({name.partition(":")[2] for node in nodes for name in node if name.startswith("accelerator_")})
        found = [f"{len(nodes)} node{'s' * (len(nodes) != 1)}", f"{cores} core{'s' * (cores != 1)}"]
        if gpus:
            found.append(f"{gpus} GPU{'s' * (gpus != 1)}" + (f" ({' and '.join(kinds)})" if kinds else ""))
        return ", ".join(found)

    def usual_share(self, on_gpu: bool, cores: int | None = None, gpus: float | None = None) -> Share:
        """Return what a process gets: a GPU and its part of the cores of its node, or one core, unless given."""
        wanted = (1.0 if gpus is None else gpus) if on_gpu else 0.0
        if cores is None and wanted:
            with_gpus = [node["CPU"] / node["GPU"] for node in self.nodes() if node.get("GPU") and node.get("CPU")]
            cores = max(1, int(min(with_gpus, default=1) * wanted))
        share = Share(cores or 1, wanted)
        if not self.room(share):
            raise ConfigError(
                f"no node of the Ray cluster has {share} for a run; it has {self.description}: ask for less with "
                "--cores and --gpus, or add a node"
            )
        return share

    def mark(self, folder: Path) -> tuple[str, str]:
        """Leave a mark in a folder by which nodes find out whether they see it; returns its path and what it holds."""
        token, path = secrets.token_hex(16), folder.absolute() / _MARK
        write_atomically(path, token)
        return str(path), token

    def unmark(self, folder: Path) -> None:
        """Take the mark away again."""
        (folder / _MARK).unlink(missing_ok=True)

    def start(self, request: Request, share: Share, log: Path) -> Hosted:
        """Start a process as soon as a node has room."""
        process = Hosted(self, secrets.token_hex(8), log, request, share)
        self._processes[process.key] = process
        return process

    def call(self, work: Callable[..., Result], share: Share, *arguments: Any) -> Result:
        """Call a function on some node and return its result; its own errors are raised as they are."""
        from ray.exceptions import RayError, RayTaskError

        task = self._ray.remote(work).options(num_cpus=share.cores, num_gpus=share.gpus, max_retries=2)
        try:
            result: Result = self._ray.get(task.remote(*arguments))
        except RayTaskError as error:
            _explain_missing_package(error)
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except RayError as error:
            raise self._gone(error) from None
        return result

    def look(self) -> None:
        """Take the news of all processes, and the outcomes of those that have ended; often called, seldom done."""
        now = time.monotonic()
        if now - self._last_look < LOOK_SECONDS or not self._processes:
            return
        self._last_look = now
        references = {process.reference: process for process in self._processes.values()}
        ended, _ = self._asked(lambda: self._ray.wait([*references], num_returns=len(references), timeout=0))
        # In this order: a process hands on its last news before it ends.
        news = self._asked(lambda: self._ray.get(self._board.collect.remote(), timeout=ANSWER_SECONDS))
        for key, each in news.items():
            if key in self._processes:
                self._processes[key].hear(each)
        for reference in ended:
            process = references[reference]
            process.conclude(*self._outcome(reference))
            if process.code is not None:
                self._board.end.remote(process.key)
                del self._processes[process.key]

    def submit(self, key: str, request: Request, share: Share) -> Any:
        """Have a node with room host a process; returns Ray's reference to the outcome."""
        # Ray starts nothing again by itself: whoever asked decides, and says so.
        task = self._ray.remote(host).options(num_cpus=share.cores, num_gpus=share.gpus, max_retries=0)
        return task.remote(self._board, key, request)

    def order(self, key: str, *, stop: bool = False, lines: tuple[str, ...] = ()) -> None:
        """Leave orders for a process."""
        self._board.order.remote(key, stop, lines)

    def cancel(self, reference: Any, *, force: bool) -> None:
        """Take a task out of the queue, or end it at once."""
        with suppress(Exception):  # it may have ended already, in many ways
            self._ray.cancel(reference, force=force)

    def end_at_once(self, processes: Sequence[Hosted], seconds: float = 10.0) -> None:
        """Give processes that were told to stop some time to save, then end them."""
        limit = time.monotonic() + seconds
        while any(process.code is None for process in processes) and time.monotonic() < limit:
            try:
                self.look()
            except RunError:
                return
            time.sleep(LOOK_SECONDS)
        for process in processes:
            process.kill()

    def _outcome(self, reference: Any) -> tuple[Outcome | None, str]:
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(reference), ""
        except RayTaskError as error:
            _explain_missing_package(error)
            cause = error.cause if isinstance(error.cause, Exception) else error
            return Outcome(1), f"the node could not run it ({type(cause).__name__}: {cause})"
        except RayError as error:
            return None, _death(error)

    def _asked(self, question: Callable[[], Result]) -> Result:
        from ray.exceptions import RayError

        try:
            return question()
        except (RayError, ConnectionError) as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> RunError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return RunError(f"the Ray cluster no longer answers ({reason}); rerun the command when it is back")


def check_address(address: str) -> None:
    """Raise a ConfigError where nothing answers at an address; Ray itself would try for minutes."""
    match = re.fullmatch(r"(?:ray://)?([^/:]+):(\d{1,5})", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from None


def _no_cluster(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at {address!r} ({reason}); start one with 'ray start --head', or use --on ray for "
        "this machine alone"
    )


def _import_ray() -> Any:
    try:
        import ray

        if not hasattr(ray, "init"):  # a folder of that name, which Python takes for a package
            raise ImportError
    except ImportError:
        raise ConfigError(
            "--on needs Ray, which is not installed: pip install 'particleaugment[ray]', or omit --on to train on "
            "this machine"
        ) from None
    return ray


def _explain_missing_package(error: Exception) -> None:
    if "No module named 'particleaugment'" in str(error):
        raise RunError(
            f"a node of the Ray cluster has no particleaugment; install version {__version__} on every node"
        ) from None


def _death(error: Exception) -> str:
    """Return in a few words what Ray says about the end of a task."""
    kinds = {
        "NodeDiedError": "its node died",
        "OutOfMemoryError": "its node ran out of memory",
        "WorkerCrashedError": "its worker died",
        "TaskCancelledError": "its task was cancelled",
    }
    return kinds.get(type(error).__name__, f"Ray lost it ({type(error).__name__})")
