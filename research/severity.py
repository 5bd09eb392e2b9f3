"""How severe should augmentation be, and when? Policies that never change, and courses that do.

WRN-28-2 on 40,000 images of CIFAR-10, judged on the 10,000 others; the test set plays no part.

    python research/severity.py --data DIR --jobs 4 --out runs/severity
    python research/severity.py --data DIR --jobs 4 --out runs/severity-250 --epochs 250 --seeds 0

Repeated, the command continues; ``--arms`` takes further arms, as ``particleaugment compare`` does. The committed
results have arms of the gap filter too, which is gone; docs/filter.md names the commit that has it.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import torch

from particleaugment import OPS, Schedule
from particleaugment.policies.schedule import ScheduleStep

EPOCHS = 60
GRID = ((1, 1), (1, 3), (1, 6), (1, 10), (2, 2), (2, 4), (3, 4))
STATIC = tuple(f"randaugment-n{n}-m{m}" for n, m in GRID)
Course = Callable[[float], float]
SHAPES: dict[str, Course] = {
    "fading": lambda done: math.cos(0.5 * math.pi * done) ** 2,
    "arched": lambda done: math.sin(math.pi * done) ** 2,
    "late": lambda done: math.sin(0.5 * math.pi * done) ** 2 * min(1.0, 10.0 * math.cos(0.5 * math.pi * done) ** 2),
    "rising": lambda done: math.sin(0.5 * math.pi * done) ** 2,
    "stopping": lambda done: float(done < 0.85),
}
"""Share of the images that are augmented, by the share of training done. Fading is the learning rate's course."""
SCHEDULES = {
    "fading-n1-m10": ("fading", 1, 10.0),
    "fading-n1-m6": ("fading", 1, 6.0),
    "fading-n2-m10": ("fading", 2, 10.0),
    "arched-n1-m6": ("arched", 1, 6.0),
    "late-n1-m6": ("late", 1, 6.0),
    "late-n1-m10": ("late", 1, 10.0),
    "late-n2-m6": ("late", 2, 6.0),
    "rising-n1-m10": ("rising", 1, 10.0),
    "stopping-n1-m10": ("stopping", 1, 10.0),
}
"""Shape, ops an image at first, and their level."""


def course(shape: Course, ops_per_image: int, m: float) -> Schedule:
    """Return a schedule of evenly drawn ops, whose number an image changes epoch by epoch."""
    rows = torch.tensor(list(combinations(range(len(OPS)), ops_per_image)))
    particles = torch.zeros(len(rows), len(OPS), dtype=torch.float64).scatter_(1, rows, 1.0)
    weights = torch.ones(len(rows), dtype=torch.float64)
    steps = (ScheduleStep(e + 1, shape(e / EPOCHS) * particles, weights) for e in range(EPOCHS))
    return Schedule(tuple(steps), epochs=EPOCHS, m=m)


def arms(folder: Path) -> dict[str, str]:
    """Write the policies that have no short name and return all arms as ``compare`` takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"none": "none", "trivialaugment": "trivialaugment", **{name: f"{name}:policy={name}" for name in STATIC}}
    for name, (shape, ops_per_image, m) in SCHEDULES.items():
        course(SHAPES[shape], ops_per_image, m).save(folder / f"{name}.json")
        found[name] = f"{name}:policy=schedule:{folder / name}.json"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary archive")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="courses are stretched to them")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--only", default="", help="some of the arms, separated by commas")
    parser.add_argument("--arms", default="", help="further arms")
    parser.add_argument("--out", type=Path, default=Path("runs/severity"))
    options = parser.parse_args()
    known = arms(options.out.absolute().with_name(f"{options.out.name}-policies"))
    names = [known[name] for name in options.only.split(",") if name] if options.only else list(known.values())
    names += [options.arms] if options.arms else []
    command = (
        ["compare", "cifar10-wrn28-2", "--arms", ",".join(names), "--seeds", options.seeds, "--jobs", options.jobs]
        + ["--out", str(options.out), "--set", f"epochs={options.epochs}", "--set", "validation=10000"]
        + ["--set", f"data_dir={options.data}"]
    )
    sys.exit(subprocess.call([sys.executable, "-m", "particleaugment", *command]))


if __name__ == "__main__":
    main()
