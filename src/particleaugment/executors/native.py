"""Compiled CPU loops (Numba): the fast way to augment without a GPU, exact to the pixel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from particleaugment.core.program import UNSET, Program
from particleaugment.executors import threads

Array = NDArray[Any]

PLANAR, INTERLEAVED, PACKED = 0, 1, 2
"""How an image's bytes are laid out: plane by plane, pixel by pixel, or pixel by pixel with a fourth byte, of 255."""


@cache
def unavailable_reason() -> str:
    """Return why the executor cannot run here, or an empty string."""
    try:
        import numba  # noqa: F401
        from numba.core.compiler_lock import global_compiler_lock as compiling
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "numba":
            return "Numba is not installed (pip install 'particleaugment[fast]')"
        return f"Numba cannot be imported ({error})"
    if hasattr(os, "register_at_fork"):
        # A process that is forked while another thread compiles would wait for ever for a lock that nobody holds.
        os.register_at_fork(
            before=compiling.acquire, after_in_parent=compiling.release, after_in_child=compiling.release
        )
    return ""


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program on CPU images, uint8 ``[B, 3 or 1, H, W]``, with torch's number of threads."""
    images = images.contiguous()
    op, arg = program.op.contiguous().numpy(), program.arg.contiguous().numpy()
    codes = np.full_like(op, resample)
    if program.resample is not None:
        given = program.resample.numpy()
        codes = np.where(given == UNSET, codes, given)
    patch = np.empty((len(op), 0, 5), np.int64) if program.patch is None else program.patch.contiguous().numpy()
    output = torch.empty_like(images)
    count, (channels, height, width) = len(images), images.shape[1:]
    given, result = images.numpy().reshape(count, -1), output.numpy().reshape(count, -1)
    arguments = (given, PLANAR, channels, height, width, op, arg, codes, patch, packed_colour(fill), result)
    threads.on_threads(kernels().run_images, arguments, count, images[0].numel())
    return output


def run_image(
    given: Array, layout: int, channels: int, height: int, width: int, op: Array, arg: Array, code: Array,
    patch: Array | None, fill: Sequence[int],
) -> Array:  # fmt: skip
    """Run the program of one image, on this thread, and return its bytes.

    Args:
        given: Its bytes, an array of one dimension that may be written to, though nobody does.
        layout: How they are laid out.
        channels: 1 or 3.
        height: Its height.
        width: Its width.
        op: Op indices, ``[1, slots]``.
        arg: Their arguments.
        code: Their filters.
        patch: What Cutout paints, ``[1, slots, 5]``, or None.
        fill: Colour, or grey value, of what geometric ops bring in.
    """
    result = np.empty((1, given.size), np.uint8)
    painted = np.empty((1, 0, 5), np.int64) if patch is None else patch
    kernels().run_images(
        given.reshape(1, -1), layout, channels, height, width, op, arg, code, painted, packed_colour(fill), result,
        threads.counter(), 1,
    )  # fmt: skip
    return result.reshape(-1)


def resampled(images: Tensor, matrix: Tensor, resample: int) -> Tensor:
    """Resample CPU images, each with its own matrix ``[B, 6]``; black where the source is outside."""
    images, output = images.contiguous(), torch.empty(images.shape, dtype=torch.uint8, device="cpu")
    arguments = (images.numpy(), matrix.contiguous().numpy(), resample, output.numpy())
    threads.on_threads(kernels().resample_images, arguments, len(images), images[0].numel())
    return output


def packed_colour(colour: Sequence[int]) -> np.uint32:
    """Return a colour, or a grey value, as a pixel of the compiled loops.

    >>> hex(packed_colour((1, 2, 3))), hex(packed_colour((1,)))
    ('0xff030201', '0xff010101')
    """
    red, green, blue = colour if len(colour) == 3 else (colour[0],) * 3
    return np.uint32(red | green << 8 | blue << 16 | 0xFF000000)


@cache
def kernels() -> ModuleType:
    """Return the module of compiled loops; Numba, which it imports, takes a while."""
    from particleaugment.executors import _kernels

    return _kernels
