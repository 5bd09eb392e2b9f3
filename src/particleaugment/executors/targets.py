"""Masks, boxes and keypoints that follow their images.

:func:`checked` reads what a user gives, :func:`moved` moves it along some steps. Pixels of masks are Pillow's, moved by
the executor that moves the images. Boxes and keypoints are few, and are moved on the CPU in float64, so they are the
same for every executor and device.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from particleaugment.executors import masks as mask_loops
from particleaugment.executors.steps import Steps
from particleaugment.util.hints import nearest_name

__all__ = ["Augmented", "TargetOptions", "TargetSettings", "Targets", "checked", "moved", "settings_of"]

IGNORED = 255
"""What masks are filled with by default: the class that losses usually ignore."""


class Augmented(NamedTuple):
    """Augmented images, and what was given with them; None for what was not.

    Attributes:
        images: uint8 ``[B, C, H, W]``.
        masks: Of the shape and type that were given.

    >>> import particleaugment as pa
    >>> images, masks = torch.zeros(1, 3, 2, 4, dtype=torch.uint8), torch.tensor([[[1, 2, 3, 4]] * 2])
    >>> pa.apply(images, pa.Program.from_ops([[("TranslateX", 0.25)]]), masks=masks).masks[0, 0]
    tensor([  2,   3,   4, 255])
    """

    images: Tensor
    masks: Tensor | None = None


class TargetOptions(TypedDict, total=False):
    """Keywords that say how targets are moved: the fields of :class:`TargetSettings`."""

    mask_fill: int | None
    erase_targets: bool


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """How targets are moved.

    Attributes:
        mask_fill: Class of the pixels that geometric ops, crops and erasing bring into a mask; by default 255, which
            losses are usually told to ignore, and False for masks of bool.
        erase_targets: Whether Cutout and RandomErasing erase the same rectangle of a mask; by default they leave masks
            as they are.
    """

    mask_fill: int | None = None
    erase_targets: bool = False

    def __post_init__(self) -> None:
        fill = self.mask_fill
        if fill is not None and (isinstance(fill, float) or int(fill) != fill):
            raise ValueError(f"mask_fill must be a whole number, a class, got {fill!r}")
        if not isinstance(self.erase_targets, bool):
            raise ValueError(f"erase_targets must be True or False, got {self.erase_targets!r}")


class Targets(NamedTuple):
    """Targets of B images that were checked.

    Attributes:
        masks: ``[B, M, H, W]``.
    """

    masks: Tensor | None = None


def settings_of(options: TargetOptions) -> TargetSettings:
    """Return options as settings, or raise a TypeError that names the one that does not exist.

    >>> settings_of({"mask_fill": 0})
    TargetSettings(mask_fill=0, erase_targets=False)
    """
    known = [field.name for field in fields(TargetSettings)]
    for name in options:
        if name not in known:
            hint = nearest_name(name, known) or f"; they are {', '.join(known)}"
            raise TypeError(f"there is no option {name!r} for targets{hint}")
    return TargetSettings(**options)


def checked(images: Tensor, settings: TargetSettings, masks: Any = None) -> Targets | None:
    """Return targets of a batch of images as they are moved, or None if there are none."""
    if masks is None:
        return None
    return Targets(_checked_masks(masks, images, settings))


def moved(targets: Targets, steps: Steps, settings: TargetSettings, executor: str) -> Targets:
    """Move targets along the steps of their images.

    Args:
        targets: What :func:`checked` returned.
        steps: The steps, on the images' device.
        settings: How.
        executor: The executor that moves the masks: ``pil``, ``native``, ``fused`` or ``batch``.
    """
    masks = targets.masks
    return Targets(None if masks is None else _moved_masks(masks, steps, _fill_of(masks, settings), executor))


def _moved_masks(masks: Tensor, steps: Steps, fill: int, executor: str) -> Tensor:
    if masks.numel() == 0 or steps.op.shape[1] == 0:
        return masks.clone()
    run = {"pil": mask_loops.run_pillow, "native": mask_loops.run_native}.get(executor, mask_loops.run_batch)
    bits, value = mask_loops.as_bits(masks.unsqueeze(1) if masks.dim() == 3 else masks, fill)
    return run(bits, steps, value).view(masks.dtype).view(masks.shape)


def _checked_masks(masks: Any, images: Tensor, settings: TargetSettings) -> Tensor:
    if not isinstance(masks, Tensor):
        raise TypeError(f"masks must be an integer tensor [batch, height, width], got {type(masks).__name__}")
    if masks.is_floating_point() or masks.is_complex():
        raise TypeError(f"masks must hold classes as integers, or bool, got {masks.dtype}; convert them, e.g. .long()")
    size = tuple(images.shape[-2:])
    if masks.dim() not in (3, 4) or len(masks) != len(images) or tuple(masks.shape[-2:]) != size:
        raise ValueError(
            f"masks must have shape [batch, height, width] or [batch, masks, height, width] like their {len(images)} "
            f"images of {size[0]}x{size[1]} pixels, got {tuple(masks.shape)}"
        )
    if masks.device != images.device:
        raise ValueError(f"masks are on {masks.device} but their images on {images.device}; move them there")
    _fill_of(masks, settings)
    return masks


def _fill_of(masks: Tensor, settings: TargetSettings) -> int:
    boolean = masks.dtype == torch.bool
    fill = settings.mask_fill
    if fill is None:
        fill = 0 if boolean else IGNORED
    low, high = (0, 1) if boolean else (torch.iinfo(masks.dtype).min, torch.iinfo(masks.dtype).max)
    if not low <= fill <= high:
        raise ValueError(f"masks of {masks.dtype} cannot hold their fill, {fill}; set mask_fill to {low} to {high}")
    return fill
