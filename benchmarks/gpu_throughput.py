"""GPU throughput of the fused kernel, beside torchvision v2 and timm, in one run on one machine.

    python benchmarks/gpu_throughput.py

What exactly is timed is in ``particleaugment.bench.gpu``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from common import write
from PIL import Image

from particleaugment.bench.cpu import each
from particleaugment.bench.gpu import copy_bandwidth, large_rows, small_rows, torchvision_rows
from particleaugment.bench.peers import timm_transform
from particleaugment.bench.suite import FULL
from particleaugment.util.timing import rate, seconds

REQUIRED = {"32x32 batch 8192": 20_000_000, "32x32 batch 128": 2_000_000, "224x224 batch 64 or more": 500_000}


def timm_rows() -> Iterator[dict[str, Any]]:
    """Time timm, where it is installed, on one core of this machine."""
    transform = timm_transform()
    if transform is None:
        return
    for size, batch in ((32, 512), (224, 64)):
        generator = np.random.default_rng(0)
        pictures = [Image.fromarray(generator.integers(0, 256, (size, size, 3), dtype=np.uint8)) for _ in range(batch)]
        found = rate(batch, seconds(partial(each, transform, pictures), 8))
        yield {
            "name": f"timm, {size}x{size}, 3 ops, one CPU core",
            "batch": batch,
            "images_per_second": round(found["median"]),
            "low": round(found["low"]),
            "high": round(found["high"]),
        }


def printed(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        rate = f"{row['images_per_second']:>12,} images/s"
        bound = f"  ({row['microseconds']:8.1f} us)" if "microseconds" in row else ""
        print(f"{row['name']:<58} batch {row['batch']:>5}: {rate}{bound}", flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="our own rows only, nothing written")
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s (read and written)")
    ours = chain(
        small_rows(FULL.gpu_batches[32], bandwidth, arguments.seed),
        large_rows(FULL.gpu_batches[224], bandwidth, arguments.seed),
    )
    rows = list(printed(ours))
    if arguments.quick:
        return
    rows += printed(chain(torchvision_rows(bandwidth), timm_rows()))
    results = {"bandwidth_bytes_per_second": bandwidth, "required": REQUIRED, "rows": rows}
    write("gpu_throughput", results, arguments.seed)


if __name__ == "__main__":
    main()
