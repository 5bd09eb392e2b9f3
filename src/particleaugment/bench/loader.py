"""Augmenting where most people do it, one image at a time in a loader's workers, beside torchvision and timm.

Each of our rows is timed by turns with its peer's, so that other load on the machine meets both alike; their ratio is
the median over the rounds.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from particleaugment.augment.image import ImageTransform
from particleaugment.augment.module import Augment
from particleaugment.bench.cpu import each, generated_images, pictures_of, threads_restored
from particleaugment.bench.peers import timm_transform, torchvision_trivial
from particleaugment.data.decode import RandomResizedCrop
from particleaugment.util.reading import open_file
from particleaugment.util.timing import rate

__all__ = ["STRING", "batch_rows", "image_rows", "loader_rows"]

STRING = "rand-m7-n2-inc1"
"""The timm string that is timed; its ops draw bilinear or bicubic."""
_CROP, _JPEG, _BATCH = 224, (500, 375), 32
Work = Callable[[], object]


def image_rows(size: int, count: int, rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    """Time single images on one thread: Pillow images, and uint8 tensors."""
    images = generated_images(size, count, seed)
    pictures, tensors = pictures_of(images), list(images)
    trivial, string = ImageTransform("trivial", seed, resample="nearest"), ImageTransform(STRING, seed)
    works = (
        ("TrivialAugment, nearest", "Pillow", pictures, trivial, "torchvision", torchvision_trivial()),
        ("TrivialAugment, nearest", "tensor", tensors, trivial, "torchvision", torchvision_trivial()),
        (STRING, "Pillow", pictures, string, "timm", timm_transform(STRING, None)),
    )
    for policy, kind, inputs, transform, peer_name, peer in works:
        pair: dict[str, Work] = {"ours": partial(each, transform, inputs)}
        if peer is not None:
            pair["peer"] = partial(each, peer, inputs)
        row = {"policy": policy, "input": kind, "size": size, "peer_name": peer_name}
        yield row | _by_turns(pair, count, rounds)


def batch_rows(size: int, batch: int, rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    """Time a timm string on batches, on one thread, beside timm on the same images one by one."""
    images, ids = generated_images(size, batch, seed), torch.arange(batch)
    augment, peer = Augment(STRING, seed), timm_transform(STRING, None)

    def ours() -> None:
        augment.set_epoch(augment.epoch + 1)
        augment(images, ids)

    works: dict[str, Work] = {"ours": ours}
    if peer is not None:
        works["peer"] = partial(each, peer, pictures_of(images))
    row = {"policy": STRING, "input": "batch", "size": size, "batch": batch, "peer_name": "timm"}
    yield row | _by_turns(works, batch, rounds)


def loader_rows(files: int, workers: Iterable[int], rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    """Time whole epochs over JPEG files: decode, random resized crop, augment, hand over uint8 batches."""
    transforms: dict[str, tuple[Callable[..., Any] | None, bool]] = {
        "no augmentation": (None, False),
        "TrivialAugment, nearest": (ImageTransform("trivial", seed, resample="nearest"), True),
        STRING: (ImageTransform(STRING, seed), True),
    }
    for name, peer in (("torchvision", torchvision_trivial()), ("timm", timm_transform(STRING, None))):
        if peer is not None:
            transforms[name] = (peer, False)
    peers = {"TrivialAugment, nearest": "torchvision", STRING: "timm"}
    with tempfile.TemporaryDirectory() as folder:
        paths = _jpegs(Path(folder), files, seed)
        for number in workers:
            options: dict[str, Any] = {"batch_size": _BATCH, "num_workers": number, "persistent_workers": True}
            loaders = {
                name: DataLoader(_Jpegs(paths, seed, *transform), shuffle=True, **options)
                for name, transform in transforms.items()
            }
            times = _timed({name: partial(_read, loader, files) for name, loader in loaders.items()}, rounds)
            del loaders
            for policy in ("no augmentation", *peers):
                row = {"policy": policy, "workers": number, "peer_name": peers.get(policy, "")}
                found = {"ours": times[policy]}
                if peers.get(policy) in times:
                    found["peer"] = times[peers[policy]]
                yield row | _compared(found, files)


class _Jpegs(Dataset[Tensor]):
    def __init__(self, paths: Sequence[Path], seed: int, transform: Callable[..., Any] | None, with_id: bool):
        self.paths, self.transform, self.with_id = paths, transform, with_id
        crop = RandomResizedCrop()
        draws = crop.sample(torch.arange(len(paths)), 0, seed).tolist()
        self.boxes = [crop.box(row, *_JPEG) for row in draws]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with open_file(self.paths[index]) as file:
            image = Image.open(file).convert("RGB")
        image = image.resize((_CROP, _CROP), Image.Resampling.BILINEAR, box=self.boxes[index])
        if self.transform is not None:
            image = self.transform(image, id=index) if self.with_id else self.transform(image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _jpegs(folder: Path, count: int, seed: int) -> list[Path]:
    """Write textured JPEGs of the usual size of ImageNet's."""
    generator, paths = np.random.default_rng(seed), []
    width, height = _JPEG
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize(_JPEG, Image.Resampling.BICUBIC), np.int16)
        noisy = pixels + generator.integers(-8, 9, pixels.shape, dtype=np.int16)
        paths.append(folder / f"{number:05d}.jpg")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def _read(loader: DataLoader[Tensor], files: int) -> None:
    assert sum(len(batch) for batch in loader) == files


def _timed(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Time works by turns, after a call of each that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    drawn = random.getstate()
    with torch.random.fork_rng(devices=[]), threads_restored():
        torch.manual_seed(0)  # timm and torchvision draw from the global generators
        random.seed(0)
        torch.set_num_threads(1)
        for number in range(rounds + 1):
            for name, work in works.items():
                start = time.perf_counter()
                work()
                if number:
                    times[name].append(time.perf_counter() - start)
    random.setstate(drawn)
    return times


def _by_turns(works: Mapping[str, Work], count: int, rounds: int) -> dict[str, Any]:
    return _compared(_timed(works, rounds), count)


def _compared(times: Mapping[str, list[float]], count: int) -> dict[str, Any]:
    """Return the rates, and how many times the peer's ours is."""
    row: dict[str, Any] = {name: rate(count, found) for name, found in times.items()}
    if "peer" in times:
        ratios = [theirs / mine for mine, theirs in zip(times["ours"], times["peer"])]
        row["ratio"] = round(statistics.median(ratios), 2)
    return row
