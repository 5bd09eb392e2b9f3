"""Threads that wait in compiled code, so that waking them takes no lock of Python's.

Threads that wait in Python must each take its lock before they enter compiled code, one after the other. These wait for
semaphores of the C library and wake each other. Torch's own threads (OpenMP) would do, but they wait by spinning,
which takes milliseconds on a machine that other processes use too, and they never wake in a forked process.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.extending import intrinsic
from numpy.typing import NDArray

from particleaugment.executors._compiled import claim, compiled, compiled_for_c
from particleaugment.executors.threads import COUNTER

__all__ = ["Team", "run_by_team", "team"]

_ROW, _MOST, _EACH_WAKES = COUNTER, 256, 4
_LENGTH = (1 + _MOST) * _ROW
_NEXT, _START, _LEFT, _THREADS, _FUNCTION, _DATA, _WAIT, _POST = range(_ROW)
"""What a counter's numbers are: the next image; what starts a team, or 0; other threads at work; all threads; what they
call; with what; ``sem_wait``; ``sem_post``. In a team's counter, rows with a semaphore for each thread follow."""
_FOR_C = ir.FunctionType(cgutils.int32_t, [cgutils.voidptr_t])


@intrinsic  # type: ignore[untyped-decorator]
def _call(typing: Any, function: Any, data: Any) -> Any:
    """Call ``int function(void *data)``, both given as addresses."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _FOR_C.as_pointer())
        return builder.call(pointer, [builder.inttoptr(arguments[1], cgutils.voidptr_t)])

    return types.int32(types.int64, types.int64), code


@compiled
def _semaphore(state: Any, number: int) -> int:
    return int(state[_ROW * (1 + number) :].ctypes.data)


@compiled
def _wait(state: Any, number: int) -> None:
    while _call(state[_WAIT], _semaphore(state, number)) != 0:  # a signal may end it early
        pass


@compiled
def _wake(state: Any, number: int) -> None:
    """Wake those that this thread is to wake: each takes the system some time, so those awake help."""
    for other in range(_EACH_WAKES * number + 1, min(_EACH_WAKES * (number + 1) + 1, state[_THREADS])):
        _call(state[_POST], _semaphore(state, other))


@compiled
def _serve(state: Any, number: int) -> None:
    """Take part in one call after the other, for ever."""
    while True:
        _wait(state, number)
        _wake(state, number)
        _call(state[_FUNCTION], state[_DATA])
        if claim(state[_LEFT:], -1) == 1:
            _call(state[_POST], _semaphore(state, 0))


def _start(counter: Any) -> int:
    """Have all threads of a team call the function, this one among them, and wait for the others."""
    state = carray(counter, _LENGTH, np.int64)
    state[_LEFT] = state[_THREADS] - 1
    _wake(state, 0)
    _call(state[_FUNCTION], state[_DATA])
    _wait(state, 0)
    return 0


@intrinsic  # type: ignore[untyped-decorator]
def run_by_team(typing: Any, counter: Any) -> Any:
    """Make the current call on every thread of a team if ``counter`` asks for one; return whether that was done.

    A loop begins with it and returns if it is true. In the team's own calls it is false, and they do the work.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = cgutils.gep(builder, numbers, _START)
        start = builder.load(place)
        asked = cgutils.is_not_null(builder, start)
        with builder.if_then(asked):
            builder.store(start.type(0), place)
            # What all are given: a place for an error's code and description, and the arguments of this call.
            _, error, *others = builder.function.args
            given = [RETCODE_OK, cgutils.get_null_value(error.type.pointee), *others]
            data = cgutils.alloca_once_value(builder, cgutils.make_anonymous_struct(builder, given))
            called = _called(builder.module, builder.function, data.type)
            for k, pointer in ((_FUNCTION, called), (_DATA, data)):
                builder.store(builder.ptrtoint(pointer, start.type), cgutils.gep(builder, numbers, k))
            team = builder.bitcast(numbers, cgutils.voidptr_t)
            builder.call(builder.inttoptr(start, _FOR_C.as_pointer()), [team])
            code, description = (builder.load(cgutils.gep_inbounds(builder, data, 0, k)) for k in range(2))
            with builder.if_then(cgutils.is_not_null(builder, code), likely=False):
                builder.store(description, error)
                builder.ret(code)
        return asked

    return types.boolean(counter), code


def _called(module: Any, function: Any, given: Any) -> Any:
    """Return a function for C that calls another with what it is given, and notes there if that fails."""
    called = ir.Function(module, _FOR_C, f"{function.name}.called")
    called.linkage = "internal"
    builder = ir.IRBuilder(called.append_basic_block())
    data = builder.bitcast(called.args[0], given)
    code, description, *others = (cgutils.gep_inbounds(builder, data, 0, k) for k in range(len(given.pointee.elements)))
    result, error = (builder.alloca(argument.type.pointee) for argument in function.args[:2])
    status = builder.call(function, [result, error, *map(builder.load, others)])
    failed = builder.and_(*(builder.icmp_signed("!=", status, fine) for fine in (RETCODE_OK, RETCODE_NONE)))
    with builder.if_then(failed, likely=False):
        builder.store(status, code)
        builder.store(builder.load(error), description)
    builder.ret(RETCODE_OK)
    return called


class Team:
    """Threads of this process, started when they are first asked for; they end with it."""

    def __init__(self, library: Any):
        self.lock = threading.Lock()
        self.threads = 1
        self._start = compiled_for_c(_start, "int32(voidptr)")
        self._state = np.zeros(_LENGTH, np.int64)
        for place, function in ((_WAIT, library.sem_wait), (_POST, library.sem_post)):
            self._state[place] = ctypes.cast(function, ctypes.c_void_p).value or 0
        for row in self._state.reshape(-1, _ROW)[1:]:
            library.sem_init(ctypes.c_void_p(row.ctypes.data), 0, 0)

    def counter(self, threads: int) -> NDArray[np.int64]:
        """Return a counter with which so many threads, this one among them, run a loop; hold ``lock`` until it ends."""
        threads = min(threads, _MOST)
        while self.threads < threads:
            arguments = (self._state, self.threads)
            threading.Thread(target=_serve, args=arguments, name="particleaugment", daemon=True).start()
            self.threads += 1
        self._state[[_NEXT, _START, _THREADS]] = 0, self._start.address, threads
        return self._state


@lru_cache(maxsize=1)
def team(pid: int) -> Team | None:
    """Return the team of this process, or None on other systems than Linux; a forked process has one of its own."""
    return Team(ctypes.CDLL(None)) if sys.platform == "linux" else None
