"""The inner loops of masks on a CPU, compiled by Numba on first use and cached on disk.

A pixel of a mask is a copy of one pixel of the original or the fill, so its source is followed back through all steps,
the last first, and read once; the numbers are those of Pillow's nearest neighbour, step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from particleaugment.executors._compiled import claim, unowned
from particleaugment.executors._compiled import compiled as _compile
from particleaugment.executors._team import run_by_team

_NOTHING = -1
_ALIGNED, _AFFINE, _SWAPPED, _ERASED = 0, 1, 2, 3


@_compile
def move_masks(
    masks: Any, row: Any, matrices: Any, turns: Any, erased: Any, fill: Any, output: Any, counter: Any, images: int
) -> None:
    """Move the masks of the images that ``counter`` gives out, unsigned ``[B, M, H, W]``, writing ``output``."""
    if run_by_team(counter):
        return
    masks, row, matrices, turns = unowned(masks), unowned(row), unowned(matrices), unowned(turns)
    erased, output = unowned(erased), unowned(output)
    count, height, width = masks.shape[1:]
    kinds = np.empty(row.shape[1], np.int64)
    numbers = np.empty((row.shape[1], 6), np.int32)
    # The source of column x is at x + 1: entry 0 is the source of a place outside, which is -1 and outside again.
    columns = np.empty((row.shape[1], width + 1), np.int32)
    lines = np.empty((row.shape[1], height + 1), np.int32)
    x, y = np.empty(width, np.int32), np.empty(width, np.int32)
    i = claim(counter, 1)
    while i < images:
        used = 0
        for s in range(row.shape[1] - 1, -1, -1):
            if row[i, s] == _NOTHING:
                continue
            if row[i, s] < 0:
                kinds[used] = _ERASED
                for edge in range(4):
                    numbers[used, edge] = erased[i, s, edge]
            else:
                kinds[used] = _prepare(
                    matrices[row[i, s]], turns[row[i, s]], height, width, numbers[used], columns[used], lines[used]
                )
            # Neighbouring steps along the axes are one table for columns and one for lines.
            if used > 0 and kinds[used] == _ALIGNED and kinds[used - 1] == _ALIGNED:
                _chain(columns[used], columns[used - 1])
                _chain(lines[used], lines[used - 1])
            else:
                used += 1
        if used == 0:
            output[i] = masks[i]
        elif used == 1 and kinds[0] == _ALIGNED:
            for m in range(count):
                _copy_lines(masks[i, m], columns[0], lines[0], fill, output[i, m])
        elif used == 1 and kinds[0] == _AFFINE:
            for r in range(height):
                first, last = _inside_run(numbers[0], r, height, width)
                for m in range(count):
                    _copy_affine(masks[i, m].ravel(), width, numbers[0], r, first, last, fill, output[i, m, r])
        else:
            for r in range(height):
                for c in range(width):
                    x[c], y[c] = c, r
                for s in range(used):
                    _look_back(kinds[s], numbers[s], columns[s], lines[s], height, width, x, y)
                for m in range(count):
                    _copy_places(masks[i, m].ravel(), width, x, y, fill, output[i, m, r])
        i = claim(counter, 1)


@_compile
def _prepare(a: Any, turn: int, height: int, width: int, numbers: Any, columns: Any, lines: Any) -> int:
    columns[0] = lines[0] = -1
    if turn == 1 or turn == 3:
        numbers[0] = turn
        return _SWAPPED
    if turn >= 0:
        for x in range(width):
            columns[x + 1] = x if turn == 0 else width - 1 - x
        for y in range(height):
            lines[y + 1] = y if turn == 0 else height - 1 - y
        return _ALIGNED
    if a[1] == 0.0 and a[3] == 0.0:
        _accumulate(a[2] + a[0] * 0.5, a[0], columns)
        _accumulate(a[5] + a[4] * 0.5, a[4], lines)
        return _ALIGNED
    numbers[0], numbers[1], numbers[2] = _fixed(a[0]), _fixed(a[1]), _fixed(a[2] + a[0] * 0.5 + a[1] * 0.5)
    numbers[3], numbers[4], numbers[5] = _fixed(a[3]), _fixed(a[4]), _fixed(a[5] + a[3] * 0.5 + a[4] * 0.5)
    return _AFFINE


@_compile
def _accumulate(position: float, step: float, places: Any) -> None:
    # Pillow adds the step pixel by pixel and rounds each time.
    side = places.size - 1
    for i in range(side):
        places[i + 1] = int(position) if position >= 0.0 and position < side else -1
        position += step


@_compile
def _fixed(value: float) -> int:
    return int(np.floor(value * 65536.0 + 0.5))


@_compile
def _chain(earlier: Any, later: Any) -> None:
    for i in range(later.size):
        later[i] = earlier[np.uint32(later[i] + 1)]


@_compile
def _copy_lines(source: Any, columns: Any, lines: Any, fill: Any, target: Any) -> None:
    height, width = source.shape
    first, last = 0, width
    while first < width and columns[first + 1] < 0:
        first += 1
    while last > first and columns[last] < 0:
        last -= 1
    for r in range(height):
        row = target[r]
        if lines[r + 1] < 0:
            row[:] = fill
            continue
        line = source[lines[r + 1]]
        row[:first] = fill
        row[last:] = fill
        for c in range(first, last):
            place = columns[c + 1]
            row[c] = line[np.uint32(place)] if place >= 0 else fill


@_compile
def _inside_run(a: Any, r: int, height: int, width: int) -> Any:
    # Fixed-point sums are monotone in the column, so the pixels with a source inside the image are one run.
    first, last = 0, width
    while first < width and not _inside(a, first, r, height, width):
        first += 1
    while last > first and not _inside(a, last - 1, r, height, width):
        last -= 1
    return first, last


@_compile
def _inside(a: Any, c: int, r: int, height: int, width: int) -> Any:
    x, y = (a[2] + r * a[1] + c * a[0]) >> 16, (a[5] + r * a[4] + c * a[3]) >> 16
    return x >= 0 and x < width and y >= 0 and y < height


@_compile
def _copy_affine(source: Any, width: int, a: Any, r: int, first: int, last: int, fill: Any, target: Any) -> None:
    target[:first] = fill
    target[last:] = fill
    x, y = np.int64(a[2]) + r * a[1] + first * a[0], np.int64(a[5]) + r * a[4] + first * a[3]
    step_x, step_y = np.int64(a[0]), np.int64(a[3])
    for c in range(first, last):
        target[c] = source[np.uint32((y >> 16) * width + (x >> 16))]
        x += step_x
        y += step_y


@_compile
def _look_back(kind: int, a: Any, columns: Any, lines: Any, height: int, width: int, x: Any, y: Any) -> None:
    """Replace places by their sources; -1 in ``x`` stands for a place that is filled."""
    if kind == _ALIGNED:
        for c in range(x.size):
            line = lines[np.uint32(y[c] + 1)]
            x[c] = columns[np.uint32(x[c] + 1)] if line >= 0 else -1
            y[c] = max(line, 0)
    elif kind == _AFFINE:
        a0, a1, a2, a3, a4, a5 = a[0], a[1], a[2], a[3], a[4], a[5]
        for c in range(x.size):
            source_x = np.int32(a2 + y[c] * a1 + x[c] * a0) >> np.int32(16)
            source_y = np.int32(a5 + y[c] * a4 + x[c] * a3) >> np.int32(16)
            inside = x[c] >= 0 and source_x >= 0 and source_x < width and source_y >= 0 and source_y < height
            x[c] = source_x if inside else -1
            y[c] = source_y if inside else 0
    elif kind == _SWAPPED:
        for c in range(x.size):
            source_x = width - 1 - y[c] if a[0] == 1 else y[c]
            y[c] = max(x[c], 0) if a[0] == 1 else height - 1 - max(x[c], 0)
            x[c] = source_x if x[c] >= 0 else -1
    else:
        left, top, right, bottom = a[0], a[1], a[2], a[3]
        for c in range(x.size):
            if x[c] >= left and x[c] < right and y[c] >= top and y[c] < bottom:
                x[c] = -1


@_compile
def _copy_places(source: Any, width: int, x: Any, y: Any, fill: Any, target: Any) -> None:
    for c in range(x.size):
        target[c] = source[np.uint32(y[c] * width + x[c])] if x[c] >= 0 else fill
