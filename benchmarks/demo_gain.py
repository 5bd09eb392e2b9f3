"""What the learned policy is worth in the demo: `make demo` with several seeds.

    python benchmarks/demo_gain.py
    python benchmarks/demo_gain.py --seeds 0,1 --work runs/demo-gain

Both arms of a seed train side by side, as in the demo. Seeds that are in the result file are not trained again, as long
as the settings are the same; an interrupted run resumes with the same command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import RESULTS, write

from particleaugment.compare.arms import Base, parse_arms, parse_seeds
from particleaugment.compare.statistics import paired_difference
from particleaugment.recipes import get_recipe
from particleaugment.training.config import settings_of

NAME = "demo_gain"
RECIPE, ARMS = "digits", "none,learned:filter=difficulty"
SETTINGS = ("train_size=200", "batch_size=32", "epochs=100", "crop=0")


def demo_command(seeds: str, out: str) -> list[str]:
    """Return the words of the command that trains the demo's arms."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["compare", RECIPE, "--arms", ARMS, "--seeds", seeds, "--jobs", "2", *settings, "--out", out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--work", type=Path, default=Path("runs/demo-gain"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result file")
    arguments = parser.parse_args()
    trained = trained_settings()
    rows = earlier(arguments.results, trained)
    for seed in parse_seeds(arguments.seeds):
        if seed not in rows:
            rows[seed] = measured(seed, arguments.work)
            write(NAME, summary(rows, trained), seed=seed, folder=arguments.results)
    found = summary(rows, trained)
    print(f"learned minus none: {found['mean_difference']:+.2f} {found['interval']} points, {len(rows)} seeds")


def trained_settings() -> dict[str, Any]:
    """Return all settings of the learned arm's runs but the seed, as plain values."""
    config = parse_arms(ARMS)[1].config(Base.of(get_recipe(RECIPE), SETTINGS), seed=0)
    found: dict[str, Any] = json.loads(json.dumps(settings_of(config)))
    del found["seed"]
    return found


def earlier(folder: Path, settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the rows of the result file by seed; none where they were made with other settings."""
    path = folder / f"{NAME}.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    return {row["seed"]: row for row in results["runs"]} if results.get("settings") == settings else {}


def measured(seed: int, work: Path) -> dict[str, Any]:
    """Train both arms with a seed, in a folder of its own, and return what came out."""
    out = work / str(seed)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "particleaugment", *demo_command(str(seed), str(out))], check=True)
    runs = {run["arm"]: run for run in json.loads((out / "compare.json").read_text())["runs"]}
    accuracy = {arm: run["accuracy"][-1] for arm, run in runs.items()}
    return {
        "seed": seed,
        "accuracy": accuracy,
        "difference": round(accuracy["learned"] - accuracy["none"], 4),
        "ops_per_image": runs["learned"]["filter"]["ops_per_image"],
        "seconds": {arm: round(sum(run["seconds"].values()), 1) for arm, run in runs.items()},
        "wall_seconds": round(time.perf_counter() - start, 1),
    }


def summary(rows: dict[int, dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the result file holds: runs, mean difference, and its interval by Student's t."""
    ordered = [rows[seed] for seed in sorted(rows)]
    ours, theirs = ({row["seed"]: row["accuracy"][arm] for row in ordered} for arm in ("learned", "none"))
    points = paired_difference(ours, theirs)
    assert points is not None
    ends = None if points.low is None or points.high is None else [round(points.low, 4), round(points.high, 4)]
    return {
        "command": " ".join(["particleaugment", *demo_command("SEED", "FOLDER")]),
        "seeds": sorted(rows),
        "mean_accuracy": {
            arm: round(sum(row["accuracy"][arm] for row in ordered) / len(ordered), 4) for arm in ("none", "learned")
        },
        "mean_difference": round(points.mean, 4),
        "interval": ends,
        "level": 0.95,
        "runs": ordered,
        "settings": settings,
    }


if __name__ == "__main__":
    main()
