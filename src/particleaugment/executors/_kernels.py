"""The inner loops of the ``native`` executor, compiled by Numba on first use and cached on disk.

Floating-point contraction is off (Numba's default without ``fastmath``), so every product and sum rounds as in Pillow.
A pixel is a 32-bit word, red in its lowest byte, then green, blue and 255: what Pillow's own images are made of. Grey
images are three equal channels. Each op reads ``source`` and writes ``target``, flat arrays of pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from particleaugment.core.op_table import TABLE, Kind, lookup
from particleaugment.executors._compiled import claim, unowned
from particleaugment.executors._compiled import compiled as _compile
from particleaugment.executors._geometry_kernels import OPAQUE, affine, quarter_turns, resample
from particleaugment.executors._team import run_by_team
from particleaugment.executors.coefficients import INVERT, POSTERIZE, SOLARIZE, SOLARIZE_ADD
from particleaugment.executors.native import PACKED, PLANAR

_AUTOCONTRAST, _EQUALIZE, _COLOR, _CONTRAST, _BRIGHTNESS, _SHARPNESS = (
    lookup(name).index for name in ("AutoContrast", "Equalize", "Color", "Contrast", "Brightness", "Sharpness")
)
_IDENTITY, _CUTOUT, _FLIP_X, _FLIP_Y = (lookup(name).index for name in ("Identity", "Cutout", "FlipX", "FlipY"))
_IS_GEOMETRIC = np.array([op.kind is Kind.GEOMETRIC for op in TABLE])
_BYTE, _GREEN, _BLUE = np.uint32(255), np.uint32(8), np.uint32(16)

# Numba keys its cache on disk by the text of the file that a function is in, not of those that it calls: without this,
# a changed geometry would leave old code in use. A test compares it with that file.
_GEOMETRY = "6ec837ef965d"


@_compile
def run_images(
    images: Any, layout: int, channels: int, height: int, width: int, op: Any, arg: Any, code: Any, patch: Any,
    fill: Any, output: Any, counter: Any, count: int,
) -> None:  # fmt: skip
    """Run the programs of the images that ``counter`` gives out: rows of bytes in one of the three layouts.

    Everything is compiled for this one function: batches and single images call it with the same types.
    """
    if run_by_team(counter):
        return
    images, op, arg, code = unowned(images), unowned(op), unowned(arg), unowned(code)
    patch, output = unowned(patch), unowned(output)
    packed = layout == PACKED
    buffers = np.empty((1 if packed else 2, height * width), np.uint32)
    i = claim(counter, 1)
    while i < count:
        runs = _runs(op[i])
        if runs == 0:
            output[i] = images[i]
        elif packed:
            # The last op writes the output; the given pixels are read and never written.
            target, spare = output[i].view(np.uint32), buffers[0]
            if runs % 2 == 0:
                target, spare = spare, target
            given = images[i].view(np.uint32)
            _run(given, spare, target, channels, height, width, op[i], arg[i], code[i], patch[i], fill)
        else:
            first, second = buffers[0], buffers[1]
            _pack(images[i], channels, layout, first)
            last = _run(first, first, second, channels, height, width, op[i], arg[i], code[i], patch[i], fill)
            _unpack(last, channels, layout, output[i])
        i = claim(counter, 1)


@_compile
def resample_images(images: Any, matrices: Any, code: int, output: Any, counter: Any, count: int) -> None:
    """Resample the images that ``counter`` gives out, each with its own matrix; black where the source is outside."""
    if run_by_team(counter):
        return
    images, matrices, output = unowned(images), unowned(matrices), unowned(output)
    channels, height, width = images.shape[1:]
    buffers = np.empty((2, height * width), np.uint32)
    i = claim(counter, 1)
    while i < count:
        _pack(images[i].reshape(images[i].size), channels, PLANAR, buffers[0])
        resample(buffers[0], height, width, matrices[i], code, OPAQUE, buffers[1])
        _unpack(buffers[1], channels, PLANAR, output[i].reshape(output[i].size))
        i = claim(counter, 1)


@_compile
def _runs(op: Any) -> int:
    count = 0
    for k in range(op.size):
        if op[k] != _IDENTITY:
            count += 1
    return count


@_compile
def _pack(given: Any, channels: int, layout: int, target: Any) -> None:
    count = target.size
    if channels == 1:
        for i in range(count):
            target[i] = np.uint32(given[i]) * np.uint32(0x010101) | OPAQUE
    elif layout == PLANAR:
        red, green, blue = given[:count], given[count : 2 * count], given[2 * count : 3 * count]
        for i in range(count):
            target[i] = np.uint32(red[i]) | (np.uint32(green[i]) << _GREEN) | (np.uint32(blue[i]) << _BLUE) | OPAQUE
    else:
        for i in range(count):
            red, green, blue = np.uint32(given[3 * i]), np.uint32(given[3 * i + 1]), np.uint32(given[3 * i + 2])
            target[i] = red | (green << _GREEN) | (blue << _BLUE) | OPAQUE


@_compile
def _unpack(source: Any, channels: int, layout: int, result: Any) -> None:
    count = source.size
    if channels == 1:
        for i in range(count):
            result[i] = np.uint8(source[i])
    elif layout == PLANAR:
        red, green, blue = result[:count], result[count : 2 * count], result[2 * count : 3 * count]
        for i in range(count):
            pixel = source[i]
            red[i], green[i], blue[i] = np.uint8(pixel), np.uint8(pixel >> _GREEN), np.uint8(pixel >> _BLUE)
    else:
        for i in range(count):
            pixel = source[i]
            result[3 * i] = np.uint8(pixel)
            result[3 * i + 1] = np.uint8(pixel >> _GREEN)
            result[3 * i + 2] = np.uint8(pixel >> _BLUE)


@_compile
def _run(
    source: Any, spare: Any, target: Any, channels: int, height: int, width: int, op: Any, arg: Any, code: Any,
    patch: Any, fill: Any,
) -> Any:  # fmt: skip
    """Run a program, from ``source`` into ``target`` and then to and fro between it and ``spare``; return the last."""
    matrix = np.empty(6, np.float64)
    for k in range(op.size):
        current = op[k]
        if current == _IDENTITY:
            continue
        if _IS_GEOMETRIC[current]:
            quarters = affine(current, arg[k], height, width, matrix)
            if quarters >= 0:
                quarter_turns(source, height, width, quarters, target)
            else:
                resample(source, height, width, matrix, code[k], fill, target)
        elif current in (SOLARIZE, SOLARIZE_ADD, POSTERIZE, INVERT):
            _pointwise(source, current, arg[k], target)
        elif current in (_AUTOCONTRAST, _EQUALIZE):
            _equalised(source, current == _EQUALIZE, channels, target)
        elif current == _SHARPNESS:
            _sharpness(source, height, width, np.float32(arg[k]), target)
        elif current == _COLOR:
            _color(source, np.float32(arg[k]), target)
        elif current == _FLIP_X:
            for y in range(height):
                target[y * width : (y + 1) * width] = source[y * width : (y + 1) * width][::-1]
        elif current == _FLIP_Y:
            for y in range(height):
                target[y * width : (y + 1) * width] = source[(height - 1 - y) * width : (height - y) * width]
        elif current == _CUTOUT:
            _cutout(source, height, width, patch[k], channels, target)
        else:
            degenerate = _mean_grey(source) if current == _CONTRAST else 0
            _flat(source, np.float32(degenerate), np.float32(arg[k]), target)
        source, target, spare = target, spare, target
    return source


@_compile
def _pointwise(source: Any, op: int, arg: float, target: Any) -> None:
    if op == INVERT:
        for i in range(source.size):
            target[i] = source[i] ^ np.uint32(0x00FFFFFF)
        return
    if op == POSTERIZE:
        dropped = min(max(8 - int(arg), 0), 8)
        kept = np.uint32(((255 >> dropped) << dropped) * 0x010101) | OPAQUE
        for i in range(source.size):
            target[i] = source[i] & kept
        return
    values, results = source.view(np.uint8), target.view(np.uint8)
    if op == SOLARIZE_ADD:
        added = np.uint8(min(max(int(arg), 0), 255))
        room = np.uint8(255) - added
        for i in range(values.size):
            value = values[i]
            more = np.uint8(value + added) if value <= room else np.uint8(255)
            results[i] = more if value < np.uint8(128) else value
        return
    threshold = int(np.ceil(arg))  # for whole numbers, value < arg just when value < ceil(arg)
    if threshold > 255:
        target[:] = source
        return
    limit = np.uint8(threshold)
    for i in range(values.size):
        value = values[i]
        results[i] = value if value < limit else np.uint8(255) - value
    _opaque(target)


@_compile
def _opaque(target: Any) -> None:
    for i in range(target.size):
        target[i] |= OPAQUE


@_compile
def _look_up(source: Any, tables: Any, target: Any) -> None:
    red, green, blue = tables[0], tables[1], tables[2]
    for i in range(source.size):
        pixel = source[i]
        target[i] = red[pixel & _BYTE] | green[(pixel >> _GREEN) & _BYTE] | blue[(pixel >> _BLUE) & _BYTE]


@_compile
def _equalised(source: Any, equalize: bool, channels: int, target: Any) -> None:
    """Equalize or AutoContrast: one table per channel, from its histogram or its lowest and highest value."""
    tables = np.empty((3, 256), np.uint32)
    counts = np.zeros((2, 3, 256), np.int32)
    if equalize:
        _count(source, counts)
    lowest, highest = np.zeros(3, np.int64), np.full(3, 255)
    if not equalize:
        _extremes(source, lowest, highest)
    for c in range(3):
        if c >= channels:
            for v in range(256):
                tables[c, v] = (tables[0, v] & _BYTE) << np.uint32(8 * c)
            continue
        if equalize:
            _equalize_table(counts[0, c], counts[1, c], source.size, tables[c])
        else:
            _stretch_table(lowest[c], highest[c], tables[c])
        for v in range(256):
            tables[c, v] = tables[c, v] << np.uint32(8 * c)
    for v in range(256):
        tables[2, v] |= OPAQUE
    _look_up(source, tables, target)


@_compile
def _count(source: Any, counts: Any) -> None:
    # Two histograms by turns: neighbouring equal pixels would otherwise wait for each other's increment.
    for i in range(source.size):
        pixel, part = source[i], counts[i & 1]
        part[0, pixel & _BYTE] += 1
        part[1, (pixel >> _GREEN) & _BYTE] += 1
        part[2, (pixel >> _BLUE) & _BYTE] += 1


@_compile
def _extremes(source: Any, lowest: Any, highest: Any) -> None:
    for c in range(3):
        shift = np.uint32(8 * c)
        low, high = np.uint32(255), np.uint32(0)
        for i in range(source.size):
            value = (source[i] >> shift) & _BYTE
            low, high = min(low, value), max(high, value)
        lowest[c], highest[c] = low, high


@_compile
def _equalize_table(one: Any, other: Any, pixels: int, table: Any) -> None:
    high, distinct = 0, 0
    for v in range(256):
        one[v] += other[v]
        table[v] = v
        if one[v] > 0:
            high = v
            distinct += 1
    step = (pixels - one[high]) // 255
    if distinct <= 1 or step == 0:
        return
    n = step // 2
    for v in range(256):
        table[v] = min(n // step, 255)
        n += one[v]


@_compile
def _stretch_table(low: int, high: int, table: Any) -> None:
    if high <= low:
        for v in range(256):
            table[v] = v
        return
    scale = 255.0 / (high - low)
    offset = -low * scale
    for v in range(256):
        table[v] = min(max(int(v * scale + offset), 0), 255)


@_compile
def _blended(degenerate: Any, value: Any, factor: Any) -> Any:
    mixed = degenerate + factor * (value - degenerate)
    return np.int32(min(max(mixed, np.float32(0.0)), np.float32(255.0)))


@_compile
def _flat(source: Any, degenerate: Any, factor: Any, target: Any) -> None:
    values, results = source.view(np.uint8), target.view(np.uint8)
    for i in range(values.size):
        results[i] = np.uint8(_blended(degenerate, np.float32(values[i]), factor))
    _opaque(target)


@_compile
def _grey(pixel: Any) -> Any:
    red, green, blue = pixel & _BYTE, (pixel >> _GREEN) & _BYTE, (pixel >> _BLUE) & _BYTE
    weighted = np.uint32(19595) * red + np.uint32(38470) * green + np.uint32(7471) * blue + np.uint32(32768)
    return np.int32(np.uint32(weighted) >> _BLUE)


@_compile
def _mean_grey(source: Any) -> int:
    total: Any = 0
    for i in range(source.size):
        total += _grey(source[i])
    return int(total / source.size + 0.5)


@_compile
def _color(source: Any, factor: Any, target: Any) -> None:
    for i in range(source.size):
        pixel = source[i]
        grey = np.float32(_grey(pixel))
        red = _blended(grey, np.float32(np.int32(pixel & _BYTE)), factor)
        green = _blended(grey, np.float32(np.int32((pixel >> _GREEN) & _BYTE)), factor)
        blue = _blended(grey, np.float32(np.int32((pixel >> _BLUE) & _BYTE)), factor)
        target[i] = np.uint32(red) | (np.uint32(green) << _GREEN) | (np.uint32(blue) << _BLUE) | OPAQUE


@_compile
def _sharpness(source: Any, height: int, width: int, factor: Any, target: Any) -> None:
    side = np.float32(1.0) / np.float32(13.0)
    centre = np.float32(5.0) / np.float32(13.0)
    target[:] = source
    if height < 3 or width < 3:
        return
    values, results, line = source.view(np.uint8), target.view(np.uint8), 4 * width
    for y in range(1, height - 1):
        above, here = values[(y - 1) * line : y * line], values[y * line : (y + 1) * line]
        below, result = values[(y + 1) * line : (y + 2) * line], results[y * line : (y + 1) * line]
        for x in range(4, line - 4):
            # Pillow's order: 0.5, then the rows from the bottom up.
            total = np.float32(0.5)
            total += np.float32(below[x - 4]) * side + np.float32(below[x]) * side + np.float32(below[x + 4]) * side
            total += np.float32(here[x - 4]) * side + np.float32(here[x]) * centre + np.float32(here[x + 4]) * side
            total += np.float32(above[x - 4]) * side + np.float32(above[x]) * side + np.float32(above[x + 4]) * side
            smoothed = np.float32(np.int32(min(total, np.float32(255.0))))
            result[x] = np.uint8(_blended(smoothed, np.float32(here[x]), factor))
    _opaque(target)


@_compile
def _cutout(source: Any, height: int, width: int, patch: Any, channels: int, target: Any) -> None:
    target[:] = source
    packed = np.uint32(patch[4])
    colour = (packed & _BYTE) << _BLUE | (packed & np.uint32(0xFF00)) | packed >> _BLUE | OPAQUE
    if channels == 1:
        colour = np.uint32(_grey(np.uint32(colour))) * np.uint32(0x010101) | OPAQUE
    left, right = max(patch[0], 0), min(patch[2], width)
    for y in range(max(patch[1], 0), min(patch[3], height)):
        for x in range(left, right):
            target[y * width + x] = np.uint32(colour)
