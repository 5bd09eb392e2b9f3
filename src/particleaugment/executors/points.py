"""Boxes and keypoints: read, moved and written, on the CPU in float64.

Points are in the plane whose pixel (column, row) covers [column, column + 1) x [row, row + 1). A box's edges are points
of it; a keypoint is given as in COCO, where (column, row) is the centre of that pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from particleaugment.executors.steps import ERASES, NOTHING, Coefficients

__all__ = ["BOX_FORMATS", "BoxList", "PointList", "move_boxes", "move_points", "per_image", "read_boxes", "read_points"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Size = tuple[int, int]

BOX_FORMATS: tuple[str, ...] = ("xyxy", "xywh", "cxcywh")
"""Left, top, right, bottom; left, top, width, height; or centre, width, height."""

_OVERHANG = 1.0  # pixels: annotations are often rounded up to the next whole pixel


class BoxList(NamedTuple):
    """The boxes of B images in one array.

    Attributes:
        corners: Left, top, right and bottom in pixels, ``[N, 4]``.
        image: The image of each, int64 ``[N]``.
        given: The boxes as they were given, one tensor per image.
    """

    corners: Floats
    image: NDArray[np.int64]
    given: Sequence[Tensor]

    def written(self, corners: Floats, kept: Bools, size: Size, box_format: str, normalized: bool) -> list[Tensor]:
        """Return boxes in the form in which they were given, without those that are not kept."""
        first, last = corners[:, :2], corners[:, 2:]
        if box_format == "xywh":
            corners = np.concatenate([first, last - first], 1)
        elif box_format == "cxcywh":
            corners = np.concatenate([(first + last) / 2, last - first], 1)
        if normalized:
            corners = corners / _sides(size)
        counts = np.bincount(self.image[kept], minlength=len(self.given)).tolist()
        return _split(torch.from_numpy(corners[kept]), counts, self.given)


class PointList(NamedTuple):
    """The keypoints of B images in one array.

    Attributes:
        places: Column and row, ``[N, 2]``.
        visible: The visibility of each, 0 for none, ``[N]``.
        image: The image of each, int64 ``[N]``.
        given: The keypoints as they were given.
    """

    places: Floats
    visible: Floats
    image: NDArray[np.int64]
    given: Sequence[Tensor] | Tensor

    def written(self, places: Floats, visible: Floats, size: Size, normalized: bool) -> list[Tensor] | Tensor:
        """Return keypoints in the form in which they were given, with their visibility in the last column."""
        if normalized:
            places = places / _sides(size)[:2]
        rows = torch.from_numpy(np.concatenate([places, visible[:, None]], 1))
        if isinstance(self.given, Tensor):
            return rows.view(*self.given.shape[:-1], 3).to(self.given.device, floating(self.given))
        parts = _split(rows, [points.shape[:-1].numel() for points in self.given], self.given)
        return [part.view(*points.shape[:-1], 3) for part, points in zip(parts, self.given)]


def _split(rows: Tensor, counts: list[int], like: Sequence[Tensor]) -> list[Tensor]:
    """Cut rows into one tensor per image, of the type and on the device of those that were given."""
    kinds = [(given.device, floating(given)) for given in like]
    if len(set(kinds)) == 1:  # one transfer for all
        return list(rows.to(*kinds[0]).split(counts))
    return [part.to(*kind) for part, kind in zip(rows.split(counts), kinds)]


def floating(tensor: Tensor) -> torch.dtype:
    """Return the type in which boxes or keypoints come back: their own, or float32 for whole numbers."""
    return tensor.dtype if tensor.is_floating_point() else torch.float32


def read_boxes(
    boxes: Any, count: int, size: Size, box_format: str, normalized: bool, *, any_place: bool = False
) -> BoxList:
    """Check the boxes of ``count`` images of a size (height, width) and return them as corners in pixels.

    With ``any_place`` boxes may also be empty or outside their image, of which nothing is left when they are clipped.
    """
    given = per_image("boxes", boxes, count, "[n, 4]")
    given = [part.reshape(0, 4) if part.numel() == 0 else part for part in given]
    for i, part in enumerate(given):
        if part.dim() != 2 or part.shape[1] != 4:
            raise ValueError(f"the boxes of image {i} must have shape [n, 4], got {tuple(part.shape)}")
    values, image = _joined(given, 4)
    corners = values * _sides(size) if normalized else values.copy()
    if box_format == "xywh":
        corners[:, 2:] += corners[:, :2]
    elif box_format == "cxcywh":
        corners = np.concatenate([corners[:, :2] - corners[:, 2:] / 2, corners[:, :2] + corners[:, 2:] / 2], 1)
    _check_boxes(values, corners, image, size, f"{'normalized ' if normalized else ''}{box_format}", any_place)
    return BoxList(_clipped(corners, size), image, given)


def _check_boxes(
    values: Floats, corners: Floats, image: NDArray[np.int64], size: Size, form: str, any_place: bool
) -> None:
    height, width = size
    finite = np.isfinite(values).all(1)
    area = (corners[:, 2:] > corners[:, :2]).all(1)
    inside = ((corners >= -_OVERHANG) & (corners <= _sides(size) + _OVERHANG)).all(1)
    for right, wrong, advice in (
        (finite, "has a non-finite number", "remove it or repair it"),
        (area, f"has no area when it is read as {form}", "remove it, or set box_format"),
        (inside, f"is outside its image of {height}x{width} pixels when it is read as {form}", "clip it, or set "
         "box_format and normalized"),
    )[: 1 if any_place else 3]:  # fmt: skip
        if not right.all():
            n = int(np.argmin(right))
            number = int((image[:n] == image[n]).sum())
            shown = ", ".join(f"{value:g}" for value in values[n])
            raise ValueError(f"box {number} of image {image[n]}, ({shown}), {wrong}; {advice}")


def read_points(keypoints: Any, count: int, size: Size, normalized: bool) -> PointList:
    """Check the keypoints of ``count`` images of a size (height, width) and return them as columns and rows."""
    shape = "[..., 2] or [..., 3]"
    given = per_image("keypoints", keypoints, count, shape)
    given = [part.reshape(0, 2) if part.shape == (0,) else part for part in given]
    for i, part in enumerate(given):
        if part.dim() < 1 or part.shape[-1] not in (2, 3):
            raise ValueError(
                f"the keypoints of image {i} must have shape {shape} (column, row, visibility), got {tuple(part.shape)}"
            )
    flat = [part.reshape(-1, part.shape[-1]) for part in given]
    flat = [torch.cat([part, torch.ones_like(part[:, :1])], 1) if part.shape[1] == 2 else part for part in flat]
    values, image = _joined(flat, 3)
    if not np.isfinite(values).all():
        n = int(np.argmin(np.isfinite(values).all(1)))
        raise ValueError(f"a keypoint of image {image[n]} has a non-finite number; remove it or repair it")
    places = values[:, :2] * _sides(size)[:2] if normalized else values[:, :2]
    return PointList(places, values[:, 2], image, keypoints if isinstance(keypoints, Tensor) else given)


def move_boxes(boxes: BoxList, numbers: Coefficients, size: Size) -> tuple[Floats, Floats]:
    """Return where boxes go, ``[N, 4]``, and the share of each that is still visible, ``[N]``.

    After every step a box is the hull of its four corners, clipped to the image; the shares of its area that are left
    by each step multiply.
    """
    corners = boxes.corners
    share = (_area(corners) > 0).astype(np.float64)
    for step in range(numbers.row.shape[1]):
        row = numbers.row[boxes.image, step]
        if not (row >= 0).any():
            continue
        left, top, right, bottom = corners.T
        x, y = _forward(numbers, row, np.stack([left, right, right, left]), np.stack([top, top, bottom, bottom]))
        hull = np.stack([x.min(0), y.min(0), x.max(0), y.max(0)], 1)
        corners = _clipped(hull, size)
        before, after = _area(hull), _area(corners)
        share = share * np.divide(after, before, out=np.zeros_like(share), where=before > 0)
    return corners, share


def move_points(
    points: PointList, numbers: Coefficients, erased: NDArray[np.int64] | None, size: Size
) -> tuple[Floats, Floats]:
    """Return where keypoints go, ``[N, 2]``, and their visibility, ``[N]``: 0 once a point leaves or is erased."""
    height, width = size
    x, y = points.places[:, 0] + 0.5, points.places[:, 1] + 0.5

    def inside(x: Floats, y: Floats) -> Bools:
        found: Bools = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        return found

    visible = np.where(inside(x, y), points.visible, 0.0)
    for step in range(numbers.row.shape[1]):
        row = numbers.row[points.image, step]
        if not (row != NOTHING).any():
            continue
        x, y = _forward(numbers, row, x, y)
        visible = np.where(inside(x, y), visible, 0.0)
        if erased is not None:
            left, top, right, bottom = erased[points.image, step].T
            within = (x >= left) & (x < right) & (y >= top) & (y < bottom)
            visible = np.where((row == ERASES) & within, 0.0, visible)
    return np.stack([x - 0.5, y - 0.5], 1), visible


def _forward(numbers: Coefficients, row: NDArray[np.int64], x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Coefficients say where an output point comes from; this is where a source point goes."""
    a, b, c, d, e, f = numbers.matrix[np.where(row < 0, NOTHING, row)].T
    area = a * e - b * d
    x, y = x - c, y - f
    return (e * x - b * y) / area, (a * y - d * x) / area


