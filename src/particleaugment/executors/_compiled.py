"""How inner loops are compiled: by Numba, and kept on disk where there is a folder for that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from numba import cfunc, njit, types
from numba.extending import intrinsic

__all__ = ["claim", "compiled", "compiled_for_c", "unowned"]


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that is compiled on first use, without Python's lock and with NumPy's division by zero."""
    return _kept(partial(njit, nogil=True, error_model="numpy"), function)


def compiled_for_c(function: Callable[..., Any], signature: str) -> Any:
    """Return a function that is compiled now and has an ``address``."""
    return _kept(partial(cfunc, signature), function)


def _kept(compiler: Callable[..., Any], function: Callable[..., Any]) -> Any:
    try:
        return compiler(cache=True)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _say_that_nothing_is_kept()
        return compiler()(function)


@intrinsic  # type: ignore[untyped-decorator]
def claim(typing: Any, counter: Any, amount: Any) -> Any:
    """Return the number in ``counter[0]`` and add an amount to it, in one step for all threads."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, arguments[1], "acq_rel")

    return types.int64(counter, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def unowned(typing: Any, array: Any) -> Any:
    """Return an array that its caller keeps alive, as one without an owner.

    Each slice of an array counts up and down how often its owner is used. If many threads take slices of one array,
    they wait for each other there.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.return_type)(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), code


@cache
def _say_that_nothing_is_kept() -> None:
    logging.getLogger("particleaugment").warning(
        "every process compiles the CPU loops again, because Numba found no writable cache folder; set NUMBA_CACHE_DIR "
        "to one"
    )
