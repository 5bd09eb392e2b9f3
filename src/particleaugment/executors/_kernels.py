"""The inner loops of the ``native`` executor, compiled by Numba on first use and cached on disk.

Floating-point contraction is off (Numba's default without ``fastmath``), so every product and sum rounds as in Pillow.
Images are planar uint8 ``[C, H, W]``; each op reads ``source`` and writes ``target``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from particleaugment.core.ops import TABLE, Kind, lookup

_AUTOCONTRAST, _EQUALIZE, _COLOR, _CONTRAST, _SHARPNESS = (
    lookup(name).index for name in ("AutoContrast", "Equalize", "Color", "Contrast", "Sharpness")
)
_IDENTITY, _CUTOUT, _FLIP_X, _FLIP_Y = (lookup(name).index for name in ("Identity", "Cutout", "FlipX", "FlipY"))
_IS_POINTWISE = np.array([op.kind is Kind.POINTWISE for op in TABLE])
_IS_GEOMETRIC = np.array([op.kind is Kind.GEOMETRIC for op in TABLE])
_NEAREST, _BILINEAR = 0, 1

_compile: Any = njit(cache=True, nogil=True, error_model="numpy")


@_compile
def run_images(
    images: Any, op: Any, factor: Any, table_row: Any, tables: Any, affine_row: Any, matrices: Any, turns: Any,
    code: Any, boxes: Any, colours: Any, fill: Any, output: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Run the programs of images ``start`` to ``stop``, writing ``output``."""
    channels, height, width = images.shape[1:]
    scratch = np.empty((channels, height, width), np.uint8)
    luts = np.empty((channels, 256), np.uint8)
    offsets = np.empty(width, np.int64)
    # Unsigned: Numba would otherwise test every index for Python's negative ones.
    buffers = np.empty((3, width), np.uint32)
    fractions = np.empty((2, width), np.float64)
    slots = op.shape[1]
    for i in range(start, stop):
        remaining = 0
        for k in range(slots):
            if op[i, k] != _IDENTITY:
                remaining += 1
        if remaining == 0:
            output[i] = images[i]
        source = images[i]
        for k in range(slots):
            current = op[i, k]
            if current == _IDENTITY:
                continue
            # Alternate between scratch and output so that the last op writes output.
            target = output[i] if remaining % 2 == 1 else scratch
            remaining -= 1
            if _IS_POINTWISE[current]:
                for c in range(channels):
                    luts[c] = tables[table_row[i, k]]
                _look_up(source, luts, target)
            elif current in (_AUTOCONTRAST, _EQUALIZE):
                for c in range(channels):
                    _histogram_table(source[c], current == _EQUALIZE, luts[c])
                _look_up(source, luts, target)
            elif _IS_GEOMETRIC[current]:
                row = affine_row[i, k]
                if turns[row] >= 0:
                    _quarter_turns(source, turns[row], target)
                elif code[i, k] == _NEAREST:
                    _nearest(source, matrices[row], fill, offsets, target)
                elif code[i, k] == _BILINEAR:
                    _bilinear(source, matrices[row], fill, buffers, fractions, target)
                else:
                    _bicubic(source, matrices[row], fill, target)
            elif current == _SHARPNESS:
                _sharpness(source, factor[i, k], target)
            elif current == _COLOR:
                _color(source, factor[i, k], target)
            elif current == _FLIP_X:
                target[:] = source[:, :, ::-1]
            elif current == _FLIP_Y:
                target[:] = source[:, ::-1]
            elif current == _CUTOUT:
                _cutout(source, boxes[i, k], colours[i, k], target)
            else:
                degenerate = _mean_grey(source) if current == _CONTRAST else 0
                _flat_table(np.float32(degenerate), factor[i, k], luts)
                _look_up(source, luts, target)
            source = target


@_compile
def _look_up(source: Any, luts: Any, target: Any) -> None:
    for c in range(source.shape[0]):
        table, plane, result = luts[c], source[c], target[c]
        for y in range(plane.shape[0]):
            for x in range(plane.shape[1]):
                result[y, x] = table[plane[y, x]]


