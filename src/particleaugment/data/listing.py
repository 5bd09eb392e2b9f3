"""Which images a folder holds, of which classes, for training and for testing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from particleaugment.data.decode import EXTENSIONS
from particleaugment.data.groups import check_grouping, groups_of_names
from particleaugment.data.selection import select_training
from particleaugment.data.split import train_validation_split
from particleaugment.util.shown import printable

__all__ = ["FolderListing", "ImageList", "find_images", "list_folder", "some_of"]

TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("val", "valid", "validation", "test", "testing")
"""Names of folders of test images, in any case; of several the first is taken."""

# Fixed, so that every run is tested on the same images whatever its own seed.
SPLIT_SEED = 1797


@dataclass(frozen=True, eq=False, repr=False)
class ImageList:
    """Image files with their labels, ordered by class and name; an image's id is its place in the list.

    The names are held in two tensors and not in a million strings, so that worker processes share them.

    Attributes:
        root: The folder that the names are relative to.
        classes: Class names, sorted; a label is an index into them.
        labels: int64 ``[N]``.
        names: All names as bytes, one after the other.
        ends: Where each name ends, int64 ``[N]``.

    >>> images = ImageList.of("/data", ("cat", "dog"), ["cat/1.png", "dog/1.png"], [0, 1])
    >>> len(images), images.path(1), images.labels.tolist()
    (2, '/data/dog/1.png', [0, 1])
    """

    root: str
    classes: tuple[str, ...]
    labels: Tensor
    names: Tensor
    ends: Tensor

    @classmethod
    def of(cls, root: str, classes: Sequence[str], names: Sequence[str], labels: Sequence[int]) -> ImageList:
        """Make a list from plain names and labels."""
        encoded = [os.fsencode(name) for name in names]
        ends = torch.tensor([len(name) for name in encoded], dtype=torch.int64).cumsum(0)
        text = torch.frombuffer(bytearray(b"".join(encoded)) or bytearray(1), dtype=torch.uint8)
        return cls(root, tuple(classes), torch.tensor(labels, dtype=torch.int64), text, ends)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageList({len(self)} images of {len(self.classes)} classes in {self.root})"

    def name(self, index: int) -> str:
        """Return the path of an image, relative to the root."""
        names, ends = self.names.numpy(), self.ends.numpy()
        return os.fsdecode(names[ends[index - 1] if index else 0 : ends[index]].tobytes())

    def path(self, index: int) -> str:
        """Return the path of an image."""
        return os.path.join(self.root, self.name(index))

    def source(self, index: int) -> IO[bytes] | None:
        """Return an image's undecoded bytes as a file, where they are not the file at its path."""
        return None

    def stamp(self, index: int) -> str:
        """Return what changes when an image does: its file's size and time."""
        try:
            status = os.stat(self.path(index))
        except OSError as error:
            raise ValueError(f"the image {self.path(index)} cannot be read: {error.strerror}") from None
        return f"{status.st_size} {status.st_mtime_ns}"

    def subset(self, indices: Tensor) -> ImageList:
        """Return some of the images, in the order of their indices."""
        names = [self.name(index) for index in indices.tolist()]
        return ImageList.of(self.root, self.classes, names, self.labels[indices].tolist())

    def groups(self, grouping: str) -> Tensor | None:
        """Return the group of each image, int64 ``[N]``, or None for ``none``; see :func:`list_folder`.

        >>> names = ["cat/tom_1.png", "cat/tom_2.png", "dog/rex_1.png"]
        >>> ImageList.of("/data", ("cat", "dog"), names, [0, 0, 1]).groups("prefix")
        tensor([1, 1, 0])
        """
        names = [] if grouping == "none" else [self.path(index) for index in range(len(self))]
        return groups_of_names(names, self.labels, grouping)

    def split(self, held_out: int | float, seed: int, grouping: str = "none") -> tuple[ImageList, ImageList]:
        """Return the list in two parts, stratified by class, the second with ``held_out`` images or that fraction."""
        groups = self.groups(grouping)
        counts = self.labels.bincount(minlength=len(self.classes))
        if int(counts.min()) < 2 and groups is None:
            lonely = self.classes[int(counts.argmin())]
            raise ValueError(
                f"the class folder {os.path.join(self.root, lonely)} contains a single image, but training and testing "
                "need one each; add images, remove the folder, or create train and val folders"
            )
        try:
            first, second = train_validation_split(self.labels, held_out, seed, groups=groups)
        except ValueError as error:
            raise ValueError(f"the images in {self.root} cannot be split: {error}") from None
        return self.subset(first), self.subset(second)


