"""Which images a folder holds, of which classes, for training and for testing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from particleaugment.data.images import EXTENSIONS
from particleaugment.data.split import train_validation_split

__all__ = ["ImageList", "list_folder"]

TEST_FOLDERS = ("val", "validation", "test")

# Fixed, so that every run is tested on the same images whatever its own seed.
_SPLIT_SEED = 1797


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

    def subset(self, indices: Tensor) -> ImageList:
        """Return some of the images, in the order of their indices."""
        names = [self.name(index) for index in indices.tolist()]
        return ImageList.of(self.root, self.classes, names, self.labels[indices].tolist())

    def split(self, held_out: int | float, seed: int) -> tuple[ImageList, ImageList]:
        """Return the list in two parts, stratified by class, the second with ``held_out`` images or that fraction."""
        counts = self.labels.bincount(minlength=len(self.classes))
        if int(counts.min()) < 2:
            lonely = self.classes[int(counts.argmin())]
            raise ValueError(
                f"the class folder {os.path.join(self.root, lonely)} holds a single image, but training and testing "
                "need one each; add images, remove the folder, or make train and val folders"
            )
        try:
            first, second = train_validation_split(self.labels, held_out, seed)
        except ValueError as error:
            raise ValueError(f"the images in {self.root} cannot be split: {error}") from None
        return self.subset(first), self.subset(second)


def list_folder(directory: str | os.PathLike[str], test: int | float = 0.2) -> tuple[ImageList, ImageList]:
    """Return the training and the test images of a folder.

    Either the folder holds ``train`` and one of ``val``, ``validation`` and ``test``, each with one sub-folder per
    class; or it holds the class folders itself (or ``train`` alone does), and a fixed part of each class is set aside.
    Hidden files and folders are passed over; images may lie deeper within a class folder.

    Args:
        directory: The folder.
        test: How many images are set aside, or which fraction, where there is no folder of test images.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("train/dog/1.png", "train/cat/1.png", "train/cat/2.JPG", "val/dog/1.webp"):
    ...         Path(root, name).parent.mkdir(parents=True, exist_ok=True)
    ...         Path(root, name).touch()
    ...     train, test = list_folder(root)
    >>> train.classes, [train.name(index) for index in range(len(train))], test.labels.tolist()
    (('cat', 'dog'), ['cat/1.png', 'cat/2.JPG', 'dog/1.png'], [1])
    """
    root = Path(directory)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; name one with a sub-folder of images per class")
    train_folder = root / "train"
    # A class may be called "train" too; but then its images lie in it, and not in sub-folders of their own.
    if not train_folder.is_dir() or not _sub_folders(train_folder) or _holds_image(train_folder):
        return _scan(root).split(test, _SPLIT_SEED)
    train = _scan(train_folder)
    for name in TEST_FOLDERS:
        if (root / name).is_dir():
            return train, _scan(root / name, train.classes)
    return train.split(test, _SPLIT_SEED)


def _scan(folder: Path, known: tuple[str, ...] | None = None) -> ImageList:
    found = _sub_folders(folder)
    if not found:
        images = "images but " if _holds_image(folder) else ""
        raise ValueError(
            f"{folder} holds {images}no class folders; put the images of each class into a sub-folder named after it"
        )
    if known is None and len(found) == 1:
        raise ValueError(f"{folder} holds a single class, {found[0]!r}; classification needs at least two")
    classes = found if known is None else known
    strangers = sorted(set(found) - set(classes))
    if strangers:
        raise ValueError(f"{folder} holds the class {strangers[0]!r}, which is not among the training images' classes")
    names, labels = list[str](), list[int]()
    empty = list[str]()
    for class_name in found:
        inside = _images_in(folder, class_name)
        names += inside
        labels += [classes.index(class_name)] * len(inside)
        if not inside:
            empty.append(class_name)
    kinds = "JPEG, PNG or WebP image"
    if not names:
        raise ValueError(f"the class folders in {folder} hold no {kinds}; check the path and the files' endings")
    if empty:
        raise ValueError(f"the class folder {folder / empty[0]} holds no {kinds}; add some or remove the folder")
    return ImageList.of(str(folder), classes, names, labels)


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


def _images_in(folder: Path, class_name: str) -> list[str]:
    """Return the names of a class's images, relative to the folder, sorted."""
    names, seen = list[str](), set[str]()
    for base, folders, files in os.walk(folder / class_name, followlinks=True, onerror=_raise):
        seen.add(os.path.realpath(base))
        # A link back to a folder above would be followed for ever.
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(base, name)) not in seen
        ]
        place = os.path.relpath(base, folder)
        names += [os.path.join(place, name) for name in files if _is_image(name)]
    return sorted(names)


def _raise(error: OSError) -> None:
    raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
