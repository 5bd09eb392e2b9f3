"""Compiled CPU loops (Numba): the fast way to augment without a GPU, exact to the pixel."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from particleaugment.core.ops import TABLE, Kind
from particleaugment.core.program import UNSET, Program
from particleaugment.executors.coefficients import ROTATE, affine, blend_factor, patch_colours, pointwise_table

Array = NDArray[Any]

_IS_POINTWISE = np.array([op.kind is Kind.POINTWISE for op in TABLE])
_IS_GEOMETRIC = np.array([op.kind is Kind.GEOMETRIC for op in TABLE])


@cache
def unavailable_reason() -> str:
    """Return why the executor cannot run here, or an empty string."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return "Numba is not installed (pip install 'particleaugment[fast]')"
    return ""


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program on CPU images, uint8 ``[B, 3 or 1, H, W]``, with torch's number of threads."""
    images = images.contiguous()
    op, arg = program.op.numpy(), program.arg.numpy()
    codes = np.full_like(op, resample)
    if program.resample is not None:
        given = program.resample.numpy()
        codes = np.where(given == UNSET, codes, given)
    table_row, tables = _tables(op, arg)
    affine_row, matrices, turns = _matrices(op, arg, images.shape[-2], images.shape[-1])
    output = torch.empty_like(images)
    factor = blend_factor(program.arg).numpy()
    boxes, colours = _patches(program.patch, images.shape[1])
    inputs = (images.numpy(), op, factor, table_row, tables, affine_row, matrices, turns, codes, boxes, colours)
    arguments: list[Any] = [np.ascontiguousarray(array) for array in inputs]
    arguments += [np.array(fill, np.uint8), output.numpy()]
    in_parts(_kernels().run_images, arguments, len(images))
    return output


def resampled(images: Tensor, matrix: Tensor, resample: int) -> Tensor:
    """Resample CPU images, each with its own matrix ``[B, 6]``; black where the source is outside."""
    count, channels = images.shape[:2]
    images, output = images.contiguous(), torch.empty(images.shape, dtype=torch.uint8, device="cpu")
    column = np.zeros((count, 1), np.int64)
    no_tables, no_factor = np.empty((0, 256), np.uint8), np.zeros((count, 1), np.float32)
    boxes, colours = _patches(None, channels)
    arguments = (
        images.numpy(), column + ROTATE, no_factor, column, no_tables, np.arange(count).reshape(-1, 1),
        np.ascontiguousarray(matrix.numpy()), np.full(count, -1), column + resample, boxes, colours,
        np.zeros(channels, np.uint8), output.numpy(),
    )  # fmt: skip
    in_parts(_kernels().run_images, arguments, count)
    return output


def in_parts(function: Callable[..., None], arguments: Sequence[Any], count: int) -> None:
    """Call a compiled function with ``arguments`` and the bounds of parts of ``count`` images, a part per thread."""
    run_part = partial(function, *arguments)
    parts = max(1, min(torch.get_num_threads(), count))
    bounds = [count * part // parts for part in range(parts + 1)]
    # This thread does the first part itself: one thread fewer to wake, and the scheduler need not find it a core.
    pool = _pool(parts, os.getpid()) if parts > 1 else None
    others = [pool.submit(run_part, bounds[k], bounds[k + 1]) for k in range(1, parts)] if pool else []
    run_part(bounds[0], bounds[1])
    for other in others:
        other.result()


def _tables(op: Array, arg: Array) -> tuple[Array, Array]:
    """The tables of the pointwise ops, one per distinct pair of op and argument, and each slot's row in them."""
    row, pairs = _distinct(op, arg, _IS_POINTWISE)
    return row, _tables_of(pairs.tobytes())


@lru_cache(maxsize=64)
def _tables_of(pairs: bytes) -> Array:
    return pointwise_table(*_ops_and_arguments(pairs)).numpy()


def _matrices(op: Array, arg: Array, height: int, width: int) -> tuple[Array, Array, Array]:
    """The affine coefficients of the geometric ops, likewise."""
    row, pairs = _distinct(op, arg, _IS_GEOMETRIC)
    return row, *_matrices_of(pairs.tobytes(), height, width)


@lru_cache(maxsize=64)
def _matrices_of(pairs: bytes, height: int, width: int) -> tuple[Array, Array]:
    matrices, turns = affine(*_ops_and_arguments(pairs), height, width)
    return matrices.numpy(), turns.numpy()


def _patches(patch: Tensor | None, channels: int) -> tuple[Array, Array]:
    """Cutout's rectangles and colours; empty arrays, never read, for a program without them."""
    if patch is None:
        return np.empty((0, 0, 4), np.int64), np.empty((0, 0, channels), np.uint8)
    return patch[..., :4].numpy(), patch_colours(patch, channels).numpy()


def _ops_and_arguments(pairs: bytes) -> tuple[Tensor, Tensor]:
    values = torch.from_numpy(np.frombuffer(pairs, np.complex128).copy())
    return values.imag.to(torch.int64), values.real.contiguous()


def _distinct(op: Array, arg: Array, of_kind: Array) -> tuple[Array, Array]:
    """Number the distinct pairs of op and argument among the ops of a kind; a pair is argument + i · op.

    A policy with a fixed level has few of them, and the same in every batch. This is NumPy, since on larger tensors
    torch would wake its own threads, and those spin for a while on the cores that the compiled loops need.
    """
    chosen = of_kind[op]
    distinct, inverse = np.unique(arg[chosen] + 1j * op[chosen], return_inverse=True)
    row = np.zeros_like(op)
    row[chosen] = inverse.reshape(-1)
    return row, distinct


@lru_cache(maxsize=4)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    # Keyed by process: a forked data-loader worker must not wait for its parent's threads.
    return ThreadPoolExecutor(threads, thread_name_prefix="particleaugment")


@cache
def _kernels() -> ModuleType:
    from particleaugment.executors import _kernels

    return _kernels
