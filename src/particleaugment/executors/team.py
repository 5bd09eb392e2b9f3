"""The team of threads that torch's operations run on, where compiled loops can be started on it.

Threads that Python wakes each need its lock before they enter compiled code, one after the other, and on a virtual
machine each turn takes about 0.1 ms: with sixteen threads that was more than half of the time of a batch. Torch's own
operations run on the threads of the OpenMP library (libgomp, on Linux), which wake together and need no lock.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEXT, THREADS, START = 0, 1, 2
"""Places in a counter: the next image, how many threads are to be started, and the address of what starts them."""


def counter(threads: int = 0) -> NDArray[np.int64]:
    """Return what a compiled loop claims its images from; it starts so many threads first."""
    return np.array([0, threads, _start() if threads else 0], np.int64)


def available() -> bool:
    """Whether compiled loops can be started on the team: the process has one, and it was not forked.

    After a fork, libgomp would wait for ever for threads that only the parent has.
    """
    return os.getpid() == _HOME and multiprocessing.parent_process() is None and _start() != 0


@cache
def _start() -> int:
    """Return the address of ``GOMP_parallel(function, data, threads, flags)``, or 0 where there is none."""
    if sys.platform != "linux":
        return 0
    function: Any = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


# When the package is imported: a process that is forked afterwards has another.
_HOME = os.getpid()
