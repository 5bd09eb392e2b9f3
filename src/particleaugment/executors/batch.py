"""Vectorised torch on any device: every image has its own ops and arguments, and there is no loop over images."""

from __future__ import annotations

import torch
from torch import Tensor

from particleaugment.core import registry
from particleaugment.core.op_table import IDENTITY, Kind, by_index, lookup
from particleaugment.core.program import UNSET, Program
from particleaugment.executors.coefficients import Affine, affine, blend_factor, patch_colours, pointwise_table

_AUTOCONTRAST, _COLOR, _CONTRAST, _BRIGHTNESS = (
    lookup(name).index for name in ("AutoContrast", "Color", "Contrast", "Brightness")
)
_CUTOUT, _FLIP_X = lookup("Cutout").index, lookup("FlipX").index
_NEAREST, _BILINEAR = 0, 1
_CHUNK = 1 << 21  # values processed at once: temporaries are float64, and large ones cost more in page faults than work


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program; images are uint8 ``[B, 3 or 1, H, W]``, ``fill`` has one value per channel."""
    output = images.clone(memory_format=torch.contiguous_format)
    codes = program.resample_or_unset()
    codes = torch.where(codes == UNSET, torch.full_like(codes, resample), codes)
    per_chunk = max(1, _CHUNK // max(1, images[0].numel()))
    for slot in range(program.op.shape[1]):
        op, arg, code = program.op[:, slot], program.arg[:, slot], codes[:, slot]
        for present in torch.unique(op).tolist():
            if present == IDENTITY:
                continue
            for chosen in (op == present).nonzero().squeeze(-1).split(per_chunk):
                if present == _CUTOUT and program.patch is not None:
                    output[chosen] = _painted(output[chosen], program.patch[chosen, slot])
                else:
                    output[chosen] = _apply(output[chosen], present, arg[chosen], code[chosen], fill)
    return output


def resampled(images: Tensor, matrix: Tensor, resample: int) -> Tensor:
    """Resample images, each with its own matrix ``[B, 6]``; black where the source is outside."""
    per_chunk = max(1, _CHUNK // max(1, images[0].numel()))
    black = (0,) * images.shape[1]
    parts = zip(images.split(per_chunk), matrix.split(per_chunk))
    return torch.cat([_resampled(part, numbers, resample, black) for part, numbers in parts])


def _apply(images: Tensor, op: int, arg: Tensor, code: Tensor, fill: tuple[int, ...]) -> Tensor:
    kind = by_index(op).kind
    if kind is Kind.OWN:
        return registry.run_batch(op, images, arg)
    if kind is Kind.MIRROR:
        return images.flip(-1 if op == _FLIP_X else -2)
    if kind is Kind.POINTWISE:
        table = pointwise_table(torch.full_like(code, op), arg)
        return _look_up(images, table.unsqueeze(1).expand(-1, images.shape[1], -1))
    if kind is Kind.HISTOGRAM:
        histogram = _histogram(images)
        return _look_up(images, _autocontrast_table(histogram) if op == _AUTOCONTRAST else _equalize_table(histogram))
    if kind is Kind.GEOMETRIC:
        return _geometric(images, affine(torch.full_like(code, op), arg, *images.shape[-2:]), code, fill)
    return _blend(_degenerate(images, op), images, blend_factor(arg))


def _painted(images: Tensor, patch: Tensor) -> Tensor:
    left, top, right, bottom = patch[:, :4].view(-1, 4, 1, 1).unbind(1)
    x = torch.arange(images.shape[-1], device=images.device).view(1, 1, -1)
    y = torch.arange(images.shape[-2], device=images.device).view(1, -1, 1)
    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    colours = patch_colours(patch, images.shape[1]).view(len(images), -1, 1, 1)
    return torch.where(inside.unsqueeze(1), colours, images)


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    return table.gather(2, images.flatten(2).to(torch.int64)).view_as(images)


def _histogram(images: Tensor) -> Tensor:
    values = images.flatten(2).to(torch.int64)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(2, values, torch.ones_like(values))


def _autocontrast_table(histogram: Tensor) -> Tensor:
    value = torch.arange(256, device=histogram.device)
    present = histogram > 0
    low = torch.where(present, value, 256).amin(-1, keepdim=True)
    high = torch.where(present, value, -1).amax(-1, keepdim=True)
    spread = (high - low).clamp(min=1).to(torch.float64)
    scale = torch.full_like(spread, 255.0) / spread  # a number over a tensor would be a product with a reciprocal
    offset = -low.to(torch.float64) * scale
    stretched = (value.to(torch.float64) * scale + offset).trunc().clamp(0, 255)
    return torch.where(high > low, stretched.to(torch.int64), value).to(torch.uint8)


def _equalize_table(histogram: Tensor) -> Tensor:
    value = torch.arange(256, device=histogram.device)
    highest = torch.where(histogram > 0, value, 0).amax(-1, keepdim=True)
    step = (histogram.sum(-1, keepdim=True) - histogram.gather(2, highest)) // 255
    below = histogram.cumsum(-1) - histogram
    divisor = step.clamp(min=1)
    equalized = ((divisor // 2 + below) // divisor).clamp(max=255)
    return torch.where(step > 0, equalized, value).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Pillow's L of each pixel, int32 ``[N, 1, H, W]``."""
    if images.shape[1] == 1:
        return images.to(torch.int32)
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).unsqueeze(1)


