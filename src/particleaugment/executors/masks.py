"""Masks on a CPU or with torch on any device: nearest neighbour, Pillow's pixels, step by step.

Masks come as ``[B, M, H, W]`` of a type that stands for their bits (:func:`as_bits`), with M masks per image.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from particleaugment.executors import threads
from particleaugment.executors.batch import accumulated
from particleaugment.executors.coefficients import Affine
from particleaugment.executors.steps import ERASES, NOTHING, Array, Coefficients

__all__ = ["as_bits", "run_batch", "run_native", "run_pillow"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TURNS = {1: Image.Transpose.ROTATE_90, 2: Image.Transpose.ROTATE_180, 3: Image.Transpose.ROTATE_270}
_CHUNK = 1 << 20  # places followed at once


def as_bits(masks: Tensor, fill: int) -> tuple[Tensor, int]:
    """Return masks of any integer type, or bool, as a type of the same size that every executor moves, and its fill.

    >>> as_bits(torch.zeros(1, 1, 2, 2, dtype=torch.uint16), 65535)[1]
    -1
    """
    bits = _BITS[masks.element_size()]
    value = torch.tensor([fill], dtype=masks.dtype, device="cpu").view(bits)
    return masks.contiguous().view(bits), int(value[0])


def run_native(masks: Tensor, numbers: Coefficients, erased: Tensor | None, fill: int) -> Tensor:
    """Move masks on the CPU with compiled loops, on torch's number of threads."""
    from particleaugment.executors import _mask_kernels

    output = torch.empty_like(masks)
    unsigned = _UNSIGNED[masks.element_size()]
    rectangles = np.empty((0, 0, 4), np.int64) if erased is None else erased.contiguous().numpy()
    source, target = masks.numpy().view(unsigned), output.numpy().view(unsigned)
    value = np.array(fill, masks.numpy().dtype).view(unsigned)[()]
    arguments = (source, *numbers, rectangles, value, target)
    threads.on_threads(_mask_kernels.move_masks, arguments, len(masks), masks.nbytes // max(1, len(masks)))
    return output


def run_pillow(masks: Tensor, numbers: Coefficients, erased: Tensor | None, fill: int) -> Tensor:
    """Move masks by Pillow: it moves an image of each pixel's number, and the masks are read at what comes out."""
    height, width = masks.shape[-2:]
    rectangles = None if erased is None else erased.tolist()
    flat = masks.cpu().flatten(2)
    output = torch.empty_like(flat)
    places = np.arange(height * width, dtype=np.int32).reshape(height, width)
    for i in range(len(masks)):
        image = Image.fromarray(places)
        for s, r in enumerate(numbers.row[i].tolist()):
            if r == ERASES and rectangles is not None:
                left, top, right, bottom = rectangles[i][s]
                image = image.copy()
                image.paste(-1, (max(left, 0), max(top, 0), max(right, left, 0), max(bottom, top, 0)))
            elif r != NOTHING:
                image = _moved(image, numbers.matrix[r].tolist(), int(numbers.turn[r]))
        source = torch.from_numpy(np.array(image)).flatten().to(torch.int64)
        output[i] = torch.where(source < 0, fill, flat[i][:, source.clamp(min=0)])
    return output.view_as(masks).to(masks.device)


def _moved(image: Image.Image, matrix: list[float], turn: int) -> Image.Image:
    if turn == 0:
        return image
    if turn > 0:
        return image.transpose(_TURNS[turn])
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=-1)


def run_batch(masks: Tensor, numbers: Coefficients, erased: Tensor | None, fill: int) -> Tensor:
    """Move masks with vectorised torch on any device."""
    height, width = masks.shape[-2:]
    rows = torch.from_numpy(numbers.row).to(masks.device)
    table = Affine(torch.from_numpy(numbers.matrix).to(masks.device), torch.from_numpy(numbers.turn).to(masks.device))
    output = masks.clone()
    moved = np.flatnonzero((numbers.row != NOTHING).any(1))
    for chosen in torch.from_numpy(moved).split(max(1, _CHUNK // (height * width))):
        picked = chosen.to(masks.device)
        rectangles = None if erased is None else erased[picked]
        place = _sources(rows[picked], table, rectangles, numbers.row[chosen.numpy()], height, width).flatten(1)
        flat = masks[picked].flatten(2)
        values = flat.gather(2, place.clamp(min=0).unsqueeze(1).expand_as(flat))
        output[picked] = torch.where(place.unsqueeze(1) < 0, fill, values).view_as(output[picked])
    return output


def _sources(row: Tensor, table: Affine, erased: Tensor | None, present: Array, height: int, width: int) -> Tensor:
    """The number of each pixel's source in the original, int64 ``[N, H, W]``; -1 for those that are filled."""
    shape = (len(row), height, width)
    x = torch.arange(width, device=row.device).expand(shape)
    y = torch.arange(height, device=row.device).view(-1, 1).expand(shape)
    inside = torch.ones(shape, dtype=torch.bool, device=row.device)
    for s in range(row.shape[1] - 1, -1, -1):
        if not (present[:, s] != NOTHING).any():
            continue
        if erased is not None and (present[:, s] == ERASES).any():
            left, top, right, bottom = erased[:, s].view(-1, 4, 1, 1).unbind(1)
            within = (x >= left) & (x < right) & (y >= top) & (y < bottom)
            inside = inside & ~(within & (row[:, s] == ERASES).view(-1, 1, 1))
        # ERASES, too, selects the row that changes nothing.
        chosen = row[:, s].clamp(min=NOTHING)
        chosen = torch.where(chosen < 0, len(table.turn) - 1, chosen)
        x, y, found = _looked_back(x, y, table.matrix[chosen], table.turn[chosen], height, width)
        inside = inside & found
        x, y = torch.where(inside, x, 0), torch.where(inside, y, 0)
    return torch.where(inside, y * width + x, -1)


def _looked_back(
    x: Tensor, y: Tensor, matrix: Tensor, turn: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    a = matrix.view(-1, 6, 1, 1).unbind(1)

    def fixed(value: Tensor) -> Tensor:
        return (value * 65536.0 + 0.5).floor().to(torch.int64)

    source_x = (fixed(a[2] + a[0] * 0.5 + a[1] * 0.5) + y * fixed(a[1]) + x * fixed(a[0])) >> 16
    source_y = (fixed(a[5] + a[3] * 0.5 + a[4] * 0.5) + y * fixed(a[4]) + x * fixed(a[3])) >> 16
    aligned = (a[1] == 0) & (a[3] == 0)
    columns = accumulated(a[2] + a[0] * 0.5, a[0], width, -1).flatten(1)
    lines = accumulated(a[5] + a[4] * 0.5, a[4], height, -1).flatten(1)
    source_x = torch.where(aligned, columns.gather(1, x.flatten(1)).view_as(x), source_x)
    source_y = torch.where(aligned, lines.gather(1, y.flatten(1)).view_as(y), source_y)
    turned = turn.view(-1, 1, 1)
    for quarters, place in enumerate(
        ((x, y), (width - 1 - y, x), (width - 1 - x, height - 1 - y), (y, height - 1 - x))
    ):
        source_x = torch.where(turned == quarters, place[0], source_x)
        source_y = torch.where(turned == quarters, place[1], source_y)
    return source_x, source_y, (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