@dataclass(frozen=True, eq=False)
class FolderListing:
    """What was found in a folder, or in the splits of another data set of files.

    Attributes:
        train: The training images.
        test: The test images.
        test_folder: Name of the folder of test images; nothing where they are a part of the training folder's.
        unused: Names of the folders beside those of training and test images.
        skipped: How many files in class folders have other endings than images have, by their ending.
        grouping: How the training images' names are read as groups, which no split takes apart.
        part: What is called a folder here.
    """

    train: ImageList
    test: ImageList
    test_folder: str
    unused: tuple[str, ...]
    skipped: Mapping[str, int]
    grouping: str = "none"
    part: str = "folder"

    def selected(
        self, validation: int | float = 0, train_size: int | float = 1.0, seed: int = 0
    ) -> tuple[ImageList, ImageList, Tensor | None]:
        """Return the images to train on, those to test on, and the groups of the former.

        Args:
            validation: How many training images stand in for the test set, or which fraction; 0 keeps the test set.
            train_size: How many of the remaining training images to train on, or which fraction; 1.0 is all of them.
            seed: Which ones.
        """
        train, judge = self._chosen(validation, train_size, seed)
        trained = self.train if len(train) == len(self.train) else self.train.subset(train)
        tested = self.test if judge is None else self.train.subset(judge)
        return trained, tested, None if self._groups is None else self._groups[train]

    @cached_property
    def _groups(self) -> Tensor | None:
        return self.train.groups(self.grouping)

    def _chosen(self, validation: int | float, train_size: int | float, seed: int) -> tuple[Tensor, Tensor | None]:
        return select_training(
            self.train.labels,
            validation=validation,
            train_size=train_size,
            seed=seed,
            groups=self._groups,
            names=self.train.classes,
        )

    def describe(self, validation: int | float = 0, train_size: int | float = 1.0, seed: int = 0) -> str:
        """Say in a line what was found; the arguments are those of :meth:`selected`."""
        folder = f"{self.part} {printable(self.test_folder)}" if self.test_folder else ""
        where = folder or "held out, the same ones in every run"
        train, judge = self._chosen(validation, train_size, seed)
        tested = self.test.labels if judge is None else self.train.labels[judge]
        if validation:
            where = f"held out of the training images by validation={validation}, {folder or 'the test set'} not used"
        classes = self.train.classes
        text = _counted(len(train), "training image")
        text += "" if self._groups is None else f" in {_counted(len(self._groups[train].unique()), 'group')}"
        if train_size != 1.0:
            left = len(self.train) - (len(tested) if validation else 0)
            text += f" (train_size={train_size} of {left:,})"
        text += f", {_counted(len(tested), 'test image')} ({where}), {len(classes):,} classes: {some_of(classes)}"
        present = set(tested.unique().tolist())
        missing = [name for label, name in enumerate(classes) if label not in present]
        if missing:
            text += f"; no test images of {some_of(missing)}"
        if self.unused:
            text += f"; not used: {self.part}{'s' * (len(self.unused) > 1)} {some_of(self.unused)}"
        if self.skipped:
            endings = sorted(self.skipped, key=lambda ending: (-self.skipped[ending], ending))
            counts = [f"{ending} {self.skipped[ending]:,}" for ending in endings]
            text += f"; {_counted(sum(self.skipped.values()), 'file')} skipped ({some_of(counts)})"
        return text


def list_folder(
    directory: str | os.PathLike[str], test: int | float = 0.2, groups: str = "none"
) -> tuple[ImageList, ImageList]:
    """Return the training and the test images of a folder.

    Either the folder holds ``train`` (or ``training``) and one of ``val``, ``valid``, ``validation``, ``test`` and
    ``testing``, in upper or lower case, each with one sub-folder per class; or it holds the class folders itself (or
    ``train`` alone does), and a fixed part of each class is set aside. Hidden files and folders are passed over; images
    may lie deeper within a class folder.

    Args:
        directory: The folder.
        test: How many images are set aside, or which fraction, where there is no folder of test images.
        groups: ``prefix`` or ``class-prefix`` where file names begin with a group, up to the first underscore, which is
            set aside as a whole or not at all: a group across all classes, or within each class.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("train/dog/1.png", "train/cat/1.png", "train/cat/2.JPG", "val/dog/1.webp"):
    ...         Path(root, name).parent.mkdir(parents=True, exist_ok=True)
    ...         Path(root, name).touch()
    ...     train, test = list_folder(root)
    >>> train.classes, [train.name(index) for index in range(len(train))], test.labels.tolist()
    (('cat', 'dog'), ['cat/1.png', 'cat/2.JPG', 'dog/1.png'], [1])
    """
    found = find_images(directory, test, groups)
    return found.train, found.test


