"""Data that the proving ground makes itself: MNIST digits in three tints, as a folder of images.

    python benchmarks/proving_data.py DIR

reads DIR/mnist and writes DIR/mnist-close-tints/{train,test}/DIGIT-TINT/*.png. The class is digit and tint. The tints
are one hue at three saturations, so ops that change colours turn one class into another.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from particleaugment.core.random import Stream, uniform
from particleaugment.data import load_data

TINTS = {"red": (255, 140, 140), "rose": (255, 160, 160), "pale": (255, 180, 180)}
COUNTS = {"train": 15_000, "test": 9_000}


def make_tints(directory: Path) -> Path:
    """Write the folder, in one move; nothing is done if it is there."""
    target = directory / "mnist-close-tints"
    if target.exists():
        return target
    data = load_data("mnist", directory / "mnist")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _write(partial / "train", data.train_images, data.train_labels, COUNTS["train"], stream_seed=0)
        _write(partial / "test", data.test_images, data.test_labels, COUNTS["test"], stream_seed=1)
        os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write(folder: Path, images: Tensor, labels: Tensor, count: int, stream_seed: int) -> None:
    names = list(TINTS)
    for digit in range(10):
        for name in names:
            (folder / f"{digit}-{name}").mkdir(parents=True)
    drawn = uniform(stream_seed, Stream.SPLIT, 0, torch.arange(count), slots=1)[:, 0].numpy()
    tint = (drawn * len(names)).astype(np.int64)
    share = np.array(list(TINTS.values()), np.float32)[tint, None, None] / 255
    pixels = (images[:count].permute(0, 2, 3, 1).numpy() * share).round().astype(np.uint8)
    for number, (image, label) in enumerate(zip(pixels, labels[:count].tolist())):
        path = folder / f"{label}-{names[tint[number]]}" / f"{number:05}.png"
        Image.fromarray(image).save(path, compress_level=1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(make_tints(Path(sys.argv[1])))
