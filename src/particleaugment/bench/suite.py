"""``particleaugment bench``: throughput and epochs on whatever hardware is there, as one table and one document."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from particleaugment.bench.cpu import executor_rows
from particleaugment.bench.loader import batch_rows, image_rows, loader_rows
from particleaugment.bench.training import POLICIES, time_run, write_generated_cifar10
from particleaugment.data import load_data
from particleaugment.util.timing import machine

__all__ = ["FULL", "QUICK", "Settings", "describe", "run_suite", "table"]

_TITLES = {"randaugment": "RandAugment", "difficulty": "the difficulty filter", "paper": "the paper's filter"}

_SHORTER = {
    ", 3 ops + crop, flip, erase, normalise": ", whole pipeline",
    ", 3 ops": "",
    "ONE draw for the whole batch": "one draw per batch",
    " (loop)": "",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How much is measured.

    Attributes:
        cpu_batches: Images per batch on the CPU, by image size.
        cpu_repeats: Timed calls of each row.
        gpu_batches: Batch sizes on the GPU, by image size.
        images: Single images per round, by image size; batches of a timm string are as large.
        files: JPEG files in a loader's epoch.
        workers: Numbers of workers of the loaders.
        rounds: Timed rounds of single images, batches and loaders.
        epochs: Epochs of each training run.
        warm_up: Those at its start that are not counted.
        training: Further settings of the training runs, as ``key=value``.
    """

    cpu_batches: Mapping[int, int]
    cpu_repeats: int
    gpu_batches: Mapping[int, tuple[int, ...]]
    images: Mapping[int, int]
    files: int
    workers: tuple[int, ...]
    rounds: int
    epochs: int
    warm_up: int
    training: tuple[str, ...] = ()


FULL = Settings(
    cpu_batches={32: 512, 224: 64},
    cpu_repeats=20,
    gpu_batches={32: (128, 512, 2048, 8192, 32768), 224: (64, 256, 1024)},
    images={32: 256, 224: 48},
    files=512,
    workers=(2, 8),
    rounds=10,
    epochs=25,
    warm_up=4,
)
"""Medians that are worth comparing."""

QUICK = Settings(
    cpu_batches={32: 256, 224: 16},
    cpu_repeats=5,
    gpu_batches={32: (128, 8192), 224: (64, 1024)},
    images={32: 128, 224: 16},
    files=64,
    workers=(2,),
    rounds=3,
    epochs=4,
    warm_up=1,
)
"""A first impression, in less than a minute on two CPU cores."""


