"""CPU throughput of RandAugment with three ops, beside timm's own transform, in one run on one machine.

    python benchmarks/cpu_throughput.py

Where timm cannot be imported (it needs torchvision), Pillow is called just as timm's op functions call it, and the
result says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from common import write
from pillow_as_timm import pillow_as_timm

from particleaugment.bench.cpu import augmentation, each, generated_images, pictures_of, threads_restored
from particleaugment.bench.peers import timm_transform
from particleaugment.util.timing import rate, seconds

SETTINGS = {32: 512, 224: 64}
REQUIRED = {32: 5.0, 224: 2.0}
SCALING = 1.7


def beside_timm(size: int, batch: int, repeats: int, seed: int) -> dict[str, Any]:
    """Time timm, or its Pillow calls, and the CPU's own executor on one and two threads."""
    images = generated_images(size, batch, seed)
    pictures = pictures_of(images)
    ours = augmentation(images, "auto", seed)
    timm = timm_transform()
    peer = "timm" if timm else "Pillow called as timm's op functions call it (timm was not installed)"
    with threads_restored():
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
            timm_times += seconds(lambda: each(timm or pillow_as_timm, pictures), max(1, repeats // 5))
            for threads in (1, 2):
                torch.set_num_threads(threads)
                our_times[threads] += seconds(ours, repeats)
    rows["timm"] = rate(batch, timm_times)
    rows["ours_1_thread"] = rate(batch, our_times[1])
    rows["ours_2_threads"] = rate(batch, our_times[2])
    rows["ratio_1_thread"] = round(rows["ours_1_thread"]["median"] / rows["timm"]["median"], 2)
    rows["scaling_2_threads"] = round(rows["ours_2_threads"]["median"] / rows["ours_1_thread"]["median"], 2)
    return rows


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = []
    for size, batch in SETTINGS.items():
        required = {"required_ratio": REQUIRED[size], "required_scaling": SCALING}
        results.append(beside_timm(size, batch, arguments.repeats, arguments.seed) | required)
    results[0]["compilation_seconds"] = compilation_seconds()
    print(f"compilation, once on a machine: {results[0]['compilation_seconds']} s")
    for row in results:
        print(
            f"{row['size']}x{row['size']}: timm {row['timm']['median']:,.0f}/s, "
            f"ours {row['ours_1_thread']['median']:,.0f}/s on 1 thread ({row['ratio_1_thread']}x), "
            f"{row['ours_2_threads']['median']:,.0f}/s on 2 (x{row['scaling_2_threads']}); "
            f"first call {row['first_call_seconds']} s"
        )
    write("cpu_throughput", results, arguments.seed)


if __name__ == "__main__":
    main()
