"""Time the compiled CPU executor on 1, 2, 4, … threads, drawing included: ``python benchmarks/cpu_threads.py``.

RandAugment with three ops on uint8 batches, as in ``cpu_throughput.py``. On 16 threads it should be ten times as fast
as on one.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from common import result, table, write

from particleaugment.bench.cpu import augmentation, generated_images, threads_restored
from particleaugment.util.timing import rate, seconds

SETTINGS = {32: 1024, 224: 128}
REQUIRED = {16: 10.0}


def scaling(size: int, batch: int, counts: list[int], repeats: int, seed: int) -> list[dict[str, Any]]:
    """Time all numbers of threads in turns, so that other load on the machine meets them alike."""
    work = augmentation(generated_images(size, batch, seed), "native", seed)
    times: dict[int, list[float]] = {threads: [] for threads in counts}
    with threads_restored():
        for _ in range(5):
            for threads in counts:
                torch.set_num_threads(threads)
                times[threads] += seconds(work, repeats)
    rates = {threads: rate(batch, times[threads]) for threads in counts}
    one = rates[1]["median"]
    return [
        {
            "size": size,
            "batch": batch,
            "threads": threads,
            "images_per_second": found,
            "times_one_thread": round(found["median"] / one, 2),
            "required": REQUIRED.get(threads),
        }
        for threads, found in rates.items()
    ]


def threads_table() -> str:
    """Return the rates as a table of docs/speed.md."""
    document = result("cpu_threads")
    rows = (
        [
            f"{row['size']}x{row['size']}, batches of {row['batch']:,}",
            str(row["threads"]),
            f"{row['images_per_second']['median']:,.0f}",
            f"{row['times_one_thread']:.2f}",
        ]
        for row in document["results"]
    )
    machine = document["machine"]
    text = table(["images", "threads", "images/s", "times one thread"], rows)
    return f"{text}\n\n{machine['cpu']}, {machine['cores']} cores. Command: `{document['command']}`."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = [threads for threads in (1, 2, 4, 8, 16, 32) if threads <= (os.cpu_count() or 1)]
    results = []
    for size, batch in SETTINGS.items():
        results += scaling(size, batch, counts, arguments.repeats, arguments.seed)
    for row in results:
        print(
            f"{row['size']}x{row['size']}, batches of {row['batch']}, {row['threads']} threads: "
            f"{row['images_per_second']['median']:,.0f}/s, {row['times_one_thread']} times one thread"
        )
    write("cpu_threads", results, arguments.seed)


if __name__ == "__main__":
    main()
