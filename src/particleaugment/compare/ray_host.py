"""What runs on the nodes of a Ray cluster: a task that hosts one process, and the board that it reports to.

The process is the one that runs on a single machine, so results are the same. It dies with its task, as after Ctrl-C:
its standard input is closed when the task ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from particleaugment import __version__
from particleaugment.compare.runner import NOT_VALID, epochs_done, has_owner
from particleaugment.training.run import RunError
from particleaugment.util.atomic import own_folder, regular_file, write_atomically
from particleaugment.util.reading import open_file, read_file

__all__ = ["Board", "News", "Outcome", "Request", "folder_files", "host", "put_files"]

POLL_SECONDS = 0.2
_LARGEST_FILE = 4 << 30  # checkpoints of large networks
OWNER_SECONDS = 120.0
"""How long a node waits for a process that still holds the run's folder: without its parent it saves and ends."""
LAST_REPORT_SECONDS = 20.0
FOLDER = "{folder}"
"""Stands in a command for the folder that the process works in, which a node may have a copy of."""


@dataclass(frozen=True)
class Request:
    """A process for a node to run.

    Attributes:
        arguments: What follows the interpreter in its command; ``FOLDER`` stands for its folder.
        environment: What is added to the node's environment.
        folder: The folder that it works in, as the machine that asks for it knows it.
        mark: A file on that machine.
        token: What it holds; a node that reads this there works in the folder itself.
        files: The folder's files, for a node that does not see it; None where that is yet to be found out.
        copies: Whether such a node works in a copy, whose files come back; otherwise it makes the folder for itself.
        speaks: Whether its output is read line by line; otherwise it is part of the log.
        version: The version of the package that asks.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    mark: str = ""
    token: str = ""
    files: dict[str, bytes] | None = None
    copies: bool = True
    speaks: bool = False
    version: str = __version__

    @property
    def sees_folder(self) -> bool:
        """Whether this machine sees the folder of the one that asks."""
        try:
            return bool(self.token) and read_file(self.mark).decode() == self.token
        except (OSError, UnicodeDecodeError):
            return False

    def with_files(self) -> Request:
        """Return the request with the folder's files, as they are now."""
        return replace(self, files=folder_files(Path(self.folder)))


@dataclass(frozen=True)
class News:
    """What a hosted process has to tell since it was last asked.

    Attributes:
        node: Name of its node.
        sees_folder: Whether the node sees the folder of the machine that asked for it.
        epochs: The last epoch of the run.
        log: Its log, as far as it is new.
        lines: Lines of its output that are new.
        at_once: How many hosted processes have shared its node, at most.
    """

    node: str
    sees_folder: bool
    epochs: int = 0
    log: bytes = b""
    lines: tuple[str, ...] = ()
    at_once: int = 1


@dataclass(frozen=True)
class Orders:
    """What a hosted process is told.

    Attributes:
        stop: Whether to save and end.
        lines: Lines for its standard input.
    """

    stop: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a hosted process ended.

    Attributes:
        code: Its exit code; None where the node needs the folder's files to begin.
        files: The files of its folder, where it worked in a copy.
    """

    code: int | None
    files: dict[str, bytes] | None = None


class Board:
    """Where hosted processes leave news and find orders: an actor on the node of the command that asked for them."""

    def __init__(self) -> None:
        self._news: dict[str, News] = {}
        self._orders: dict[str, Orders] = {}
        self._nodes: dict[str, str] = {}
        self._at_once: dict[str, int] = {}

    def begin(self, key: str, node: str) -> None:
        """Note that a process begins on a node."""
        self._nodes[key] = node
        together = Counter(self._nodes.values())[node]
        for other, place in self._nodes.items():
            if place == node:
                self._at_once[other] = max(together, self._at_once.get(other, 1))

    def end(self, key: str) -> None:
        """Note that a process has ended, or is lost."""
        self._nodes.pop(key, None)

    def report(self, key: str, news: News) -> Orders:
        """Take a process's news, and return its orders since it last reported."""
        if key not in self._nodes:
            self.begin(key, news.node)
        old = self._news.get(key)
        if old is not None:
            news = replace(news, log=old.log + news.log, lines=old.lines + news.lines)
        self._news[key] = news
        orders = self._orders.get(key, Orders())
        self._orders[key] = replace(orders, lines=())
        return orders

    def order(self, key: str, stop: bool, lines: tuple[str, ...] = ()) -> None:
        """Leave orders for a process."""
        old = self._orders.get(key, Orders())
        self._orders[key] = Orders(old.stop or stop, old.lines + lines)

    def collect(self) -> dict[str, News]:
        """Return all news since the last call."""
        news, self._news = self._news, {}
        return {key: replace(each, at_once=self._at_once.get(key, 1)) for key, each in news.items()}


