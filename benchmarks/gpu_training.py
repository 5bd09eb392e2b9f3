"""Seconds per epoch of training on a GPU, plain and with the filter, from the runs' own metrics.

    python benchmarks/gpu_training.py --data DIR --epochs 24

Trains each network with RandAugment and with ParticleAugment (25,600 samples of clone training, 50 particles x 512
measured) and takes the median over the epochs after the first four. Evaluation on the test set is reported apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import write

# Forward multiply-adds of one 32x32 image, twice (multiply and add), times three for forward and backward.
FLOP_PER_SAMPLE = {"wrn-28-2": 6 * 0.2167e9, "wrn-28-10": 6 * 5.2348e9}
REQUIRED = {("wrn-28-2", "randaugment"): 1.12, ("wrn-28-2", "particles"): 1.85,
            ("wrn-28-10", "randaugment"): 4.7, ("wrn-28-10", "particles"): 8.2}  # fmt: skip
RECIPES = {"wrn-28-2": "cifar10-wrn28-2", "wrn-28-10": "cifar10-wrn28-10"}


def train(recipe: str, data: str, epochs: int, policy: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train in a process of its own and return times per phase."""
    out = folder / f"{recipe}-{policy}"
    settings = [f"data_dir={data}", f"epochs={epochs}", f"policy={policy}"]
    command = [sys.executable, "-m", "particleaugment", "train", recipe, "--out", str(out), "--seed", str(seed)]
    start = time.perf_counter()
    subprocess.run([*command, *(part for setting in settings for part in ("--set", setting))], check=True)
    wall = time.perf_counter() - start
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    phases: dict[str, list[float]] = {}
    for record in records:
        if record["epoch"] > 4:
            for phase, value in record["seconds"].items():
                if phase != "resumes":
                    phases.setdefault(phase, []).append(value)
    medians = {phase: statistics.median(values) for phase, values in phases.items()}
    epoch = sum(value for phase, value in medians.items() if phase != "evaluate")
    last = [record for record in records if record["kind"] == "epoch"][-1]
    return {"seconds_per_epoch": round(epoch, 4), "phases": medians, "wall_seconds": round(wall, 1),
            "test_accuracy": last["test_accuracy"], "epochs": epochs}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--models", nargs="*", default=["wrn-28-2", "wrn-28-10"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            for label, policy in (("randaugment", "randaugment-n3-m4"), ("particles", "particles")):
                row = train(RECIPES[model], arguments.data, arguments.epochs, policy, arguments.seed, Path(folder))
                row |= {"model": model, "policy": label, "required_seconds": REQUIRED[model, label]}
                row["training_tflops"] = round(50_000 * FLOP_PER_SAMPLE[model] / row["phases"]["train"] / 1e12, 1)
                print(json.dumps(row), flush=True)
                results.append(row)
                write("gpu_training", results, arguments.seed)


if __name__ == "__main__":
    main()
