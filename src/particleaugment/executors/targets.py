"""Masks, boxes and keypoints that follow their images.

:func:`checked` reads what a user gives, :func:`moved` moves it along some steps. Pixels of masks are Pillow's, moved by
the executor that moves the images. Boxes and keypoints are few, and are moved on the CPU in float64, so they are the
same for every executor and device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from particleaugment.executors import masks as mask_loops
from particleaugment.executors.points import (
    BOX_FORMATS,
    BoxList,
    PointList,
    move_boxes,
    move_points,
    per_image,
    read_boxes,
    read_points,
)
from particleaugment.executors.steps import Steps
from particleaugment.util.hints import nearest_name

__all__ = ["Augmented", "TargetOptions", "TargetSettings", "Targets", "checked", "moved", "settings_of"]

IGNORED = 255
"""What masks are filled with by default: the class that losses are usually told to ignore."""


class Augmented(NamedTuple):
    """Augmented images and their targets; None for targets that were not passed.

    Attributes:
        images: uint8 ``[B, C, H, W]``.
        masks: In the shape and type that were passed.
        boxes: One tensor ``[n, 4]`` per image, without the boxes that left their image.
        keypoints: As passed, with the visibility as last column: 0 for points that left the image.
        labels: One tensor per image, without the rows of dropped boxes.

    >>> import particleaugment as pa
    >>> images, masks = torch.zeros(1, 3, 2, 4, dtype=torch.uint8), torch.tensor([[[1, 2, 3, 4]] * 2])
    >>> shifted = pa.apply(images, pa.Program.from_ops([[("TranslateX", 0.25)]]), masks=masks,
    ...                    boxes=[torch.tensor([[1.0, 0.0, 3.0, 2.0]])])
    >>> shifted.masks[0, 0], shifted.boxes
    (tensor([  2,   3,   4, 255]), [tensor([[0., 0., 2., 2.]])])
    """

    images: Tensor
    masks: Tensor | None = None
    boxes: list[Tensor] | None = None
    keypoints: list[Tensor] | Tensor | None = None
    labels: list[Tensor] | None = None


class TargetOptions(TypedDict, total=False):
    """Keywords that say how targets are read and moved: the fields of :class:`TargetSettings`."""

    box_format: str
    normalized: bool
    min_visible: float | None
    mask_fill: int | None
    erase_targets: bool


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """How targets are read and moved.

    Attributes:
        box_format: ``xyxy`` (left, top, right, bottom), ``xywh`` (left, top, width, height) or ``cxcywh`` (centre,
            width, height); boxes are returned in the same format.
        normalized: Whether boxes and keypoints are fractions of the image's width and height instead of pixels.
        min_visible: A box is dropped with its label if less than this share of its area is visible, and always if
            nothing is. None keeps all boxes, and also accepts empty boxes and boxes outside the image.
        mask_fill: Class of mask pixels filled by geometric ops, crops and erasing; by default 255, the usual ignore
            index, and False for bool masks.
        erase_targets: Whether Cutout and RandomErasing also erase masks and hide keypoints; boxes keep their size. By
            default they leave all targets alone.
    """

    box_format: str = "xyxy"
    normalized: bool = False
    min_visible: float | None = 0.1
    mask_fill: int | None = None
    erase_targets: bool = False

    def __post_init__(self) -> None:
        if self.box_format not in BOX_FORMATS:
            hint = nearest_name(self.box_format, BOX_FORMATS) or f"; the formats are {', '.join(BOX_FORMATS)}"
            raise ValueError(f"there is no box format {self.box_format!r}{hint}")
        share = self.min_visible
        if share is not None and not (isinstance(share, (int, float)) and 0 <= share <= 1):
            raise ValueError(f"min_visible must be a share from 0 to 1, or None, got {self.min_visible!r}")
        if self.mask_fill is not None and (isinstance(self.mask_fill, bool) or not isinstance(self.mask_fill, int)):
            raise ValueError(f"mask_fill must be a whole number, a class, got {self.mask_fill!r}")
        for name in ("normalized", "erase_targets"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")

    def options(self) -> TargetOptions:
        """Return the settings as the keywords that make them.

        >>> TargetSettings(mask_fill=0).options()["mask_fill"]
        0
        """
        return {
            "box_format": self.box_format,
            "normalized": self.normalized,
            "min_visible": self.min_visible,
            "mask_fill": self.mask_fill,
            "erase_targets": self.erase_targets,
        }


class Targets(NamedTuple):
    """Targets of B images that were checked.

    Attributes:
        size: Height and width of the images.
        masks: ``[B, H, W]`` or ``[B, M, H, W]``.
        boxes: All boxes in one array.
        keypoints: All keypoints in one array.
        labels: One tensor per image, with a row per box.
    """

    size: tuple[int, int]
    masks: Tensor | None = None
    boxes: BoxList | None = None
    keypoints: PointList | None = None
    labels: Sequence[Tensor] | None = None


def settings_of(options: TargetOptions) -> TargetSettings:
    """Return options as settings, or raise a TypeError that names the one that does not exist.

    >>> settings_of({"mask_fill": 0}).mask_fill
    0
    """
    known = [field.name for field in fields(TargetSettings)]
    for name in options:
        if name not in known:
            hint = nearest_name(name, known) or f"; they are {', '.join(known)}"
            raise TypeError(f"there is no option {name!r} for targets{hint}")
    return TargetSettings(**options)


def checked(images: Tensor, settings: TargetSettings, given: Mapping[str, Any]) -> Targets | None:
    """Return the targets of a batch of images as they are moved, or None if there are none.

    Args:
        images: The images.
        settings: How targets are to be read.
        given: Masks, boxes, keypoints and labels by these names, each of them or None.
    """
    if all(value is None for value in given.values()):
        return None
    count, size = len(images), (int(images.shape[-2]), int(images.shape[-1]))
    masks, boxes, keypoints = given.get("masks"), given.get("boxes"), given.get("keypoints")
    form = settings.box_format, settings.normalized
    any_place = settings.min_visible is None
    read = None if boxes is None else read_boxes(boxes, count, size, *form, any_place=any_place)
    return Targets(
        size,
        None if masks is None else _checked_masks(masks, images, settings),
        read,
        None if keypoints is None else read_points(keypoints, count, size, settings.normalized),
        None if given.get("labels") is None else _checked_labels(given["labels"], read, count),
    )


def moved(images: Tensor, targets: Targets, steps: Steps, settings: TargetSettings, executor: str) -> Augmented:
    """Return images that were augmented, with their targets moved along the same steps.

    Args:
        images: The augmented images.
        targets: What :func:`checked` returned.
        steps: The steps, on the images' device.
        settings: How.
        executor: The executor that moves the masks: ``pil``, ``native``, ``fused`` or ``batch``.
    """
    size, masks = targets.size, targets.masks
    boxes = labels = keypoints = None
    if masks is not None:
        masks = _moved_masks(masks, steps, _fill_of(masks, settings), executor)
    if targets.boxes is None and targets.keypoints is None:
        return Augmented(images, masks)
    numbers = steps.coefficients(*size)
    if targets.boxes is not None:
        corners, share = move_boxes(targets.boxes, numbers, size)
        kept = np.ones(len(share), bool)
        if settings.min_visible is not None:
            kept = (share > 0) & (share >= settings.min_visible)
        boxes = targets.boxes.written(corners, kept, size, settings.box_format, settings.normalized)
        if targets.labels is not None:
            chosen = torch.from_numpy(kept).split([len(part) for part in targets.labels])
            labels = [part[rows.to(part.device)] for part, rows in zip(targets.labels, chosen)]
    if targets.keypoints is not None:
        erased = None if steps.erased is None else steps.erased.cpu().numpy()
        places, visible = move_points(targets.keypoints, numbers, erased, size)
        keypoints = targets.keypoints.written(places, visible, size, settings.normalized)
    return Augmented(images, masks, boxes, keypoints, labels)


def _moved_masks(masks: Tensor, steps: Steps, fill: int, executor: str) -> Tensor:
    if masks.numel() == 0 or steps.op.shape[1] == 0:
        return masks.clone()
    bits, value = mask_loops.as_bits(masks.unsqueeze(1) if masks.dim() == 3 else masks, fill)
    if executor == "fused":
        from particleaugment import executors
        from particleaugment.executors import fused

        unsuitable = fused.unsuitable_reason(bits, steps.op.shape[1])
        if not unsuitable:
            # The kernel makes its own coefficients, so masks alone never wait for the GPU.
            return fused.run_masks(bits, steps, value).view(masks.dtype).view(masks.shape)
        executors._say_once(f"moving masks with executor 'batch' instead of 'fused': {unsuitable}")
    run = {"pil": mask_loops.run_pillow, "native": mask_loops.run_native}.get(executor, mask_loops.run_batch)
    numbers = steps.coefficients(bits.shape[-2], bits.shape[-1])
    return run(bits, numbers, steps.erased, value).view(masks.dtype).view(masks.shape)


def _checked_masks(masks: Any, images: Tensor, settings: TargetSettings) -> Tensor:
    if not isinstance(masks, Tensor):
        raise TypeError(f"masks must be an integer tensor [batch, height, width], got {type(masks).__name__}")
    if masks.is_floating_point() or masks.is_complex():
        raise TypeError(f"masks must hold classes as integers, or bool, got {masks.dtype}; convert them with .long()")
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


def _checked_labels(labels: Any, boxes: BoxList | None, count: int) -> list[Tensor]:
    if boxes is None:
        raise ValueError("labels belong to boxes; pass boxes too")
    given = per_image("labels", labels, count, "[n]")
    for i, (part, rows) in enumerate(zip(given, boxes.given)):
        if part.dim() < 1 or len(part) != len(rows):
            number = f"{len(part)} labels" if part.dim() else "a single number as labels"
            raise ValueError(f"image {i} has {len(rows)} boxes but {number}; give one label per box")
    return given


def _fill_of(masks: Tensor, settings: TargetSettings) -> int:
    boolean = masks.dtype == torch.bool
    fill = settings.mask_fill
    if fill is None:
        fill = 0 if boolean else IGNORED
    low, high = (0, 1) if boolean else (torch.iinfo(masks.dtype).min, torch.iinfo(masks.dtype).max)
    if not low <= fill <= high:
        raise ValueError(
            f"masks of {masks.dtype} cannot contain the fill value {fill}; set mask_fill to {low} to {high}"
        )
    return fill