class _Line:
    """A task's line to the board.

    It never waits inside ``ray.get``: while a task does, Ray gives its cores to the next one.
    """

    def __init__(self, board: Any, key: str):
        self._board, self._key = board, key
        self._answer: Future[Orders] | None = None

    @property
    def free(self) -> bool:
        return self._answer is None or self._answer.done()

    def orders(self) -> Orders:
        """Return what the last report was answered; a board that is gone stops everything."""
        answer, self._answer = self._answer, None
        if answer is None:
            return Orders()
        try:
            return answer.result(timeout=LAST_REPORT_SECONDS)
        except Exception:  # whatever Ray raises: nobody is there who would take a result
            return Orders(stop=True)

    def send(self, news: News) -> None:
        self._answer = self._board.report.remote(self._key, news).future()


class _Output:
    """The log of a process, as a file, and what it says, as lines; both are handed on once."""

    def __init__(self, log: Path):
        self.file = open(log, "wb", opener=regular_file)  # noqa: SIM115
        self._log = open_file(log)
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener: threading.Thread | None = None

    def listen(self, stream: IO[bytes]) -> None:
        def read() -> None:
            for line in stream:
                self._said.put(line.decode())

        self._listener = threading.Thread(target=read, daemon=True)
        self._listener.start()

    def news(self) -> dict[str, Any]:
        lines = []
        while not self._said.empty():
            lines.append(self._said.get())
        return {"log": self._log.read(), "lines": tuple(lines)}

    def finish(self) -> None:
        """Wait for the last line."""
        if self._listener is not None:
            self._listener.join()


def host(board: Any, key: str, request: Request) -> Outcome:
    """Run a process on this node until it ends or is told to stop.

    Args:
        board: The handle of the board.
        key: The name of the process on it.
        request: What to run.
    """
    import ray

    node = ray.util.get_node_ip_address()
    news, line = News(node, request.sees_folder), _Line(board, key)
    if request.version != __version__:
        text = (
            f"particleaugment: the node {node} has particleaugment {__version__}, but this command has version "
            f"{request.version}; install the same version on all nodes\n"
        )
        return _last(line, replace(news, log=text.encode()), Outcome(NOT_VALID))
    copied = request.copies and not news.sees_folder
    if copied and request.files is None:
        return Outcome(None)
    with tempfile.TemporaryDirectory(prefix="particleaugment-") as own:
        folder = Path(own, Path(request.folder).name) if copied else Path(request.folder)
        if copied:
            put_files(folder, request.files or {})
        output = _Output(Path(own, "log"))
        told = _wait_for_owner(folder, line, news) if news.sees_folder and request.copies else Orders()
        process = _start(request, folder, output)
        try:
            news = _attend(process, output, line, news, folder, told)
        finally:
            _close(process)  # saves and ends, whatever happened here
        code = process.wait()
        output.finish()
        last = replace(news, **output.news(), epochs=epochs_done(folder / "metrics.jsonl"))
        return _last(line, last, Outcome(code, folder_files(folder) if copied else None))


def _start(request: Request, folder: Path, output: _Output) -> subprocess.Popen[bytes]:
    arguments = [str(folder) if word == FOLDER else word for word in request.arguments]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=dict(os.environ) | request.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if request.speaks else output.file,
        stderr=output.file if request.speaks else subprocess.STDOUT,
        start_new_session=True,
    )
    if process.stdout is not None:
        output.listen(process.stdout)
    return process


def _attend(
    process: subprocess.Popen[bytes], output: _Output, line: _Line, news: News, folder: Path, orders: Orders
) -> News:
    """Pass news and orders on until the process has ended; returns the last news, without what is handed on once."""
    while process.poll() is None:
        _obey(process, orders)
        orders = Orders()
        if line.free:
            orders = line.orders()
            news = replace(news, epochs=epochs_done(folder / "metrics.jsonl"))
            line.send(replace(news, **output.news()))
        time.sleep(POLL_SECONDS)
    return news


def _obey(process: subprocess.Popen[bytes], orders: Orders) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ValueError):  # it has just ended, or was told to
        for text in orders.lines:
            process.stdin.write(text.encode())
        process.stdin.flush()
    if orders.stop:
        _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _wait_for_owner(folder: Path, line: _Line, news: News) -> Orders:
    """Wait until nobody holds a run's folder; if somebody does for too long, the run says who."""
    limit, orders = time.monotonic() + OWNER_SECONDS, Orders()
    while has_owner(folder) is not None and time.monotonic() < limit and not orders.stop:
        if line.free:
            orders = line.orders()
            line.send(news)
        time.sleep(POLL_SECONDS)
    return orders


def _last(line: _Line, news: News, outcome: Outcome) -> Outcome:
    """Hand the last news on before the outcome can arrive."""
    line.orders()
    line.send(news)
    line.orders()
    return outcome


def folder_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a run's folder by their names in it."""
    return {str(path.relative_to(folder)): read_file(path, _LARGEST_FILE) for path in _files(folder)}


def put_files(folder: Path, files: dict[str, bytes]) -> None:
    """Make a run's folder hold these files and no others; the weights, which mark a finished run, come last."""
    own_folder(folder)
    for name in sorted(files, key=lambda name: name == "model.safetensors"):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"{path}, sent by a node, is outside the run folder; remove the link, if it is one")
        own_folder(path.parent)
        write_atomically(path, files[name])
    for path in list(_files(folder)):
        if str(path.relative_to(folder)) not in files:
            path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
