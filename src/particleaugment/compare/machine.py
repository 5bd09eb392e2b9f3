"""What figures depend on besides the code: the machine and the versions of the libraries."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["machine"]

_PACKAGES = ("torch", "numpy", "pillow", "numba", "timm", "torchvision", "scikit-learn")


def machine() -> dict[str, Any]:
    """Return what figures depend on; no name of a machine or a person.

    >>> sorted(machine())
    ['cores', 'cpu', 'gpu', 'python', 'system', 'versions']
    """
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {}
    for package in _PACKAGES:
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
