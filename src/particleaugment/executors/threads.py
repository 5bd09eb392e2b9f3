"""Compiled loops over a batch, run on as many threads as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["COUNTER", "counter", "on_threads"]

COUNTER = 8
"""Numbers in a counter: the first is the next image, and the others are 0 if no team is asked for."""
_FEWEST_BYTES = 1 << 15
"""Work per thread, in bytes of images, below which waking the thread costs more than it gains."""


def counter() -> NDArray[np.int64]:
    """Return a counter for a compiled loop that runs on this thread alone."""
    return np.zeros(COUNTER, np.int64)


def on_threads(function: Callable[..., None], arguments: Sequence[Any], count: int, size: int) -> None:
    """Call a compiled function on torch's number of threads; each claims the next image until none is left.

    Args:
        function: The function; it must release the interpreter's lock and begin with ``run_by_team``.
        arguments: What it is called with, before the counter that it claims from and ``count``.
        count: Number of images.
        size: Bytes of an image.
    """
    threads = min(torch.get_num_threads(), count, count * size // _FEWEST_BYTES)
    if threads > 1 and (team := _team()) is not None and team.lock.acquire(blocking=False):
        try:
            function(*arguments, team.counter(threads), count)
        finally:
            team.lock.release()
        return
    # This system has no team, or another Python thread is using it.
    given = (*arguments, counter(), count)
    # This thread works too: one thread fewer to wake, and the scheduler need not find it a core.
    others = [_pool(threads, os.getpid()).submit(function, *given) for _ in range(threads - 1)]
    function(*given)
    for other in others:
        other.result()


def _team() -> Any:
    from particleaugment.executors._team import team

    return team(os.getpid())


@lru_cache(maxsize=4)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    # Keyed by process: a forked data-loader worker must not wait for its parent's threads.
    return ThreadPoolExecutor(threads, thread_name_prefix="particleaugment")
