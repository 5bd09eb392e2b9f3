"""Samples as data sets give them: torchvision's tv_tensors in any nesting, and arrays, lists and pictures by name.

torchvision is never imported before somebody hands over one of its tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from particleaugment.executors.steps import Steps
from particleaugment.executors.targets import TargetSettings, checked, moved

__all__ = ["MOVED", "Mover", "is_image", "leaves", "mapped", "move_named", "moves_by_name", "tv_kind"]

MOVED = ("Mask", "BoundingBoxes", "KeyPoints")
"""The tv_tensors that move with an image."""

_FORMATS = {"XYXY": "xyxy", "XYWH": "xywh", "CXCYWH": "cxcywh"}
_LABELS = ("labels", "class_labels")
_NAMED = ("mask", "masks", "bboxes", "keypoints")


def tv_kind(value: Any) -> str:
    """Return the name of a tv_tensor's class, or an empty string for anything else.

    >>> tv_kind(torch.zeros(3))
    ''
    """
    kind = type(value)
    return kind.__name__ if kind.__module__.startswith("torchvision.tv_tensors") else ""


def is_image(value: Any) -> bool:
    """Whether a value can be nothing but an image: a Pillow image or torchvision's ``Image``."""
    return isinstance(value, Image.Image) or tv_kind(value) == "Image"


