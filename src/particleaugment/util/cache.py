"""Files that only save time: where they are, and writing them where that is possible."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from particleaugment.util.atomic import replacing

__all__ = ["cache_folder", "write_cache"]


def cache_folder() -> Path:
    """Return the package's folder in the user's cache, which need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "particleaugment"


def write_cache(path: Path, content: bytes) -> None:
    """Write a file, and its folder; one that cannot be written only costs the next start some time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
