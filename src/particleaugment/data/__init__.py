"""Data sets, and keyed ways to split and order them.

A run trains on :class:`ImageData`, images in memory, or on ``StreamedData``, files that are decoded while it trains. An
:class:`ImageList` names files, and a :class:`FolderDataset` decodes them. ``Samples`` is anyone's data set by index.
"""

import os
from pathlib import Path

from particleaugment.data.cifar import load_cifar10, load_cifar100
from particleaugment.data.digits import load_digits
from particleaugment.data.folder import FolderDataset, folder_statistics, load_folder
from particleaugment.data.groups import check_grouping
from particleaugment.data.idx import load_fashion_mnist, load_mnist
from particleaugment.data.listing import ImageList, list_folder
from particleaugment.data.memory import ImageData, channel_statistics, hold_out
from particleaugment.data.selection import check_train_size
from particleaugment.data.split import (
    disjoint_stratified_subsets,
    epoch_permutation,
    stratified_subset,
    train_validation_split,
)
from particleaugment.util.hints import nearest_name

__all__ = [
    "DATA_SETS",
    "FolderDataset",
    "ImageData",
    "ImageList",
    "channel_statistics",
    "disjoint_stratified_subsets",
    "epoch_permutation",
    "folder_statistics",
    "hold_out",
    "list_folder",
    "load_cifar10",
    "load_cifar100",
    "load_data",
    "load_digits",
    "load_fashion_mnist",
    "load_folder",
    "load_mnist",
    "stratified_subset",
    "train_validation_split",
]

DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "folder")
"""The names that :func:`load_data` takes."""

FOLDER_SIZE = 64
"""Height and width of a folder's images where none is given."""


def load_data(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    *,
    image_size: int | None = None,
    validation: int | float = 0,
    train_size: int | float = 1.0,
    groups: str = "none",
    seed: int = 0,
    quiet: bool = False,
) -> ImageData:
    """Load a data set by name.

    Args:
        name: One of :data:`DATA_SETS`; ``name:DIRECTORY`` names the directory too.
        directory: Where the data lie; needed by all but the digits.
        image_size: Height and width that a folder's images are brought to, 64 if not given; the others have their own.
        validation: How many training images stand in for the test set, or which fraction; 0 keeps the test set.
        train_size: How many of the remaining training images to keep, or which fraction; 1.0 is all of them.
        groups: ``prefix`` or ``class-prefix`` where a folder's file names begin with a group that no split may take
            apart; see :func:`list_folder`.
        seed: Which ones; keep it fixed over runs that are compared.
        quiet: Show no progress bar.

    >>> load_data("digits").num_classes
    10
    >>> len(load_data("digits", validation=200).test_labels)
    200
    """
    name, separator, rest = name.partition(":")
    if name not in DATA_SETS:
        hint = nearest_name(name, DATA_SETS) or f"; the data sets are {', '.join(DATA_SETS)}"
        raise ValueError(f"there is no data set {name!r}{hint}")
    if separator and rest:
        if directory is not None:
            raise ValueError(f"the data set {name!r} is given two directories, {rest} and {directory}; name one")
        directory = rest
    _check_request(name, directory, image_size)
    check_grouping(groups)
    if groups != "none" and name != "folder":
        raise ValueError(f"groups are read from the names of image files, and {name!r} has none; set groups=none")
    check_train_size(train_size)
    place = None if directory is None else Path(directory).expanduser()
    return hold_out(_load(name, place, image_size, groups, quiet), validation, seed, train_size)


def _check_request(name: str, directory: str | os.PathLike[str] | None, image_size: int | None) -> None:
    if name == "digits" and directory is not None:
        raise ValueError(f"the digits come with the package; leave the directory {directory} out")
    if name == "folder" and directory is None:
        raise ValueError("the data set 'folder' needs data_dir, a directory with one sub-folder of images per class")
    if name not in ("digits", "folder") and directory is None:
        raise ValueError(
            f"the data set {name!r} needs its directory, data_dir=DIR; 'particleaugment data {name} DIR' downloads it"
        )
    if name != "folder" and image_size not in (None, 32):
        raise ValueError(f"the images of {name!r} are 32x32, not {image_size}; leave image_size out")


def _load(name: str, directory: Path | None, image_size: int | None, groups: str, quiet: bool) -> ImageData:
    if directory is None:
        return load_digits()
    readers = {
        "mnist": load_mnist,
        "fashion-mnist": load_fashion_mnist,
        "cifar10": load_cifar10,
        "cifar100": load_cifar100,
    }
    if name in readers:
        return readers[name](directory)
    return load_folder(directory, FOLDER_SIZE if image_size is None else image_size, groups=groups, quiet=quiet)
