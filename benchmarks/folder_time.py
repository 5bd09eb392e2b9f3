"""How long ``particleaugment train folder`` takes, and its share for the filter, on a folder of images.

    python benchmarks/folder_time.py --data DIR

DIR has one sub-folder per class, in ``train`` and ``test`` or by itself. The recipe sees about 60,000 images whatever
their number, up to 3,000 images, so one folder of at most that many stands for all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import write

from particleaugment.report.summary import phase_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--train-size", default="1000")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    settings = ["--set", f"train_size={arguments.train_size}", "--set", "device=cpu"]
    words = ["train", "folder", "--seed", str(arguments.seed), *settings]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        start = time.perf_counter()
        train = [sys.executable, "-m", "particleaugment", *words, "--set", f"data_dir={arguments.data}"]
        subprocess.run([*train, "--out", str(out)], check=True)
        wall = time.perf_counter() - start
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        config = json.loads((out / "config.json").read_text())
    last = [record for record in records if record["kind"] == "epoch"][-1]
    row = {
        "command": " ".join(["particleaugment", *words, "--set", "data_dir=DIR"]),
        "cores": len(os.sched_getaffinity(0)),
        "epochs": config["training"]["epochs"],
        "train_size": arguments.train_size,
        "test_accuracy_last_epoch": last["test_accuracy"],
        "wall_seconds": round(wall, 1),
        "seconds": {phase: round(value, 1) for phase, value in phase_seconds(records).items()},
    }
    write("folder_time", [row], arguments.seed)


if __name__ == "__main__":
    main()
