"""The cifar10-quick recipe on real CIFAR-10, beside the same run with no policy and with TrivialAugment.

    python benchmarks/cifar10_quick.py --data DIR

One seed each: a spread of a few tenths of a point between seeds is to be expected, so this shows cost and order of
magnitude, not which policy is better.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import write

from particleaugment.report.summary import filter_health, phase_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for policy in ("particles", "none", "trivial"):
            out = Path(folder) / policy
            command = ["train", "cifar10-quick", "--seed", str(arguments.seed), "--set", f"policy={policy}"]
            start = time.perf_counter()
            where = ["--set", f"data_dir={arguments.data}", "--out", str(out)]
            subprocess.run([sys.executable, "-m", "particleaugment", *command, *where], check=True)
            records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            last = [record for record in records if record["kind"] == "epoch"][-1]
            results.append(
                {
                    "policy": policy,
                    "command": " ".join(["particleaugment", *command, "--set", "data_dir=DIR"]),
                    "test_accuracy_last_epoch": last["test_accuracy"],
                    "wall_seconds": round(time.perf_counter() - start, 1),
                    "seconds": {phase: round(value, 1) for phase, value in phase_seconds(records).items()},
                    "filter": filter_health(records),
                }
            )
            write("cifar10_quick", results, arguments.seed)


if __name__ == "__main__":
    main()
