"""Geometric ops of the ``native`` executor on packed pixels: nearest, bilinear and bicubic resampling, quarter turns.

A line of the result is made in three passes: where its pixels come from, those pixels gathered into buffers, and the
interpolation. The first and the last are then plain loops over arrays, which the compiler turns into vector code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from particleaugment.executors._compiled import compiled as _compile
from particleaugment.executors.coefficients import ROTATE, ROTATE_90, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y

OPAQUE = np.uint32(0xFF000000)
_BYTE, _GREEN, _BLUE = np.uint32(255), np.uint32(8), np.uint32(16)
_ZERO, _ONE, _TOP = np.int32(0), np.int32(1), np.int32(255)
NEAREST, BILINEAR, BICUBIC = 0, 1, 2


@_compile
def _round15(x: float) -> Any:
    """Python's ``round(x, 15)`` for numbers from -1 to 1: the nearest whole number of 1e-15, from the exact product."""
    # Dekker's product: high + low is x times 1e15 exactly.
    scale = 1e15
    split = x * 134217729.0
    x_high = split - (split - x)
    x_low = x - x_high
    split = scale * 134217729.0
    s_high = split - (split - scale)
    s_low = scale - s_high
    high = x * scale
    low = ((x_high * s_high - high) + x_high * s_low + x_low * s_high) + x_low * s_low
    n = np.rint(high)
    rest = (high - n) + low
    odd = int(n) & 1 == 1
    if rest > 0.5 or (rest == 0.5 and odd):
        n += 1.0
    elif rest < -0.5 or (rest == -0.5 and odd):
        n -= 1.0
    return n / scale


@_compile
def _pixels_shifted(fraction: float, side: int) -> float:
    pixels = fraction * side
    whole = np.rint(pixels)
    return whole if abs(pixels - whole) <= 1e-9 else pixels


@_compile
def affine(op: int, arg: float, height: int, width: int, matrix: Any) -> int:
    """Write the matrix of a geometric op; return 0 to 3 for exact quarter turns, else -1: as in ``coefficients.py``."""
    matrix[0], matrix[1], matrix[2], matrix[3], matrix[4], matrix[5] = 1.0, 0.0, 0.0, 0.0, 1.0, 0.0
    if op == SHEAR_X:
        matrix[1] = arg
    elif op == SHEAR_Y:
        matrix[3] = arg
    elif op == TRANSLATE_X:
        matrix[2] = _pixels_shifted(arg, width)
    elif op == TRANSLATE_Y:
        matrix[5] = _pixels_shifted(arg, height)
    elif op in (ROTATE, ROTATE_90):
        degrees = arg % 360.0
        if degrees == 0.0:
            return 0
        if degrees == 180.0:
            return 2
        if height == width and degrees == 90.0:
            return 1
        if height == width and degrees == 270.0:
            return 3
        angle = -(degrees * (math.pi / 180.0))
        a, b = _round15(math.cos(angle)), _round15(math.sin(angle))
        d = -b
        centre_x, centre_y = width / 2, height / 2
        matrix[0], matrix[1], matrix[3], matrix[4] = a, b, d, a
        matrix[2] = a * -centre_x + b * -centre_y + 0.0 + centre_x
        matrix[5] = d * -centre_x + a * -centre_y + 0.0 + centre_y
    return -1


@_compile
def quarter_turns(source: Any, height: int, width: int, quarters: int, target: Any) -> None:
    """Turn an image counter-clockwise; it is square unless it is turned by 0 or 2 quarters."""
    if quarters == 0:
        target[:] = source
    elif quarters == 2:
        target[:] = source[::-1]
    else:
        for y in range(height):
            row = target[y * width : (y + 1) * width]
            if quarters == 1:
                for x in range(width):
                    row[x] = source[x * width + width - 1 - y]
            else:
                for x in range(width):
                    row[x] = source[(height - 1 - x) * width + y]


