"""A run's folder: created in one move, owned by one process, written so that a crash loses nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from particleaugment.data.hf import absolute_place
from particleaugment.policies.policy import document
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.config import SIZE_LIMIT, Config, ConfigError
from particleaugment.training.records import RecordError, read_records
from particleaugment.util.atomic import (
    new_folder,
    regular_file,
    remove_leftovers,
    replacing,
    saving,
    take_lock,
    write_atomically,
)
from particleaugment.util.reading import open_file, read_file
from particleaugment.util.shown import shown_command
from particleaugment.util.strict_json import clipped

__all__ = ["RunError", "RunFolder", "locked_folder"]

_GIVEN_POLICY = "given-policy.json"
_GROWING = (".lock", "metrics.jsonl")


class RunError(RuntimeError):
    """A run folder cannot be used as asked."""


def _way_out(path: Path) -> str:
    """What to do about a folder that a run was to be made in."""
    if not (path / "config.json").exists():
        return "choose another --out"
    resume = f"continue it with {shown_command('resume', path)}"
    if find_checkpoints(path):
        return f"{resume} or choose another --out"
    return f"it is a run without a checkpoint: {resume}, remove it, or choose another --out"


def _require_utf8(path: Path, way_out: str) -> None:
    """Refuse a folder in which TensorBoard cannot write and safetensors cannot read."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RunError(f"the path of the run folder {str(path)!a} must be UTF-8; {way_out}") from None


