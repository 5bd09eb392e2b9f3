"""Seconds per epoch of training on a GPU, plain and with the filter, from the runs' own metrics.

    python benchmarks/gpu_training.py --data DIR

Trains each network with RandAugment, with the difficulty filter and with the paper's (25,600 samples of clone training,
50 particles x 512 measured) and takes the median over the epochs after the first four: 20 or more, unless --epochs says
otherwise. Evaluation on the test set is reported apart. Rows of networks that --models leaves out are kept if the same
machine made them; each row names its command. The epochs are timed by ``particleaugment.bench.training``.
"""

from __future__ import annotations

import argparse
import json

from common import command, earlier_rows, write
from training_work import work

from particleaugment.bench.training import POLICIES, time_run

REQUIRED = {("wrn-28-2", "randaugment"): 1.12, ("wrn-28-2", "particles"): 1.85,
            ("wrn-28-10", "randaugment"): 4.7, ("wrn-28-10", "particles"): 8.2}  # fmt: skip
RECIPES = {"wrn-28-2": "cifar10-wrn28-2", "wrn-28-10": "cifar10-wrn28-10"}
WARM_UP = 4
EPOCHS = WARM_UP + 21  # the last epoch has no filter step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--models", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.epochs < WARM_UP + 2:
        parser.error(f"--epochs must be at least {WARM_UP + 2}: the first {WARM_UP} are not counted")
    results = [
        row
        for row in earlier_rows("gpu_training", arguments.seed)
        if row["model"] not in arguments.models or row["policy"] not in arguments.policies
    ]
    for model in arguments.models:
        settings = [f"data_dir={arguments.data}", f"epochs={arguments.epochs}"]
        for label in arguments.policies:
            row, config = time_run(RECIPES[model], label, settings, arguments.seed, WARM_UP, quiet=False)
            row |= work(config, row["phases"]) | {
                "required_seconds": REQUIRED.get((model, label)),
                "command": command(),
            }
            print(json.dumps(row), flush=True)
            results.append(row)
            write("gpu_training", results, arguments.seed)


if __name__ == "__main__":
    main()
