"""The fused kernel against Pillow, pixel by pixel, and its draws against the CPU's.

    python benchmarks/gpu_exactness.py --pairs 1000000

Images, programs and the oracle (plain Pillow calls, run in many processes) are those of the exactness suite in
``tests/exact``. Prints and records how many (image, program) pairs were compared and how many differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "exact"))
import cases

import particleaugment as pa
from particleaugment.augment.pipeline import FusedPipeline

# (height, width): share of the pairs
SIZES = {(32, 32): 0.62, (17, 23): 0.14, (2, 3): 0.04, (1, 1): 0.01, (64, 48): 0.14, (96, 96): 0.04, (224, 224): 0.01}
POLICIES = (
    "rand-m9-n3-inc1", "rand-m9-n3-mstd0.5-inc1", "randaugment-n3-m4", "trivial", "trivial-standard",
    "autoaugment-cifar10", "original", "v0", "none",
)  # fmt: skip


def job(arguments: tuple[int, int, int, int, int]) -> Any:
    """Make a case and its expected pixels; runs in a worker process."""
    torch.set_num_threads(1)
    height, width, slots, count, seed = arguments
    case = cases.chains(height, width, slots, count, seed)
    return case, case.expected()


def jobs(pairs: int, seed: int) -> list[tuple[int, int, int, int, int]]:
    planned = []
    for number, ((height, width), share) in enumerate(SIZES.items()):
        batch = 2000 if height * width <= 4096 else 100
        for i in range(max(1, round(pairs * share / batch))):
            planned.append((height, width, 1 + i % 4, batch, seed + 1000 * number + i))
    return planned


def compare_pixels(pairs: int, seed: int, workers: int) -> dict[str, Any]:
    device = torch.device("cuda")
    tally: dict[str, Any] = {"pairs": 0, "fused_differing": 0, "batch_pairs": 0, "batch_differing": 0}
    by_size: dict[str, int] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, (case, expected) in enumerate(pool.map(job, jobs(pairs, seed))):
            images = torch.from_numpy(np.array(case.images)).to(device)
            program, wanted = case.program(), torch.from_numpy(expected).to(device)
            output = pa.apply(images, program, executor="fused", fill=case.fill)
            differing = (output != wanted).flatten(1).any(1)
            tally["pairs"] += len(case)
            size = "x".join(str(side) for side in case.images.shape[2:])
            by_size[size] = by_size.get(size, 0) + len(case)
            if bool(differing.any()):
                tally["fused_differing"] += int(differing.sum())
                i = int(differing.nonzero()[0])
                print("differs:", size, program.describe(i), program.resample[i].tolist(), flush=True)  # type: ignore[index]
            if number % 10 == 0:
                output = pa.apply(images, program, executor="batch", fill=case.fill)
                tally["batch_pairs"] += len(case)
                tally["batch_differing"] += int((output != wanted).flatten(1).any(1).sum())
    return tally | {"by_size": by_size}


def compare_draws(seed: int, count: int = 4096) -> dict[str, int]:
    """Count samples whose whole augmentation, draws included, differs between CPU and GPU."""
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    ids = torch.randperm(1 << 20, generator=torch.Generator().manual_seed(seed))[:count]
    before = (pa.PadCrop(4), pa.HorizontalFlip())
    generator = torch.Generator().manual_seed(seed)
    particles = pa.ParticlePolicy(torch.rand(50, 15, generator=generator), torch.rand(50, generator=generator), m=3)
    shuffled = pa.ParticlePolicy(particles.particles, particles.weights, m=3, order="random")
    policies = [(name, pa.parse(name)) for name in POLICIES] + [("particles", particles), ("random order", shuffled)]
    differing = {}
    for name, policy in policies:
        for dtype in (torch.uint8, torch.float32, torch.bfloat16, torch.float16):
            normalise = (pa.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), dtype),) if dtype != torch.uint8 else ()
            after = (pa.RandomErasing(), *normalise)
            on_cpu = pa.Augment(policy, seed, before=before, after=after)
            on_cpu.set_epoch(7)
            for channels_last in (False, True):
                pipeline = FusedPipeline(
                    policy, (32, 32), torch.device("cuda"), seed, before=before, after=after, dtype=dtype,
                    channels_last=channels_last,
                )  # fmt: skip
                pipeline.set_epoch(7)
                output = pipeline(images.cuda(), ids.cuda()).cpu()
                differs = (output != on_cpu(images, ids)).flatten(1).any(1)
                key = f"{name}, {str(dtype).removeprefix('torch.')}{', channels last' if channels_last else ''}"
                differing[key] = int(differs.sum())
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draws = compare_draws(arguments.seed)
    wrong = {name: count for name, count in draws.items() if count}
    print(f"draws: {len(draws)} pipelines x 4096 samples compared with the CPU, {len(wrong)} pipelines differ {wrong}")
    start = time.perf_counter()
    pixels = compare_pixels(arguments.pairs, arguments.seed, arguments.workers)
    print(
        f"pixels: {pixels['pairs']:,} (image, program) pairs compared with Pillow, {pixels['fused_differing']} differ "
        f"on fused, {pixels['batch_differing']} of {pixels['batch_pairs']:,} on batch; "
        f"{time.perf_counter() - start:.0f} s"
    )
    write("gpu_exactness", {"pixels": pixels, "draws_differing": draws}, arguments.seed)
    sys.exit(1 if wrong or pixels["fused_differing"] or pixels["batch_differing"] else 0)


if __name__ == "__main__":
    main()
