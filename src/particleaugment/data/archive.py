"""Unpack a tar archive that nobody has to trust.

Only named, regular files directly in one folder are written, under names that this package chose; an archive that holds
anything able to write elsewhere is refused as a whole. The stream is cut off at a bound, so that neither a member nor a
header can grow without end.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from particleaugment.util.atomic import regular_file
from particleaugment.util.reading import open_file
from particleaugment.util.strict_json import clipped

__all__ = ["ArchiveError", "unpack"]

TEXT_LIMIT = 1 << 16
SLACK = 1 << 20  # headers, padding and small files that are not wanted
MEMBER_LIMIT = 100


class ArchiveError(ValueError):
    """An archive is damaged, incomplete or not safe to unpack."""


def unpack(
    path: Path, target: Path, folder: str, sizes: Mapping[str, int], texts: tuple[str, ...] = (), slack: int = SLACK
) -> None:
    """Write the wanted members of a gzipped tar archive to a directory.

    Args:
        path: The archive.
        target: An existing, empty directory.
        folder: The only folder whose members count.
        sizes: Wanted files and their exact sizes in bytes.
        texts: Further wanted files, small but of any size.
        slack: Bytes that the rest of the unpacked archive may take up.
    """
    missing = {*sizes, *texts}
    limit = sum(sizes.values()) + len(texts) * TEXT_LIMIT + slack
    try:
        with (
            open_file(path) as file,
            gzip.GzipFile(fileobj=file) as stream,
            _tar_stream(_Bounded(stream, limit)) as archive,
        ):
            for number, member in enumerate(archive):
                name = _checked_name(member, folder, number)
                if name not in missing:
                    continue
                low, high = (sizes[name],) * 2 if name in sizes else (0, TEXT_LIMIT)
                if not low <= member.size <= high:
                    bound = f"{high:,}" if low else f"at most {high:,}"
                    raise ArchiveError(f"its member {name} has {member.size:,} bytes and should have {bound}")
                source = archive.extractfile(member)
                assert source is not None  # it is a regular file
                with open(target / name, "xb", opener=regular_file) as written:
                    shutil.copyfileobj(source, written, 1 << 20)
                missing.remove(name)
    except ArchiveError:
        raise
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise ArchiveError(f"it is not a complete .tar.gz archive ({clipped(error) or type(error).__name__})") from None
    if missing:
        raise ArchiveError(f"it lacks {', '.join(sorted(missing))}")


def _tar_stream(stream: _Bounded) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|")  # type: ignore[call-overload, no-any-return]


def _checked_name(member: tarfile.TarInfo, folder: str, number: int) -> str:
    """Return a member's name within the folder, or an empty one for what may be passed over."""
    if number >= MEMBER_LIMIT:
        raise ArchiveError(f"it has more than {MEMBER_LIMIT} members")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        raise ArchiveError(f"its member {clipped(repr(member.name))} points outside its folder")
    if not (member.isreg() or member.isdir()):
        raise ArchiveError(f"its member {clipped(repr(member.name))} is a link or device, not a file")
    return path.name if member.isreg() and path.parts == (folder, path.name) else ""


class _Bounded:
    """A readable stream that ends in an error after so many bytes."""

    def __init__(self, stream: gzip.GzipFile, limit: int):
        self.stream, self.limit, self.left = stream, limit, limit

    def read(self, size: int) -> bytes:
        block = self.stream.read(min(size, self.left + 1))
        self.left -= len(block)
        if self.left < 0:
            raise ArchiveError(f"it unpacks to more than the expected {self.limit:,} bytes")
        return block
