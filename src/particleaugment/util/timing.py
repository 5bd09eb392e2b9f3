"""Timing with spread, and what the numbers depend on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["fastest", "machine", "rate", "seconds"]


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the wall-clock seconds of each of ``repeats`` calls, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def fastest(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the shortest of some calls' seconds."""
    return min(seconds(work, repeats))


def rate(count: int, times: list[float]) -> dict[str, float]:
    """Return items per second: the median, and the rates that the middle half lies between.

    >>> rate(100, [1.0, 2.0, 2.0, 4.0])
    {'median': 50.0, 'low': 40.0, 'high': 57.1}
    """
    quartiles = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "median": round(count / statistics.median(times), 1),
        "low": round(count / quartiles[2], 1),
        "high": round(count / quartiles[0], 1),
    }


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {}
    for package in ("torch", "numpy", "pillow", "numba", "timm", "torchvision", "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }
