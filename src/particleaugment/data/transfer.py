"""Download one published file: resumable, locked against a second download, checked by size and checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path, PurePosixPath

from particleaugment.data.cifar import Layout
from particleaugment.data.idx import IdxLayout
from particleaugment.data.progress import progress_bar
from particleaugment.util.atomic import regular_file, take_lock
from particleaugment.util.strict_json import clipped

__all__ = ["DownloadError", "PublishedFile", "Transfer", "complaint_about", "part_file"]

_CHUNK = 1 << 18
_TIMEOUT = 30.0


class DownloadError(RuntimeError):
    """A data set cannot be downloaded or unpacked."""


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A published file of a data set.

    Attributes:
        layout: The data set.
        url: Its address.
        md5: Its published checksum, in hexadecimal.
        size: Its length in bytes.

    >>> from particleaugment.data.idx import MNIST
    >>> PublishedFile(layout=MNIST, url="https://home/train.gz", md5="0" * 32, size=1).described
    'the published train.gz of MNIST'
    """

    layout: Layout | IdxLayout
    url: str
    md5: str
    size: int

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.url).name

    @property
    def described(self) -> str:
        """What it is, in words."""
        return f"the published {self.file_name} of {self.layout.title}"


@contextlib.contextmanager
def part_file(part: Path) -> Iterator[FileIO]:
    """Open a file to download to, locked against a second download; if it ends up empty, nothing of it stays."""
    made = [folder for folder in part.parents if not folder.exists()]
    part.parent.mkdir(parents=True, exist_ok=True)
    # Without a buffer: what a full disk did not take must not be tried again when the file is closed.
    with FileIO(part, "a+", opener=regular_file) as file:
        _lock(file, part)
        try:
            yield file
        finally:
            if file.seek(0, os.SEEK_END) == 0:
                part.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    for folder in made:
                        folder.rmdir()


def _lock(file: FileIO, part: Path) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        if not take_lock(file):
            raise DownloadError(f"{part} is being downloaded by another process; wait for it or stop it")


@dataclass(frozen=True)
class Transfer:
    """How files are downloaded: with or without a progress bar, how many tries, and the seconds between them."""

    quiet: bool
    tries: int
    pause: float

    def complete(self, file: FileIO, path: Path, wanted: PublishedFile, by_hand: str) -> None:
        """Complete the file at a path, resuming from what it holds; ``by_hand`` says how to do without a network."""
        try:
            self._download(file, wanted, by_hand)
        except OSError as error:
            raise DownloadError(f"{path} cannot be written: {error.strerror or error}") from None

    def _download(self, file: FileIO, wanted: PublishedFile, by_hand: str) -> None:
        for attempt in range(max(1, self.tries)):
            have = file.seek(0, os.SEEK_END)
            if have == wanted.size:
                return
            if have > wanted.size:
                have = file.truncate(0)
            if attempt:
                time.sleep(self.pause)
            try:
                with _request(wanted, have) as response:
                    _receive(response, file, wanted, have, self.quiet)
                return
            except urllib.error.HTTPError as error:
                error.close()
                failure = clipped(f"the server returned {error.code} {error.reason}")
                if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                    file.truncate(0)
                elif error.code < 500:
                    break
            except urllib.error.URLError as error:
                failure = clipped(getattr(error.reason, "strerror", None) or error.reason)
                if attempt == 0:  # there is no connection at all
                    break
            except _BrokenOff as error:
                failure = clipped(error)
        again = " to resume" if file.seek(0, os.SEEK_END) else ""
        raise DownloadError(f"{wanted.url} cannot be downloaded: {failure}; try again{again}, or {by_hand}")


class _BrokenOff(Exception):
    pass


def _request(wanted: PublishedFile, have: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(wanted.url, headers={"User-Agent": "particleaugment"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)  # type: ignore[no-any-return]
    except urllib.error.URLError:
        raise
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # a ValueError: it is sent on to what is no address
        raise _BrokenOff(str(error) or type(error).__name__) from None


def _receive(response: http.client.HTTPResponse, file: FileIO, wanted: PublishedFile, have: int, quiet: bool) -> None:
    if response.status != http.client.PARTIAL_CONTENT:
        have = 0  # a server that cannot go on sends everything
    elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        raise DownloadError(f"{wanted.url} returned a different range than requested; remove its .part file or folder")
    length = response.headers.get("Content-Length", "")
    if re.fullmatch("[0-9]{1,18}", length) and have + int(length) != wanted.size:
        raise DownloadError(
            f"{wanted.url} offers {have + int(length):,} bytes, but {wanted.described} has "
            f"{wanted.size:,}; a proxy or a moved page may have answered instead"
        )
    file.seek(have)
    file.truncate()
    with progress_bar(wanted.file_name, wanted.size, done=have, as_bytes=True, quiet=quiet) as update:
        while have < wanted.size:
            try:
                block = response.read(min(_CHUNK, wanted.size - have))
            except (OSError, http.client.HTTPException) as error:
                raise _BrokenOff(str(error) or type(error).__name__) from None
            if not block:
                raise _BrokenOff(f"the connection was lost after {have:,} of {wanted.size:,} bytes")
            if file.write(block) < len(block):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            have += len(block)
            update(have)


def complaint_about(file: BufferedReader | FileIO, wanted: PublishedFile) -> str:
    """Return what is wrong with a file, or nothing."""
    size = file.seek(0, os.SEEK_END)
    if size != wanted.size:
        verdict = "truncated" if size < wanted.size else "too long"
        return f"is {verdict}: it has {size:,} bytes and must have {wanted.size:,}"
    file.seek(0)
    checksum = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if checksum != wanted.md5:
        return f"has the checksum {checksum}, but {wanted.layout.title}'s published one is {wanted.md5}"
    return ""
