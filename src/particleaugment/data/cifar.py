"""CIFAR-10 and CIFAR-100, read from the data sets' own binary files.

A file is a sequence of rows without any separator: one label byte (CIFAR-100: coarse, then fine), then 3072 pixels,
channel by channel, row by row. Nothing else is accepted, in particular not the pickled "python version".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from particleaugment.data.memory import ImageData
from particleaugment.util.reading import read_file
from particleaugment.util.shown import shown_command

__all__ = ["CIFAR10", "CIFAR100", "LAYOUTS", "Layout", "load_cifar10", "load_cifar100", "read_cifar"]

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a data set's images and labels are, and what they must look like.

    Attributes:
        name: The name it goes by here.
        title: The name people know it by.
        folder: The folder its archive unpacks to.
        train: Files of training images.
        test: File of test images.
        train_rows: Images in each file of training images.
        test_rows: Images in the file of test images.
        labels: The number of values of each label byte; the last one is the class.
        class_names: File with one class name per line.
        mean: Mean of each channel of the training images, in units where 255 is 1.
        std: Standard deviation of each channel, likewise.

    >>> CIFAR10.sizes()["test_batch.bin"]
    30730000
    """

    name: str
    title: str
    folder: str
    train: tuple[str, ...]
    test: str
    train_rows: int
    test_rows: int
    labels: tuple[int, ...]
    class_names: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def row_bytes(self) -> int:
        """The length of one image's row."""
        return len(self.labels) + PIXELS

    def sizes(self) -> dict[str, int]:
        """Return the exact size in bytes of every file of images."""
        return {name: self.train_rows * self.row_bytes for name in self.train} | {
            self.test: self.test_rows * self.row_bytes
        }


CIFAR10 = Layout(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    train_rows=10_000,
    test_rows=10_000,
    labels=(10,),
    class_names="batches.meta.txt",
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
)

CIFAR100 = Layout(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    train_rows=50_000,
    test_rows=10_000,
    labels=(20, 100),
    class_names="fine_label_names.txt",
    mean=(0.50707516, 0.48654887, 0.44091784),
    std=(0.26733429, 0.25643846, 0.27615047),
)

LAYOUTS: Mapping[str, Layout] = MappingProxyType({layout.name: layout for layout in (CIFAR10, CIFAR100)})
"""Both data sets by name."""


def load_cifar10(directory: str | os.PathLike[str]) -> ImageData:
    """Read CIFAR-10 from ``cifar-10-batches-bin`` or the folder it lies in: 50,000 training and 10,000 test images.

    >>> load_cifar10("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: there is no folder no/such/folder; 'particleaugment data cifar10 no/such/folder' downloads CIFAR-10...
    """
    return read_cifar(CIFAR10, directory)


def load_cifar100(directory: str | os.PathLike[str]) -> ImageData:
    """Read CIFAR-100 with its 100 fine labels from ``cifar-100-binary`` or the folder it lies in.

    >>> load_cifar100("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: there is no folder no/such/folder; 'particleaugment data cifar100 no/such/folder' downloads CIFAR-100...
    """
    return read_cifar(CIFAR100, directory)


def read_cifar(layout: Layout, directory: str | os.PathLike[str]) -> ImageData:
    """Read a data set of the given layout; every file is checked to its last byte's place before any is used."""
    folder = find_folder(layout, Path(directory))
    check_sizes(layout, folder)
    classes = _class_names(layout, folder)
    parts = [_read_file(layout, folder / name) for name in layout.train]
    test_images, test_labels = _read_file(layout, folder / layout.test)
    return ImageData(
        train_images=torch.cat([images for images, _ in parts]),
        train_labels=torch.cat([labels for _, labels in parts]),
        test_images=test_images,
        test_labels=test_labels,
        classes=classes,
        mean=layout.mean,
        std=layout.std,
    )


def find_folder(layout: Layout, directory: Path) -> Path:
    """Return the folder with the data set's files: the given one, or the data set's own folder in it."""
    how = f"{shown_command('data', layout.name, directory)} downloads {layout.title} to it"
    if not directory.is_dir():
        raise ValueError(f"there is no folder {directory}; {how}")
    if (directory / layout.folder).is_dir():
        return directory / layout.folder
    if any((directory / name).exists() for name in layout.sizes()):
        return directory
    if any((directory / pickled).exists() for pickled in ("cifar-10-batches-py", "cifar-100-python", "data_batch_1")):
        raise ValueError(
            f"{directory} contains the pickled python version, which is not read for security reasons; {how}"
        )
    raise ValueError(f"{directory} contains neither {layout.folder} nor {layout.test}; {how}")


def check_sizes(layout: Layout, folder: Path) -> None:
    """Raise a ValueError unless every file of images is there with its exact size."""
    for name, expected in layout.sizes().items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing; unpack the whole archive of {layout.title} again")
        actual = path.stat().st_size
        if actual != expected:
            verdict = "truncated" if actual < expected else "too long"
            raise ValueError(
                f"{path} is {verdict}: it has {actual:,} bytes and must have {expected:,}; "
                f"unpack the archive of {layout.title} again"
            )


def _read_file(layout: Layout, path: Path) -> tuple[Tensor, Tensor]:
    try:
        rows = np.frombuffer(bytearray(read_file(path, layout.sizes()[path.name])), np.uint8)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    rows = rows[: len(rows) // layout.row_bytes * layout.row_bytes].reshape(-1, layout.row_bytes)
    for column, count in enumerate(layout.labels):
        worst = int(rows[:, column].max(initial=0))
        if worst >= count:
            row = int(rows[:, column].argmax())
            raise ValueError(
                f"{path} has the label {worst} in row {row}, but labels there must be in 0..{count - 1}; "
                f"the file is not {layout.title}'s or is damaged"
            )
    labels = torch.from_numpy(rows[:, len(layout.labels) - 1].astype(np.int64))
    return torch.from_numpy(rows[:, len(layout.labels) :].reshape(-1, 3, SIDE, SIDE)), labels


def _class_names(layout: Layout, folder: Path) -> tuple[str, ...]:
    path = folder / layout.class_names
    try:
        # The real file ends in empty lines.
        names = tuple(line.strip() for line in read_file(path, 1 << 16).decode("ascii").splitlines() if line.strip())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; unpack the whole archive of {layout.title} again") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file of class names; unpack the archive again") from None
    if len(names) != layout.labels[-1] or len(set(names)) != len(names):
        raise ValueError(
            f"{path} must name {layout.labels[-1]} different classes, one per line, got {len(names)} lines with "
            f"{len(set(names))} names; unpack the archive of {layout.title} again"
        )
    return names
