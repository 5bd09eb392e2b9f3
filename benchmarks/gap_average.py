"""What averaging the generalisation gap does to the policy: a run's measurements, replayed with and without.

    python benchmarks/gap_average.py RUN

RUN is a run with the improved filter. Only its measured severities and gaps are used, so no network is needed. Gaps
under 0 were written as 0 when the committed file was made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from common import write

from particleaugment import filter as pf
from particleaugment.filtering import IMPROVED, FilterSettings, filter_step
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.severity import FINAL, Severity, averaged_gap

SHARES = (0.0, 0.03, 0.05, 0.1)
"""Shares of training to average over; nothing is averaged at 0."""


def finding(measured: Severity) -> Callable[[ParticlePolicy], Severity]:
    """Return a measurement that always finds the same."""
    return lambda policy: measured


def replay(steps: list[dict[str, Any]], epochs: int, share: float, seed: int) -> dict[str, Any]:
    """Return the course of a search that measures what ``steps`` did."""
    settings = FilterSettings(**dict(IMPROVED) | {"epochs": epochs})
    state, mean_gap, course = settings.initial_state(seed), 0.0, []
    for step in steps:
        if step["epoch"] - 1 < FINAL * epochs:
            mean_gap = averaged_gap(mean_gap, step["gap"], share * epochs)
        effects = torch.tensor(step["effects"], dtype=torch.float64)
        errors = torch.tensor(step["effect_errors"], dtype=torch.float64)
        measured = Severity(pf.OpEffects(effects, torch.diag(errors**2)), loss=0.0, gap=None, seconds={})
        when = {"seed": seed, "step": step["step"], "done": step["epoch"] / epochs}
        state, record = filter_step(state, settings, finding(measured), mean_gap=mean_gap, **when)
        course.append(record)
    ops = [record.ops_per_image for record in course]
    return {
        "share": share,
        "resampled": sum(record.resampled for record in course),
        "effective_sample_size": sum(record.effective_sample_size for record in course) / len(course),
        "mean_change_of_ops_per_image": sum(abs(b - a) for a, b in pairwise(ops)) / (len(ops) - 1),
        "ops_per_image": [round(value, 4) for value in ops],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = json.loads((arguments.run / "config.json").read_text())
    records = [json.loads(line) for line in (arguments.run / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "filter"]
    replays = [replay(steps, config["epochs"], share, arguments.seed) for share in SHARES]
    results = {
        "run": {key: config[key] for key in ("recipe", "epochs", "seed", "gain", "validation")},
        "gap": [None if step["gap"] is None else round(step["gap"], 5) for step in steps],
        "replays": replays,
    }
    write("gap_average", results, arguments.seed)
    for row in replays:
        print({key: value for key, value in row.items() if key != "ops_per_image"})


if __name__ == "__main__":
    main()
