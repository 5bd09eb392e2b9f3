"""A run's folder: created in one move, owned by one process, written so that a crash loses nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from particleaugment.training.config import Config, ConfigError

__all__ = ["RunError", "RunFolder", "locked_folder"]

_GIVEN_POLICY = "given-policy.json"


class RunError(RuntimeError):
    """A run folder cannot be used as asked."""


class RunFolder:
    """Paths and files of one run.

    ``config.json`` is there from the first moment; ``metrics.jsonl`` grows by a line per epoch and filter step;
    ``policy.json`` and ``model.safetensors`` hold the result. A policy file that the run was given is copied in as
    ``given-policy.json``, so that the folder holds all that the run needs.
    """

    def __init__(self, path: Path, config: Config):
        self.path = path
        self.config = config

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

    @property
    def model(self) -> Path:
        """The final weights; their presence marks a finished run."""
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.model.exists()

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """Make a new run folder with its ``config.json`` in it, and a policy file if it names one, in one move."""
        path = Path(path)
        if path.exists():
            raise RunError(f"{path} exists already; continue it with 'particleaugment resume {path}' or choose --out")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        given = None
        if config.policy_file is not None:
            config.fixed_policy()
            given = Path(config.policy_file).expanduser().read_bytes()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            if given is not None:
                (temporary / _GIVEN_POLICY).write_bytes(given)
            (temporary / "config.json").write_text(config.to_json(), encoding="utf-8")
            os.rename(temporary, path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if path.exists():
                raise RunError(f"{path} exists already; another process has just made it") from None
            raise RunError(f"the run folder {path} cannot be made: {error.strerror}") from None
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder."""
        path = Path(path)
        file = path / "config.json"
        if not path.is_dir() or not file.exists():
            raise RunError(f"{path} is not a run folder: it has no config.json")
        try:
            return cls(path, Config.from_json(file.read_text(encoding="utf-8")))
        except (ConfigError, UnicodeDecodeError) as error:
            raise RunError(f"{file}: {error}") from None
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; see :func:`locked_folder`."""
        with locked_folder(self.path):
            yield

    def truncate_metrics(self, size: int) -> None:
        """Cut the metrics back to what a checkpoint knew of; what follows is computed again, identically."""
        actual = self.metrics.stat().st_size if self.metrics.exists() else 0
        if actual < size:
            raise RunError(f"{self.metrics} is shorter than when its checkpoint was written; restore the file")
        if actual > size:
            os.truncate(self.metrics, size)

    def append_metrics(self, record: dict[str, Any]) -> int:
        """Add a line to the metrics and return the file's size; numbers that JSON lacks become null."""
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        with open(self.metrics, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics so far."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(encoding="utf-8").splitlines()
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise RunError(f"{self.metrics} is damaged: {error}") from None


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold a folder for this process; the system drops the lock when the process ends, however it ends."""
    try:
        file = open(path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    with file:
        _take_lock(file, path)
        yield


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _take_lock(file: IO[str], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "another process"
        raise RunError(f"{path} is in use by {owner}; wait for it or stop it") from None
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
