"""Decoding JPEGs from a folder to 224x224 random crops with two workers, beside a plain PyTorch DataLoader.

    python benchmarks/folder_decode.py

Both open the file with Pillow, draw a random resized crop, resize bilinearly and hand over uint8 batches through a
DataLoader with two persistent workers; the plain one as it is usually written (open, convert, crop, resize, array,
tensor). A third row adds what usually follows in the plain worker, the conversion to float. The rounds are interleaved,
so that other load on the machine meets all alike. The JPEGs are made on the spot: of ImageNet's usual size, and of a
camera's, where decoding at reduced resolution pays.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import rate, write
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from particleaugment.data import FolderDataset, ImageList, list_folder

SIZE = 224
WORKERS = 2
BATCH = 50
SETTINGS = {(500, 375): 400, (2000, 1500): 100}
REQUIRED = 1.0


class Plain(Dataset[tuple[Tensor, int]]):
    """Random resized crops by Pillow, as they are usually written."""

    def __init__(self, images: ImageList, as_float: bool):
        self.paths = [images.path(index) for index in range(len(images))]
        self.labels = images.labels.tolist()
        self.as_float = as_float

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with open(self.paths[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        left, top, wide, tall = self._box(*image.size)
        image = image.crop((left, top, left + wide, top + tall)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return (tensor.float().div(255) if self.as_float else tensor), self.labels[index]

    @staticmethod
    def _box(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1.0)
            aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < tall <= height:
                return random.randint(0, width - wide), random.randint(0, height - tall), wide, tall
        return 0, 0, width, height


def make_images(root: Path, size: tuple[int, int], count: int, seed: int) -> None:
    """Write textured JPEGs: a coarse pattern, a finer one, and a little noise."""
    generator = np.random.default_rng(seed)
    width, height = size
    for number in range(count):
        layers = [
            Image.fromarray(generator.integers(0, 256, (height // cell, width // cell, 3), dtype=np.uint8))
            for cell in (50, 10)
        ]
        coarse, fine = (np.asarray(layer.resize(size, Image.Resampling.BICUBIC), np.float32) for layer in layers)
        pixels = 0.75 * coarse + 0.25 * fine + generator.normal(0, 4, coarse.shape).astype(np.float32)
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04d}.jpg", quality=90)


def measure(size: tuple[int, int], count: int, rounds: int, seed: int) -> dict[str, Any]:
    """Time whole epochs of all loaders by turns."""
    with tempfile.TemporaryDirectory() as name:
        for part, files in (("train", count), ("val", 2)):
            make_images(Path(name) / part, size, files, seed)
        images, _ = list_folder(name)
        kilobytes = sum(Path(images.path(index)).stat().st_size for index in range(len(images))) / len(images) / 1024
        ours = FolderDataset(images, SIZE, train=True, seed=seed)
        plain: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
        loaders: dict[str, DataLoader[Any]] = {
            "ours": ours.loader(BATCH, WORKERS),
            "plain": DataLoader(Plain(images, as_float=False), **plain),
            "plain_float": DataLoader(Plain(images, as_float=True), **plain),
        }
        times: dict[str, list[float]] = {name: [] for name in loaders}
        for epoch in range(rounds + 1):
            ours.set_epoch(epoch)
            for name, loader in loaders.items():
                start = time.perf_counter()
                seen = sum(len(batch[0]) for batch in loader)
                if epoch:  # the first round starts the workers and fills the file cache
                    times[name].append(time.perf_counter() - start)
                assert seen == count
        del loaders
    rows: dict[str, Any] = {
        "jpeg": f"{size[0]}x{size[1]}",
        "kilobytes_each": round(kilobytes, 1),
        "images": count,
        "crop": SIZE,
        "workers": WORKERS,
        "rounds": rounds,
    }
    rows |= {f"{name}_images_per_second": rate(count, values) for name, values in times.items()}
    medians = [rows[f"{name}_images_per_second"]["median"] for name in ("ours", "plain")]
    rows["ratio"] = round(medians[0] / medians[1], 2)
    paired = sorted(theirs / mine for mine, theirs in zip(times["ours"], times["plain"]))
    rows["ratio_by_round"] = [round(value, 2) for value in paired]
    rows["required_ratio"] = REQUIRED
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    torch.set_num_threads(1)
    results = [measure(size, count, arguments.rounds, arguments.seed) for size, count in SETTINGS.items()]
    for row in results:
        print(
            f"{row['jpeg']}: plain {row['plain_images_per_second']['median']:,.0f}/s "
            f"(to float {row['plain_float_images_per_second']['median']:,.0f}/s), "
            f"ours {row['ours_images_per_second']['median']:,.0f}/s ({row['ratio']}x)"
        )
    write("folder_decode", results, arguments.seed)


if __name__ == "__main__":
    main()
