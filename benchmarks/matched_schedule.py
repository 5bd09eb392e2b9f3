"""Write the control for a learned policy's choice among ops: evenly drawn ops, as many an image as the policy applied.

    python benchmarks/matched_schedule.py benchmarks/results/compare/cifar10-60 gap matched.json
    particleaugment compare cifar10-wrn28-2 --arms matched:policy=schedule:matched.json --set epochs=60 ...

The density of every epoch is the mean over the arm's finished runs. At most one op is applied to an image. The arm
``gap`` of the committed comparisons is a filter of earlier versions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from old_names import read_comparison

from particleaugment import OPS, Schedule
from particleaugment.compare.comparison import Comparison
from particleaugment.policies.schedule import ScheduleStep

LEVEL = 10.0
"""That of the ops of the arm ``gap``."""


def matched(comparison: Comparison, arm: str, level: float = LEVEL) -> Schedule:
    """Return a schedule of single ops, all equally likely, that are applied as often as an arm's policies apply any."""
    runs = [run for run in comparison.of_arm(arm) if run.finished]
    if not runs or not runs[0].ops_per_image:
        raise SystemExit(f"the comparison has no finished run of a learned policy called {arm}")
    density = torch.tensor([run.ops_per_image for run in runs], dtype=torch.float64).mean(0)
    if density.max() > 1.0:
        raise SystemExit(f"{arm} applies {density.max():.2f} ops to an image, and at most one can be matched")
    single = torch.eye(len(OPS), dtype=torch.float64)[[op != "Identity" for op in OPS]]
    weights = torch.ones(len(single), dtype=torch.float64)
    steps = (ScheduleStep(epoch, float(share) * single, weights) for epoch, share in enumerate(density, start=1))
    return Schedule(tuple(steps), epochs=len(density), m=level)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparison", type=Path, help="folder of a comparison")
    parser.add_argument("arm", help="the arm with the learned policy")
    parser.add_argument("out", type=Path, help="policy file to write")
    parser.add_argument("--level", type=float, default=LEVEL, help="level of the ops, the same as the arm's")
    options = parser.parse_args()
    found = read_comparison(options.comparison)
    matched(found, options.arm, options.level).save(options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
