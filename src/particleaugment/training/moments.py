"""When a run is evaluated and its filter takes a step: every epoch, or about a hundred times where epochs are short."""

from __future__ import annotations

import math

__all__ = ["falls_on", "interval"]

_MOMENTS = 100
_SHORT_EPOCH = 100  # steps; from there on an evaluation costs little beside its epoch


def interval(every: int | str, epochs: int, steps_per_epoch: int) -> int:
    """Return the epochs from one moment to the next; ``auto`` gives about a hundred moments where epochs are short.

    >>> interval("auto", epochs=500, steps_per_epoch=10), interval("auto", epochs=250, steps_per_epoch=391)
    (5, 1)
    >>> interval(7, epochs=500, steps_per_epoch=10)
    7
    """
    if isinstance(every, int):
        return every
    return 1 if steps_per_epoch >= _SHORT_EPOCH else math.ceil(epochs / _MOMENTS)


def falls_on(epoch: int, every: int, epochs: int) -> bool:
    """Whether a moment falls on an epoch, counted from 1; the last epoch always is one.

    >>> [epoch for epoch in range(1, 9) if falls_on(epoch, every=3, epochs=8)]
    [3, 6, 8]
    """
    return epoch % every == 0 or epoch == epochs
