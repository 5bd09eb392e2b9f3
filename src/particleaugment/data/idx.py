"""MNIST and Fashion-MNIST, read from the data sets' own idx files, gzipped or not.

A file is a header of big-endian 32-bit numbers, then one byte per pixel or label without any separator. The header is
2051, images, rows, columns, or 2049, labels.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from particleaugment.data.folder import MEMORY_LIMIT
from particleaugment.data.memory import ImageData, channel_statistics
from particleaugment.util.reading import open_file
from particleaugment.util.shown import shown_command

__all__ = ["FASHION_MNIST", "FILES", "MNIST", "IdxLayout", "load_fashion_mnist", "load_mnist", "read_idx"]

SIDE = 28
PADDING = 2
PADDED = SIDE + 2 * PADDING
CHANNELS = 3


@dataclass(frozen=True)
class _Kind:
    """What a file holds: the word for it, the number that files of it start with, the dimensions of one."""

    word: str
    magic: int
    sides: tuple[int, ...]

    @property
    def header_size(self) -> int:
        return 8 + 4 * len(self.sides)

    def size(self, count: int) -> int:
        """Return the size in bytes of a file that holds so many."""
        return self.header_size + count * math.prod(self.sides)


_IMAGES = _Kind("images", 2051, (SIDE, SIDE))
_LABELS = _Kind("labels", 2049, ())
_KINDS = (_IMAGES, _LABELS, _IMAGES, _LABELS)
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
"""The names of the files, without ``.gz``."""


@dataclass(frozen=True, kw_only=True)
class IdxLayout:
    """A data set of idx files.

    Attributes:
        name: Its name here, and the name of its folder.
        title: The name people know it by.
        torchvision: The name of torchvision's folder.
        classes: The class names.

    >>> FASHION_MNIST.folders
    ('fashion-mnist', 'FashionMNIST/raw', 'FashionMNIST')
    """

    name: str
    title: str
    torchvision: str
    classes: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that its files may be in."""
        return self.name, f"{self.torchvision}/raw", self.torchvision


MNIST = IdxLayout(name="mnist", title="MNIST", torchvision="MNIST", classes=tuple(map(str, range(10))))

FASHION_MNIST = IdxLayout(
    name="fashion-mnist",
    title="Fashion-MNIST",
    torchvision="FashionMNIST",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)


def load_mnist(directory: str | os.PathLike[str]) -> ImageData:
    """Read MNIST: 60,000 training and 10,000 test images, uint8 [N, 3, 32, 32].

    The four idx files, gzipped or not, are in the directory itself, in ``mnist`` or in torchvision's ``MNIST/raw``. The
    28x28 images get a black border of 2 pixels, and the grey channel is repeated three times. Files with fewer images
    are read too.

    >>> load_mnist("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: there is no folder no/such/folder; 'particleaugment data mnist no/such/folder' downloads MNIST to it
    """
    return read_idx(MNIST, directory)


def load_fashion_mnist(directory: str | os.PathLike[str]) -> ImageData:
    """Read Fashion-MNIST as :func:`load_mnist` reads MNIST; its folder is ``fashion-mnist`` or ``FashionMNIST/raw``.

    >>> load_fashion_mnist("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: there is no folder no/such/folder; 'particleaugment data fashion-mnist no/such/folder' downloads ...
    """
    return read_idx(FASHION_MNIST, directory)


def read_idx(layout: IdxLayout, directory: str | os.PathLike[str]) -> ImageData:
    """Read a data set of the given layout; all four files are checked before any is used."""
    folder = find_folder(layout, Path(directory))
    train, train_labels, test, test_labels = read_files(layout, folder)
    if not train.any():
        raise ValueError(f"{_path(layout, folder, FILES[0])} has black pixels only; download the file again")
    train_images = _padded(train)
    mean, std = channel_statistics(train_images[:, :1])
    return ImageData(
        train_images=train_images,
        train_labels=torch.from_numpy(train_labels.astype(np.int64)),
        test_images=_padded(test),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=layout.classes,
        mean=mean * CHANNELS,
        std=std * CHANNELS,
    )


