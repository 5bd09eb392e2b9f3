"""Hugging Face data sets of images: memory-mapped, read by index, and from there on like a folder of files.

A place is ``NAME`` on the Hub, or a local ``PATH`` (Parquet files, or what ``save_to_disk`` wrote), and may be followed
by choices: ``NAME,label=fine_label,test=validation``.
"""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from particleaugment.data.listing import SPLIT_SEED, TEST_FOLDERS, TRAIN_FOLDERS, FolderListing, ImageList, some_of
from particleaugment.data.split import train_validation_split
from particleaugment.util.hints import nearest_name
from particleaugment.util.reading import read_file

__all__ = ["HubImages", "absolute_place", "find_hf", "portable_place"]

CHOICES = ("image", "label", "train", "test", "config")
_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "labels", "target", "class")


@dataclass(frozen=True, eq=False, repr=False)
class HubImages(ImageList):
    """Images of one split with their labels, in its order; an image's id is its place in the list.

    Attributes:
        split_name: Name of the split.
        table: The split, with the images undecoded.
        column: Its column of images.
        rows: The rows that the list holds, int64 ``[N]``.
    """

    split_name: str = ""
    table: Any = None
    column: str = ""
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @classmethod
    def of_rows(cls, whole: HubImages, rows: Tensor, labels: Tensor) -> HubImages:
        """Return a list of some rows of a split; the names are the row numbers, so that it is known again."""
        names = ImageList.of("", (), [f"{whole.split_name}[{row}]" for row in rows.tolist()], [])
        return cls(
            whole.root,
            whole.classes,
            labels,
            names.names,
            names.ends,
            whole.split_name,
            whole.table,
            whole.column,
            rows,
        )

    def source(self, index: int) -> IO[bytes]:
        """Return an image's undecoded bytes as a file."""
        stored = self.table[int(self.rows[index])][self.column]
        if isinstance(stored, Mapping):
            stored = stored.get("bytes") or stored.get("path")
        if isinstance(stored, str):
            try:
                stored = read_file(stored)
            except OSError as error:
                raise ValueError(f"the image {self.path(index)} cannot be read: {error.strerror}") from None
        if not isinstance(stored, bytes):
            raise ValueError(f"the image {self.path(index)} is missing; remove its row")
        return io.BytesIO(stored)

    def stamp(self, index: int) -> str:
        """Return what changes when an image does."""
        content = self.source(index).read()
        return f"{len(content)} {zlib.crc32(content)}"

    def subset(self, indices: Tensor) -> HubImages:
        """Return some of the images, in the order of their indices."""
        return HubImages.of_rows(self, self.rows[indices], self.labels[indices])

    def split(self, held_out: int | float, seed: int, grouping: str = "none") -> tuple[HubImages, HubImages]:
        """Return the list in two parts, stratified by class, the second with ``held_out`` images or that fraction."""
        lonely = (self.labels.bincount(minlength=len(self.classes)) == 1).nonzero()
        if len(lonely):
            raise ValueError(
                f"the class {self.classes[int(lonely[0])]!r} of {self.root} has a single image, but training and "
                "testing need one each; add images, or name a test split with test=SPLIT"
            )
        try:
            first, second = train_validation_split(self.labels, held_out, seed)
        except ValueError as error:
            raise ValueError(f"the images of {self.root} cannot be split: {error}") from None
        return self.subset(first), self.subset(second)


def find_hf(place: str, test: int | float = 0.2) -> FolderListing:
    """Return the training and the test images of a Hugging Face data set.

    Training images are those of the split ``train``, test images those of ``val``, ``valid``, ``validation`` or
    ``test``, the first of these that is there; without one, a fixed part of each class is set aside, as for folders.
    The columns are found by their types; ``image=`` and ``label=`` choose them where there are several.

    Args:
        place: A name on the Hub or a local path, with choices; see the module.
        test: How many images are set aside, or which fraction, where there is no test split.
    """
    name, choices = _parsed(place)
    splits = _load(name, choices.get("config"))
    training = _split_named(name, splits, choices, "train", TRAIN_FOLDERS)
    if training is None:
        raise ValueError(
            f"the data set {name} has the splits {some_of([*splits])} but none called train; name one, as in "
            f"data=hf:{name},train={next(iter(splits))}"
        )
    testing = _split_named(name, splits, choices, "test", TEST_FOLDERS)
    train = _images(name, training, splits[training], choices)
    unused = tuple(split for split in splits if split not in (training, testing))
    if testing is None:
        return FolderListing(*train.split(test, SPLIT_SEED), "", unused, {}, part="split")
    tested = _images(name, testing, splits[testing], choices, train.classes)
    return FolderListing(train, tested, testing, unused, {}, part="split")


def absolute_place(place: str) -> str:
    """Return a place that holds from any folder: local paths become absolute, names on the Hub stay.

    >>> absolute_place("uoft-cs/cifar100,label=fine_label")
    'uoft-cs/cifar100,label=fine_label'
    """
    name, comma, choices = place.partition(",")
    path = Path(name).expanduser()
    return f"{path.absolute() if _is_local(name) else name}{comma}{choices}"


def portable_place(place: str) -> str:
    """Return a place as it would be given on any machine: DIR stands for a local path.

    >>> portable_place("/data/pets,label=breed"), portable_place("ylecun/mnist")
    ('DIR,label=breed', 'ylecun/mnist')
    """
    name, comma, choices = place.partition(",")
    return f"{'DIR' if _is_local(name) else name}{comma}{choices}"