@_compile
def _inside(a: Any, x: int, y_out: float, height: int, width: int) -> Any:
    x_out = x + 0.5
    x_in = a[0] * x_out + a[1] * y_out + a[2]
    y_in = a[3] * x_out + a[4] * y_out + a[5]
    return x_in >= 0.0 and x_in < width and y_in >= 0.0 and y_in < height


@_compile
def resample(source: Any, height: int, width: int, a: Any, code: int, fill: Any, target: Any) -> None:
    """Write the image whose pixel (x, y) comes from (a0·x + a1·y + a2, a3·x + a4·y + a5), as Pillow's filters do."""
    if code == NEAREST:
        _nearest(source, height, width, a, fill, target)
        return
    before, taps = (0, 2) if code == BILINEAR else (1, 4)  # taps left of a place's own pixel, and all of them
    index, taken = np.empty((4, width), np.uint32), np.empty((4, width), np.uint32)
    fractions = np.empty((2, width), np.float64)
    edges = np.empty((8, width), np.int32)
    lines = np.empty((12, width), np.float64)
    # Shears and translations along one axis leave the other coordinate at a pixel centre: its fraction is exactly 0,
    # and interpolating by it changes nothing.
    along_x = a[3] == 0.0 and a[4] == 1.0 and a[5] == 0.0
    along_y = a[0] == 1.0 and a[1] == 0.0 and a[2] == 0.0
    for y in range(height):
        y_out = y + 0.5
        # Rounded sums and products are monotone in x, so the pixels with a source inside the image are one run.
        first, last = 0, width
        while first < width and not _inside(a, first, y_out, height, width):
            first += 1
        while last > first and not _inside(a, last - 1, y_out, height, width):
            last -= 1
        row = target[y * width : (y + 1) * width]
        row[:first] = fill
        row[last:] = fill
        if last == first:
            continue
        row, count = row[first:last], last - first
        dx, dy = fractions[0][:count], fractions[1][:count]
        _places(a, first, y_out, height, width, before, taps, edges, dx, dy)
        if along_x:
            for tap in range(taps):
                _one_line(source, edges[tap], edges[4 + before], index[tap], taken[tap][:count])
            _interpolate(taken, dx, code, row)
        elif along_y:
            for tap in range(taps):
                _one_line(source, edges[before], edges[4 + tap], index[tap], taken[tap][:count])
            _interpolate(taken, dy, code, row)
        else:
            for line in range(taps):
                for tap in range(taps):
                    _one_line(source, edges[tap], edges[4 + line], index[tap], taken[tap][:count])
                _line_of(taken, dx, code, lines[3 * line : 3 * line + 3])
            _across_lines(lines, dy, code, row)


@_compile
def _places(
    a: Any, first: int, y_out: float, height: int, width: int, before: int, taps: int, edges: Any, dx: Any, dy: Any
) -> None:
    """Write the columns (0 to 3) and the starts of lines (4 to 7) of each pixel's taps, and its fractions."""
    a0, a1, a2, a3, a4, a5 = a[0], a[1], a[2], a[3], a[4], a[5]
    last_x, last_y, stride = np.int32(width - 1), np.int32(height - 1), np.int32(width)
    left, top = edges[0], edges[4]
    for j in range(dx.size):
        x_out = (first + j) + 0.5
        x_in = (a0 * x_out + a1 * y_out + a2) - 0.5
        y_in = (a3 * x_out + a4 * y_out + a5) - 0.5
        # Both are at least -0.5, so the floor is the truncation, less 1 below 0 (adding 1 first could round up).
        x = np.int32(np.int32(x_in) - (_ONE if x_in < 0.0 else _ZERO))
        y = np.int32(np.int32(y_in) - (_ONE if y_in < 0.0 else _ZERO))
        dx[j], dy[j] = x_in - x, y_in - y
        left[j], top[j] = x, y
    # The first tap's buffers hold the corner itself until then, so they are written last.
    for tap in range(taps - 1, -1, -1):
        across, down, shift = edges[tap], edges[4 + tap], np.int32(tap - before)
        for j in range(dx.size):
            across[j] = min(max(np.int32(left[j] + shift), _ZERO), last_x)
            down[j] = np.int32(min(max(np.int32(top[j] + shift), _ZERO), last_y) * stride)