class RunFolder:
    """Paths and files of one run.

    ``config.json`` is there from the first moment; ``metrics.jsonl`` grows by a line per epoch and filter step;
    ``policy.json`` and ``model.safetensors`` hold the result. A policy file that the run was given is copied in as
    ``given-policy.json``, so that the folder holds all that the run needs.
    """

    def __init__(self, path: Path, config: Config):
        self.path = path
        self.config = config

    def with_data_in(self, data_dir: Path) -> RunFolder:
        """Return the run with its data elsewhere; nothing is written until :meth:`note_data`."""
        of_hf = self.config.data.name == "hf"
        place = absolute_place(str(data_dir)) if of_hf else str(data_dir.expanduser().resolve())
        return RunFolder(self.path, self.config.with_data_in(place))

    def note_data(self) -> None:
        """Write where the data lie into ``config.json`` if it names another place."""
        if RunFolder.open(self.path).config.data.data_dir != self.config.data.data_dir:
            write_atomically(self.path / "config.json", self.config.to_json())

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def policy(self) -> Path:
        """The learned schedule."""
        return self.path / "policy.json"

    @property
    def given_policy(self) -> Path:
        """The copy of the policy file that the run was given, if it was."""
        return self.path / _GIVEN_POLICY

    def policy_identity(self) -> str:
        """Return a hash of the policy that the run was given in a file, or nothing if it was given none."""
        if self.config.policy_file is None:
            return ""
        return hashlib.sha256(document(self.config.fixed_policy(self.given_policy)).encode()).hexdigest()

    @property
    def model(self) -> Path:
        """The final weights; their presence marks a finished run."""
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.model.is_file()

    def irregular(self) -> str:
        """Return which file of the run is not a regular one, so that it could not be written, or nothing.

        What a finished run has is not written again, so its files may be links.
        """
        own = [".lock", "config.json", "metrics.jsonl", "policy.json", "model.safetensors", "report.html"]
        for file in [*(self.path / name for name in own), *find_checkpoints(self.path)]:
            try:
                found = file.stat() if self.finished else file.lstat()
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"{file} is not a regular file: {error.strerror}"
            if stat.S_ISDIR(found.st_mode):
                return f"{file} is a folder, not a regular file"
            if not stat.S_ISREG(found.st_mode):
                return f"{file} is a link, a pipe or a device, not a regular file"
            if file.name in _GROWING and found.st_nlink > 1 and not self.finished:
                return f"{file} is the same file as another one (a hard link)"
        events = self.path / "tensorboard"
        if not self.finished and os.path.lexists(events) and (events.is_symlink() or not events.is_dir()):
            return f"{events} is a link or a file, not a folder"
        return ""

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """Make a new run folder with its ``config.json`` in it, and a policy file if it names one, in one move."""
        path = Path(path)
        _require_utf8(path, "choose another --out")
        if path.exists():
            raise RunError(f"{path} already exists; {_way_out(path)}")
        files = {"config.json": config.to_json().encode()}
        if config.policy_file is not None:
            config.fixed_policy()
            files[_GIVEN_POLICY] = read_file(Path(config.policy_file).expanduser())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(path) as temporary:
                for name, content in files.items():
                    with replacing(temporary / name) as file:
                        file.write(content)
        except OSError as error:
            if path.exists():
                raise RunError(f"{path} already exists; another process has just created it") from None
            blocking = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None)
            why = f"{blocking} is a file" if blocking else error.strerror
            raise RunError(f"the run folder {path} cannot be created: {why}") from None
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder."""
        path = Path(path)
        file = path / "config.json"
        if not path.exists():
            raise RunError(f"there is no folder {path}")
        _require_utf8(path, "rename it")
        if not path.is_dir() or not file.exists():
            raise RunError(f"{path} is not a run folder: it has no config.json")
        try:
            return cls(path, Config.from_json(read_file(file, SIZE_LIMIT)))
        except ConfigError as error:
            raise RunError(f"{file}: {error}") from None
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; see :func:`locked_folder`."""
        with locked_folder(self.path):
            yield

    def owner(self) -> str | None:
        """Return who holds the folder now, as ``process 7 on host``, or None."""
        try:
            with open(self.path / ".lock", "rb", opener=regular_file) as file:
                return _owner(file) if not _lock(file, self.path) else None
        except OSError:
            return None

    def metrics_digest(self, size: int) -> str:
        """Return the SHA-256 of the first bytes of the metrics."""
        if not size:
            return hashlib.sha256().hexdigest()
        with open_file(self.metrics) as file:
            return hashlib.sha256(file.read(size)).hexdigest()

    def truncate_metrics(self, size: int, digest: str | None = None) -> None:
        """Cut the metrics back to what a checkpoint knew of; what follows is computed again, identically."""
        actual = self.metrics.stat().st_size if self.metrics.exists() else 0
        if actual < size:
            raise RunError(f"{self.metrics} is shorter than when its checkpoint was written; restore the file")
        if digest is not None and self.metrics_digest(size) != digest:
            raise RunError(f"{self.metrics} has changed since its checkpoint was written; restore the file")
        if actual > size:
            with saving(self.metrics), open(self.metrics, "r+b", opener=regular_file) as file:
                file.truncate(size)

    def append_metrics(self, record: dict[str, Any]) -> int:
        """Add a line to the metrics and return the file's size; numbers that JSON lacks become null."""
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        with saving(self.metrics), open(self.metrics, "ab", opener=regular_file) as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics so far, every field and their order checked."""
        try:
            return read_records(self.metrics, self.config.training.evaluate_every)
        except RecordError as error:
            raise RunError(str(error)) from None


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold a folder for this process; the system drops the lock when the process ends, however it ends."""
    try:
        file = open(path / ".lock", "a+b", opener=regular_file)  # noqa: SIM115
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    with file:
        _hold(file, path)
        remove_leftovers(path)
        yield


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _hold(file: IO[bytes], path: Path) -> None:
    """Lock a folder's file and write our name into it; what a dead owner left in it says nothing."""
    if not _lock(file, path):
        raise RunError(f"{path} is in use by {_owner(file)}; wait for it or stop it")
    with saving(path / ".lock"):
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        file.flush()


def _lock(file: IO[bytes], path: Path) -> bool:
    try:
        return take_lock(file)
    except OSError as error:
        raise RunError(f"{path} cannot be locked ({error.strerror}); use a file system with locks") from None


def _owner(file: IO[bytes]) -> str:
    file.seek(0)
    return clipped(file.read(200).decode(errors="replace").strip()) or "another process"
