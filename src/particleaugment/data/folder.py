"""Images in folders: as a data set whose files are decoded in worker processes, or small ones whole in memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from particleaugment.data.decode import Box, CentreCrop, RandomResizedCrop, read_image
from particleaugment.data.listing import FolderListing, ImageList, find_images, some_of
from particleaugment.data.memory import ImageData, normalizing_statistics
from particleaugment.data.progress import progress_bar
from particleaugment.data.split import epoch_permutation
from particleaugment.util.cache import cache_folder, write_cache
from particleaugment.util.reading import read_file
from particleaugment.util.shared_memory import ordinary_tensors, sharing
from particleaugment.util.strict_json import parse_json

__all__ = [
    "IMAGENET_STATISTICS",
    "FolderDataset",
    "decode_images",
    "decoded_bytes",
    "folder_statistics",
    "load_folder",
    "load_found",
]

IMAGENET_STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's channels, in units where 255 is 1."""

MEMORY_LIMIT = 4 << 30
"""How many bytes of decoded images are held in memory; the same everywhere, so that no result depends on a machine."""

LARGEST_SIZE = 4096
"""The largest height and width that images are brought to."""

Item = tuple[Tensor, int, int]


class FolderDataset(Dataset[Item]):
    """Image files, decoded when asked for: each item is (uint8 image ``[3, size, size]``, label, id).

    For training, each image is a random part of the file's, a pure function of (seed, epoch, id): the same for every
    batch size and number of workers. For evaluation it is the centre. Nothing else random happens here: flip, jitter
    and policy work on whole batches, by the ids.

    The epoch lives in shared memory, so that :meth:`set_epoch` reaches worker processes that stay alive between epochs
    (``persistent_workers``). Call it before iterating over a loader, not while it runs. Any loader will do;
    :meth:`loader` makes one that spares a copy of every batch.

    Args:
        images: The files.
        size: Height and width of the images.
        train: Whether to cut out random parts.
        seed: The run's seed.
        crop: How random parts are drawn.
        centre: How the centre is cut out: by default after the shorter side is brought to 256/224 of the size.
        max_pixels: The largest image that is read, see :func:`particleaugment.data.decode.read_image`.

    >>> import tempfile
    >>> from PIL import Image
    >>> from particleaugment.data import list_folder
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name, colour in (("lime", "#BFFF00"), ("plum", "#8E4585")):
    ...         Path(root, name).mkdir()
    ...         for number in range(5):
    ...             Image.new("RGB", (60, 40), colour).save(Path(root, name, f"{number}.png"))
    ...     train, test = list_folder(root)
    ...     data = FolderDataset(train, size=32, train=True, seed=0)
    ...     data.set_epoch(3)
    ...     [images, labels, ids] = next(iter(data.loader(batch_size=8)))
    >>> images.shape, labels.tolist(), ids.tolist(), len(test)
    (torch.Size([8, 3, 32, 32]), [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5, 6, 7], 2)
    """

    def __init__(
        self,
        images: ImageList,
        size: int = 224,
        *,
        train: bool,
        seed: int = 0,
        crop: RandomResizedCrop | None = None,
        centre: CentreCrop | None = None,
        max_pixels: int | None = None,
    ):
        self.images, self.size, self.train, self.seed = images, _checked_size(size), train, seed
        self.crop, self.centre = crop or RandomResizedCrop(), centre or CentreCrop()
        self.max_pixels = max_pixels
        with ordinary_tensors(), sharing():
            self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch whose random parts are cut out."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, here and in all workers."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 1 << 32:
            raise ValueError(f"epoch must be a whole number from 0 to 2^32-1, got {epoch!r}")
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Return several items at once; loaders call this, and the draws of a batch cost little more than one's."""
        count = len(self)
        for index in indices:
            if not -count <= index < count:
                raise IndexError(f"there is no image {index}; the data set has {count}")
        ids = [int(index) % count for index in indices]
        return _Batch(self.read(ids), self.images.labels[ids], ids)

    def read(self, ids: list[int], told: Callable[[int], None] = lambda index: None) -> Tensor:
        """Return some images, uint8 ``[N, 3, size, size]``; ``told`` learns of each id before its file is opened."""
        pictures = torch.empty(len(ids), 3, self.size, self.size, dtype=torch.uint8)
        if get_worker_info() is not None:
            pictures.share_memory_()  # decoded to where the main process reads it
        for index, region, out in zip(ids, self._regions(ids), pictures):
            told(index)
            source = self.images.source(index)
            read_image(self.images.path(index), self.size, region, self.max_pixels, out, source)
        return pictures

    def _regions(self, ids: list[int]) -> list[Callable[[int, int], Box]]:
        if not self.train:
            return [partial(self.centre.box, size=self.size)] * len(ids)
        draws = self.crop.sample(torch.tensor(ids, dtype=torch.int64), self.epoch, self.seed)
        return [partial(self.crop.box, row) for row in draws.tolist()]

    def loader(self, batch_size: int, workers: int = 0, **options: Any) -> DataLoader[Item]:
        """Return a loader of batches (images, labels, ids) whose workers stay alive between epochs."""
        defaults: dict[str, Any] = {"persistent_workers": workers > 0, "collate_fn": _collate}
        return DataLoader(self, batch_size, num_workers=workers, **defaults | options)