def _is_local(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or Path(name).exists()


def _parsed(place: str) -> tuple[str, dict[str, str]]:
    name, *words = place.split(",")
    choices = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in CHOICES or not equals or not value:
            hint = nearest_name(key, CHOICES) or f"; the options are {', '.join(CHOICES)}"
            raise ValueError(f"{word!r} is not an option of the data set {name}, such as label=COLUMN{hint}")
        choices[key] = value
    if not name:
        raise ValueError("a Hugging Face data set needs a name on the Hub or a path, as in data=hf:NAME")
    return name, choices


def _load(name: str, config: str | None) -> dict[str, Any]:
    """Return the splits by name."""
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"data=hf:{name} needs the package datasets, which is not installed: pip install 'particleaugment[hf]'"
        ) from None
    path = Path(name).expanduser()
    if _is_local(name) and not path.exists():
        raise ValueError(f"there is no data set at {path}; check the path, or give a name on the Hugging Face Hub")
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        if path.is_file():
            loaded = datasets.load_dataset("parquet", data_files=str(path))
        elif any((path / file).exists() for file in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(path))
        else:
            loaded = datasets.load_dataset(str(path) if path.is_dir() else name, name=config)
    except Exception as error:  # readers, the network and the Hub raise all kinds of errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"the data set {name} cannot be loaded: {reason}; check its name or path") from None
    return dict(loaded) if isinstance(loaded, Mapping) else {"train": loaded}


def _split_named(
    name: str, splits: Mapping[str, Any], choices: Mapping[str, str], part: str, usual: Sequence[str]
) -> str | None:
    if part in choices:
        if choices[part] not in splits:
            raise ValueError(f"the data set {name} has no split {choices[part]!r}; it has {some_of([*splits])}")
        return choices[part]
    return next((split for wanted in usual for split in splits if split.lower() == wanted), None)


def _images(
    name: str, split: str, table: Any, choices: Mapping[str, str], classes: tuple[str, ...] | None = None
) -> HubImages:
    import datasets

    if not len(table):
        raise ValueError(f"the split {split} of {name} is empty")
    image, label = _image_column(name, table.features, choices), _label_column(name, table.features, choices)
    labels, names = _labels(name, split, table, label, classes)
    pixels = table.select_columns([image])
    if isinstance(table.features[image], datasets.Image):
        pixels = pixels.cast_column(image, datasets.Image(decode=False))
    root = str(Path(name).expanduser()) if _is_local(name) else name
    whole = HubImages(root, names, labels, torch.empty(0), torch.empty(0), split, pixels, image)
    return HubImages.of_rows(whole, torch.arange(len(labels)), labels)


def _image_column(name: str, features: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    import datasets

    def holds_images(feature: Any) -> bool:
        return isinstance(feature, datasets.Image) or (isinstance(feature, Mapping) and "bytes" in feature)

    return _column(name, features, choices, "image", [key for key in features if holds_images(features[key])])


def _label_column(name: str, features: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    import datasets

    known = [key for key in features if isinstance(features[key], datasets.ClassLabel)]
    named = [key for key in _LABEL_NAMES if key in features]
    if "label" in choices and choices["label"] in features:
        return choices["label"]  # what it holds is checked when it is read
    return _column(name, features, choices, "label", known or named)


def _column(name: str, features: Mapping[str, Any], choices: Mapping[str, str], what: str, found: Sequence[str]) -> str:
    usual = _IMAGE_NAMES if what == "image" else _LABEL_NAMES
    columns = f"its columns are {some_of([*features])}"
    if what in choices:
        if choices[what] not in found:
            raise ValueError(f"the data set {name} has no {what} column {choices[what]!r}; {columns}")
        return choices[what]
    if not found:
        raise ValueError(f"the data set {name} has no {what} column; {columns}: name one with {what}=COLUMN")
    preferred = next((key for key in usual if key in found), None)
    if preferred is None and len(found) > 1:
        raise ValueError(
            f"the data set {name} has several {what} columns, {some_of(found)}; choose one, as in "
            f"data=hf:{name},{what}={found[0]}"
        )
    return preferred or found[0]


def _labels(
    name: str, split: str, table: Any, column: str, known: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels as numbers, and the names of the classes."""
    import datasets

    where = f"the column {column!r} of {name}, split {split},"
    values = np.asarray(table.select_columns([column]).with_format("numpy")[:][column])
    feature = table.features[column]
    if values.ndim == 1 and values.dtype.kind in "UTO" and all(isinstance(value, str) for value in values.tolist()):
        classes = known or tuple(sorted(set(values.tolist())))
        numbers = {each: number for number, each in enumerate(classes)}
        stranger = next((value for value in values.tolist() if value not in numbers), None)
        if stranger is not None:
            raise ValueError(f"{where} contains the class {stranger!r}, which no training image has")
        return _checked(torch.tensor([numbers[value] for value in values.tolist()]), classes, where)
    if values.ndim != 1 or values.dtype.kind not in "iub":
        kind = getattr(feature, "dtype", type(feature).__name__)
        raise ValueError(
            f"{where} contains {kind}, which cannot be classes: a whole number or a name per image "
            "is expected; choose another with label=COLUMN"
        )
    labels = torch.from_numpy(values.astype(np.int64))
    if isinstance(feature, datasets.ClassLabel) and feature.names:
        return _checked(labels, known or tuple(feature.names), where)
    return _checked(labels, known or tuple(str(number) for number in range(int(labels.max()) + 1)), where)


def _checked(labels: Tensor, classes: tuple[str, ...], where: str) -> tuple[Tensor, tuple[str, ...]]:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        limit = f"from 0 to {len(classes) - 1}" if classes else "0 or more"
        raise ValueError(
            f"{where} contains {low if low < 0 else high}, which is not a class: labels must be {limit}; if a split "
            "has no labels, choose another with train=SPLIT or test=SPLIT"
        )
    if len(classes) < 2:
        raise ValueError(f"{where} contains a single class; classification needs at least two")
    return labels, classes