def find_folder(layout: IdxLayout, directory: Path) -> Path:
    """Return the folder with the data set's files: one of its own in the given one, or the given one itself."""
    how = f"{shown_command('data', layout.name, directory)} downloads {layout.title} to it"
    if not directory.is_dir():
        raise ValueError(f"there is no folder {directory}; {how}")
    folder = find_named_folder(layout, directory) or (directory if _holds_any(directory) else None)
    if folder is None:
        raise ValueError(f"{directory} has neither {FILES[0]}.gz nor a folder {layout.name} with it; {how}")
    return folder


def find_named_folder(layout: IdxLayout, directory: Path) -> Path | None:
    """Return the folder in a directory that has both the data set's name and files, if there is one."""
    return next((directory / name for name in layout.folders if _holds_any(directory / name)), None)


def read_files(layout: IdxLayout, folder: Path) -> list[np.ndarray]:
    """Return images [N, 28, 28] and labels [N] of the training set, then of the test set, all of them checked.

    Headers are compared before anything behind them is read, and no more is unpacked than they announce.
    """
    paths = [_path(layout, folder, name) for name in FILES]
    counts = [_count(layout, path, kind) for path, kind in zip(paths, _KINDS)]
    for images, labels in ((0, 1), (2, 3)):
        if counts[images] != counts[labels]:
            raise ValueError(
                f"{paths[images]} has {counts[images]:,} images, but {paths[labels].name} has {counts[labels]:,} "
                "labels; download both files again"
            )
    contents = [_content(path, kind, count) for path, kind, count in zip(paths, _KINDS, counts)]
    for path, kind, content in zip(paths, _KINDS, contents):
        if kind is _LABELS and (worst := int(content.max())) >= len(layout.classes):
            raise ValueError(
                f"{path} has the label {worst} for image {int(content.argmax())}, but labels must be in "
                f"0..{len(layout.classes) - 1}; the file is not {layout.title}'s or is damaged"
            )
    return contents


def _padded(images: np.ndarray) -> Tensor:
    padded = np.zeros((len(images), CHANNELS, PADDED, PADDED), np.uint8)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images[:, None]
    return torch.from_numpy(padded)


def _holds_any(folder: Path) -> bool:
    return any((folder / f"{name}{ending}").exists() for name in FILES for ending in ("", ".gz"))


def _path(layout: IdxLayout, folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"{folder} has neither {name} nor {name}.gz; {layout.title} needs all four files")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacking it on the way if need be; errors of reading become one sentence."""
    try:
        with open_file(path) as file:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else cast(BinaryIO, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}); download the file again") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _count(layout: IdxLayout, path: Path, kind: _Kind) -> int:
    """Return how many images or labels a header declares."""
    with _opened(path) as stream:
        header = stream.read(kind.header_size)
    if len(header) < kind.header_size:
        raise ValueError(
            f"{path} is truncated: its header alone needs {kind.header_size} bytes, but it has {len(header)} in all; "
            "download the file again"
        )
    magic, count, *sides = struct.unpack(f">{kind.header_size // 4}I", header)
    if magic != kind.magic:
        raise ValueError(
            f"{path} starts with the number {magic}, but idx files of {kind.word} start with {kind.magic}; "
            "download the file again"
        )
    if tuple(sides) != kind.sides:
        raise ValueError(
            f"{path} has images of {sides[0]}x{sides[1]} pixels, but those of {layout.title} are {SIDE}x{SIDE}; "
            "the file is of another data set or damaged"
        )
    if count == 0:
        raise ValueError(f"{path} has no {kind.word}; download the file again")
    needed = count * CHANNELS * PADDED * PADDED
    if needed > MEMORY_LIMIT:
        raise ValueError(
            f"{path} declares {count:,} {kind.word}: {needed / 2**30:.1f} GiB of pixels, more than the "
            f"{MEMORY_LIMIT / 2**30:.0f} GiB held in memory; use fewer images"
        )
    return int(count)


def _content(path: Path, kind: _Kind, count: int) -> np.ndarray:
    """Return what follows a header that declares so many images or labels."""
    expected = kind.size(count)
    with _opened(path) as stream:
        content = stream.read(expected + 1)
    if len(content) != expected:
        verdict, actual = ("truncated", f"{len(content):,}") if len(content) < expected else ("too long", "more")
        raise ValueError(
            f"{path} is {verdict}: its header declares {count:,} {kind.word}, {expected:,} bytes in all, "
            f"but it has {actual}; download the file again"
        )
    return np.frombuffer(content, np.uint8, offset=kind.header_size).reshape(count, *kind.sides)
