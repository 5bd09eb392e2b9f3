"""The cifar10-quick recipe on real CIFAR-10, with two filters, with no policy and with TrivialAugment.

    python benchmarks/cifar10_quick.py --data DIR

Each run has two cores to itself. One seed each: a spread of a few tenths of a point between seeds is to be expected,
so this shows cost and order of magnitude, not which policy is better.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from common import command, earlier_rows, write
from old_names import OLD_ARMS

from particleaugment.report.summary import filter_health, phase_seconds

CORES = 2
POLICIES = {
    "difficulty": ("--set", "filter=difficulty"),
    "paper": ("--set", "filter=paper"),
    "none": ("--set", "policy=none"),
    "trivial": ("--set", "policy=trivial"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES), help="the other rows are kept"
    )
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time, each on two cores of its own")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        slots: Queue[int] = Queue()
        for slot in range(arguments.at_once):
            slots.put(slot)
        runs = [pool.submit(run, policy, arguments, Path(folder), slots) for policy in arguments.policies]
        measured = [finished.result() for finished in runs]
        known = (*earlier_rows("cifar10_quick", arguments.seed), *measured)
        rows = {OLD_ARMS.get(row["policy"], row["policy"]): row for row in known}
        order = dict.fromkeys((*POLICIES, *rows))
        write("cifar10_quick", [rows[policy] for policy in order if policy in rows], arguments.seed)


def run(policy: str, arguments: argparse.Namespace, folder: Path, slots: Queue[int]) -> dict[str, Any]:
    slot, out = slots.get(), folder / policy
    cores = sorted(os.sched_getaffinity(0))[CORES * slot : CORES * (slot + 1)]
    train = ["train", "cifar10-quick", "--seed", str(arguments.seed), *POLICIES[policy]]
    where = ["--set", f"data_dir={arguments.data}", "--set", "device=cpu", "--out", str(out)]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "particleaugment", *train, *where],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": str(len(cores))},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    wall = time.perf_counter() - start
    slots.put(slot)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "epoch"][-1]
    return {
        "policy": policy,
        "benchmark": command(),
        "command": " ".join(["particleaugment", *train, "--set", "data_dir=DIR"]),
        "cores": len(cores),
        "test_accuracy_last_epoch": last["test_accuracy"],
        "wall_seconds": round(wall, 1),
        "seconds": {phase: round(value, 1) for phase, value in phase_seconds(records).items()},
        "filter": filter_health(records),
    }


if __name__ == "__main__":
    main()
