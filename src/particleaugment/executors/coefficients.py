"""The path from an op's argument to the numbers that its arithmetic uses.

Executors in Python take their affine matrices, tables and blend factors from here. The compiled loops and the CUDA
kernels compute the same numbers themselves; tests compare them with these, and the exactness suite with Pillow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment.core.op_table import lookup

__all__ = ["Affine", "affine", "blend_factor", "luminance", "patch_colours", "pixels_shifted", "pointwise_table"]

ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE_90 = (
    lookup(name).index for name in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate90")
)
SOLARIZE, SOLARIZE_ADD, POSTERIZE, INVERT = (
    lookup(name).index for name in ("Solarize", "SolarizeAdd", "Posterize", "Invert")
)

MAX_SIDE = 8192
"""Beyond this a sheared coordinate may leave the range of Pillow's 16.16 fixed-point arithmetic."""


class Affine(NamedTuple):
    """Coefficients of N geometric ops.

    Attributes:
        matrix: Float64 ``[N, 6]``: the source of output pixel (x, y) is (m0·x + m1·y + m2, m3·x + m4·y + m5), with
            pixel centres at half-integers.
        turn: Int64 ``[N]``: 0 to 3 for a rotation that Pillow does as that many exact quarter turns counter-clockwise,
            -1 for one that goes through the matrix.
    """

    matrix: Tensor
    turn: Tensor


def luminance(colour: tuple[int, int, int]) -> int:
    """Return the grey value that Pillow gives a colour; grey images are filled with it.

    >>> luminance((255, 0, 0))
    76
    """
    red, green, blue = colour
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def patch_colours(patch: Tensor, channels: int) -> Tensor:
    """Return the colours of Cutout's rectangles, ``Program.patch`` ``[..., 5]``, as uint8 ``[..., channels]``.

    >>> patch_colours(torch.tensor([0, 0, 1, 1, 0x7D7B72]), 3).tolist()
    [125, 123, 114]
    """
    packed = patch[..., 4]
    red, green, blue = packed >> 16, packed >> 8 & 255, packed & 255
    if channels == 1:
        return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).to(torch.uint8).unsqueeze(-1)
    return torch.stack([red, green, blue], dim=-1).to(torch.uint8)


def pixels_shifted(fraction: Tensor, side: Tensor | int) -> Tensor:
    """Return a translation in pixels, snapped to a whole number when within 1e-9 of one.

    >>> pixels_shifted(torch.tensor([0.1, 0.3], dtype=torch.float64), 30).tolist()
    [3.0, 9.0]
    """
    pixels = fraction * side
    whole = pixels.round()
    return torch.where((pixels - whole).abs() <= 1e-9, whole, pixels)


def blend_factor(arg: Tensor) -> Tensor:
    """Return the factor of an enhance op as Pillow's blend takes it, in single precision."""
    return arg.to(torch.float32)


def pointwise_table(op: Tensor, arg: Tensor) -> Tensor:
    """Return the tables of N pointwise ops, uint8 ``[N, 256]``.

    >>> pointwise_table(torch.tensor([POSTERIZE]), torch.tensor([1.0], dtype=torch.float64))[0, [0, 127, 128]].tolist()
    [0, 0, 128]
    """
    value = torch.arange(256, device=op.device, dtype=torch.int16)
    op, arg = op.unsqueeze(-1), arg.unsqueeze(-1)
    whole = arg.to(torch.int16)
    inverted = 255 - value
    # For whole numbers, value < arg just when value < ceil(arg).
    solarized = torch.where(value < arg.ceil().to(torch.int16), value, inverted)
    added = torch.where(value < 128, (value + whole).clamp(max=255), value)
    dropped_bits = (8 - whole).clamp(0, 8)
    posterized = (value >> dropped_bits) << dropped_bits
    table = torch.where(op == SOLARIZE, solarized, value)
    table = torch.where(op == SOLARIZE_ADD, added, table)
    table = torch.where(op == POSTERIZE, posterized, table)
    table = torch.where(op == INVERT, inverted, table)
    return table.to(torch.uint8)


def affine(op: Tensor, arg: Tensor, height: int, width: int) -> Affine:
    """Return the coefficients of N geometric ops on images of one size.

    >>> shear = affine(torch.tensor([SHEAR_X]), torch.tensor([0.25], dtype=torch.float64), 32, 32)
    >>> shear.matrix[0].tolist()
    [1.0, 0.25, 0.0, 0.0, 1.0, 0.0]
    """
    matrix = torch.zeros(op.shape[0], 6, dtype=torch.float64, device=op.device)
    matrix[:, 0] = 1.0
    matrix[:, 4] = 1.0
    matrix[:, 1] = torch.where(op == SHEAR_X, arg, 0.0)
    matrix[:, 3] = torch.where(op == SHEAR_Y, arg, 0.0)
    matrix[:, 2] = torch.where(op == TRANSLATE_X, pixels_shifted(arg, width), 0.0)
    matrix[:, 5] = torch.where(op == TRANSLATE_Y, pixels_shifted(arg, height), 0.0)
    turn = torch.full_like(op, -1)
    rotated = ((op == ROTATE) | (op == ROTATE_90)).nonzero().squeeze(-1)
    if rotated.numel():
        matrix[rotated], turn[rotated] = _rotation(arg[rotated], height, width)
    return Affine(matrix, turn)


def _rotation(degrees: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    # Pillow computes these in Python with the C library's sine and cosine; torch's vectorised ones differ in the last
    # bit, so the (few) angles are computed one by one.
    unique, inverse = torch.unique(degrees, return_inverse=True)
    rows = [_rotation_row(angle, height, width) for angle in unique.tolist()]
    matrix = torch.tensor([row for row, _ in rows], dtype=torch.float64, device=degrees.device)
    turn = torch.tensor([turn for _, turn in rows], dtype=torch.int64, device=degrees.device)
    return matrix[inverse], turn[inverse]


def _rotation_row(degrees: float, height: int, width: int) -> tuple[list[float], int]:
    degrees = degrees % 360.0
    quarters = {0.0: 0, 180.0: 2} | ({90.0: 1, 270.0: 3} if height == width else {})
    angle = -math.radians(degrees)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    a, b, d, e = cosine, sine, round(-math.sin(angle), 15), cosine
    centre_x, centre_y = width / 2, height / 2
    c = a * -centre_x + b * -centre_y + 0.0 + centre_x
    f = d * -centre_x + e * -centre_y + 0.0 + centre_y
    return [a, b, c, d, e, f], quarters.get(degrees, -1)