def run_suite(settings: Settings, data: Path | None, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, and return the results with the machine they were measured on.

    Args:
        settings: How much is measured.
        data: Folder of CIFAR-10, for the epochs on a GPU; images of its shape are generated if it is not given.
        seed: Seed of all draws.
        say: Told what is being measured.
    """
    on_gpu = torch.cuda.is_available()
    if data is not None:
        load_data("cifar10", data, quiet=True)  # refuses what it cannot read, before any long work
    results: dict[str, Any] = {"cpu": [], "images": [], "loaders": [], "gpu": None, "training": []}
    for size, batch in settings.cpu_batches.items():
        say(f"CPU, {size}x{size}")
        results["cpu"] += executor_rows(size, batch, settings.cpu_repeats, seed)
    for size, count in settings.images.items():
        say(f"single images and timm strings, {size}x{size}")
        results["images"] += image_rows(size, count, settings.rounds, seed)
        results["images"] += batch_rows(size, count, settings.rounds, seed)
    say("loaders over JPEG files")
    results["loaders"] += loader_rows(settings.files, settings.workers, settings.rounds, seed)
    if on_gpu:
        results["gpu"] = _gpu_results(settings, seed, say)
    with tempfile.TemporaryDirectory() as folder:
        recipe, options, images = "digits", ["device=cpu"], ""
        if on_gpu:
            say("data for the epochs")
            images = "CIFAR-10" if data is not None else "generated images"
            directory = data if data is not None else write_generated_cifar10(Path(folder), seed)
            recipe, options = "cifar10-wrn28-2", ["device=cuda", f"data_dir={directory}"]
        options += [f"epochs={settings.epochs}", *settings.training]
        for label in POLICIES:
            say(f"epochs with {_TITLES[label]}")
            row, _ = time_run(recipe, label, options, seed, settings.warm_up)
            results["training"].append(row | {"images": images or row["data"]})
    return {"seed": seed, "machine": machine(), "results": results}


def _gpu_results(settings: Settings, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    from particleaugment.bench.gpu import copy_bandwidth, large_rows, small_rows, torchvision_rows
    from particleaugment.executors.fused import unavailable_reason

    reason = unavailable_reason(torch.device("cuda"))
    if reason:
        return {"unavailable": reason, "rows": []}
    say("GPU")
    bandwidth = copy_bandwidth()
    rows = list(small_rows(settings.gpu_batches[32], bandwidth, seed))
    rows += large_rows(settings.gpu_batches[224], bandwidth, seed)
    rows += torchvision_rows(bandwidth)
    return {"bandwidth_bytes_per_second": bandwidth, "rows": rows}


def describe(document: Mapping[str, Any]) -> str:
    """Return the machine and versions in a sentence."""
    found = document["machine"]
    gpu = found["gpu"] or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{found['cpu']}, {found['cores']} cores; {gpu}; {found['system']}, Python {found['python']}; {versions}"


def table(document: Mapping[str, Any]) -> Table:
    """Return the results as a table for a terminal of 80 columns."""
    rows = Table(box=None, pad_edge=False, padding=(0, 1), width=80)
    rows.add_column("", ratio=1)
    rows.add_column("batch", justify="right", no_wrap=True)
    rows.add_column("median", justify="right", no_wrap=True)
    rows.add_column("middle half", justify="right", no_wrap=True)
    results = document["results"]
    for size in dict.fromkeys(row["size"] for row in results["cpu"]):
        rows.add_row(f"CPU, {size}x{size}, 3 random ops, images/s", style="bold")
        for row in results["cpu"]:
            if row["size"] == size:
                threads = f"{row['threads']} thread" + "s" * (row["threads"] > 1)
                _add_rate(rows, f"{row['name']}, {threads}", row, row["median"])
    for size in dict.fromkeys(row["size"] for row in results["images"]):
        rows.add_row(f"CPU, {size}x{size}, one thread, images/s", style="bold")
        for row in results["images"]:
            if row["size"] == size:
                batch = str(row["batch"]) if row["input"] == "batch" else f"1 {row['input']}"
                _add_pair(rows, row["policy"], batch, row)
    for number in dict.fromkeys(row["workers"] for row in results["loaders"]):
        rows.add_row(f"Loader over JPEG files, {number} workers, images/s", style="bold")
        for row in results["loaders"]:
            if row["workers"] == number:
                _add_pair(rows, row["policy"], "", row)
    if results["gpu"] is not None:
        rows.add_row("GPU, 3 random ops, images/s", style="bold")
        if "unavailable" in results["gpu"]:
            rows.add_row(f"  not measured: {results['gpu']['unavailable']}")
        for row in results["gpu"]["rows"]:
            name = row["name"]
            for long, short in _SHORTER.items():
                name = name.replace(long, short)
            _add_rate(rows, name, row, row["images_per_second"])
    first = results["training"][0]
    rows.add_row(f"Epoch, {first['model']}, {first['images']}, seconds", style="bold")
    for row in results["training"]:
        _add_epoch(rows, row)
    return rows


def _add_rate(rows: Table, name: str, row: Mapping[str, Any], median: float) -> None:
    spread = f"{_short(row['low'])} to {_short(row['high'])}"
    rows.add_row(f"  {name}", f"{row['batch']:,}", _short(median), spread)


def _add_pair(rows: Table, name: str, batch: str, row: Mapping[str, Any]) -> None:
    """Add what was timed by turns with a peer: ours, and the peer below it."""
    for who, title in (("ours", name), ("peer", f"  {row['peer_name']}")):
        if who in row:
            spread = f"{_short(row[who]['low'])} to {_short(row[who]['high'])}"
            rows.add_row(f"  {title}", batch if who == "ours" else "", _short(row[who]["median"]), spread)


def _add_epoch(rows: Table, row: Mapping[str, Any]) -> None:
    spread = f"{row['low']:.3f} to {row['high']:.3f}"
    rows.add_row(f"  {_TITLES[row['policy']]}", str(row["batch_size"]), f"{row['seconds_per_epoch']:.3f}", spread)
    for phase, value in row["phases"].items():
        name = "evaluation, not counted" if phase == "evaluate" else phase
        rows.add_row(f"    {name}", "", f"{value:.3f}", "")


def _short(value: float) -> str:
    """Return a rate in few digits.

    >>> _short(71604.8), _short(31674054)
    ('71,605', '31.67 M')
    """
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}"
