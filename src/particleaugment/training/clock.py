"""A run's time: what its phases have taken, in words that suit people."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["duration", "timed"]


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time that a block takes to ``seconds[name]``, also if it raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> duration(40), duration(400), duration(8000)
    ('40 s', '6.7 minutes', '2.2 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