class _Batch(list[Item]):
    """Items that are rows of the same tensors."""

    def __init__(self, pictures: Tensor, labels: Tensor, ids: list[int]):
        super().__init__(zip(pictures, labels.tolist(), ids))
        self.together = pictures, labels, torch.tensor(ids, dtype=torch.int64)


def _collate(items: list[Item]) -> Any:
    return items.together if isinstance(items, _Batch) else default_collate(items)


def load_folder(
    directory: str | os.PathLike[str],
    size: int = 64,
    *,
    test: int | float = 0.2,
    groups: str = "none",
    normalization: str = "data",
    max_pixels: int | None = None,
    max_bytes: int = MEMORY_LIMIT,
    quiet: bool = False,
) -> ImageData:
    """Decode all images of a folder, the shorter side brought to ``size`` and the centre cut out, into memory.

    Args:
        directory: A folder as :func:`particleaugment.data.list_folder` describes it.
        size: Height and width of the images.
        test: How many images are set aside for testing, or which fraction, where there is no folder of them.
        groups: How file names are read as groups, as :func:`particleaugment.data.list_folder` takes it.
        normalization: ``data`` for the mean and standard deviation of the training images, ``imagenet`` for ImageNet's.
        max_pixels: The largest image that is read.
        max_bytes: How much memory the images may take up.
        quiet: Show no progress bar (there is none either where the output is not a terminal).

    >>> load_folder("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: there is no folder no/such/folder; name one with a sub-folder of images per class
    """
    if normalization not in ("data", "imagenet"):
        raise ValueError(f"normalization must be 'data' or 'imagenet', got {normalization!r}")
    size, found = _checked_size(size), find_images(directory, test, groups)
    return load_found(
        found,
        size,
        place=str(directory),
        normalization=normalization,
        max_pixels=max_pixels,
        max_bytes=max_bytes,
        quiet=quiet,
    )


def load_found(
    found: FolderListing,
    size: int,
    *,
    place: str,
    normalization: str = "data",
    max_pixels: int | None = None,
    max_bytes: int = MEMORY_LIMIT,
    quiet: bool = False,
) -> ImageData:
    """Decode all images that were found at a place; the other arguments are those of :func:`load_folder`."""
    parts, size = (found.train, found.test), _checked_size(size)
    train_groups = found.train.groups(found.grouping)
    count = sum(len(part) for part in parts)
    needed = decoded_bytes(parts, size)
    if needed > max_bytes:
        raise ValueError(
            f"the {count:,} images in {place} take {needed / 2**30:.1f} GiB of memory at {size}x{size}, and "
            f"{max_bytes / 2**30:.1f} GiB is the limit; use a smaller image size, or stream the files (stream=true)"
        )
    problems = list[str]()
    train, held_out = (_decode(part, size, max_pixels, quiet, problems) for part in parts)
    _refuse(problems, count)
    mean, std = normalizing_statistics(train) if normalization == "data" else IMAGENET_STATISTICS
    return ImageData(
        train_images=train,
        train_labels=parts[0].labels,
        test_images=held_out,
        test_labels=parts[1].labels,
        classes=parts[0].classes,
        mean=mean,
        std=std,
        train_groups=train_groups,
    )


