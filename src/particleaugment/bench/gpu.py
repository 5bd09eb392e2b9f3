"""GPU throughput of the fused kernel, beside torchvision v2 on the GPU.

32x32: three random ops per image plus crop, flip, erasing and normalisation to bfloat16 channels-last, drawing
included, timed as replays of a CUDA graph. 224x224: three random ops, uint8 to uint8. The floor is the time to read the
input and write the output once at the copy bandwidth measured in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from particleaugment.augment.pipeline import FusedPipeline
from particleaugment.augment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing
from particleaugment.bench.peers import torchvision_transform
from particleaugment.policies import RandAugment
from particleaugment.policies.parse import TIMM_OPS

__all__ = ["as_graph", "copy_bandwidth", "large_rows", "milliseconds", "small_rows", "torchvision_rows"]

_IMAGES = 50_000


def milliseconds(work: Callable[[], object], repeats: int = 30, inner: int = 10) -> list[float]:
    """Return the milliseconds on the device of one call, ``repeats`` times, each the mean of ``inner`` calls."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(inner):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / inner)
    return times


def as_graph(work: Callable[[], object]) -> Callable[[], object]:
    """Capture a call in a CUDA graph and return what replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def copy_bandwidth() -> float:
    """Return the bytes per second, read and written, of a large copy on the device."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (statistics.median(milliseconds(lambda: target.copy_(source), 10, 3)) / 1e3)


def small_rows(batches: Iterable[int], bandwidth: float, seed: int) -> Iterator[dict[str, Any]]:
    """Time a whole training augmentation at 32x32."""
    data = torch.randint(0, 256, (_IMAGES, 3, 32, 32), dtype=torch.uint8, device="cuda")
    normalize = Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), torch.bfloat16)
    for batch in batches:
        pipeline = FusedPipeline(
            _policy(),
            (32, 32),
            data.device,
            seed,
            before=(PadCrop(4), HorizontalFlip()),
            after=(RandomErasing(), normalize),
            dtype=torch.bfloat16,
            channels_last=True,
        )
        ids = torch.randperm(_IMAGES, device="cuda")[:batch].contiguous()
        out = torch.empty(batch, 3, 32, 32, dtype=torch.bfloat16, device="cuda", memory_format=torch.channels_last)
        times = milliseconds(as_graph(partial(_next_epoch, pipeline, data, ids, ids, out)))
        yield _row("fused, 32x32, 3 ops + crop, flip, erase, normalise", batch, times, 3072 * 3, bandwidth)


def large_rows(batches: Iterable[int], bandwidth: float, seed: int) -> Iterator[dict[str, Any]]:
    """Time the ops alone at 224x224."""
    for batch in batches:
        coarse = torch.rand(batch, 3, 28, 28, device="cuda") * 255
        data = torch.nn.functional.interpolate(coarse, size=(224, 224), mode="bilinear").to(torch.uint8)
        pipeline = FusedPipeline(_policy(), (224, 224), data.device, seed)
        ids = torch.arange(batch, device="cuda")
        out = torch.empty_like(data)
        times = milliseconds(as_graph(partial(_next_epoch, pipeline, data, ids, None, out)))
        yield _row("fused, 224x224, 3 ops", batch, times, 2 * 3 * 224 * 224, bandwidth)


def torchvision_rows(bandwidth: float) -> Iterator[dict[str, Any]]:
    """Time torchvision v2 on the GPU, where it is installed: one draw for a whole batch, and one draw per image."""
    transform = torchvision_transform()
    if transform is None:
        return
    for size, batch in ((32, 128), (32, 8192), (224, 64)):
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device="cuda")
        times = milliseconds(partial(transform, images), 20, 3)
        name = f"torchvision v2, {size}x{size}, 3 ops, ONE draw for the whole batch"
        yield _row(name, batch, times, 2 * 3 * size * size, bandwidth)
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    times = milliseconds(lambda: [transform(image) for image in images], 5, 1)
    yield _row("torchvision v2, 32x32, 3 ops, one draw per image (loop)", 64, times, 2 * 3072, bandwidth)


def _policy() -> RandAugment:
    return RandAugment(n=3, m=9, ops=TIMM_OPS)


def _next_epoch(pipeline: FusedPipeline, images: Tensor, ids: Tensor, index: Tensor | None, out: Tensor) -> None:
    pipeline.epoch.add_(1)
    pipeline(images, ids, index=index, out=out)


def _row(name: str, batch: int, times: list[float], moved: int, bandwidth: float) -> dict[str, Any]:
    quartiles = statistics.quantiles(times, n=4, method="inclusive")
    median = statistics.median(times)
    floor = moved * batch / bandwidth * 1e3
    return {
        "name": name,
        "batch": batch,
        "images_per_second": round(batch / median * 1e3),
        "low": round(batch / quartiles[2] * 1e3),
        "high": round(batch / quartiles[0] * 1e3),
        "microseconds": round(median * 1e3, 2),
        "floor_microseconds": round(floor * 1e3, 2),
        "fraction_of_floor": round(floor / median, 4),
    }
