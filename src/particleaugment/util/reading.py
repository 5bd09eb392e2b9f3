"""The one way to read files that nobody has to trust: nothing blocks, nothing never ends, nothing fills the memory.

A link is followed, since data and weights are often kept elsewhere; what it leads to must be a regular file.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

__all__ = ["SIZE_LIMIT", "open_file", "read_file"]

SIZE_LIMIT = 64 << 20
"""The most bytes of a file whose reader names no other limit."""

_SAFE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # a pipe without a writer must not block
_NO_FILE = "it is a pipe or a device, not a file"
_BLOCK = 1 << 16


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading.

    >>> open_file("/dev/zero")
    Traceback (most recent call last):
    OSError: [Errno 22] it is a pipe or a device, not a file: '/dev/zero'

    Raises:
        OSError: if it cannot be read, or is something else than a regular file.
    """
    return open(path, "rb", opener=_opener)


def read_file(path: str | os.PathLike[str], limit: int = SIZE_LIMIT) -> bytes:
    """Return a regular file's bytes.

    Args:
        path: The file.
        limit: The most bytes that it may have.

    Raises:
        OSError: if it cannot be read, is something else than a regular file, or is too large.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= limit else b""
        while len(content) > size and len(content) <= limit:  # it grows while it is read
            size = len(content)
            content += file.read(_BLOCK)
        if max(size, len(content)) > limit:
            most = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
            raise OSError(errno.EFBIG, f"it is larger than {most}, the limit for such files", str(path))
        return content


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _SAFE)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NO_FILE, path)
    return descriptor