def _clipped(corners: Floats, size: Size) -> Floats:
    return np.clip(corners, 0.0, _sides(size))


def _area(corners: Floats) -> Floats:
    return (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])


def _sides(size: Size) -> Floats:
    return np.array([size[1], size[0], size[1], size[0]], np.float64)


def per_image(name: str, values: Any, count: int, shape: str) -> list[Tensor]:
    """Return one tensor per image as a list, or raise an error that says what was given instead."""
    if isinstance(values, Tensor) and values.dim() > 0:
        values = list(values)
    if not isinstance(values, (list, tuple)) or not all(isinstance(part, Tensor) for part in values):
        kind = type(values).__name__
        if isinstance(values, (list, tuple)):
            kind += " of " + next(type(part).__name__ for part in values if not isinstance(part, Tensor))
        raise TypeError(f"{name} must be a list with one tensor {shape} per image, got {kind}")
    if len(values) != count:
        raise ValueError(f"there must be one tensor of {name} per image, got {len(values)} for {count} images")
    return list(values)


def _joined(parts: Sequence[Tensor], columns: int) -> tuple[Floats, NDArray[np.int64]]:
    image = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    if len(image) == 0:
        return np.zeros((0, columns)), image
    return torch.cat([part.detach().to(torch.float64) for part in parts]).cpu().numpy(), image
