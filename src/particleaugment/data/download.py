"""Fetch data sets from their home pages: resumable, checked before they are used, never half there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from particleaugment.data.archive import ArchiveError, unpack
from particleaugment.data.cifar import CIFAR10, CIFAR100, Layout, check_sizes
from particleaugment.data.idx import FASHION_MNIST, FILES, MNIST, IdxLayout, find_named_folder, read_files
from particleaugment.data.transfer import DownloadError, PublishedFile, Transfer, complaint_about, part_file
from particleaugment.util.atomic import new_folder
from particleaugment.util.hints import nearest_name
from particleaugment.util.reading import open_file

__all__ = ["ARCHIVES", "FILE_SETS", "Archive", "DownloadError", "FileSet", "PublishedFile", "fetch"]


@dataclass(frozen=True, kw_only=True)
class Archive(PublishedFile):
    """A data set's published archive; its layout is what it unpacks to.

    >>> ARCHIVES["cifar10"].file_name
    'cifar-10-binary.tar.gz'
    """

    layout: Layout

    @property
    def described(self) -> str:
        """What it is, in words."""
        return f"the archive of {self.layout.title}"


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """A data set that is published as several files, which stay as they are.

    Attributes:
        layout: The data set.
        files: Its files.
    """

    layout: IdxLayout
    files: tuple[PublishedFile, ...]


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
"""The data sets that are published as one archive, by name."""


def _file_set(layout: IdxLayout, home: str, *published: tuple[str, int]) -> FileSet:
    return FileSet(
        layout=layout,
        files=tuple(
            PublishedFile(layout=layout, url=f"{home}/{name}.gz", md5=md5, size=size)
            for name, (md5, size) in zip(FILES, published, strict=True)
        ),
    )


FILE_SETS: Mapping[str, FileSet] = MappingProxyType(
    {
        "mnist": _file_set(
            MNIST,
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
        "fashion-mnist": _file_set(
            FASHION_MNIST,
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    }
)
"""Those that are published as several files, by name."""


def fetch(
    name: str,
    directory: str | os.PathLike[str],
    *,
    archive: Archive | FileSet | None = None,
    quiet: bool = False,
    tries: int = 3,
    pause: float = 1.0,
) -> Path:
    """Make sure that a data set is in a directory, downloading it if need be, and return its folder.

    An archive that is in the directory already is used, and kept. A download that breaks off leaves a ``.part`` file,
    or a ``.part`` folder where a data set has several files, from which the next call resumes. The data set's folder
    appears in one move, when all of it is there and checked.

    Args:
        name: ``mnist``, ``fashion-mnist``, ``cifar10`` or ``cifar100``.
        directory: Where the folder goes; it is made if need be.
        archive: Another archive, or other files, than the published ones of that name.
        quiet: Show no progress bar (there is none either where the output is not a terminal).
        tries: How often a connection that breaks off is taken up again before giving up.
        pause: Seconds between tries.

    >>> fetch("cifar11", "data")
    Traceback (most recent call last):
    ...
    ValueError: there is no data set 'cifar11' to download; did you mean cifar10?
    """
    if archive is None:
        published: dict[str, Archive | FileSet] = {**FILE_SETS, **ARCHIVES}
        if name not in published:
            hint = nearest_name(name, published) or f"; available are {', '.join(published)}"
            raise ValueError(f"there is no data set {name!r} to download{hint}")
        archive = published[name]
    directory, transfer = Path(directory), Transfer(quiet, tries, pause)
    if isinstance(archive, FileSet):
        return _fetch_files(archive, directory, transfer)
    return _fetch_archive(archive, directory, transfer)


def _fetch_archive(archive: Archive, directory: Path, transfer: Transfer) -> Path:
    final = directory / archive.layout.folder
    if final.exists():
        return _unpacked(archive.layout, final)
    own = directory / archive.file_name
    if own.exists():
        try:
            with open_file(own) as file:
                complaint = complaint_about(file, archive)
        except OSError as error:
            raise DownloadError(f"{own} cannot be read: {error.strerror}; remove it and try again") from None
        if complaint:
            raise DownloadError(f"{own} {complaint}; remove it and try again")
        try:
            return _unpack(own, archive, final)
        except ArchiveError as error:
            raise DownloadError(f"{own} cannot be unpacked: {error}; remove it and try again") from None
    part = own.with_name(own.name + ".part")
    by_hand = f"put that archive or its unpacked folder {archive.layout.folder} into {directory} yourself"
    with part_file(part) as file:
        # Another process may have completed the folder just before the lock was free.
        if final.exists():
            return _unpacked(archive.layout, final)
        transfer.complete(file, part, archive, by_hand)
        complaint = complaint_about(file, archive)
        try:
            if not complaint:
                _unpack(part, archive, final)
        except ArchiveError as error:
            complaint = f"cannot be unpacked: {error}"
        file.truncate(0)  # done with, or such that it could never become right by going on
        if complaint:
            raise DownloadError(f"the download of {archive.url} {complaint}; it was discarded, try again")
    return final


def _unpacked(layout: Layout, final: Path) -> Path:
    """Return the folder of a data set that is there already, checked."""
    try:
        check_sizes(layout, final)
    except ValueError as error:
        raise DownloadError(f"{error}, or remove {final} and try again") from None
    return final


def _fetch_files(published: FileSet, directory: Path, transfer: Transfer) -> Path:
    layout = published.layout
    if (there := _fetched_files(layout, directory)) is not None:
        return there
    final = directory / layout.name
    part = directory / f"{layout.name}.part"
    by_hand = f"put the files of {layout.title} into {final} yourself"
    with contextlib.ExitStack() as held:
        files = [held.enter_context(part_file(part / file.file_name)) for file in published.files]
        # Another process may have completed the folder just before the locks were free.
        if (there := _fetched_files(layout, directory)) is not None:
            return there
        for file, wanted in zip(files, published.files):
            transfer.complete(file, part / wanted.file_name, wanted, by_hand)
            if complaint := complaint_about(file, wanted):
                file.truncate(0)
                raise DownloadError(f"the download of {wanted.url} {complaint}; it was discarded, try again")
        try:
            os.rename(part, final)
        except OSError as error:
            raise DownloadError(f"{part} cannot be moved to {final}: {error.strerror}") from None
    return final


def _fetched_files(layout: IdxLayout, directory: Path) -> Path | None:
    """Return the folder of a data set that is there already, checked."""
    folder, final = find_named_folder(layout, directory), directory / layout.name
    if folder is None:
        if final.exists() and not (final.is_dir() and not any(final.iterdir())):
            raise DownloadError(
                f"{final} exists, but does not contain the files of {layout.title}; move it and try again"
            )
        return None
    try:
        read_files(layout, folder)
    except ValueError as error:
        raise DownloadError(f"{error}, or remove {folder} and try again") from None
    return folder


def _unpack(path: Path, archive: Archive, final: Path) -> Path:
    """Unpack beside the final folder, check, and move into place."""
    layout = archive.layout
    try:
        with new_folder(final) as temporary:
            unpack(path, temporary, layout.folder, layout.sizes(), texts=(layout.class_names,))
    except OSError as error:
        raise DownloadError(f"{path} cannot be unpacked to {final}: {error.strerror}") from None
    return final
