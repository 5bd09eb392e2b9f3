"""Every executor's pixels beside direct calls of Pillow, on as many images as asked for.

    python benchmarks/exactness.py --images 1000000

The images, arguments and programs are those of tests/exact, drawn from another seed: every op alone with every filter,
its special arguments first, then random ones; and chains of one to six random ops on colour and grey images. Every
image also goes alone through the compiled loops, as in a loader's worker.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "exact"))

from cases import EXECUTORS as ON_CPU  # type: ignore[import-not-found]
from cases import GEOMETRIC, ONE_BY_ONE, SIZES, Tally, chains, names_for, singles

EXECUTORS = (*ON_CPU, ONE_BY_ONE)
SINGLES = dict(zip(SIZES, (400, 400, 400, 400, 60, 6)))
CHAINS = dict(zip(SIZES, (800, 800, 1600, 1600, 200, 6)))


def cases(seed: int) -> Iterator[Any]:
    """Yield cases without end; every round has all ops, filters and sizes, and draws anew."""
    while True:
        for size in SIZES:
            for name in names_for(*size):
                for code in range(3) if name in GEOMETRIC else (1,):
                    yield singles(name, code, *size, SINGLES[size], seed=seed)
            for slots in range(1, 7):
                for channels in (3, 1):
                    count = CHAINS[size] if channels == 3 else CHAINS[size] // 3
                    yield chains(*size, slots=slots, count=count, seed=seed, channels=channels)
        seed += 1


def main() -> int:
    """Compare, say how many images agreed, and return 1 if one did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000, help="compare at least this many images")
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    tally, failures = Tally(), []
    ops: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    start = said = time.perf_counter()
    for case in cases(options.seed):
        if tally.images >= options.images:
            break
        try:
            tally.check(case, *EXECUTORS)
        except AssertionError as error:
            failures.append(str(error))
            print(error, flush=True)
        ops.update(name for row in case.names for name in row)
        sizes["x".join(str(side) for side in case.images.shape[2:])] += len(case)
        if time.perf_counter() - said > 20:
            said = time.perf_counter()
            print(f"{said - start:5.0f} s: {tally}", flush=True)
    print(tally)
    results = {
        "images": tally.images,
        "differing": tally.differing,
        "compared_by_executor": dict(tally.executors),
        "ops_applied": dict(sorted(ops.items())),
        "images_by_size": dict(sizes),
        "failures": failures[:20],
        "seconds": round(time.perf_counter() - start, 1),
    }
    write("exactness", results, options.seed)
    return 1 if tally.differing else 0


if __name__ == "__main__":
    sys.exit(main())