@_compile
def _one_line(source: Any, column: Any, line: Any, index: Any, taken: Any) -> None:
    """Gather the pixels at some columns and starts of lines."""
    for j in range(taken.size):
        index[j] = np.uint32(line[j] + column[j])
    for j in range(taken.size):
        taken[j] = source[index[j]]


@_compile
def _channel(pixel: Any, shift: Any) -> Any:
    return np.int32((pixel >> shift) & _BYTE)


@_compile
def _linear(v1: Any, v2: Any, d: float, shift: Any) -> Any:
    first = np.float64(_channel(v1, shift))
    return first + (np.float64(_channel(v2, shift)) - first) * d


@_compile
def _cubic(p1: Any, p2: Any, p3: Any, p4: Any, d: float, shift: Any) -> Any:
    # Sums of a few bytes are exact, in integers as in Pillow's doubles.
    v1, v2, v3, v4 = _channel(p1, shift), _channel(p2, shift), _channel(p3, shift), _channel(p4, shift)
    c2 = np.float64(np.int32(v3 - v1))
    c3 = np.float64(np.int32(np.int32(2) * (v1 - v2) + v3 - v4))
    c4 = np.float64(np.int32(v2 - v1 + v4 - v3))
    return np.float64(v2) + d * (c2 + d * (c3 + d * c4))


@_compile
def _cubic_of(v1: float, v2: float, v3: float, v4: float, d: float) -> float:
    p2 = -v1 + v3
    p3 = 2 * (v1 - v2) + v3 - v4
    p4 = -v1 + v2 - v3 + v4
    return v2 + d * (p2 + d * (p3 + d * p4))


@_compile
def _byte(value: float) -> Any:
    return np.uint32(min(max(np.int32(value), _ZERO), _TOP))


@_compile
def _packed(red: float, green: float, blue: float) -> Any:
    return np.uint32(_byte(red) | (_byte(green) << _GREEN) | (_byte(blue) << _BLUE) | OPAQUE)


@_compile
def _interpolate(taken: Any, d: Any, code: int, row: Any) -> None:
    """Interpolate along one axis."""
    a, b, c, e = taken[0], taken[1], taken[2], taken[3]
    if code == BILINEAR:
        for j in range(row.size):
            v1, v2, f = a[j], b[j], d[j]
            row[j] = _packed(_linear(v1, v2, f, np.uint32(0)), _linear(v1, v2, f, _GREEN), _linear(v1, v2, f, _BLUE))
    else:
        for j in range(row.size):
            v1, v2, v3, v4, f = a[j], b[j], c[j], e[j], d[j]
            row[j] = _packed(
                _cubic(v1, v2, v3, v4, f, np.uint32(0)),
                _cubic(v1, v2, v3, v4, f, _GREEN),
                _cubic(v1, v2, v3, v4, f, _BLUE),
            )


@_compile
def _line_of(taken: Any, d: Any, code: int, lines: Any) -> None:
    """Interpolate along x, into one line of floats per channel."""
    a, b, c, e = taken[0], taken[1], taken[2], taken[3]
    red, green, blue = lines[0], lines[1], lines[2]
    if code == BILINEAR:
        for j in range(d.size):
            v1, v2, f = a[j], b[j], d[j]
            red[j] = _linear(v1, v2, f, np.uint32(0))
            green[j] = _linear(v1, v2, f, _GREEN)
            blue[j] = _linear(v1, v2, f, _BLUE)
    else:
        for j in range(d.size):
            v1, v2, v3, v4, f = a[j], b[j], c[j], e[j], d[j]
            red[j] = _cubic(v1, v2, v3, v4, f, np.uint32(0))
            green[j] = _cubic(v1, v2, v3, v4, f, _GREEN)
            blue[j] = _cubic(v1, v2, v3, v4, f, _BLUE)


