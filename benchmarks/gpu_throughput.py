"""GPU throughput of the fused kernel, beside torchvision v2 and timm, in one run on one machine.

    python benchmarks/gpu_throughput.py

32x32: three random ops per image plus crop, flip, erasing and normalisation to bfloat16 channels-last, drawing
included, timed as replays of a CUDA graph. 224x224: three random ops, uint8 to uint8. The floor is the time to read the
input and write the output once at the copy bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import write

import particleaugment as pa
from particleaugment.executors.fused import FusedPipeline

POLICY = pa.RandAugment(n=3, m=9, ops=pa.parse("rand-m9-n3-inc1").ops)  # type: ignore[attr-defined]


def milliseconds(work: Callable[[], object], repeats: int = 30, inner: int = 10) -> list[float]:
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
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (statistics.median(milliseconds(lambda: target.copy_(source), 10, 3)) / 1e3)


def row(name: str, batch: int, times: list[float], moved: int, bandwidth: float) -> dict[str, Any]:
    quartiles = statistics.quantiles(times, n=4)
    median = statistics.median(times)
    floor = moved * batch / bandwidth * 1e3
    result = {
        "name": name,
        "batch": batch,
        "images_per_second": round(batch / median * 1e3),
        "low": round(batch / quartiles[2] * 1e3),
        "high": round(batch / quartiles[0] * 1e3),
        "microseconds": round(median * 1e3, 2),
        "floor_microseconds": round(floor, 2),
        "fraction_of_floor": round(floor / median, 4),
    }
    print(
        f"{name:<58} batch {batch:>5}: {result['images_per_second']:>12,} images/s  ({median * 1e3:8.1f} us)",
        flush=True,
    )
    return result


def small(batches: list[int], bandwidth: float, seed: int) -> list[dict[str, Any]]:
    data = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, device="cuda")
    rows = []
    for batch in batches:
        pipeline = FusedPipeline(
            POLICY, (32, 32), data.device, seed, before=(pa.PadCrop(4), pa.HorizontalFlip()),
            after=(pa.RandomErasing(), pa.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), torch.bfloat16)),
            dtype=torch.bfloat16, channels_last=True,
        )  # fmt: skip
        ids = torch.randperm(50_000, device="cuda")[:batch].contiguous()
        out = torch.empty(batch, 3, 32, 32, dtype=torch.bfloat16, device="cuda", memory_format=torch.channels_last)

        def step(pipeline: FusedPipeline = pipeline, ids: torch.Tensor = ids, out: torch.Tensor = out) -> None:
            pipeline.epoch.add_(1)
            pipeline(data, ids, index=ids, out=out)

        times = milliseconds(as_graph(step))
        rows.append(row("fused, 32x32, 3 ops + crop, flip, erase, normalise", batch, times, 3072 * 3, bandwidth))
    return rows


def large(batches: list[int], bandwidth: float, seed: int) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        coarse = torch.rand(batch, 3, 28, 28, device="cuda") * 255
        data = torch.nn.functional.interpolate(coarse, size=(224, 224), mode="bilinear").to(torch.uint8)
        pipeline = FusedPipeline(POLICY, (224, 224), data.device, seed)
        ids = torch.arange(batch, device="cuda")
        out = torch.empty_like(data)

        def step(pipeline: FusedPipeline = pipeline, data: torch.Tensor = data, ids: torch.Tensor = ids,
                 out: torch.Tensor = out) -> None:  # fmt: skip
            pipeline.epoch.add_(1)
            pipeline(data, ids, out=out)

        times = milliseconds(as_graph(step))
        rows.append(row("fused, 224x224, 3 ops", batch, times, 2 * 3 * 224 * 224, bandwidth))
    return rows


def torchvision_rows(bandwidth: float) -> list[dict[str, Any]]:
    try:
        from torchvision.transforms import InterpolationMode, v2
    except (ImportError, RuntimeError):
        return []
    rows = []
    transform = v2.RandAugment(3, 9, interpolation=InterpolationMode.BILINEAR, fill=[128.0])
    for size, batch in ((32, 128), (32, 8192), (224, 64)):
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device="cuda")
        times = milliseconds(partial(transform, images), 20, 3)
        name = f"torchvision v2, {size}x{size}, 3 ops, ONE draw for the whole batch"
        rows.append(row(name, batch, times, 2 * 3 * size * size, bandwidth))
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    times = milliseconds(lambda: [transform(image) for image in images], 5, 1)
    rows.append(row("torchvision v2, 32x32, 3 ops, one draw per image (loop)", 64, times, 2 * 3072, bandwidth))
    return rows


def timm_rows() -> list[dict[str, Any]]:
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError):
        return []
    import numpy as np
    from PIL import Image

    rows = []
    transform = rand_augment_transform("rand-m9-n3-inc1-p1.0", {"interpolation": Image.Resampling.BILINEAR})
    for size, batch in ((32, 512), (224, 64)):
        generator = np.random.default_rng(0)
        pictures = [Image.fromarray(generator.integers(0, 256, (size, size, 3), dtype=np.uint8)) for _ in range(batch)]
        times = []
        for _ in range(8):
            start = time.perf_counter()
            for picture in pictures:
                transform(picture)
            times.append((time.perf_counter() - start) * 1e3)
        result = {"name": f"timm, {size}x{size}, 3 ops, one CPU core", "batch": batch}
        result["images_per_second"] = round(batch / statistics.median(times) * 1e3)
        print(f"{result['name']:<58} batch {batch:>5}: {result['images_per_second']:>12,} images/s", flush=True)
        rows.append(result)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="our own rows only, nothing written")
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s (read and written)")
    rows = small([128, 512, 2048, 8192, 32768], bandwidth, arguments.seed)
    rows += large([64, 256, 1024], bandwidth, arguments.seed)
    if arguments.quick:
        return
    rows += torchvision_rows(bandwidth) + timm_rows()
    required = {"32x32 batch 8192": 20_000_000, "32x32 batch 128": 2_000_000, "224x224 batch 64 or more": 500_000}
    write(
        "gpu_throughput", {"bandwidth_bytes_per_second": bandwidth, "required": required, "rows": rows}, arguments.seed
    )


if __name__ == "__main__":
    main()
