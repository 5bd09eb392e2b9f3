"""What every benchmark shares: timing with spread, and result files that say how they were made."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the wall-clock seconds of each of ``repeats`` calls, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def rate(count: int, times: list[float]) -> dict[str, float]:
    """Return items per second: the median, and the rates of the slowest and fastest quarter as its spread."""
    quartiles = statistics.quantiles(times, n=4)
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


def write(name: str, results: Any, seed: int) -> Path:
    """Write a result file with machine, versions, command and seed."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = "python " + " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    document = {"command": command, "seed": seed, "machine": machine(), "results": results}
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}")
    return path
