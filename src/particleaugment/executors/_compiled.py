"""How inner loops are compiled: by Numba, and kept on disk where there is a folder for that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that is compiled on first use, without Python's lock and with NumPy's division by zero."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _say_that_nothing_is_kept()
        return njit(nogil=True, error_model="numpy")(function)


@cache
def _say_that_nothing_is_kept() -> None:
    logging.getLogger("particleaugment").warning(
        "every process compiles the CPU loops again, because Numba found no writable cache folder; set NUMBA_CACHE_DIR "
        "to one"
    )
