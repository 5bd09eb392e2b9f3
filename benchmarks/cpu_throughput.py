"""CPU throughput of RandAugment with three ops, beside timm's own transform, in one run on one machine.

    python benchmarks/cpu_throughput.py

Where timm cannot be imported (it needs torchvision), Pillow is called just as timm's op functions call it, and the
result says so. The measurement itself is ``particleaugment.bench.cpu``.
"""

from __future__ import annotations

import argparse

from common import write

from particleaugment.bench.cpu import beside_timm, compilation_seconds

SETTINGS = {32: 512, 224: 64}
REQUIRED = {32: 5.0, 224: 2.0}
SCALING = 1.7


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
