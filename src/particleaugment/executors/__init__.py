"""Executors turn a batch of uint8 images and a Program into augmented images: the same call, the same pixels.

``pil``     Pillow, image by image: the oracle.
``native``  loops compiled by Numba: the fastest on a CPU.
``fused``   one CUDA kernel: the fastest on an NVIDIA GPU.
``batch``   vectorised torch: any device.
``auto``    ``native`` on a CPU where Numba is installed, ``fused`` on a CUDA device where it can run, else ``batch``.

Registered ops run on ``batch`` and, with a Pillow function, on ``pil``; Cutout on all but ``fused``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Unpack, overload

import torch
from torch import Tensor

from particleaugment.core import registry
from particleaugment.core.op_table import Kind, check_size, lookup
from particleaugment.core.program import Program, resample_code
from particleaugment.executors import native
from particleaugment.executors.coefficients import MAX_SIDE, luminance
from particleaugment.executors.steps import Steps
from particleaugment.executors.targets import Augmented, TargetOptions, checked, moved, settings_of
from particleaugment.util.hints import nearest_name

__all__ = ["EXECUTORS", "apply", "choose_executor"]

EXECUTORS: tuple[str, ...] = ("auto", "pil", "native", "fused", "batch")
"""The names that ``apply`` takes as its executor; each but ``auto`` is that of a module here."""

_RUN_OWN_OPS = ("auto", "pil", "batch")
_NO_CUTOUT = "its kernel does not support Cutout"
_ROTATE_90 = lookup("Rotate90").index

_logger = logging.getLogger("particleaugment")


@overload
def apply(
    images: Tensor,
    program: Program,
    executor: str = "auto",
    resample: str = "bilinear",
    fill: tuple[int, int, int] = (128, 128, 128),
) -> Tensor: ...


@overload
def apply(
    images: Tensor,
    program: Program,
    executor: str = "auto",
    resample: str = "bilinear",
    fill: tuple[int, int, int] = (128, 128, 128),
    *,
    masks: Tensor | None = None,
    boxes: Sequence[Tensor] | None = None,
    keypoints: Sequence[Tensor] | Tensor | None = None,
    labels: Sequence[Tensor] | None = None,
    **options: Unpack[TargetOptions],
) -> Augmented: ...


def apply(
    images: Tensor,
    program: Program,
    executor: str = "auto",
    resample: str = "bilinear",
    fill: tuple[int, int, int] = (128, 128, 128),
    *,
    masks: Tensor | None = None,
    boxes: Sequence[Tensor] | None = None,
    keypoints: Sequence[Tensor] | Tensor | None = None,
    labels: Sequence[Tensor] | None = None,
    **options: Unpack[TargetOptions],
) -> Tensor | Augmented:
    """Run a program on a batch of images and return the augmented batch, with its targets if there are any.

    Args:
        images: uint8 ``[B, 3, H, W]``, or ``[B, 1, H, W]`` for grey images, on any device and in any memory layout.
        program: One row of ops per image; it is moved to the images' device.
        executor: ``auto``, ``pil``, ``native``, ``fused`` or ``batch``; all give the same pixels.
        resample: Interpolation of the geometric ops: ``nearest``, ``bilinear`` or ``bicubic``; slots of the program
            that set their own keep it.
        fill: Fill colour of the geometric ops; grey images get its luminance.
        masks: Classes of the images' pixels, any integer type or bool, ``[B, H, W]`` or ``[B, M, H, W]``, on the
            images' device; moved by nearest neighbour.
        boxes: One tensor ``[n, 4]`` per image, in pixels as left, top, right, bottom unless ``box_format`` and
            ``normalized`` say otherwise. Their corners are moved, and the box around them is clipped to the image.
        keypoints: One tensor ``[n, 2]`` per image (column and row, whole numbers at pixel centres), or ``[n, 3]`` with
            a visibility that becomes 0 for points that leave the image; also ``[n, points, 2 or 3]``.
        labels: One tensor per image, with a row per box; boxes with less than ``min_visible`` of their area left are
            dropped with their labels.
        options: How targets are read and moved: the fields of
            :class:`particleaugment.executors.targets.TargetSettings`, such as ``mask_fill=0``.

    Returns:
        A new uint8 tensor of the same shape on the same device, or with at least one target an
        :class:`particleaugment.Augmented` of images, masks, boxes, keypoints and labels.

    >>> import particleaugment as pa
    >>> images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    >>> program = pa.Program.from_ops([[("Rotate", 180)], ["Invert", ("Posterize", 1)]])
    >>> pa.apply(images, program)[0, 0, 0]
    tensor([15, 14, 13, 12], dtype=torch.uint8)
    >>> pa.apply(images, program, masks=torch.arange(32).view(2, 4, 4)).masks[0, 0]
    tensor([15, 14, 13, 12])
    """
    check_images(images)
    check_program(images, program)
    code = resample_code(resample)
    colour = checked_fill(fill)
    settings = settings_of(options)
    targets = checked(images, settings, {"masks": masks, "boxes": boxes, "keypoints": keypoints, "labels": labels})
    own = registry.names_in(program.op)
    if targets is not None:
        registry.check_places(own)
    name = choose_executor(executor, images.device, own + (() if program.patch is None else ("Cutout",)))
    program = program.to(images.device)
    result = _run(name, images, program, code, colour)
    if targets is None:
        return result
    steps = Steps.of(program, erases=settings.erase_targets)
    return moved(result, targets, steps, settings, name)


def check_program(images: Tensor, program: Program) -> None:
    """Raise a TypeError or ValueError unless a program is one for these images."""
    if not isinstance(program, Program):
        raise TypeError(
            f"expected a Program, got {type(program).__name__}; make one with Program.from_ops or policy.sample"
        )
    if len(program) != len(images):
        raise ValueError(f"the program is for {len(program)} images but the batch has {len(images)}")
    _check_size(images, program)


def _run(name: str, images: Tensor, program: Program, code: int, colour: tuple[int, int, int]) -> Tensor:
    """Run a program on images by the executor of a name."""
    if images.numel() == 0 or program.op.shape[1] == 0:
        return images.clone()
    per_channel = colour if images.shape[1] == 3 else (luminance(colour),)
    if name == "fused":
        from particleaugment.executors import fused

        unsuitable = fused.unsuitable_reason(images, program.op.shape[1])
        unsuitable = _NO_CUTOUT if program.patch is not None else unsuitable
        if unsuitable:
            _say_once(f"augmenting with executor 'batch' instead of 'fused': {unsuitable}")
            name = "batch"
    result: Tensor = import_module(f"particleaugment.executors.{name}").run(images, program, code, per_channel)
    return result


def resampled(images: Tensor, matrix: Tensor, resample: str = "bilinear") -> Tensor:
    """Return what Pillow's affine transform makes of images, each with its own matrix.

    Args:
        images: uint8 ``[B, 3 or 1, H, W]`` on any device.
        matrix: Float64 ``[B, 6]``, on the same device: the source of output point (x, y) is (m0·x + m1·y + m2, m3·x +
            m4·y + m5), with pixel centres at half-integers. What comes from outside is black.
        resample: The filter.

    >>> images = torch.arange(4, dtype=torch.uint8).expand(1, 1, 2, 4)
    >>> resampled(images, torch.tensor([[0.5, 0, 1, 0, 1, 0]], dtype=torch.float64), "nearest")[0, 0, 0]
    tensor([1, 1, 2, 2], dtype=torch.uint8)
    """
    check_images(images)
    if images.numel() == 0:
        return images.clone()
    if images.device.type == "cpu" and not native.unavailable_reason():
        return native.resampled(images, matrix, resample_code(resample))
    from particleaugment.executors import batch

    return batch.resampled(images, matrix, resample_code(resample))


def choose_executor(executor: str, device: torch.device, ops: Iterable[str] = ()) -> str:
    """Return the executor that runs for a request on a device, where ``ops`` may occur.

    >>> choose_executor("batch", torch.device("cpu"))
    'batch'
    """
    check_executor(executor, device)
    ops = tuple(ops)
    own = [name for name in ops if lookup(name).kind is Kind.OWN]
    if own and executor not in _RUN_OWN_OPS:
        raise ValueError(
            f"executor {executor!r} runs only built-in ops, but {own[0]} is registered; use 'batch' or 'auto'"
        )
    if executor != "auto":
        return executor
    if own:
        _say_once(
            f"augmenting with executor 'batch': {own[0]} is registered, and the faster executors run only built-in ops"
        )
        return "batch"
    if device.type == "cuda":
        reason = _no_fused(device) or (_NO_CUTOUT if "Cutout" in ops else "")
        if not reason:
            return "fused"
        _say_once(f"augmenting with executor 'batch' instead of 'fused': {reason}")
    if device.type != "cpu":
        return "batch"
    if native.unavailable_reason():
        _say_once(f"augmenting with executor 'batch', which is slower on a CPU: {native.unavailable_reason()}")
        return "batch"
    return "native"


def check_executor(executor: str, device: torch.device) -> None:
    """Raise a ValueError if there is no executor of this name, or if it cannot run on a device."""
    if executor not in EXECUTORS:
        hint = nearest_name(executor, EXECUTORS) or f"; the executors are {', '.join(EXECUTORS)}"
        raise ValueError(f"there is no executor {executor!r}{hint}")
    if executor == "native":
        if device.type != "cpu":
            raise ValueError(f"executor 'native' runs on CPU images, got images on {device}; use 'batch' or 'auto'")
        if native.unavailable_reason():
            raise ValueError(f"executor 'native' cannot run: {native.unavailable_reason()}; use 'batch' or 'auto'")
    if executor == "fused" and _no_fused(device):
        raise ValueError(f"executor 'fused' cannot run on {device}: {_no_fused(device)}; use 'batch' or 'auto'")


def one_by_one() -> str:
    """Return what augments single images on a CPU: ``native``, or ``pil`` where there is no Numba.

    Pillow is faster than ``batch`` there, which is for batches.
    """
    if not native.unavailable_reason():
        return "native"
    _say_once(f"augmenting single images with Pillow, which is slower: {native.unavailable_reason()}")
    return "pil"


def _no_fused(device: torch.device) -> str:
    from particleaugment.executors import fused

    return fused.unavailable_reason(device)


@cache
def _say_once(message: str) -> None:
    _logger.warning(message)


def check_images(images: Tensor) -> None:
    """Raise a TypeError or ValueError unless ``images`` is a batch that ``apply`` takes."""
    if not isinstance(images, Tensor):
        raise TypeError(f"expected a uint8 tensor of images, got {type(images).__name__}")
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8 (0 to 255), got {images.dtype}; augment before converting to float")
    if images.is_meta or images.is_nested or images.layout is not torch.strided:
        raise TypeError("images must be an ordinary tensor with pixels in it, not sparse, nested or meta")
    if images.dim() != 4:
        raise ValueError(f"images must have shape [batch, channels, height, width], got {tuple(images.shape)}")
    if images.shape[1] not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels in dimension 1, got shape {tuple(images.shape)}")
    if max(images.shape[2:]) > MAX_SIDE:
        raise ValueError(f"images may have up to {MAX_SIDE} pixels per side, got shape {tuple(images.shape)}")


def _check_size(images: Tensor, program: Program) -> None:
    """Refuse Rotate90 on images that are not square; a program on the GPU is not looked at, which would stall it."""
    height, width = images.shape[-2:]
    if height != width and "cpu" in (images.device.type, program.op.device.type):
        check_size(["Rotate90"] if bool((program.op == _ROTATE_90).any()) else [], (height, width))


def checked_fill(fill: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return a fill colour, or raise a ValueError."""
    values = tuple(fill) if isinstance(fill, Iterable) else (fill,) * 3
    if len(values) != 3 or not all(isinstance(v, int) and 0 <= v <= 255 for v in values):
        raise ValueError(f"fill must be three whole numbers from 0 to 255 (red, green, blue), got {fill!r}")
    return values[0], values[1], values[2]
