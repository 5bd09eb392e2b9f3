"""CPU throughput of RandAugment with three ops, beside timm's own transform, in one run on one machine.

    python benchmarks/cpu_throughput.py

Both draw and apply three of timm's fifteen ops per image (level 9, increasing severity, bilinear). timm works on PIL
images that are ready in memory; ours on a uint8 batch. Where timm cannot be imported (it needs torchvision), Pillow is
called just as timm's op functions call it, and the result says so.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import rate, seconds, write
from PIL import Image, ImageEnhance, ImageOps

import particleaugment as pa
from particleaugment.policies.parse import TIMM_OPS

FILL = (128, 128, 128)
SETTINGS = {32: 512, 224: 64}
REQUIRED = {32: 5.0, 224: 2.0}
SCALING = 1.7


def timm_transform() -> tuple[Callable[[Image.Image], Image.Image], str]:
    """Return timm's RandAugment, or the same Pillow calls."""
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError):
        return pillow_as_timm, "Pillow called as timm's op functions call it (timm itself cannot be imported here)"
    hparams = {"img_mean": FILL, "interpolation": Image.Resampling.BILINEAR}
    return rand_augment_transform("rand-m9-n3-inc1-p1.0", hparams), "timm"


def pillow_as_timm(image: Image.Image) -> Image.Image:
    """Three ops drawn and applied by the Pillow calls that timm makes."""
    generator = random  # timm draws from the global generators
    for name in generator.choices(TIMM_OPS, k=3):
        sign = -1.0 if generator.random() > 0.5 else 1.0
        image = _timm_op(image, name, sign)
    return image


def _timm_op(image: Image.Image, name: str, sign: float) -> Image.Image:
    affine: dict[str, Any] = {"resample": Image.Resampling.BILINEAR, "fillcolor": FILL}
    width, height = image.size
    match name:
        case "AutoContrast":
            return ImageOps.autocontrast(image)
        case "Equalize":
            return ImageOps.equalize(image)
        case "Invert":
            return ImageOps.invert(image)
        case "Rotate":
            return image.rotate(27.0 * sign, **affine)
        case "Posterize":
            return ImageOps.posterize(image, 1)
        case "Solarize":
            return ImageOps.solarize(image, 26)
        case "SolarizeAdd":
            table = [min(255, value + 99) if value < 128 else value for value in range(256)]
            return image.point(table * 3)
        case "ShearX":
            matrix: tuple[float, ...] = (1, 0.27 * sign, 0, 0, 1, 0)
        case "ShearY":
            matrix = (1, 0, 0, 0.27 * sign, 1, 0)
        case "TranslateX":
            matrix = (1, 0, 0.405 * sign * width, 0, 1, 0)
        case "TranslateY":
            matrix = (1, 0, 0, 0, 1, 0.405 * sign * height)
        case _:
            enhance = getattr(ImageEnhance, name)
            return enhance(image).enhance(max(0.1, 1.0 + 0.81 * sign))  # type: ignore[no-any-return]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **affine)


def measure(size: int, batch: int, repeats: int, seed: int) -> dict[str, Any]:
    """Time timm and ours on one batch."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 256, (batch, 3, size // 4, size // 4), generator=generator).float()
    images = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear").to(torch.uint8)
    pictures = [Image.fromarray(np.asarray(image.permute(1, 2, 0))) for image in images]
    policy = pa.RandAugment(n=3, m=9, ops=TIMM_OPS)
    ids = torch.arange(batch)
    epoch = 0

    def ours() -> None:
        nonlocal epoch
        epoch += 1
        pa.apply(images, policy.sample(ids, epoch, seed, (size, size)))

    transform, peer = timm_transform()
    random.seed(seed)
    torch.set_num_threads(1)
    start = time.perf_counter()
    ours()
    first_call = time.perf_counter() - start
    rows: dict[str, Any] = {"size": size, "batch": batch, "peer": peer, "first_call_seconds": round(first_call, 2)}
    # Interleaved rounds, so that other load on the machine meets both alike.
    timm_times: list[float] = []
    our_times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(5):
        timm_times += seconds(lambda: [transform(picture) for picture in pictures], max(1, repeats // 5))
        for threads in (1, 2):
            torch.set_num_threads(threads)
            our_times[threads] += seconds(ours, repeats)
    torch.set_num_threads(1)
    rows["timm"] = rate(batch, timm_times)
    rows["ours_1_thread"] = rate(batch, our_times[1])
    rows["ours_2_threads"] = rate(batch, our_times[2])
    rows["ratio_1_thread"] = round(rows["ours_1_thread"]["median"] / rows["timm"]["median"], 2)
    rows["scaling_2_threads"] = round(rows["ours_2_threads"]["median"] / rows["ours_1_thread"]["median"], 2)
    rows["required_ratio"], rows["required_scaling"] = REQUIRED[size], SCALING
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
    results = [measure(size, batch, arguments.repeats, arguments.seed) for size, batch in SETTINGS.items()]
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
