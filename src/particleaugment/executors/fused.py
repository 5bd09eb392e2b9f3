"""The GPU executor: programs run in one kernel launch.

:func:`run` is the executor behind ``apply``. The same kernel also draws programs, crops, flips, erases and normalises:
see :mod:`particleaugment.augment.pipeline`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import resources

import torch
from torch import Tensor

from particleaugment.core.program import Program
from particleaugment.executors.nvrtc import Kernel, KernelError

__all__ = ["OUTPUTS", "LaunchParameters", "launch", "run", "unavailable_reason", "unsuitable_reason"]

OUTPUTS = {torch.uint8: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
"""Types of the result that the kernel writes, with its numbers for them."""
_MAX_SLOTS = 64
_MAX_SIDE = 1024
_STATIC_SHARED = 18 * 1024

_POINTERS = (
    "images", "index", "ids", "epoch", "seed", "op", "arg", "code", "edges", "particle",
    "gate", "table_op", "table_arg", "out", "scratch", "drawn",
)  # fmt: skip
_DOUBLES = ("flip", "erase", "area_low", "area_span", "log_aspect_low", "log_aspect_span")
_INTS = (
    "draw", "batch", "slots", "channels", "height", "width", "rows", "choices", "levels", "random_code",
    "default_code", "pad", "crops", "flips", "erases", "normalises", "output", "channels_last", "image_in_shared",
    "both_in_shared",
)  # fmt: skip


class LaunchParameters(ctypes.Structure):
    """The kernel's ``struct Params``, field by field."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in _POINTERS]
        + [(name, ctypes.c_double) for name in _DOUBLES]
        + [("scale", ctypes.c_float * 3), ("shift", ctypes.c_float * 3)]
        + [(name, ctypes.c_int) for name in _INTS]
        + [("fill", ctypes.c_uint32)]
    )


@cache
def _kernel(device: torch.device, threads: int) -> Kernel:
    source = resources.files("particleaugment.executors").joinpath("fused_kernel.cu").read_text()
    options = ["--fmad=false", "--std=c++17", f"-DTHREADS={threads}"]
    return Kernel(source, "augment", options, device)


@cache
def unavailable_reason(device: torch.device) -> str:
    """Return why the executor cannot run on a device, or an empty string."""
    if device.type != "cuda":
        return "it runs on CUDA devices"
    if torch.version.hip is not None:
        return "it is written for NVIDIA's compiler"
    try:
        _kernel(device, 256)
    except KernelError as error:
        return str(error)
    return ""


def unsuitable_reason(images: Tensor, slots: int) -> str:
    """Return why a batch is beyond the kernel, or an empty string."""
    if max(images.shape[-2:]) > _MAX_SIDE:
        return f"images are larger than {_MAX_SIDE} pixels a side"
    if slots > _MAX_SLOTS:
        return f"programs have more than {_MAX_SLOTS} slots"
    return ""


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program on CUDA images, uint8 ``[B, 3 or 1, H, W]``."""
    images = images.contiguous()
    out = torch.empty_like(images)
    parameters = LaunchParameters(
        images=images.data_ptr(),
        op=program.op.contiguous().data_ptr(),
        arg=program.arg.contiguous().data_ptr(),
        code=None if program.resample is None else program.resample.contiguous().data_ptr(),
        slots=program.op.shape[1],
        default_code=resample,
    )
    launch(parameters, images, out, len(images), fill)
    return out


def launch(parameters: LaunchParameters, images: Tensor, out: Tensor, batch: int, fill: Sequence[int]) -> None:
    """Launch the kernel on a batch, filling in what follows from images and device."""
    device, pixels = images.device, images.shape[-2] * images.shape[-1]
    threads = 256 if pixels <= 64 * 64 else 1024
    kernel = _kernel(device, threads)
    limit = _shared_limit(device) - _STATIC_SHARED
    shared = 8 * pixels if 8 * pixels <= limit else 4 * pixels if 4 * pixels <= limit else 0
    buffers = 2 - shared // (4 * pixels)
    scratch = torch.empty(batch * buffers * pixels, dtype=torch.int32, device=device) if buffers else None
    kernel.allow_shared_memory(shared)
    red, green, blue = fill if len(fill) == 3 else (fill[0],) * 3
    parameters.out, parameters.scratch = out.data_ptr(), None if scratch is None else scratch.data_ptr()
    parameters.batch, parameters.channels = batch, images.shape[1]
    parameters.height, parameters.width = images.shape[-2:]
    parameters.image_in_shared, parameters.both_in_shared = int(buffers < 2), int(buffers < 1)
    parameters.fill = red | green << 8 | blue << 16
    with torch.cuda.device(device):
        kernel.launch(batch, threads, shared, parameters)


@cache
def _shared_limit(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 * 1024))