@_compile
def _histogram_table(plane: Any, equalize: bool, table: Any) -> None:
    # Four interleaved histograms: neighbouring equal pixels would otherwise wait for each other's increment.
    parts = np.zeros((4, 256), np.int32)
    flat = plane.ravel()
    whole = flat.size - flat.size % 4
    for i in range(0, whole, 4):
        parts[0, flat[i]] += 1
        parts[1, flat[i + 1]] += 1
        parts[2, flat[i + 2]] += 1
        parts[3, flat[i + 3]] += 1
    for i in range(whole, flat.size):
        parts[0, flat[i]] += 1
    low, high = 256, -1
    histogram = np.zeros(256, np.int64)
    for v in range(256):
        histogram[v] = np.int64(parts[0, v]) + parts[1, v] + parts[2, v] + parts[3, v]
        table[v] = v
        if histogram[v] > 0:
            low = min(low, v)
            high = v
    if high <= low:
        return
    if equalize:
        step = (flat.size - histogram[high]) // 255
        if step == 0:
            return
        n = step // 2
        for v in range(256):
            table[v] = min(n // step, 255)
            n += histogram[v]
    else:
        scale = 255.0 / (high - low)
        offset = -low * scale
        for v in range(256):
            table[v] = min(max(int(v * scale + offset), 0), 255)


@_compile
def _blended(degenerate: Any, value: Any, factor: Any) -> Any:
    mixed = degenerate + factor * (value - degenerate)
    return np.uint8(min(max(mixed, np.float32(0.0)), np.float32(255.0)))


@_compile
def _flat_table(degenerate: Any, factor: Any, luts: Any) -> None:
    for v in range(256):
        luts[0, v] = _blended(degenerate, np.float32(v), factor)
    for c in range(1, luts.shape[0]):
        luts[c] = luts[0]


@_compile
def _grey(red: Any, green: Any, blue: Any) -> Any:
    return (np.int32(19595) * red + np.int32(38470) * green + np.int32(7471) * blue + np.int32(32768)) >> np.int32(16)


@_compile
def _mean_grey(source: Any) -> int:
    channels, height, width = source.shape
    total: Any = 0
    for y in range(height):
        row_total = np.int32(0)
        if channels == 1:
            for x in range(width):
                row_total += np.int32(source[0, y, x])
        else:
            for x in range(width):
                row_total += _grey(np.int32(source[0, y, x]), np.int32(source[1, y, x]), np.int32(source[2, y, x]))
        total += row_total
    return int(total / (height * width) + 0.5)


@_compile
def _color(source: Any, factor: Any, target: Any) -> None:
    channels, height, width = source.shape
    if channels == 1:
        target[:] = source
        return
    for y in range(height):
        for x in range(width):
            red, green, blue = source[0, y, x], source[1, y, x], source[2, y, x]
            grey = np.float32(_grey(np.int32(red), np.int32(green), np.int32(blue)))
            target[0, y, x] = _blended(grey, np.float32(red), factor)
            target[1, y, x] = _blended(grey, np.float32(green), factor)
            target[2, y, x] = _blended(grey, np.float32(blue), factor)


@_compile
def _sharpness(source: Any, factor: Any, target: Any) -> None:
    channels, height, width = source.shape
    side = np.float32(1.0) / np.float32(13.0)
    centre = np.float32(5.0) / np.float32(13.0)
    target[:] = source
    if height < 3 or width < 3:
        return
    for c in range(channels):
        for y in range(1, height - 1):
            above, here, below, result = source[c, y - 1], source[c, y], source[c, y + 1], target[c, y]
            for x in range(1, width - 1):
                # Pillow's order: 0.5, then the rows from the bottom up.
                total = np.float32(0.5)
                total += np.float32(below[x - 1]) * side + np.float32(below[x]) * side + np.float32(below[x + 1]) * side
                total += np.float32(here[x - 1]) * side + np.float32(here[x]) * centre + np.float32(here[x + 1]) * side
                total += np.float32(above[x - 1]) * side + np.float32(above[x]) * side + np.float32(above[x + 1]) * side
                smoothed = np.float32(np.int32(min(total, np.float32(255.0))))
                result[x] = _blended(smoothed, np.float32(here[x]), factor)


@_compile
def _cutout(source: Any, box: Any, colour: Any, target: Any) -> None:
    channels, height, width = source.shape
    target[:] = source
    for c in range(channels):
        for y in range(max(box[1], 0), min(box[3], height)):
            for x in range(max(box[0], 0), min(box[2], width)):
                target[c, y, x] = colour[c]


@_compile
def _quarter_turns(source: Any, quarters: int, target: Any) -> None:
    channels, height, width = source.shape
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                if quarters == 0:
                    target[c, y, x] = source[c, y, x]
                elif quarters == 1:
                    target[c, y, x] = source[c, x, width - 1 - y]
                elif quarters == 2:
                    target[c, y, x] = source[c, height - 1 - y, width - 1 - x]
                else:
                    target[c, y, x] = source[c, height - 1 - x, y]


@_compile
def _fixed(value: float) -> int:
    return int(np.floor(value * 65536.0 + 0.5))


@_compile
def _nearest(source: Any, a: Any, fill: Any, offsets: Any, target: Any) -> None:
    channels, height, width = source.shape
    if a[1] == 0.0 and a[3] == 0.0:
        # Pillow adds the step pixel by pixel and rounds each time.
        position = a[2] + a[0] * 0.5
        for x in range(width):
            offsets[x] = -1 if position < 0.0 else int(position)
            position += a[0]
        position = a[5] + a[4] * 0.5
        for y in range(height):
            source_y = -1 if position < 0.0 else int(position)
            position += a[4]
            for x in range(width):
                inside = 0 <= source_y < height and 0 <= offsets[x] < width
                for c in range(channels):
                    target[c, y, x] = source[c, source_y, offsets[x]] if inside else fill[c]
        return
    a0, a1, a3, a4 = _fixed(a[0]), _fixed(a[1]), _fixed(a[3]), _fixed(a[4])
    start_x = _fixed(a[2] + a[0] * 0.5 + a[1] * 0.5)
    start_y = _fixed(a[5] + a[3] * 0.5 + a[4] * 0.5)
    for y in range(height):
        for x in range(width):
            source_x, source_y = (start_x + y * a1 + x * a0) >> 16, (start_y + y * a4 + x * a3) >> 16
            inside = 0 <= source_x < width and 0 <= source_y < height
            for c in range(channels):
                target[c, y, x] = source[c, source_y, source_x] if inside else fill[c]


@_compile
def _bilinear(source: Any, a: Any, fill: Any, buffers: Any, fractions: Any, target: Any) -> None:
    channels, height, width = source.shape
    a0, a1, a2, a3, a4, a5 = a[0], a[1], a[2], a[3], a[4], a[5]
    # Shears and translations along one axis leave the other coordinate at a pixel centre: its fraction is exactly 0,
    # and interpolating by it changes nothing.
    along_x = a3 == 0.0 and a4 == 1.0 and a5 == 0.0
    along_y = a0 == 1.0 and a1 == 0.0 and a2 == 0.0
    corner, right, down = buffers[0], buffers[1], buffers[2]
    dx, dy = fractions[0], fractions[1]
    stride, last_x, last_y, one, zero = (
        np.int32(width),
        np.int32(width - 1),
        np.int32(height - 1),
        np.int32(1),
        np.int32(0),
    )
    for y in range(height):
        y_out = y + 0.5
        # Rounded sums and products are monotone in x, so the pixels with a source inside the image are one run.
        first, last = 0, width
        while first < width and not _inside(a, first, y_out, height, width):
            first += 1
        while last > first and not _inside(a, last - 1, y_out, height, width):
            last -= 1
        for j in range(last - first):
            x_out = (first + j) + 0.5
            x_in = (a0 * x_out + a1 * y_out + a2) - 0.5
            y_in = (a3 * x_out + a4 * y_out + a5) - 0.5
            # Both are at least -0.5, so the floor is the truncation, less 1 below 0 (adding 1 first could round up).
            left = np.int32(x_in) - (one if x_in < 0.0 else zero)
            top = np.int32(y_in) - (one if y_in < 0.0 else zero)
            dx[j], dy[j] = x_in - left, y_in - top
            x0, x1 = max(left, zero), min(left + one, last_x)
            y0, y1 = max(top, zero), min(top + one, last_y)
            corner[j] = y0 * stride + x0
            right[j] = x1 - x0
            down[j] = (y1 - y0) * stride
        for c in range(channels):
            target[c, y, :first] = fill[c]
            target[c, y, last:] = fill[c]
            row, plane = target[c, y, first:last], source[c].ravel()
            if along_x:
                _interpolate_pairs(plane, corner, right, dx, row)
            elif along_y:
                _interpolate_pairs(plane, corner, down, dy, row)
            else:
                _interpolate_squares(plane, corner, right, down, dx, dy, row)


@_compile
def _inside(a: Any, x: int, y_out: float, height: int, width: int) -> Any:
    x_out = x + 0.5
    x_in = a[0] * x_out + a[1] * y_out + a[2]
    y_in = a[3] * x_out + a[4] * y_out + a[5]
    return x_in >= 0.0 and x_in < width and y_in >= 0.0 and y_in < height


@_compile
def _interpolate_pairs(plane: Any, corner: Any, neighbour: Any, fraction: Any, row: Any) -> None:
    for j in range(row.size):
        here = np.float64(plane[corner[j]])
        row[j] = np.uint8(np.int32(here + (np.float64(plane[corner[j] + neighbour[j]]) - here) * fraction[j]))


@_compile
def _interpolate_squares(plane: Any, corner: Any, right: Any, down: Any, dx: Any, dy: Any, row: Any) -> None:
    for j in range(row.size):
        above, below = corner[j], corner[j] + down[j]
        upper, lower = np.float64(plane[above]), np.float64(plane[below])
        upper = upper + (np.float64(plane[above + right[j]]) - upper) * dx[j]
        lower = lower + (np.float64(plane[below + right[j]]) - lower) * dx[j]
        row[j] = np.uint8(np.int32(upper + (lower - upper) * dy[j]))


@_compile
def _cubic(v1: float, v2: float, v3: float, v4: float, d: float) -> float:
    p2 = -v1 + v3
    p3 = 2 * (v1 - v2) + v3 - v4
    p4 = -v1 + v2 - v3 + v4
    return v2 + d * (p2 + d * (p3 + d * p4))


@_compile
def _bicubic(source: Any, a: Any, fill: Any, target: Any) -> None:
    channels, height, width = source.shape
    rows = np.empty(4, np.int64)
    columns = np.empty(4, np.int64)
    lines = np.empty(4, np.float64)
    for y in range(height):
        y_out = y + 0.5
        for x in range(width):
            x_out = x + 0.5
            x_in = a[0] * x_out + a[1] * y_out + a[2]
            y_in = a[3] * x_out + a[4] * y_out + a[5]
            if not (0.0 <= x_in < width and 0.0 <= y_in < height):
                for c in range(channels):
                    target[c, y, x] = fill[c]
                continue
            x_in -= 0.5
            y_in -= 0.5
            left, top = np.int64(np.floor(x_in)), np.int64(np.floor(y_in))
            dx, dy = x_in - left, y_in - top
            for j in range(4):
                rows[j] = min(max(top - 1 + j, 0), height - 1)
                columns[j] = min(max(left - 1 + j, 0), width - 1)
            for c in range(channels):
                plane = source[c]
                for j in range(4):
                    line = plane[rows[j]]
                    lines[j] = _cubic(
                        float(line[columns[0]]), float(line[columns[1]]), float(line[columns[2]]),
                        float(line[columns[3]]), dx,
                    )  # fmt: skip
                value = _cubic(lines[0], lines[1], lines[2], lines[3], dy)
                target[c, y, x] = np.uint8(np.int32(min(max(value, 0.0), 255.0)))
