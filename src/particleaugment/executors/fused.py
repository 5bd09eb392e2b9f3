"""The GPU executor: programs run in one kernel launch, and masks follow in one more.

:func:`run` and :func:`run_masks` are the executor behind ``apply``. The kernel of :func:`run` also draws programs,
crops, flips, erases and normalises: see :mod:`particleaugment.augment.pipeline`.
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
from particleaugment.executors.steps import Steps

__all__ = ["OUTPUTS", "LaunchParameters", "launch", "run", "run_masks", "unavailable_reason", "unsuitable_reason"]

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


class MaskParameters(ctypes.Structure):
    """The kernel's ``struct MaskParams``, field by field."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("masks", "out", "op", "arg", "matrix", "erased")]
        + [("fill", ctypes.c_uint64)]
        + [(name, ctypes.c_int) for name in ("steps", "masks_per_image", "height", "width", "bytes", "has_tables")]
    )


def kernel_source(name: str) -> str:
    """Return the CUDA C++ of a kernel, with the coefficients that the kernels share.

    >>> "move_masks" in kernel_source("mask_kernel.cu")
    True
    """
    folder = resources.files("particleaugment.executors")
    return "\n".join(folder.joinpath(part).read_text() for part in ("coefficients.cu", name))


@cache
def _kernel(device: torch.device, threads: int, file: str = "fused_kernel.cu", function: str = "augment") -> Kernel:
    options = ["--fmad=false", "--std=c++17", f"-DTHREADS={threads}"]
    return Kernel(kernel_source(file), function, options, device)


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
        return f"images are larger than {_MAX_SIDE} pixels per side"
    if slots > _MAX_SLOTS:
        return f"programs have more than {_MAX_SLOTS} slots"
    return ""


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program on CUDA images, uint8 ``[B, 3 or 1, H, W]``."""
    images = images.contiguous()
    out = torch.empty_like(images)
    # Copies must last until the launch: the memory of one that is gone may be given to the next.
    op, arg = program.op.contiguous(), program.arg.contiguous()
    code = None if program.resample is None else program.resample.contiguous()
    parameters = LaunchParameters(
        images=images.data_ptr(),
        op=op.data_ptr(),
        arg=arg.data_ptr(),
        code=None if code is None else code.data_ptr(),
        slots=op.shape[1],
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


def run_masks(masks: Tensor, steps: Steps, fill: int) -> Tensor:
    """Move masks ``[B, M, H, W]`` on a CUDA device, of a type of 1, 2, 4 or 8 bytes."""
    height, width = masks.shape[-2:]
    masks, out = masks.contiguous(), torch.empty_like(masks, memory_format=torch.contiguous_format)
    parameters, kept = mask_parameters(masks, out, steps, fill)
    threads = 256 if height * width <= 64 * 64 else 1024
    kernel = _kernel(masks.device, threads, "mask_kernel.cu", "move_masks")
    tables = 2 * parameters.steps * (height + width)
    if tables <= _shared_limit(masks.device) - _STATIC_SHARED:
        parameters.has_tables = 1
        kernel.allow_shared_memory(tables)
    with torch.cuda.device(masks.device):
        kernel.launch(len(masks), threads, tables if parameters.has_tables else 0, parameters)
    del kept  # until now: what the kernel reads must not be given to another tensor before it is launched
    return out


def mask_parameters(masks: Tensor, out: Tensor, steps: Steps, fill: int) -> tuple[MaskParameters, list[Tensor]]:
    """Return the parameters of a launch, and the tensors that they point to.

    Args:
        masks: ``[B, M, H, W]``, contiguous.
        out: Where to write.
        steps: The steps, on the same device.
        fill: What is filled in, in the masks' type.
    """
    given = {name: part.contiguous() for name, part in steps._asdict().items() if part is not None}
    pointers = {name: part.data_ptr() for name, part in given.items()}
    parameters = MaskParameters(
        masks=masks.data_ptr(),
        out=out.data_ptr(),
        fill=fill % (1 << 64),
        steps=steps.op.shape[1],
        masks_per_image=masks.shape[1],
        height=masks.shape[2],
        width=masks.shape[3],
        bytes=masks.element_size(),
        **pointers,
    )
    return parameters, list(given.values())


@cache
def _shared_limit(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 * 1024))
