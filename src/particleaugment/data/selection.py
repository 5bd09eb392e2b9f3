"""Which training images a run trains on, and which it is judged on: functions of labels, sizes, seed and groups.

Images in memory and files that are decoded while a network trains are chosen here, so both are the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from particleaugment.core.random import Stream, uniform
from particleaugment.data.groups import smallest_cover, whole_groups
from particleaugment.data.split import SUBSET_STEP, stratified_subset, train_validation_split

__all__ = ["check_train_size", "select_training"]


def select_training(
    labels: Tensor,
    *,
    validation: int | float = 0,
    train_size: int | float = 1.0,
    seed: int = 0,
    groups: Tensor | None = None,
    names: Sequence[str] = (),
) -> tuple[Tensor, Tensor | None]:
    """Return ascending indices of the samples to train on, and of those that stand in for the test set, if any do.

    Validation samples are taken out first, so they do not depend on ``train_size``. What is trained on is then drawn
    from the rest.

    Args:
        labels: Classes of all training samples, int64 ``[N]``.
        validation: How many stand in for the test set, or which fraction; 0 is none, and the second result None.
        train_size: How many of the rest to train on, or which fraction; 1.0 is all.
        seed: Which ones.
        groups: Group of each sample, int64 ``[N]`` from 0 on, where groups are to be kept whole.
        names: Names of the classes, for errors.

    >>> train, validation = select_training(torch.arange(100) % 5, validation=20, train_size=0.25)
    >>> len(train), len(validation), torch.isin(train, validation).any().item()
    (20, 20, False)
    """
    rest, judge = torch.arange(len(labels), device=labels.device), None
    if isinstance(validation, bool) or validation != 0:
        try:
            rest, judge = train_validation_split(labels, validation, seed, names, groups)
        except (TypeError, ValueError) as error:
            raise ValueError(f"validation={validation!r} does not fit the data: {error}") from None
    check_train_size(train_size)
    if train_size == 1.0 and isinstance(train_size, float):
        return rest, judge
    left = f" that validation={validation} leaves" if judge is not None else ""
    size = _train_size(labels[rest], train_size, left)
    if groups is None:
        return rest[_training_subset(labels[rest], size, seed)], judge
    needed = smallest_cover(labels[rest], groups[rest])
    if size < needed:
        raise ValueError(
            f"train_size={train_size} is too small for whole groups of every class; {needed:,} images are enough"
        )
    return rest[whole_groups(labels[rest], groups[rest], size, seed, SUBSET_STEP, leave=False)], judge


def check_train_size(size: int | float) -> None:
    """Raise a TypeError or ValueError where this cannot be the size of any training set.

    >>> check_train_size(0)
    Traceback (most recent call last):
    ...
    ValueError: train_size must be a number of images above 0, or a fraction from 0.0 to 1.0, got 0; 1.0 is all of them
    """
    if isinstance(size, bool) or not isinstance(size, int | float):
        raise TypeError(f"train_size must be a number of images or a fraction, got {size!r}")
    if not (size > 0 if isinstance(size, int) else 0 < size <= 1):
        raise ValueError(
            f"train_size must be a number of images above 0, or a fraction from 0.0 to 1.0, got {size}; 1.0 is all of "
            "them"
        )


def _train_size(labels: Tensor, size: int | float, left: str) -> int:
    """Return a training set's size as a number of samples, after checking that it suits them."""
    count, classes = len(labels), len(labels.unique())
    absolute = size if isinstance(size, int) else math.floor(size * count + 1e-6)
    if absolute > count:
        raise ValueError(f"train_size={size} is more than the {count:,} training images{left}; use at most that many")
    if absolute < classes:
        hint = "; for all images use train_size=1.0" if size == 1 else ""
        images = "" if isinstance(size, int) else f", {absolute:,} of {count:,} training images{left},"
        raise ValueError(
            f"train_size={size}{images} is too small: each of the {classes:,} classes needs an image, so the smallest "
            f"is {classes}{hint}"
        )
    return absolute


def _training_subset(labels: Tensor, size: int, seed: int) -> Tensor:
    """Return ascending indices of a stratified subset that has at least one sample of every class.

    A class whose share is less than one sample gives one; the others share out what is left.
    """
    _, class_index, counts = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
    rare = np.zeros(len(counts), dtype=bool)
    # What is left is at least one sample per class that is left, so the largest of those has a share of one or more.
    while (more := ~rare & (counts * (size - rare.sum()) < counts[~rare].sum())).any():
        rare |= more
    ids = torch.arange(len(labels), dtype=torch.int64, device="cpu")
    of_rare = ids[torch.from_numpy(rare[class_index])]
    keys = uniform(seed, Stream.SPLIT, SUBSET_STEP, of_rare, slots=1)[:, 0].numpy()
    in_order = of_rare.numpy()[keys.argsort(kind="stable")]
    _, first = np.unique(class_index[in_order], return_index=True)
    others = stratified_subset(labels, size - len(first), seed, SUBSET_STEP, exclude=of_rare)
    return torch.cat([torch.from_numpy(in_order[first]).to(labels.device), others]).sort().values
