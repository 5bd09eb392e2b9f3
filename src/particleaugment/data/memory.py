"""One type for every image data set that fits into memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from particleaugment.data.selection import select_training

__all__ = ["ImageData", "channel_statistics", "hold_out", "normalizing_statistics"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageData:
    """Training and test images, uint8 [N, C, H, W] with C = 1 or 3, and their labels, int64 [N].

    A label is an index into ``classes``; ``mean`` and ``std`` hold one number per channel, in units where pixel
    value 255 is 1. ``train_groups``, int64 [N] from 0 on, says which training images belong together and are never
    split, if that is known.

    >>> images, labels = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2), torch.tensor([0, 1])
    >>> mean, std = channel_statistics(images)
    >>> data = ImageData(train_images=images, train_labels=labels, test_images=images, test_labels=labels,
    ...                  classes=("cat", "dog"), mean=mean, std=std)
    >>> len(data.train_labels), data.num_classes
    (2, 2)
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_groups: Tensor | None = None

    def __post_init__(self) -> None:
        _check_part("train", self.train_images, self.train_labels, len(self.classes))
        _check_part("test", self.test_images, self.test_labels, len(self.classes))
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(
                "training and test images must have the same channels, height and width, got "
                f"{list(self.train_images.shape[1:])} and {list(self.test_images.shape[1:])}; resize one of them"
            )
        if self.train_groups is not None and self.train_groups.shape != self.train_labels.shape:
            raise ValueError(
                f"train_groups must be int64 [{len(self.train_labels)}], got {list(self.train_groups.shape)}; "
                "give one group per training image"
            )
        channels = self.train_images.shape[1]
        if len(self.mean) != channels or len(self.std) != channels:
            raise ValueError(
                f"mean and std need one number for each of the {channels} channels, got {len(self.mean)} and "
                f"{len(self.std)}; use channel_statistics(train_images)"
            )
        if not all(0 <= value <= 1 for value in self.mean) or not all(0 < value <= 1 for value in self.std):
            raise ValueError(
                f"mean must be in [0, 1] and std in (0, 1], got {self.mean} and {self.std}; "
                "use units where pixel value 255 is 1"
            )

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    def examples(self, count: int = 16) -> Tensor:
        """Return a few training images, to show."""
        return self.train_images[:count]


def _check_part(part: str, images: Tensor, labels: Tensor, num_classes: int) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise ValueError(
            f"{part}_images must be a non-empty uint8 tensor [N, 1 or 3, H, W], got {images.dtype} "
            f"{list(images.shape)}; scale to 0..255 and permute to channels first"
        )
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{part}_labels must be int64 [{len(images)}], got {labels.dtype} {list(labels.shape)}; "
            "give one class index per image"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{part}_labels must be in 0..{num_classes - 1}, got {low}..{high}; name every class in `classes`"
        )


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 images [N, C, H, W], in units where 255 is 1.

    The sums are taken in integers, so the result does not depend on the order of summation.

    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    # Histograms keep the memory small: only one channel of one slice is widened to 64 bits at a time.
    means, stds = [], []
    for channel in range(images.shape[1]):
        histogram = torch.zeros(256, dtype=torch.int64, device="cpu")
        for part in torch.split(images[:, channel], 4096):
            histogram += torch.bincount(part.flatten().to("cpu"), minlength=256)
        tally = histogram.tolist()
        count = sum(tally)
        total = sum(value * times for value, times in enumerate(tally))
        squares = sum(value * value * times for value, times in enumerate(tally))
        means.append(total / (count * 255))
        stds.append(math.sqrt((count * squares - total * total) / (count * 255) ** 2))
    return tuple(means), tuple(stds)


def normalizing_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what :func:`channel_statistics` does, with 1 for the deviation of a channel that is the same everywhere.

    Such are red and blue of images under a fluorescence microscope, of which only green is recorded.

    >>> normalizing_statistics(torch.tensor([[0, 0], [0, 255]], dtype=torch.uint8).reshape(2, 2, 1, 1))
    ((0.0, 0.5), (1.0, 0.5))
    """
    mean, std = channel_statistics(images)
    if not any(std):
        raise ValueError(
            "all pixels of the training images are of one colour, so there is nothing to learn; check them"
        )
    return mean, tuple(value or 1.0 for value in std)


def hold_out(data: ImageData, validation: int | float, seed: int = 0, train_size: int | float = 1.0) -> ImageData:
    """Return data whose test part is held out from the training set, stratified by class, for choosing settings.

    The real test set is not used. The held-out images depend only on the seed, so use the same seed for runs that you
    compare. If the training images have groups, groups are kept whole, and sizes are approximate.

    Args:
        data: The data set.
        validation: Number or fraction of training images to hold out; 0 keeps the test set.
        seed: Seed for choosing them.
        train_size: Number or fraction of the remaining training images to keep; 1.0 is all of them.

    >>> images, labels = torch.arange(40, dtype=torch.uint8).reshape(10, 1, 2, 2), torch.arange(10) % 2
    >>> data = ImageData(train_images=images, train_labels=labels, test_images=images, test_labels=labels,
    ...                  classes=("cat", "dog"), mean=(0.1,), std=(0.1,))
    >>> held_out = hold_out(data, 0.4)
    >>> len(held_out.train_labels), held_out.test_labels.bincount().tolist()
    (6, [2, 2])
    """
    train, judge = select_training(
        data.train_labels,
        validation=validation,
        train_size=train_size,
        seed=seed,
        groups=data.train_groups,
        names=data.classes,
    )
    if len(train) == len(data.train_labels):
        return data
    chosen = replace(
        data,
        train_images=data.train_images[train],
        train_labels=data.train_labels[train],
        train_groups=None if data.train_groups is None else data.train_groups[train],
    )
    if judge is None:
        return chosen
    return replace(chosen, test_images=data.train_images[judge], test_labels=data.train_labels[judge])