def leaves(value: Any) -> Iterator[Any]:
    """Give what dicts, lists and tuples hold, depth first.

    >>> list(leaves({"a": [1, (2, 3)], "b": 4}))
    [1, 2, 3, 4]
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to what dicts, lists and tuples hold, and keep their kind.

    >>> mapped({"a": [1, (2, 3)], "b": 4}, lambda number: -number)
    {'a': [-1, (-2, -3)], 'b': -4}
    """
    if isinstance(value, Mapping):
        changed: Any = copy.copy(value)
        for name, part in value.items():
            changed[name] = mapped(part, function)
        return changed
    if isinstance(value, (list, tuple)):
        parts = [mapped(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return function(value)


class Mover:
    """Moves targets of one image along its steps.

    Args:
        image: The augmented image, ``[C, H, W]``.
        steps: The steps of a batch of one.
        settings: How targets are read and moved.
        executor: What moves masks.
    """

    def __init__(self, image: Tensor, steps: Steps, settings: TargetSettings, executor: str):
        self._images, self._steps, self._settings, self._executor = image.unsqueeze(0), steps, settings, executor

    def move(self, settings: TargetSettings | None = None, **targets: Any) -> tuple[Any, ...]:
        """Move masks ``[M, H, W]``, boxes, keypoints and labels of the image, and return them in this order."""
        chosen = settings or self._settings
        given = {name: value.unsqueeze(0) if name == "masks" else [value] for name, value in targets.items()}
        read = checked(self._images, chosen, given)
        assert read is not None
        result = moved(self._images, read, self._steps, chosen, self._executor)
        return tuple(None if part is None else part[0] for part in result[1:])

    def move_tv(self, value: Any) -> Any:
        """Move a tv_tensor as torchvision's own transforms do: boxes are clipped, and none is dropped."""
        kind, plain = tv_kind(value), value.as_subclass(Tensor)
        if kind == "Mask":
            masks = self.move(masks=plain.reshape(-1, *plain.shape[-2:]))[0]
            return _wrapped(masks.reshape(plain.shape), value)
        self._check_canvas(value)
        if kind == "KeyPoints":
            points = self.move(replace(self._settings, normalized=False), keypoints=plain)[2][..., :2]
            return _wrapped(_as_given(points, plain), value)
        form = _FORMATS.get(value.format.value)
        if form is None:
            raise ValueError(
                f"boxes of format {value.format.value} are rotated, which is not supported; convert them to XYXY"
            )
        settings = replace(self._settings, box_format=form, normalized=False, min_visible=None)
        return _wrapped(_as_given(self.move(settings, boxes=plain.reshape(-1, 4))[1], plain), value)

    def _check_canvas(self, value: Any) -> None:
        size = tuple(self._images.shape[-2:])
        if tuple(value.canvas_size) != size:
            raise ValueError(
                f"the {tv_kind(value)} have a canvas of {tuple(value.canvas_size)}, but the image is {size} "
                "(height, width)"
            )


def _wrapped(tensor: Tensor, like: Any) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.wrap(tensor, like=like)


def _as_given(moved: Tensor, given: Tensor) -> Tensor:
    whole = moved if given.is_floating_point() else moved.round()
    return whole.to(given.dtype).reshape(given.shape)


def moves_by_name(named: Mapping[str, Any]) -> bool:
    """Whether anything that is given by name has to move with the image.

    >>> moves_by_name({"label": 3, "mask": None}), moves_by_name({"bboxes": []})
    (False, True)
    """
    return any(named.get(name) is not None for name in _NAMED)


def move_named(mover: Mover, named: Mapping[str, Any]) -> dict[str, Any]:
    """Move what is given by name: ``mask``, ``masks``, ``bboxes`` with ``labels`` or ``class_labels``, ``keypoints``.

    Everything comes back as the kind that was given: arrays, lists of tuples, Pillow images, tensors. Columns of a box
    behind the first four stay with it. Other names are returned as they are.
    """
    result = dict(named)
    for name in ("mask", "masks"):
        if named.get(name) is not None:
            listed = isinstance(named[name], (list, tuple))
            parts = [_moved_mask(mover, part) for part in (named[name] if listed else [named[name]])]
            result[name] = parts if listed else parts[0]
    if named.get("bboxes") is not None:
        rows = _rows("bboxes", named["bboxes"], 4)
        numbers = torch.arange(len(rows), device="cpu")
        _, boxes, _, kept = mover.move(boxes=rows[:, :4], labels=numbers)
        result["bboxes"] = _like(torch.cat([boxes, rows[kept, 4:].to(boxes)], 1), named["bboxes"])
        for name in _LABELS:
            if named.get(name) is not None:
                result[name] = _selected(name, named[name], kept, len(rows))
    if named.get("keypoints") is not None:
        rows = _rows("keypoints", named["keypoints"], 2)
        result["keypoints"] = _like(mover.move(keypoints=rows)[2], named["keypoints"])
    return result


def _moved_mask(mover: Mover, mask: Any) -> Any:
    given = np.array(mask) if isinstance(mask, Image.Image) else mask
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(np.ascontiguousarray(given))
    if not isinstance(given, Tensor):
        raise TypeError(f"a mask must be an array, a tensor or a Pillow image, got {type(mask).__name__}")
    result = mover.move(masks=given.reshape(-1, *given.shape[-2:]))[0].reshape(given.shape)
    if isinstance(mask, Image.Image):
        picture = Image.fromarray(result.numpy())
        if mask.mode == "P":
            picture.putpalette(mask.getpalette() or [])
        return picture
    return result.numpy() if isinstance(mask, np.ndarray) else result


def _rows(name: str, values: Any, columns: int) -> Tensor:
    """Rows of numbers as a tensor; whole ones become float64, since there may be none to tell the type from."""
    try:
        rows = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        rows = None
    if rows is not None and rows.numel() == 0 and (rows.dim() != 2 or rows.shape[1] < columns):
        rows = rows.reshape(0, columns)
    if rows is None or rows.dim() != 2 or rows.shape[1] < columns:
        raise ValueError(f"{name} must be rows of at least {columns} numbers, got {values!r:.80}")
    return rows if rows.is_floating_point() else rows.to(torch.float64)


def _like(rows: Tensor, given: Any) -> Any:
    if isinstance(given, Tensor):
        return rows
    return rows.numpy() if isinstance(given, np.ndarray) else [tuple(row) for row in rows.tolist()]


def _selected(name: str, labels: Any, kept: Tensor, count: int) -> Any:
    if not isinstance(labels, (Sequence, np.ndarray, Tensor)) or len(labels) != count:
        number = len(labels) if hasattr(labels, "__len__") else type(labels).__name__
        raise ValueError(f"there are {count} bboxes but {number} {name}; give one label per box")
    if isinstance(labels, Tensor):
        return labels[kept.to(labels.device)]
    chosen = kept.numpy()
    return labels[chosen] if isinstance(labels, np.ndarray) else [labels[i] for i in chosen]