@_compile
def _across_lines(lines: Any, d: Any, code: int, row: Any) -> None:
    """Interpolate along y between lines of floats."""
    r0, g0, b0, r1, g1, b1 = lines[0], lines[1], lines[2], lines[3], lines[4], lines[5]
    r2, g2, b2, r3, g3, b3 = lines[6], lines[7], lines[8], lines[9], lines[10], lines[11]
    if code == BILINEAR:
        for j in range(row.size):
            f = d[j]
            row[j] = _packed(r0[j] + (r1[j] - r0[j]) * f, g0[j] + (g1[j] - g0[j]) * f, b0[j] + (b1[j] - b0[j]) * f)
    else:
        for j in range(row.size):
            f = d[j]
            row[j] = _packed(
                _cubic_of(r0[j], r1[j], r2[j], r3[j], f),
                _cubic_of(g0[j], g1[j], g2[j], g3[j], f),
                _cubic_of(b0[j], b1[j], b2[j], b3[j], f),
            )


@_compile
def _fixed(value: float) -> int:
    return int(np.floor(value * 65536.0 + 0.5))


@_compile
def _nearest(source: Any, height: int, width: int, a: Any, fill: Any, target: Any) -> None:
    index = np.empty(width, np.uint32)
    if a[1] == 0.0 and a[3] == 0.0:
        _nearest_aligned(source, height, width, a, fill, target, index)
        return
    # Pillow's 16.16 fixed point; sides of up to 8,192 pixels keep it within 32 bits where a source is inside.
    a0, a1, a3, a4 = _fixed(a[0]), _fixed(a[1]), _fixed(a[3]), _fixed(a[4])
    start_x = _fixed(a[2] + a[0] * 0.5 + a[1] * 0.5)
    start_y = _fixed(a[5] + a[3] * 0.5 + a[4] * 0.5)
    for y in range(height):
        x_line, y_line = start_x + y * a1, start_y + y * a4
        first, last = 0, width
        while first < width and not _fixed_inside(x_line + first * a0, y_line + first * a3, height, width):
            first += 1
        while last > first and not _fixed_inside(x_line + (last - 1) * a0, y_line + (last - 1) * a3, height, width):
            last -= 1
        row = target[y * width : (y + 1) * width]
        row[:first] = fill
        row[last:] = fill
        row, from_x, from_y = row[first:last], np.int32(x_line + first * a0), np.int32(y_line + first * a3)
        step_x, step_y, stride = np.int32(a0), np.int32(a3), np.int32(width)
        for j in range(row.size):
            x = np.int32(from_x + np.int32(j) * step_x) >> np.int32(16)
            y_in = np.int32(from_y + np.int32(j) * step_y) >> np.int32(16)
            index[j] = np.uint32(np.int32(y_in) * stride + np.int32(x))
        for j in range(row.size):
            row[j] = source[index[j]]


@_compile
def _fixed_inside(x: int, y: int, height: int, width: int) -> Any:
    return 0 <= (x >> 16) < width and 0 <= (y >> 16) < height


@_compile
def _nearest_aligned(source: Any, height: int, width: int, a: Any, fill: Any, target: Any, index: Any) -> None:
    """Nearest neighbours where lines stay lines; Pillow adds the step pixel by pixel and rounds each time."""
    position, first, last = a[2] + a[0] * 0.5, width, 0
    for x in range(width):
        if 0.0 <= position < width:
            index[x] = np.uint32(position)
            first, last = min(first, x), x + 1
        position += a[0]
    first = min(first, last)
    position = a[5] + a[4] * 0.5
    for y in range(height):
        row = target[y * width : (y + 1) * width]
        if 0.0 <= position < height:
            line = source[int(position) * width : (int(position) + 1) * width]
            row[:first] = fill
            row[last:] = fill
            for x in range(first, last):
                row[x] = line[index[x]]
        else:
            row[:] = fill
        position += a[4]
