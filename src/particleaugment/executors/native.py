"""Compiled CPU loops (Numba): the fast way to augment without a GPU, exact to the pixel."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from particleaugment.coefficients import affine, blend_factor, pointwise_table
from particleaugment.ops import TABLE, Kind
from particleaugment.program import UNSET, Program

_IS_POINTWISE = torch.tensor([op.kind is Kind.POINTWISE for op in TABLE])
_IS_GEOMETRIC = torch.tensor([op.kind is Kind.GEOMETRIC for op in TABLE])


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
    op, arg = program.op, program.arg
    codes = program.resample_or_unset()
    codes = torch.where(codes == UNSET, torch.full_like(codes, resample), codes)
    table_row, chosen = _rows(_IS_POINTWISE[op])
    tables = pointwise_table(op[chosen], arg[chosen])
    affine_row, chosen = _rows(_IS_GEOMETRIC[op])
    matrices, turns = affine(op[chosen], arg[chosen], *images.shape[-2:])
    output = torch.empty_like(images)
    arguments = [
        tensor.contiguous().numpy()
        for tensor in (images, op, blend_factor(arg), table_row, tables, affine_row, matrices, turns, codes)
    ]
    arguments += [np.array(fill, np.uint8), output.numpy()]
    run_images = _kernels().run_images
    parts = max(1, min(torch.get_num_threads(), len(images)))
    bounds = [len(images) * part // parts for part in range(parts + 1)]
    if parts == 1:
        run_images(*arguments, 0, len(images))
    else:
        pool = _pool(parts, os.getpid())
        list(pool.map(lambda k: run_images(*arguments, bounds[k], bounds[k + 1]), range(parts)))
    return output


def _rows(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Number the chosen slots; the tables of coefficients have one row for each."""
    return (chosen.flatten().cumsum(0) - 1).view_as(chosen), chosen


@lru_cache(maxsize=4)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    # Keyed by process: a forked data-loader worker must not wait for its parent's threads.
    return ThreadPoolExecutor(threads, thread_name_prefix="particleaugment")


@cache
def _kernels() -> ModuleType:
    from particleaugment.executors import _kernels

    return _kernels
