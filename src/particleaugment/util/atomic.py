"""The one way to write files: whole or not at all, and never through a link that somebody put in the way.

A new file or folder is made beside its place, under a name that nobody can guess, and renamed. What is already there is
replaced only if it is a regular file. Files that grow (metrics, logs, downloads, locks) are opened with
:func:`regular_file`, and folders within a run's are made with :func:`own_folder`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = [
    "SaveError",
    "new_folder",
    "own_folder",
    "regular_file",
    "remove_leftovers",
    "replacing",
    "saving",
    "take_lock",
    "write_atomically",
]

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe in a file's place must not block
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp", re.DOTALL)
_NOT_REGULAR = "it is a link, a pipe or a device, not a regular file; remove it"
_TWO_NAMES = "it is the same file as another one (a hard link), which would change too; replace it with a copy"


class SaveError(RuntimeError):
    """A file of a run cannot be written."""


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn a failure to write a file into a SaveError that names it."""
    try:
        yield
    except OSError as error:
        raise SaveError(f"{path} cannot be written: {error.strerror or error}") from None


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file in one move; see :func:`replacing`. A failure is a SaveError."""
    with saving(path), replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes a path's place when the block ends; a crash leaves the old one or the new one, whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "policy.json")) as file:
    ...         _ = file.write(b"new")
    ...     Path(folder, "policy.json").read_text()
    'new'

    Raises:
        OSError: if it cannot be written, or if something else than a regular file is in its place.
    """
    path = Path(path)
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder is refused by the system
            raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
    temporary = _beside(path)
    try:
        with open(temporary, "xb", opener=regular_file) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside its place and move it there when the block ends; if it fails, nothing of it stays.

    Raises:
        OSError: if it cannot be made, or if anything but an empty folder is in its place.
    """
    temporary = _beside(path)
    try:
        temporary.mkdir()
        yield temporary
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def own_folder(path: Path) -> Path:
    """Make a folder if there is none, and return it.

    Raises:
        OSError: if it cannot be made, or if a link or a file is in its place.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ENOTDIR, "it is a link, not a folder; remove it", str(path))
    return path


def regular_file(path: str, flags: int) -> int:
    """Open a file for ``open(..., opener=regular_file)``: not through a link, and nothing but a regular file.

    A file that is to be written must have no second name, or what is behind that name would change with it.

    Raises:
        OSError: if it is something else.
    """
    try:
        # What is there is cut only once it is known to be a file that may be written.
        descriptor = os.open(path, flags & ~os.O_TRUNC | _SAFE, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # what a link and a pipe without a reader give
            raise OSError(error.errno, _NOT_REGULAR, path) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise OSError(errno.EINVAL, _NOT_REGULAR, path)
        if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise OSError(errno.EMLINK, _TWO_NAMES, path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def take_lock(file: IO[Any]) -> bool:
    """Take the system's lock on an open file; False if another process holds it.

    The system drops it when the file is closed or the process ends, however it ends; processes forked meanwhile do not
    keep it. Where there are no such locks, the answer is True.

    Raises:
        OSError: if the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _locked.add(file)
    return True


_locked: weakref.WeakSet[IO[Any]] = weakref.WeakSet()


def _let_go_of_locks() -> None:
    """Let locked files lead nowhere in a forked process: a worker would keep the lock for some time after its parent.

    Closing them instead would let what the parent has not yet written be written twice.
    """
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for file in list(_locked):
            if not file.closed:
                os.dup2(nowhere, file.fileno(), inheritable=False)
        os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_locks)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder that no other process writes to now."""
    for entry in os.scandir(folder):
        if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _beside(path: Path) -> Path:
    # Cut short, so that the name of a file that just fits does not become too long.
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