def decoded_bytes(parts: Sequence[ImageList], size: int) -> int:
    """Return how much memory the images of some lists take up when decoded."""
    return sum(len(part) for part in parts) * 3 * size * size


def decode_images(images: ImageList, size: int, *, max_pixels: int | None = None, quiet: bool = True) -> Tensor:
    """Decode all images of a list into one tensor, uint8 ``[N, 3, size, size]``, the centre cut out.

    It works in threads: Pillow lets go of the interpreter while it decodes. Files that cannot be read are named
    together, after all have been tried.
    """
    problems = list[str]()
    result = _decode(images, size, max_pixels, quiet, problems)
    _refuse(problems, len(images))
    return result


def _decode(images: ImageList, size: int, max_pixels: int | None, quiet: bool, problems: list[str]) -> Tensor:
    """Decode all images of a list; what is wrong with those that cannot be read is added to the problems, in order."""
    result = torch.empty(len(images), 3, size, size, dtype=torch.uint8)
    region = partial(CentreCrop(margin=1.0).box, size=size)

    def decode(index: int) -> str:
        try:
            read_image(images.path(index), size, region, max_pixels, result[index], images.source(index))
        except ValueError as error:
            return str(error)
        return ""

    workers = min(32, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool, progress_bar("decoding", len(images), quiet=quiet) as update:
        for done, problem in enumerate(pool.map(decode, range(len(images))), start=1):
            update(done)
            if problem:
                problems.append(problem)
    return result


def _refuse(problems: Sequence[str], count: int) -> None:
    """Name the files that cannot be read, if there are any."""
    if len(problems) == 1:
        raise ValueError(problems[0])
    if problems:
        reasons = [problem.rpartition("; ")[0] for problem in problems]  # without the advice, which comes once
        raise ValueError(
            f"{len(problems):,} of {count:,} images cannot be used: {some_of(reasons, most=10)}; repair or remove them"
        )


def folder_statistics(
    images: ImageList, size: int = 224, *, sample: int = 2000, max_pixels: int | None = None, quiet: bool = False
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of a keyed sample of images, in units where 255 is 1.

    The result is kept in the user's cache folder, under a hash of the list and of the sampled files' sizes and times;
    where that folder cannot be written, it is computed again the next time.

    Args:
        images: The list of training images.
        size: Height and width that the images are brought to.
        sample: The most images that are looked at.
        max_pixels: The largest image that is read.
        quiet: Show no progress bar.
    """
    chosen = epoch_permutation(len(images), seed=0, epoch=0)[:sample].sort().values
    part = images.subset(chosen)
    cache = cache_folder() / f"statistics-{_fingerprint(images, part, size)}.json"
    known = _read_statistics(cache)
    if known is None:
        known = normalizing_statistics(decode_images(part, _checked_size(size), max_pixels=max_pixels, quiet=quiet))
        _write_statistics(cache, known)
    return known


def _checked_size(size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"an image's size must be a whole number from 1 to {LARGEST_SIZE}, got {size!r}")
    return size


def _fingerprint(images: ImageList, part: ImageList, size: int) -> str:
    digest = hashlib.sha256(f"1 {size} {images.root} {len(images)} {len(part)}".encode(errors="surrogateescape"))
    digest.update(images.names.numpy().tobytes())
    digest.update(images.ends.numpy().tobytes())
    for index in range(len(part)):
        digest.update(f"{part.stamp(index)}\n".encode())
    return digest.hexdigest()[:32]


def _read_statistics(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    try:
        document = parse_json(read_file(path, 1 << 16))
        mean, std = (tuple(float(value) for value in document[name]) for name in ("mean", "std"))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    sound = (
        len(mean) == len(std) == 3 and all(0 <= value <= 1 for value in mean) and all(0 < value <= 1 for value in std)
    )
    return (mean, std) if sound else None


def _write_statistics(path: Path, statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    write_cache(path, json.dumps(dict(zip(("mean", "std"), statistics))).encode() + b"\n")
