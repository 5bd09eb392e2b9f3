"""Fetch CIFAR-10 and CIFAR-100 from their home page: resumable, checked before it is unpacked, never half there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from particleaugment.data.archive import ArchiveError, unpack
from particleaugment.data.cifar import CIFAR10, CIFAR100, Layout, check_sizes
from particleaugment.data.progress import progress_bar
from particleaugment.ops import nearest_name

__all__ = ["ARCHIVES", "Archive", "DownloadError", "fetch"]

_CHUNK = 1 << 18
_TIMEOUT = 30.0


class DownloadError(RuntimeError):
    """A data set cannot be downloaded or unpacked."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A data set's published archive.

    Attributes:
        layout: What it unpacks to.
        url: Its address.
        md5: Its published checksum, in hexadecimal.
        size: Its length in bytes.

    >>> ARCHIVES["cifar10"].file_name
    'cifar-10-binary.tar.gz'
    """

    layout: Layout
    url: str
    md5: str
    size: int

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.url).name


_HOME = "https://www.cs.toronto.edu/~kriz"
ARCHIVES: Mapping[str, Archive] = MappingProxyType(
    {
        "cifar10": Archive(
            layout=CIFAR10,
            url=f"{_HOME}/cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            size=170_052_171,
        ),
        "cifar100": Archive(
            layout=CIFAR100,
            url=f"{_HOME}/cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            size=168_513_733,
        ),
    }
)
"""What can be fetched, by name."""


def fetch(
    name: str,
    directory: str | os.PathLike[str],
    *,
    archive: Archive | None = None,
    quiet: bool = False,
    tries: int = 3,
    pause: float = 1.0,
) -> Path:
    """Make sure that a data set lies in a directory, downloading it if need be, and return its folder.

    An archive that lies in the directory already is used, and kept. A download that breaks off leaves a ``.part`` file,
    from which the next call goes on. The data set's folder appears in one move, when all of it is there and checked.

    Args:
        name: ``cifar10`` or ``cifar100``.
        directory: Where the folder goes; it is made if need be.
        archive: Another archive than the published one of that name.
        quiet: Show no progress bar (there is none either where the output is not a terminal).
        tries: How often a connection that breaks off is taken up again before giving up.
        pause: Seconds between tries.

    >>> fetch("cifar11", "data")
    Traceback (most recent call last):
    ...
    ValueError: there is no data set 'cifar11' to download; did you mean cifar10?
    """
    if archive is None:
        if name not in ARCHIVES:
            hint = nearest_name(name, ARCHIVES) or f"; there are {', '.join(ARCHIVES)}"
            raise ValueError(f"there is no data set {name!r} to download{hint}")
        archive = ARCHIVES[name]
    directory = Path(directory)
    final = directory / archive.layout.folder
    if final.exists():
        try:
            check_sizes(archive.layout, final)
        except ValueError as error:
            raise DownloadError(f"{error}, or remove {final} and try again") from None
        return final
    own = directory / archive.file_name
    if own.exists():
        with FileIO(own) as file:
            complaint = _complaint(file, archive)
        if complaint:
            raise DownloadError(f"{own} {complaint}; remove it and try again")
        try:
            return _unpack(own, archive, final)
        except ArchiveError as error:
            raise DownloadError(f"{own} is not unpacked: {error}; remove it and try again") from None
    part = own.with_name(own.name + ".part")
    with _part_file(part) as file:
        try:
            _download(file, archive, directory, quiet, tries, pause)
        except OSError as error:
            raise DownloadError(f"{part} cannot be written: {error.strerror or error}") from None
        complaint = _complaint(file, archive)
        try:
            if not complaint:
                _unpack(part, archive, final)
        except ArchiveError as error:
            complaint = f"is not unpacked: {error}"
        file.truncate(0)  # done with, or such that it could never become right by going on
        if complaint:
            raise DownloadError(f"what {archive.url} sent {complaint}; it is thrown away, try again")
    return final


@contextlib.contextmanager
def _part_file(part: Path) -> Iterator[FileIO]:
    """Open a file to download to, locked against a second download; if it ends up empty, nothing of it stays."""
    made = [folder for folder in part.parents if not folder.exists()]
    part.parent.mkdir(parents=True, exist_ok=True)
    # Without a buffer: what a full disk did not take must not be tried again when the file is closed.
    with FileIO(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+") as file:
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
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DownloadError(f"{part} is being downloaded by another process; wait for it or stop it") from None
    except OSError:  # a file system without locks
        return


def _download(file: FileIO, archive: Archive, directory: Path, quiet: bool, tries: int, pause: float) -> None:
    """Complete the file, going on from what it holds."""
    for attempt in range(max(1, tries)):
        have = file.seek(0, os.SEEK_END)
        if have == archive.size:
            return
        if have > archive.size:
            have = file.truncate(0)
        if attempt:
            time.sleep(pause)
        try:
            with _request(archive, have) as response:
                _receive(response, file, archive, have, quiet)
            return
        except urllib.error.HTTPError as error:
            error.close()
            failure = f"the server answers {error.code} {error.reason}"
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                file.truncate(0)
            elif error.code < 500:
                break
        except urllib.error.URLError as error:
            failure = str(getattr(error.reason, "strerror", None) or error.reason)
            if attempt == 0:  # there is no connection at all
                break
        except _BrokenOff as error:
            failure = str(error)
    again = " to go on from what has arrived" if file.seek(0, os.SEEK_END) else ""
    raise DownloadError(
        f"{archive.url} cannot be downloaded: {failure}; try again{again}, or put that archive or its unpacked folder "
        f"{archive.layout.folder} into {directory} yourself"
    )


class _BrokenOff(Exception):
    pass


def _request(archive: Archive, have: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(archive.url, headers={"User-Agent": "particleaugment"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)  # type: ignore[no-any-return]
    except urllib.error.URLError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOff(str(error) or type(error).__name__) from None


def _receive(response: http.client.HTTPResponse, file: FileIO, archive: Archive, have: int, quiet: bool) -> None:
    if response.status != http.client.PARTIAL_CONTENT:
        have = 0  # a server that cannot go on sends everything
    elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        raise DownloadError(f"{archive.url} answers with another range than was asked for; remove the .part file")
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and have + int(length) != archive.size:
        raise DownloadError(
            f"{archive.url} offers {have + int(length):,} bytes, but the archive of {archive.layout.title} has "
            f"{archive.size:,}; a proxy or a moved page may be answering in its place"
        )
    file.seek(have)
    file.truncate()
    with progress_bar(archive.file_name, archive.size, done=have, as_bytes=True, quiet=quiet) as update:
        while have < archive.size:
            try:
                block = response.read(min(_CHUNK, archive.size - have))
            except (OSError, http.client.HTTPException) as error:
                raise _BrokenOff(str(error) or type(error).__name__) from None
            if not block:
                raise _BrokenOff(f"the connection broke off after {have:,} of {archive.size:,} bytes")
            if file.write(block) < len(block):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            have += len(block)
            update(have)


def _complaint(file: FileIO, archive: Archive) -> str:
    """Return what is wrong with an archive, or nothing."""
    size = file.seek(0, os.SEEK_END)
    if size != archive.size:
        verdict = "truncated" if size < archive.size else "too long"
        return f"is {verdict}: it has {size:,} bytes and must have {archive.size:,}"
    file.seek(0)
    checksum = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if checksum != archive.md5:
        return f"has the checksum {checksum}, but {archive.layout.title}'s published one is {archive.md5}"
    return ""


def _unpack(path: Path, archive: Archive, final: Path) -> Path:
    """Unpack beside the final folder, check, and move into place."""
    layout = archive.layout
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        unpack(path, temporary, layout.folder, layout.sizes(), texts=(layout.class_names,))
        os.rename(temporary, final)
    except OSError as error:
        raise DownloadError(f"{path} cannot be unpacked to {final}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final
