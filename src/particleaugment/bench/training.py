"""Seconds per epoch of training, by phase, from a run's own metrics; arithmetic achieved; the augmentation's share."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from particleaugment.data import ImageData, load_data
from particleaugment.data.cifar import CIFAR10, PIXELS, SIDE
from particleaugment.models import build_model
from particleaugment.training.config import Config
from particleaugment.training.run import RunError, RunFolder

__all__ = ["augmentation_share", "flops_per_image", "phase_seconds", "time_run", "write_generated_cifar10"]

POLICIES = {
    "randaugment": ("--set", "policy=randaugment-n3-m4"),
    "improved": ("--preset", "improved"),
    "particles": ("--preset", "paper"),
}
"""What epochs are timed under, plain, with the improved filter and with the paper's, by the name results give it."""

_GENERATED = 1000  # different images; they are repeated, since speed depends on their number alone


def time_run(
    recipe: str, label: str, settings: Sequence[str], seed: int, warm_up: int, quiet: bool = True
) -> dict[str, Any]:
    """Train by a recipe in a process of its own and return what its epochs after the warm-up took.

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
    data = load_data(
        config.data,
        config.data_dir or None,
        image_size=config.image_size or None,
        validation=config.validation,
        train_size=config.train_size,
        groups=config.groups,
        seed=config.data_seed,
        quiet=True,
    )
    found = phase_seconds(records, warm_up)
    phases = found["phases"]
    work = _flops_per_phase(config, data)
    result = found | {
        "wall_seconds": round(wall, 1),
        "test_accuracy": next(record["test_accuracy"] for record in reversed(records) if record["kind"] == "epoch"),
        "epochs": config.epochs,
        "model": config.model,
        "data": config.data,
        "policy": label,
        "batch_size": config.batch_size,
        "precision": config.precision,
        "training_tflops": _significant(work["train"] / phases["train"] / 1e12),
        "tflops": {name: _significant(flops / phases[name] / 1e12) for name, flops in work.items() if name in phases},
    }
    if config.device == "cuda" and not config.searches:
        result["augmentation"] = augmentation_share(config, data, phases["train"])
    return result


def phase_seconds(records: Iterable[dict[str, Any]], warm_up: int) -> dict[str, Any]:
    """Return medians over the epochs after the warm-up: of whole epochs without evaluation, and of every phase.

    ``low`` and ``high`` are the quartiles of whole epochs. Where the run has filter steps, an epoch without one (the
    last) is not whole and counts for the phases that it has.

    >>> epoch = {"kind": "epoch", "seconds": {"train": 2.0, "evaluate": 1.0, "resumes": 0}}
    >>> found = phase_seconds([{"epoch": number} | epoch for number in (1, 2, 3, 4)], warm_up=1)
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


def flops_per_image(model: str, num_classes: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return the floating-point operations of one image forward and backward; a multiply-add counts as two.

    >>> forward, backward = flops_per_image("wrn-28-2", 10, (3, 32, 32))
    >>> round(forward / 1e9, 3), 1.9 < backward / forward < 2
    (0.429, True)
    """
    batch = 2
    with torch.device("meta"):
        network = build_model(model, num_classes, seed=0)
        images = torch.zeros(batch, *shape)
    with FlopCounterMode(display=False) as forward:
        logits = network(images)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    return forward.get_total_flops() // batch, backward.get_total_flops() // batch


def _flops_per_phase(config: Config, data: ImageData) -> dict[str, int]:
    forward, backward = flops_per_image(config.model, data.num_classes, data.train_images.shape[1:])
    total = len(data.train_labels)
    work = {"train": total * (forward + backward), "evaluate": len(data.test_labels) * forward}
    if config.searches:
        clone, measured = (
            size if isinstance(size, int) else int(size * total) for size in (config.clone_size, config.measure_size)
        )
        if config.measure == "loss":  # each op alone and no op, and two passes over as many training samples
            work["measure"] = (len(config.ops) + 3) * measured * forward
        else:
            work["clone"] = config.clone_epochs * clone * (forward + backward)
            work["measure"] = 2 * (config.num_particles + 1) * measured * forward
    return work


def augmentation_share(config: Config, data: ImageData, train_seconds: float) -> dict[str, float]:
    """Time the augmentation of a batch alone, drawing included, on the GPU, and return its share of a training step.

    It is captured in a CUDA graph of its own, with the transforms, policy and data of the run; the step's time is the
    epoch's divided by its number of batches.
    """
    from particleaugment.augment.pipeline import FusedPipeline
    from particleaugment.augment.transforms import Normalize
    from particleaugment.bench.gpu import as_graph, milliseconds
    from particleaugment.core.program import resample_code
    from particleaugment.training.build import always_on

    device = torch.device("cuda")
    images = data.train_images.to(device)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    before, after = always_on(config)
    pipeline = FusedPipeline(
        config.fixed_policy(),
        (images.shape[2], images.shape[3]),
        device,
        config.seed,
        before=before,
        after=(*after, Normalize(data.mean, data.std, dtype)),
        resample=resample_code(config.resample),
        fill=config.fill,
        dtype=dtype,
        channels_last=True,
    )
    ids = torch.randperm(len(images), device=device)[: config.batch_size].contiguous()
    times = milliseconds(as_graph(partial(pipeline, images, ids, index=ids)))
    alone = statistics.median(times) * 1e3
    step = train_seconds / (len(images) / config.batch_size) * 1e6
    return {
        "batch": config.batch_size,
        "augmentation_microseconds": round(alone, 2),
        "step_microseconds": round(step, 2),
        "share_of_step": round(alone / step, 4),
    }


def write_generated_cifar10(parent: Path, seed: int) -> Path:
    """Write files of CIFAR-10's format and size with generated images and labels, and return their folder."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(_GENERATED, 3, SIDE // 4, SIDE // 4, generator=generator) * 255
    images = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear").to(torch.uint8)
    folder = parent / CIFAR10.folder
    folder.mkdir()
    (folder / CIFAR10.class_names).write_text("\n".join(f"class {number}" for number in range(10)) + "\n")
    for name, size in CIFAR10.sizes().items():
        count = size // CIFAR10.row_bytes
        labels = torch.randint(0, 10, (count, 1), generator=generator, dtype=torch.uint8)
        pixels = images.view(_GENERATED, PIXELS).repeat(count // _GENERATED, 1)
        (folder / name).write_bytes(torch.cat([labels, pixels], 1).numpy().tobytes())
    return folder


def _significant(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
