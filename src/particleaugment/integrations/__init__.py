"""Adapters to other training frameworks; each is imported by its own name and needs its own extra."""

from __future__ import annotations

import importlib

__all__ = ["require"]


def require(package: str, extra: str) -> None:
    """Raise a one-line ImportError that names the extra, unless a package can be imported."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        reason = "" if error.name == package else f" ({error})"
        raise ImportError(
            f"this needs {package}, which cannot be imported{reason}: pip install 'particleaugment[{extra}]'"
        ) from None
