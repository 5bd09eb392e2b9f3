"""The handwritten digits that come with scikit-learn: a data set that needs no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from particleaugment.data.memory import ImageData, channel_statistics
from particleaugment.data.split import train_validation_split

__all__ = ["load_digits"]

# Fixed, so that every run is tested on the same images whatever its own seed.
_SPLIT_SEED = 1797
_TEST_SIZE = 360


def load_digits() -> ImageData:
    """Return the 1797 digits as 1437 training and 360 test images, uint8 [N, 3, 32, 32].

    The originals are 8x8 with grey values 0..16. They are scaled to 0..255, enlarged bilinearly by Pillow, and the
    grey channel is repeated three times. The split is stratified and always the same; within each part the images
    keep scikit-learn's order.

    >>> data = load_digits()
    >>> data.train_images.shape, data.test_images.shape, data.num_classes
    (torch.Size([1437, 3, 32, 32]), torch.Size([360, 3, 32, 32]), 10)
    """
    originals, classes = _originals()
    levels = torch.from_numpy(originals)
    grey = ((levels * 255 + 8) // 16).to(torch.uint8).numpy()
    enlarged = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR)) for image in grey]
    images = torch.from_numpy(np.stack(enlarged)).unsqueeze(1).repeat(1, 3, 1, 1)
    labels = torch.from_numpy(classes)

    train, test = train_validation_split(labels, _TEST_SIZE, seed=_SPLIT_SEED)
    mean, std = channel_statistics(images[train])
    return ImageData(
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        classes=tuple(str(digit) for digit in range(10)),
        mean=mean,
        std=std,
    )


def _originals() -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Return scikit-learn's images, 8x8, and their classes.

    They are read from its file where that is in its place: importing scikit-learn takes longer than a short run.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or []:
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, dtype=np.int64, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    from sklearn import datasets

    corpus = datasets.load_digits()
    return corpus.images.astype(np.int64), corpus.target.astype(np.int64)
