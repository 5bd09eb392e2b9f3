"""Seconds per epoch of training, by phase, from a run's own metrics."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from particleaugment.data.cifar import CIFAR10, PIXELS, SIDE
from particleaugment.training.config import Config
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.atomic import write_atomically

__all__ = ["POLICIES", "epoch_medians", "time_run", "write_generated_cifar10"]

POLICIES = {
    "randaugment": ("--set", "policy=randaugment-n3-m4"),
    "difficulty": ("--set", "filter=difficulty"),
    "paper": ("--set", "filter=paper"),
}
"""What epochs are timed under, plain, with the difficulty filter and with the paper's, by the name results give it."""

_GENERATED = 1000  # different images; they are repeated, since speed depends on their number alone


def time_run(
    recipe: str, label: str, settings: Sequence[str], seed: int, warm_up: int, quiet: bool = True
) -> tuple[dict[str, Any], Config]:
    """Train by a recipe in a process of its own; return what its epochs after the warm-up took, and its configuration.

    Args:
        recipe: The recipe.
        label: One of :data:`POLICIES`.
        settings: Its settings, as ``key=value``.
        seed: Seed of the run.
        warm_up: Epochs at the start that are not counted.
        quiet: Whether the run prints nothing but errors.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "particleaugment", "train", recipe, "--out", str(out), "--seed", str(seed)]
        command += [*POLICIES[label], *(word for setting in settings for word in ("--set", setting))]
        start = time.perf_counter()
        done = subprocess.run([*command, "--quiet"] if quiet else command, check=False)
        wall = time.perf_counter() - start
        if done.returncode != 0:
            raise RunError(f"the training run of the benchmark failed: {' '.join(command)}")
        run = RunFolder.open(out)
        config, records = run.config, run.read_metrics()
    row = epoch_medians(records, warm_up) | {
        "wall_seconds": round(wall, 1),
        "test_accuracy": next(record["test_accuracy"] for record in reversed(records) if record["kind"] == "epoch"),
        "epochs": config.training.epochs,
        "model": config.model,
        "data": config.data.name,
        "policy": label,
        "batch_size": config.training.batch_size,
        "precision": config.training.precision,
    }
    return row, config


def epoch_medians(records: Iterable[dict[str, Any]], warm_up: int) -> dict[str, Any]:
    """Return medians over the epochs after the warm-up: of whole epochs without evaluation, and of every phase.

    ``low`` and ``high`` are the quartiles of whole epochs. Where the run has filter steps, an epoch without one (the
    last) is not whole and counts for the phases that it has.

    >>> epoch = {"kind": "epoch", "seconds": {"train": 2.0, "evaluate": 1.0, "resumes": 0}}
    >>> found = epoch_medians([{"epoch": number} | epoch for number in (1, 2, 3, 4)], warm_up=1)
    >>> found["seconds_per_epoch"], found["phases"], found["epochs_measured"]
    (2.0, {'train': 2.0, 'evaluate': 1.0}, 3)
    """
    phases: dict[str, list[float]] = defaultdict(list)
    sums: dict[int, float] = defaultdict(float)
    with_filter = set()
    for record in records:
        if record["epoch"] <= warm_up:
            continue
        for phase, value in record["seconds"].items():
            if phase in ("resumes", "ranks"):
                continue
            phases[phase].append(value)
            if phase != "evaluate":
                sums[record["epoch"]] += value
        if record["kind"] == "filter":
            with_filter.add(record["epoch"])
    medians = {phase: round(statistics.median(values), 4) for phase, values in phases.items()}
    whole = [value for epoch, value in sums.items() if not with_filter or epoch in with_filter]
    low, middle, high = statistics.quantiles(whole, n=4, method="inclusive") if len(whole) > 1 else whole * 3
    return {
        "seconds_per_epoch": round(middle, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "phases": medians,
        "warm_up_epochs": warm_up,
        "epochs_measured": len(sums),
        "filter_steps_measured": len(with_filter),
    }


def write_generated_cifar10(parent: Path, seed: int) -> Path:
    """Write files of CIFAR-10's format and size with generated images and labels, and return their folder."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(_GENERATED, 3, SIDE // 4, SIDE // 4, generator=generator) * 255
    images = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear").to(torch.uint8)
    folder = parent / CIFAR10.folder
    folder.mkdir()
    write_atomically(folder / CIFAR10.class_names, "\n".join(f"class {number}" for number in range(10)) + "\n")
    for name, size in CIFAR10.sizes().items():
        count = size // CIFAR10.row_bytes
        labels = torch.randint(0, 10, (count, 1), generator=generator, dtype=torch.uint8)
        pixels = images.view(_GENERATED, PIXELS).repeat(count // _GENERATED, 1)
        write_atomically(folder / name, torch.cat([labels, pixels], 1).numpy().tobytes())
    return folder
