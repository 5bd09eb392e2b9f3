"""CPU throughput of RandAugment with three ops, beside timm's own transform (or its Pillow calls) and torchvision's.

All draw and apply three of timm's fifteen ops per image (level 9, increasing severity, bilinear). timm works on PIL
images that are ready in memory, torchvision on one tensor per image, and ours on a uint8 batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from particleaugment.bench.peers import timm_transform, torchvision_transform
from particleaugment.executors import apply, native
from particleaugment.policies import RandAugment
from particleaugment.policies.parse import TIMM_OPS
from particleaugment.util.timing import rate, seconds

__all__ = ["beside_timm", "compilation_seconds", "executor_rows"]


def beside_timm(size: int, batch: int, repeats: int, seed: int) -> dict[str, Any]:
    """Time timm, or its Pillow calls, and the CPU's own executor on one and two threads."""
    images = _images(size, batch, seed)
    pictures = _pictures(images)
    ours = _augmentation(images, "auto", seed)
    transform, peer = timm_transform()
    with _threads_restored():
        torch.set_num_threads(1)
        start = time.perf_counter()
        ours()
        first_call = time.perf_counter() - start
        rows: dict[str, Any] = {"size": size, "batch": batch, "peer": peer, "first_call_seconds": round(first_call, 2)}
        # Interleaved rounds, so that other load on the machine meets both alike.
        timm_times: list[float] = []
        our_times: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(5):
            torch.set_num_threads(1)
            timm_times += seconds(lambda: [transform(picture) for picture in pictures], max(1, repeats // 5))
            for threads in (1, 2):
                torch.set_num_threads(threads)
                our_times[threads] += seconds(ours, repeats)
    rows["timm"] = rate(batch, timm_times)
    rows["ours_1_thread"] = rate(batch, our_times[1])
    rows["ours_2_threads"] = rate(batch, our_times[2])
    rows["ratio_1_thread"] = round(rows["ours_1_thread"]["median"] / rows["timm"]["median"], 2)
    rows["scaling_2_threads"] = round(rows["ours_2_threads"]["median"] / rows["ours_1_thread"]["median"], 2)
    return rows


def executor_rows(size: int, batch: int, repeats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Time each CPU executor on one thread, the fastest on all cores too, and the peers that are here.

    ``pil`` and the peers are slow and get a quarter of the batch.
    """
    images = _images(size, batch, seed)
    few = images[: max(1, batch // 4)]
    pictures = _pictures(few)
    fastest = "batch" if native.unavailable_reason() else "native"
    works: list[tuple[str, int, int, Callable[[], object]]] = []
    for executor in ("native", "batch", "pil"):
        if executor == "native" != fastest:
            continue
        some = few if executor == "pil" else images
        works.append((executor, 1, len(some), _augmentation(some, executor, seed)))
    cores = os.cpu_count() or 1
    if cores > 1:
        works.insert(1, (fastest, cores, batch, _augmentation(images, fastest, seed)))
    transform, peer = timm_transform()
    label = "timm" if peer == "timm" else "Pillow, as timm calls it"
    works.append((label, 1, len(few), lambda: [transform(picture) for picture in pictures]))
    torchvision = torchvision_transform()
    if torchvision is not None:
        works.append(("torchvision v2, one draw per image", 1, len(few), partial(_each, torchvision, few)))
    for name, threads, count, work in works:
        with _threads_restored():
            torch.set_num_threads(threads)
            times = seconds(work, repeats)
        yield {"name": name, "size": size, "batch": count, "threads": threads, **rate(count, times)}


def compilation_seconds() -> float:
    """Return how long the very first call takes on a machine, with nothing compiled yet."""
    script = (
        "import time, torch, particleaugment as pa; x = torch.zeros(1, 3, 8, 8, dtype=torch.uint8);"
        "p = pa.Program.from_ops([['Invert']]); t = time.perf_counter(); pa.apply(x, p);"
        "print(time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
    return round(float(done.stdout), 1)


def _images(size: int, batch: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (batch, 3, size // 4, size // 4), generator=generator).float()
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear").to(torch.uint8)


def _pictures(images: Tensor) -> list[Image.Image]:
    return [Image.fromarray(np.asarray(image.permute(1, 2, 0))) for image in images]


def _augmentation(images: Tensor, executor: str, seed: int) -> Callable[[], None]:
    """Return what draws the next epoch's programs and applies them."""
    policy, ids = RandAugment(n=3, m=9, ops=TIMM_OPS), torch.arange(len(images))
    size, epoch = (images.shape[2], images.shape[3]), 0

    def augment() -> None:
        nonlocal epoch
        epoch += 1
        apply(images, policy.sample(ids, epoch, seed, size), executor)

    return augment


def _each(transform: Callable[[Tensor], object], images: Tensor) -> None:
    for image in images:
        transform(image)


@contextmanager
def _threads_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
