"""How inner loops are compiled and how threads share them: by Numba, kept on disk where there is a folder for that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.extending import intrinsic

from particleaugment.executors.team import START, THREADS

__all__ = ["claim", "compiled", "run_by_team"]


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that is compiled on first use, without Python's lock and with NumPy's division by zero."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _say_that_nothing_is_kept()
        return njit(nogil=True, error_model="numpy")(function)


@intrinsic  # type: ignore[untyped-decorator]
def claim(typing: Any, counter: Any, amount: Any) -> Any:
    """Return the number in ``counter[0]`` and add an amount to it, in one step for all threads."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, arguments[1], "monotonic")

    return types.int64(counter, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def run_by_team(typing: Any, counter: Any) -> Any:
    """Have each thread of a team call the present function, if ``counter`` asks for one, and tell whether it did.

    A loop begins with it and returns if it is true. In the calls of the team it is false: they do the work.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = cgutils.gep(builder, numbers, THREADS)
        threads = builder.load(place)
        asked = cgutils.is_not_null(builder, threads)
        with builder.if_then(asked):
            builder.store(cgutils.get_null_value(threads.type), place)
            # What threads are given: a place for an error's code and description, and this call's arguments.
            function, none = builder.function, cgutils.get_null_value
            _, error, *others = function.args
            given = [none(cgutils.int32_t), none(error.type.pointee), *others]
            shared = cgutils.alloca_once_value(builder, cgutils.make_anonymous_struct(builder, given))
            start_type = ir.FunctionType(
                ir.VoidType(), [_BODY.as_pointer(), cgutils.voidptr_t, cgutils.int32_t, cgutils.int32_t]
            )
            start = builder.inttoptr(builder.load(cgutils.gep(builder, numbers, START)), start_type.as_pointer())
            body = _body(builder.module, function, shared.type)
            data, count = builder.bitcast(shared, cgutils.voidptr_t), builder.trunc(threads, cgutils.int32_t)
            builder.call(start, [body, data, count, none(cgutils.int32_t)])
            failure, description = (builder.load(cgutils.gep_inbounds(builder, shared, 0, k)) for k in range(2))
            with builder.if_then(cgutils.is_not_null(builder, failure), likely=False):
                builder.store(description, error)
                builder.ret(failure)
        return asked

    return types.boolean(counter), code


_BODY = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])


def _body(module: Any, function: Any, given: Any) -> Any:
    """Return a function that calls another with what it is given, and notes there if that fails."""
    body = ir.Function(module, _BODY, f"{function.name}.team")
    body.linkage = "internal"
    builder = ir.IRBuilder(body.append_basic_block())
    shared = builder.bitcast(body.args[0], given)
    failure, description, *others = (
        cgutils.gep_inbounds(builder, shared, 0, k) for k in range(len(given.pointee.elements))
    )
    result, error = (builder.alloca(argument.type.pointee) for argument in function.args[:2])
    status = builder.call(function, [result, error, *map(builder.load, others)])
    failed = builder.and_(*(builder.icmp_signed("!=", status, fine) for fine in (RETCODE_OK, RETCODE_NONE)))
    with builder.if_then(failed, likely=False):
        builder.store(status, failure)
        builder.store(builder.load(error), description)
    builder.ret_void()
    return body


@cache
def _say_that_nothing_is_kept() -> None:
    logging.getLogger("particleaugment").warning(
        "every process compiles the CPU loops again, because Numba found no writable cache folder; set NUMBA_CACHE_DIR "
        "to one"
    )