def _degenerate(images: Tensor, op: int) -> Tensor:
    """The image that a factor of 0 gives, as float32 of whole values, broadcastable to ``images``."""
    if op == _BRIGHTNESS:
        return torch.zeros(1, 1, 1, 1, dtype=torch.float32, device=images.device)
    if op == _COLOR:
        return _grey(images).to(torch.float32)
    if op == _CONTRAST:
        grey = _grey(images).flatten(1)
        total = grey.sum(1, dtype=torch.int64).to(torch.float64)
        mean = total / torch.full_like(total, grey.shape[1])  # CUDA multiplies by the reciprocal of a plain number
        return (mean + 0.5).trunc().to(torch.float32).view(-1, 1, 1, 1)
    return _smoothed(images)


def _smoothed(images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    smoothed = images.to(torch.float32)
    if height < 3 or width < 3:
        return smoothed
    weights = torch.tensor([1.0, 5.0, 13.0], dtype=torch.float32, device="cpu")
    side, centre = (weights[:2] / weights[2:].expand(2)).to(images.device)

    def row(start: int, middle: Tensor) -> Tensor:
        lines = smoothed[..., start : height - 2 + start, :]
        weighted: Tensor = lines[..., :-2] * side + lines[..., 1:-1] * middle + lines[..., 2:] * side
        return weighted

    # Pillow's order of summation: 0.5 first, then the rows from the bottom up.
    total = 0.5 + row(2, side)
    total = total + row(1, centre)
    total = total + row(0, side)
    smoothed = smoothed.clone()
    smoothed[..., 1:-1, 1:-1] = total.clamp(0, 255).trunc()
    return smoothed


def _blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    # Interpolation never leaves 0..255, so the clamp that Pillow does for extrapolation alone is harmless there, and
    # factors 0 and 1, which it special-cases, are exact in this arithmetic.
    factor = factor.view(-1, 1, 1, 1)
    blended = degenerate + factor * (images.to(torch.float32) - degenerate)
    return blended.clamp(0, 255).to(torch.uint8)


def _geometric(images: Tensor, coefficients: Affine, code: Tensor, fill: tuple[int, ...]) -> Tensor:
    output = torch.empty_like(images)
    matrix, turn = coefficients
    for quarters in range(4):
        chosen = (turn == quarters).nonzero().squeeze(-1)
        if chosen.numel():
            output[chosen] = torch.rot90(images[chosen], quarters, (-2, -1))
    for filter_code in range(3):
        chosen = ((turn < 0) & (code == filter_code)).nonzero().squeeze(-1)
        if chosen.numel():
            output[chosen] = _resampled(images[chosen], matrix[chosen], filter_code, fill)
    return output


def _resampled(images: Tensor, matrix: Tensor, code: int, fill: tuple[int, ...]) -> Tensor:
    if code == _NEAREST:
        values, inside = _nearest(images, matrix)
    else:
        values, inside = _interpolated(images, matrix, code)
    colour = torch.tensor(fill, dtype=torch.uint8, device="cpu").to(images.device, non_blocking=True).view(1, -1, 1, 1)
    return torch.where(inside.unsqueeze(1), values, colour)


def _gather(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    index = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).flatten(1)
    flat = images.flatten(2)
    return flat.gather(2, index.unsqueeze(1).expand(-1, flat.shape[1], -1)).view_as(images)


def _nearest(images: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    height, width = images.shape[-2:]
    a = matrix.view(-1, 6, 1, 1).unbind(1)
    x = torch.arange(width, device=images.device).view(1, 1, -1)
    y = torch.arange(height, device=images.device).view(1, -1, 1)

    def fixed(value: Tensor) -> Tensor:
        return (value * 65536.0 + 0.5).floor().to(torch.int64)

    source_x = (fixed(a[2] + a[0] * 0.5 + a[1] * 0.5) + y * fixed(a[1]) + x * fixed(a[0])) >> 16
    source_y = (fixed(a[5] + a[3] * 0.5 + a[4] * 0.5) + y * fixed(a[4]) + x * fixed(a[3])) >> 16
    axis_aligned = (a[1] == 0) & (a[3] == 0)
    source_x = torch.where(axis_aligned, accumulated(a[2] + a[0] * 0.5, a[0], width, -1), source_x)
    source_y = torch.where(axis_aligned, accumulated(a[5] + a[4] * 0.5, a[4], height, -2), source_y)
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    return _gather(images, source_y, source_x), inside


def accumulated(start: Tensor, step: Tensor, count: int, dim: int) -> Tensor:
    """Return the places that Pillow's axis-aligned path takes along ``dim``; -1 stands for any negative one.

    It adds the step pixel by pixel, and rounds each time.
    """
    positions = [start]
    for _ in range(count - 1):
        positions.append(positions[-1] + step)
    return torch.cat(positions, dim).floor().clamp(min=-1).to(torch.int64)


def _interpolated(images: Tensor, matrix: Tensor, code: int) -> tuple[Tensor, Tensor]:
    height, width = images.shape[-2:]
    a = matrix.view(-1, 6, 1, 1).unbind(1)
    x_out = (torch.arange(width, device=images.device, dtype=torch.float64) + 0.5).view(1, 1, -1)
    y_out = (torch.arange(height, device=images.device, dtype=torch.float64) + 0.5).view(1, -1, 1)
    x_in = a[0] * x_out + a[1] * y_out + a[2]
    y_in = a[3] * x_out + a[4] * y_out + a[5]
    inside = (x_in >= 0) & (x_in < width) & (y_in >= 0) & (y_in < height)
    x_in, y_in = x_in - 0.5, y_in - 0.5
    x, y = x_in.floor(), y_in.floor()
    dx, dy = (x_in - x).unsqueeze(1), (y_in - y).unsqueeze(1)
    x, y = x.to(torch.int64), y.to(torch.int64)

    def pixel(row: int, column: int) -> Tensor:
        return _gather(images, y + row, x + column).to(torch.float64)

    if code == _BILINEAR:
        lines = [_linear(pixel(row, 0), pixel(row, 1), dx) for row in (0, 1)]
        value = _linear(lines[0], lines[1], dy)
    else:
        lines = [_cubic([pixel(row, column) for column in (-1, 0, 1, 2)], dx) for row in (-1, 0, 1, 2)]
        value = _cubic(lines, dy).clamp(0, 255)
    return value.to(torch.uint8), inside


def _linear(v1: Tensor, v2: Tensor, d: Tensor) -> Tensor:
    return v1 + (v2 - v1) * d


def _cubic(values: list[Tensor], d: Tensor) -> Tensor:
    v1, v2, v3, v4 = values
    p2 = -v1 + v3
    p3 = 2 * (v1 - v2) + v3 - v4
    p4 = -v1 + v2 - v3 + v4
    return v2 + d * (p2 + d * (p3 + d * p4))
