"""Is a network in training sure of its easiest held-out samples? On small tasks, at two ops per image throughout.

    python research/easiest_tenth.py --data DIR [--tasks small-tints-1000,small-cifar10-1200]

Every filter step's training loss, mean held-out loss, and loss of the easiest tenth of the held-out samples go to
``results/easiest-tenth.json``, beside the loss of chance. ``--table`` prints what next-filter.md has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from common import result, table, write  # noqa: E402
from proving_tasks import TASKS  # noqa: E402

import particleaugment as pa  # noqa: E402

DEFAULT = "small-tints-1000,small-turns-300,small-fashion-300,small-cifar10-300,small-cifar10-1200,small-cifar100-3000"
MOMENTS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def measured(task: str, seed: int, data: str) -> dict[str, Any]:
    """Train a task at strength 2, and return what each step measured."""
    rows: list[dict[str, float]] = []

    def look(losses: torch.Tensor, chance: float) -> bool:
        found = {"mean": float(losses.mean()), "easiest": float(losses.quantile(0.1)), "chance": chance}
        rows.append({name: round(value, 4) for name, value in found.items()})
        return False

    kept = ("filter=difficulty", "start=2.0", "speed=0.0")
    config = TASKS[task].config(kept, seed, data)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("particleaugment.search.difficulty.nothing_is_certain", look),
        patch("particleaugment.search.difficulty.BRAKE", 0.0),
    ):
        records = pa.train(config, Path(folder) / "run", quiet=True).read_metrics()
    steps = [record for record in records if record["kind"] == "filter" and record["held_out_loss"] is not None]
    for row, step in zip(rows, steps, strict=True):
        row |= {"done": round(step["epoch"] / config.training.epochs, 4), "training": round(step["training_loss"], 4)}
    accuracy = [record["test_accuracy"] for record in records if record["kind"] == "epoch"][-1]
    return {"task": task, "seed": seed, "accuracy": round(accuracy, 2), "steps": rows}


def easiest_table(runs: list[dict[str, Any]]) -> str:
    """Return mean held-out loss over chance, and the easiest tenth's loss over the mean, at some moments."""
    rows = []
    for run in runs:
        cells = [TASKS[run["task"]].title]
        for moment in MOMENTS:
            step = min(run["steps"], key=lambda row: abs(row["done"] - moment))
            near = abs(step["done"] - moment) < 0.02
            cells.append(f"{step['mean'] / step['chance']:.2f}, {step['easiest'] / step['mean']:.2f}" if near else "–")
        rows.append(cells)
    return table(["", *(f"after {moment:.0%}" for moment in MOMENTS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory with the data sets, as for the proving ground")
    parser.add_argument("--tasks", default=DEFAULT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print the table of the runs that there are")
    arguments = parser.parse_args()
    if not arguments.table:
        runs = [measured(task, arguments.seed, arguments.data) for task in arguments.tasks.split(",")]
        write("easiest-tenth", runs, arguments.seed, HERE / "results")
    print(easiest_table(result("easiest-tenth", HERE / "results")["results"]))


if __name__ == "__main__":
    main()
