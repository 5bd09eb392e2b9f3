"""A folder of images that are decoded while a network trains."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from particleaugment.data.decode import CentreCrop, RandomResizedCrop
from particleaugment.data.folder import (
    IMAGENET_STATISTICS,
    FolderDataset,
    decode_images,
    folder_statistics,
)
from particleaugment.data.listing import FolderListing, ImageList, find_images

__all__ = ["StreamedData", "example_images", "open_folder"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedData:
    """Training and test images as files; what :class:`particleaugment.data.ImageData` is to images in memory.

    Attributes:
        train: Training images: random parts of the files, or their centres.
        plain: The same images, always their centres.
        test: Test images: their centres.
        mean: Mean of each channel, in units where 255 is 1.
        std: Standard deviation of each channel, likewise.
        train_groups: Groups of training images that belong together, int64 ``[N]``, if they are known.
    """

    train: FolderDataset
    plain: FolderDataset
    test: FolderDataset
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_groups: Tensor | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.train.images.classes

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def test_labels(self) -> Tensor:
        """Labels of the test images, int64 ``[N]``."""
        return self.test.images.labels

    def examples(self, count: int = 16) -> Tensor:
        """Return a few training images, spread over the classes, to show."""
        return example_images(self.train.images, self.train.size, count)


def open_folder(
    directory: str | os.PathLike[str],
    size: int,
    *,
    validation: int | float = 0,
    train_size: int | float = 1.0,
    data_seed: int = 0,
    groups: str = "none",
    seed: int = 0,
    crop_scale: float = 0.0,
    normalization: str = "data",
    quiet: bool = False,
    found: FolderListing | None = None,
) -> StreamedData:
    """Open a folder of images for streaming; without random parts the pixels are those of :func:`load_folder`.

    Args:
        directory: A folder as :func:`particleaugment.data.listing.list_folder` describes it.
        size: Height and width of the images.
        validation: How many training images stand in for the test set, or which fraction; 0 keeps the test set.
        train_size: How many of the remaining training images to train on, or which fraction; 1.0 is all of them.
        data_seed: Which images these are.
        groups: How file names are read as groups, as :func:`particleaugment.data.list_folder` takes it.
        seed: Seed of the random parts.
        crop_scale: Smallest area of a random part, as a fraction of the image; 0 takes the centre instead. With random
            parts the test images have the customary margin cut off, without them nothing but what makes them square.
        normalization: ``data`` for mean and standard deviation of a sample of training images, ``imagenet`` for
            ImageNet's.
        quiet: Show no progress bar.
        found: What the folder holds, if that is known already; ``groups`` is then its own.
    """
    found = found if found is not None else find_images(directory, groups=groups)
    train, test, train_groups = found.selected(validation, train_size, data_seed)
    constants = normalization == "imagenet"
    mean, std = IMAGENET_STATISTICS if constants else folder_statistics(found.train, size, quiet=quiet)
    centre = CentreCrop() if crop_scale else CentreCrop(margin=1.0)
    plain = FolderDataset(train, size, train=False, centre=centre)
    drawn = plain
    if crop_scale:
        drawn = FolderDataset(train, size, train=True, seed=seed, crop=RandomResizedCrop((crop_scale, 1.0)))
    tested = FolderDataset(test, size, train=False, centre=centre)
    return StreamedData(train=drawn, plain=plain, test=tested, mean=mean, std=std, train_groups=train_groups)


def example_images(images: ImageList, size: int, count: int) -> Tensor:
    """Return a few images of a list, spread over its classes, uint8 ``[count or fewer, 3, size, size]``."""
    chosen = torch.linspace(0, len(images) - 1, min(count, len(images))).round().to(torch.int64)
    return decode_images(images.subset(chosen), size)
