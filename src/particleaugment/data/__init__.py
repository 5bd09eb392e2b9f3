"""Data sets, and keyed ways to split and order them.

A run trains on :class:`ImageData`, images in memory, or on ``StreamedData``, files that are decoded while it trains. An
:class:`ImageList` names files (``HubImages`` rows of a Hugging Face data set), and a :class:`FolderDataset` decodes
them. ``Samples`` is anyone's data set by index.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from particleaugment.data.cifar import load_cifar10, load_cifar100
from particleaugment.data.digits import load_digits
from particleaugment.data.folder import FolderDataset, folder_statistics, load_folder, load_found
from particleaugment.data.groups import check_grouping
from particleaugment.data.hf import find_hf
from particleaugment.data.idx import load_fashion_mnist, load_mnist
from particleaugment.data.listing import FolderListing, ImageList, find_images, list_folder
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
    "FILE_SETS",
    "PUBLISHED",
    "FolderDataset",
    "ImageData",
    "ImageList",
    "channel_statistics",
    "check_name",
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

_READERS: Mapping[str, Callable[[Path], ImageData]] = {
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
}

FILE_SETS = ("folder", "hf")
"""Data sets whose images are files of any size and number, to be decoded at once or while a network trains."""

DATA_SETS = ("digits", *_READERS, *FILE_SETS)
"""The names that :func:`load_data` takes."""

PUBLISHED = MappingProxyType({"digits": 10, "mnist": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100})
"""Classes of the data sets that are the same everywhere: all are 32x32, and all but the digits can be downloaded."""

FOLDER_SIZE = 64
"""Height and width of a folder's images where none is given."""


def check_name(name: str) -> None:
    """Raise a ValueError where no data set has a name.

    >>> check_name("digitz")
    Traceback (most recent call last):
    ValueError: there is no data set 'digitz'; did you mean digits?
    """
    if name not in DATA_SETS:
        hint = nearest_name(name, DATA_SETS) or f"; the data sets are {', '.join(DATA_SETS)}"
        raise ValueError(f"there is no data set {name!r}{hint}")


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
        name: One of :data:`DATA_SETS`; ``name:DIRECTORY`` also names the directory.
        directory: Directory of the data; required for all but the digits. For ``hf`` a name on the Hugging Face Hub or
            a path, such as ``uoft-cs/cifar100,label=fine_label``.
        image_size: Height and width of images from a folder or from ``hf``, 64 by default; the others have a fixed
            size.
        validation: Number or fraction of training images that replace the test set; 0 keeps the test set.
        train_size: Number or fraction of the remaining training images to keep; 1.0 is all of them.
        groups: ``prefix`` or ``class-prefix`` if a folder's file names begin with a group that must not be split; see
            :func:`list_folder`.
        seed: Seed for choosing these images; use the same one for runs that you compare.
        quiet: Show no progress bar.

    >>> load_data("digits").num_classes
    10
    >>> len(load_data("digits", validation=200).test_labels)
    200
    """
    name, separator, rest = name.partition(":")
    check_name(name)
    if separator and rest:
        if directory is not None:
            raise ValueError(f"the data set {name!r} has two directories, {rest} and {directory}; name one")
        directory = rest
    _check_request(name, directory, image_size)
    check_grouping(groups)
    if groups != "none" and name != "folder":
        raise ValueError(f"groups are read from the names of image files, and {name!r} has none; set groups=none")
    check_train_size(train_size)
    return hold_out(_load(name, directory, image_size, groups, quiet), validation, seed, train_size)


def find_files(name: str, directory: str | os.PathLike[str], groups: str = "none") -> FolderListing:
    """Return what a data set of files holds, by one of the names of :data:`FILE_SETS`; nothing is decoded."""
    if name == "hf":
        return find_hf(os.fspath(directory))
    return find_images(Path(directory).expanduser(), groups=groups)


def needed_place(name: str) -> str:
    """Say what a data set of files needs, where it was not given."""
    if name == "hf":
        return "the data set 'hf' needs a name on the Hugging Face Hub or a path, as in data=hf:NAME"
    return "the data set 'folder' needs data_dir, a directory with one sub-folder of images per class"


def _check_request(name: str, directory: str | os.PathLike[str] | None, image_size: int | None) -> None:
    if name == "digits" and directory is not None:
        raise ValueError(f"the digits come with the package; omit the directory {directory}")
    if name in FILE_SETS and directory is None:
        raise ValueError(needed_place(name))
    if name != "digits" and directory is None:
        hint = f"; 'particleaugment data {name} DIR' downloads it" if name in PUBLISHED else ""
        raise ValueError(f"the data set {name!r} needs its directory, data_dir=DIR{hint}")
    if name in PUBLISHED and image_size not in (None, 32):
        raise ValueError(f"the images of {name!r} are 32x32, not {image_size}; omit image_size")
    if name not in PUBLISHED and name not in FILE_SETS and image_size is not None:
        raise ValueError(f"the images of {name!r} keep their size, and cannot become {image_size}; omit image_size")


def _load(
    name: str, directory: str | os.PathLike[str] | None, image_size: int | None, groups: str, quiet: bool
) -> ImageData:
    if directory is None:
        return load_digits()
    if name in FILE_SETS:
        found = find_files(name, directory, groups)
        size = FOLDER_SIZE if image_size is None else image_size
        return load_found(found, size, place=os.fspath(directory), quiet=quiet)
    return _READERS[name](Path(directory).expanduser())
