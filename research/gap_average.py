"""What averaging the generalisation gap does to the policy: a run's measurements, replayed with and without.

    python research/gap_average.py        what the result file holds, replayed anew
    python research/gap_average.py RUN    a run with the gap filter

Only measured severities and gaps are used, and the result file keeps them, so no network is needed. The committed one
is of a run that wrote gaps under 0 as 0.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from particleaugment import filter as pf
from particleaugment.core.op_table import OPS
from particleaugment.search.gap import FINAL, GapFilter, Severity, averaged_gap
from particleaugment.training.config import Config, settings_of

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

from common import result, write  # noqa: E402

RESULTS = HERE / "results"

SHARES = (0.0, 0.03, 0.05, 0.1)
"""Shares of training to average over; nothing is averaged at 0."""


def is_measured(step: dict[str, Any], epochs: int) -> bool:
    """Whether a step measured a gap: later, all samples are trained on."""
    return bool(step["epoch"] - 1 < FINAL * epochs)


def replay(steps: list[dict[str, Any]], epochs: int, share: float, seed: int) -> dict[str, Any]:
    """Return the course of a search that measures what ``steps`` did."""
    filter, course = GapFilter(), []
    state = filter.init(seed, OPS, epochs)
    for step in steps:
        if is_measured(step, epochs):
            state = replace(state, mean_gap=averaged_gap(state.mean_gap, step["gap"], share * epochs))
        effects = torch.tensor(step["effects"], dtype=torch.float64)
        errors = torch.tensor(step["effect_errors"], dtype=torch.float64)
        measured = Severity(pf.OpEffects(effects, torch.diag(errors**2)), loss=0.0, gap=None, seconds={})
        moved = filter.moved(replace(state, steps=step["step"] - 1))
        state, record = filter.update(moved, measured, epoch=step["epoch"], epochs=epochs)
        course.append(record)
    ops = [record.ops_per_image for record in course]
    return {
        "share": share,
        "resampled": sum(record.resampled for record in course),
        "effective_sample_size": sum(record.effective_sample_size for record in course) / len(course),
        "mean_change_of_ops_per_image": sum(abs(b - a) for a, b in pairwise(ops)) / (len(ops) - 1),
        "ops_per_image": [round(value, 4) for value in ops],
    }


def measurements(run: Path) -> dict[str, Any]:
    """Return what a run measured, as the result file keeps it."""
    config = Config.from_json((run / "config.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [
        {
            "epoch": record["epoch"],
            "step": record["step"],
            "gap": None if record["gap"] is None else round(record["gap"], 5),
            "effects": [round(effect, 5) for effect in record["effects"]],
            "effect_errors": [round(error, 5) for error in record["effect_errors"]],
        }
        for record in records
        if record["kind"] == "filter"
    ]
    settings = settings_of(config)
    return {"run": {key: settings[key] for key in ("recipe", "epochs", "seed", "gain", "validation")}, "steps": steps}


def scatter(gaps: list[float]) -> float:
    """Return how far one gap lies from the course that they take together, from how much neighbours differ."""
    return math.sqrt(sum((b - a) ** 2 for a, b in pairwise(gaps)) / (2 * (len(gaps) - 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.run is None:
        kept = result("gap_average", RESULTS)["results"]
        found = {key: kept[key] for key in ("run", "steps")}
    else:
        found = measurements(arguments.run)
    epochs, steps = found["run"]["epochs"], found["steps"]
    gaps = [step["gap"] for step in steps if is_measured(step, epochs)]
    replays = [replay(steps, epochs, share, arguments.seed) for share in SHARES]
    summary = {"scatter_of_a_gap": scatter(gaps), "mean_gap": sum(gaps) / len(gaps)}
    write("gap_average", found | summary | {"replays": replays}, arguments.seed, RESULTS)


if __name__ == "__main__":
    main()