def find_images(directory: str | os.PathLike[str], test: int | float = 0.2, groups: str = "none") -> FolderListing:
    """Return what :func:`list_folder` does, and what else there is to say of the folder."""
    check_grouping(groups)
    root = Path(directory)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; name one with a sub-folder of images per class")
    folders = _sub_folders(root)
    # A class may be called "train" too; but then its images lie in it, and not in sub-folders of their own.
    training = [
        name for name in _named(folders, TRAIN_FOLDERS) if _sub_folders(root / name) and not _holds_image(root / name)
    ]
    if len(training) > 1:
        raise ValueError(f"{root} contains several folders of training images, {', '.join(training)}; keep one of them")
    skipped = Counter[str]()
    if not training:
        if folders and all(name.lower() in TRAIN_FOLDERS + TEST_FOLDERS for name in folders):
            raise ValueError(
                f"the sub-folders of {root} are named like the parts of a split, {', '.join(folders)}, but none is a "
                "train folder with a sub-folder of images per class; create one, or name the folders after classes"
            )
        return FolderListing(*_scan(root, skipped).split(test, SPLIT_SEED, groups), "", (), skipped, groups)
    train = _scan(root / training[0], skipped)
    testing = _named(folders, TEST_FOLDERS)[:1]
    unused = tuple(name for name in folders if name not in training + testing)
    if not testing:
        return FolderListing(*train.split(test, SPLIT_SEED, groups), "", unused, skipped, groups)
    return FolderListing(train, _scan(root / testing[0], skipped, train.classes), testing[0], unused, skipped, groups)


def some_of(names: Sequence[str], most: int = 6) -> str:
    """Return the first of some names, and how many more there are.

    >>> some_of(["ant", "bee", "cat", "dog"], most=2)
    'ant, bee and 2 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(printable(name) for name in names[:most]) + more


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _named(folders: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the folders with one of the wanted names, in their order; of several spellings lower case comes first."""
    found = [name for name in folders if name.lower() in wanted]
    return sorted(found, key=lambda name: (wanted.index(name.lower()), name != name.lower(), name))


def _scan(folder: Path, skipped: Counter[str], known: tuple[str, ...] | None = None) -> ImageList:
    found = _sub_folders(folder)
    if not found:
        images = "images but " if _holds_image(folder) else ""
        raise ValueError(
            f"{folder} contains {images}no class folders; put the images of each class into a sub-folder named after it"
        )
    if known is None and len(found) == 1:
        raise ValueError(f"{folder} contains a single class, {found[0]!r}; classification needs at least two")
    classes = found if known is None else known
    strangers = sorted(set(found) - set(classes))
    if strangers:
        raise ValueError(f"{folder} contains the class {strangers[0]!r}, which no training image has")
    names, labels = list[str](), list[int]()
    empty, deeper = list[str](), list[set[str]]()
    for class_name in found:
        inside = _images_in(folder, class_name, skipped)
        names += inside
        labels += [classes.index(class_name)] * len(inside)
        deeper.append(_folders_of(inside))
        if not inside:
            empty.append(class_name)
    kinds = "JPEG, PNG or WebP image"
    if not names:
        raise ValueError(f"the class folders in {folder} contain no {kinds}; check the path and the file extensions")
    if empty:
        raise ValueError(f"the class folder {folder / empty[0]} contains no {kinds}; add some or remove the folder")
    shared = sorted(set.intersection(*deeper))
    if known is None and len(shared) > 1:
        raise ValueError(
            f"the sub-folders of {folder}, {some_of(found)}, contain no images, but each contains the folders "
            f"{some_of(shared)}, which look like classes; name the parts of a split train and val, or put each class "
            "into one folder"
        )
    return ImageList.of(str(folder), classes, names, labels)


def _folders_of(names: Sequence[str]) -> set[str]:
    """Return the folders that a class's images lie in, if all of them lie deeper than in the class's own."""
    if any(name.count(os.sep) == 1 for name in names):
        return set()
    return {name.split(os.sep, 2)[1] for name in names}


def _visible(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".")


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def _sub_folders(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if _visible(entry) and entry.is_dir()))


def _holds_image(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_is_image(entry.name) and entry.is_file() for entry in entries)


def _images_in(folder: Path, class_name: str, skipped: Counter[str]) -> list[str]:
    """Return the names of a class's images, relative to the folder, sorted; count the other files by their ending."""
    names, seen = list[str](), set[str]()
    for base, folders, files in os.walk(folder / class_name, followlinks=True, onerror=_raise):
        # Links may lead to a folder above, for ever, or to one beside, whose images would be there twice.
        if (real := os.path.realpath(base)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        place = os.path.relpath(base, folder)
        images = [name for name in files if _is_image(name)]
        names += [os.path.join(place, name) for name in images]
        if len(images) < len(files):
            others = [name for name in files if not name.startswith(".") and not _is_image(name)]
            skipped.update(os.path.splitext(name)[1].lower() or "no ending" for name in others)
    return sorted(names)


def _raise(error: OSError) -> None:
    raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
