"""How far apart are the two ways to measure held-out samples? MNIST in three tints, where ops change colours.

    python research/two_measures.py --data DIR --seed 0

WRN-10-1 on the core's task, with the default filter. Each step's losses, with the statistics of the held-out samples
and with batch norm's averages, go to ``results/two-measures-SEED.json``, beside the training loss.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from common import write  # noqa: E402
from proving_tasks import ARMS, TASKS  # noqa: E402

import particleaugment as pa  # noqa: E402
from particleaugment.search.filter_base import Subject  # noqa: E402
from particleaugment.search.plain_losses import evaluation_mode, own_statistics  # noqa: E402
from particleaugment.training.override import override  # noqa: E402

TASK = TASKS["mnist-tints-2000"]
SMALLER = ("model=wrn-10-1", "compile=false", "precision=bf16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory with the data sets, as for the proving ground")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows: list[dict[str, float]] = []

    def measured_twice(subject: Subject) -> torch.Tensor:
        assert subject.split is not None
        found = {}
        for name, mode in (("averages", evaluation_mode), ("own_statistics", own_statistics)):
            with mode(subject.trainee.model):
                found[name] = subject.trainee.losses(subject.split[1])
        means = {name: round(float(losses.mean()), 4) for name, losses in found.items()}
        rows.append(means | {"training": round(subject.training_loss or 0.0, 4)})
        return found["own_statistics"]  # as the filter did before it measured twice

    config = override(TASK.config(ARMS["difficulty"].settings(TASK.size), arguments.seed, arguments.data), SMALLER)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("particleaugment.search.difficulty.held_out_losses", measured_twice),
    ):
        records = pa.train(config, Path(folder) / "run", quiet=True).read_metrics()
    accuracy = [record["test_accuracy"] for record in records if record["kind"] == "epoch"][-1]
    for row, record in zip(rows, (record for record in records if record["kind"] == "filter")):
        row |= {"epoch": record["epoch"], "strength": round(record["strength"], 3)}
    write(f"two-measures-{arguments.seed}", {"accuracy": accuracy, "steps": rows}, arguments.seed, HERE / "results")


if __name__ == "__main__":
    main()
