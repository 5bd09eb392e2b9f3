"""Time the compiled CPU executor on 1, 2, 4, … threads, drawing included: ``python benchmarks/cpu_threads.py``.

RandAugment with three ops on uint8 batches, as in ``cpu_throughput.py``. On 16 threads it should be ten times as fast
as on one. Cores share caches, clock and often arithmetic units, so the same work is also timed in as many processes of
one thread each, which share nothing else: threads cannot do better than that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from typing import Any

import torch
from common import result, table, write

from particleaugment.bench.cpu import augmentation, generated_images, threads_restored
from particleaugment.util.timing import rate, seconds

SETTINGS = {32: 1024, 224: 128}
REQUIRED = {16: 10.0}
TOGETHER_SECONDS = 1.0


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
    together = round(processes_rate(counts[-1], size, batch, seed) / one, 2)
    return [
        {
            "size": size,
            "batch": batch,
            "threads": threads,
            "images_per_second": found,
            "times_one_thread": round(found["median"] / one, 2),
            "processes_times_one": together if threads == counts[-1] else None,
            "required": REQUIRED.get(threads),
        }
        for threads, found in rates.items()
    ]


def processes_rate(count: int, size: int, batch: int, seed: int) -> float:
    """Return the images per second of all processes together, each with one thread and a batch of its own."""
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(count)
    with context.Pool(count, _share, (begin,)) as pool:
        return sum(pool.starmap(_rate_of_one, [(size, batch, seed)] * count, chunksize=1))


def _share(begin: Any) -> None:
    global _begin
    _begin = begin


def _rate_of_one(size: int, batch: int, seed: int) -> float:
    torch.set_num_threads(1)
    work = augmentation(generated_images(size, batch, seed), "native", seed)
    work()
    _begin.wait()
    start, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < TOGETHER_SECONDS:
        work()
        calls += 1
    return batch * calls / passed


_begin: Any = None


def threads_table() -> str:
    """Return the rates as a table of docs/speed.md."""
    document = result("cpu_threads")
    rows = (
        [
            f"{row['size']}x{row['size']}, batches of {row['batch']:,}",
            str(row["threads"]),
            f"{row['images_per_second']['median']:,.0f}",
            f"{row['times_one_thread']:.2f}",
            "" if row["processes_times_one"] is None else f"{row['processes_times_one']:.2f}",
        ]
        for row in document["results"]
    )
    machine = document["machine"]
    text = table(["images", "threads", "images/s", "times one thread", "as many processes, times one thread"], rows)
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
            f"{'' if (most := row['processes_times_one']) is None else f', as many processes {most}'}"
        )
    write("cpu_threads", results, arguments.seed)


if __name__ == "__main__":
    main()
