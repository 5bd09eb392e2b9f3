"""CPU throughput of RandAugment with three ops, beside timm's and torchvision's where they are installed.

All draw and apply three of timm's fifteen ops per image (level 9, increasing severity, bilinear). timm works on PIL
images that are ready in memory, torchvision on one tensor per image, and ours on a uint8 batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from particleaugment.augment.module import Augment
from particleaugment.bench.peers import timm_transform, torchvision_transform
from particleaugment.executors import native
from particleaugment.policies import RandAugment
from particleaugment.policies.parse import TIMM_OPS
from particleaugment.util.timing import rate, seconds

__all__ = ["augmentation", "each", "executor_rows", "generated_images", "pictures_of", "threads_restored"]


def executor_rows(size: int, batch: int, repeats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Time each CPU executor on one thread, the fastest on all cores too, and the peers that are here.

    ``pil`` and the peers are slow and get a quarter of the batch.
    """
    images = generated_images(size, batch, seed)
    few = images[: max(1, batch // 4)]
    fastest = "batch" if native.unavailable_reason() else "native"
    works: list[tuple[str, int, int, Callable[[], object]]] = []
    for executor in ("native", "batch", "pil"):
        if executor == "native" != fastest:
            continue
        some = few if executor == "pil" else images
        works.append((executor, 1, len(some), augmentation(some, executor, seed)))
    cores = os.cpu_count() or 1
    if cores > 1:
        works.insert(1, (fastest, cores, batch, augmentation(images, fastest, seed)))
    for name, transform, inputs in (
        ("timm", timm_transform(), pictures_of(few)),
        ("torchvision v2, one draw per image", torchvision_transform(), few),
    ):
        if transform is not None:
            works.append((name, 1, len(few), partial(each, transform, inputs)))
    for name, threads, count, work in works:
        with threads_restored():
            torch.set_num_threads(threads)
            times = seconds(work, repeats)
        yield {"name": name, "size": size, "batch": count, "threads": threads, **rate(count, times)}


def generated_images(size: int, batch: int, seed: int) -> Tensor:
    """Return smooth random images, uint8 ``[B, 3, H, W]``."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (batch, 3, size // 4, size // 4), generator=generator).float()
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear").to(torch.uint8)


def pictures_of(images: Tensor) -> list[Image.Image]:
    """Return images as Pillow's."""
    return [Image.fromarray(np.asarray(image.permute(1, 2, 0))) for image in images]


def augmentation(images: Tensor, executor: str, seed: int) -> Callable[[], None]:
    """Return what draws the next epoch's programs and applies them."""
    augment, ids = Augment(RandAugment(n=3, m=9, ops=TIMM_OPS), seed, executor=executor), torch.arange(len(images))

    def next_epoch() -> None:
        augment.set_epoch(augment.epoch + 1)
        augment(images, ids)

    return next_epoch


def each(transform: Callable[..., object], images: Iterable[object]) -> None:
    """Call a transform on one image after another."""
    for image in images:
        transform(image)


@contextmanager
def threads_restored() -> Iterator[None]:
    """Set torch's number of threads back after the block."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
