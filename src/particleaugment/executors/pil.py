"""The oracle: Pillow itself, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from particleaugment.core import registry
from particleaugment.core.op_table import Kind, by_index
from particleaugment.core.program import UNSET, Program
from particleaugment.executors.coefficients import luminance, pixels_shifted, pointwise_table

_FILTERS = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
_MIRRORS = {"FlipX": Image.Transpose.FLIP_LEFT_RIGHT, "FlipY": Image.Transpose.FLIP_TOP_BOTTOM}
_ENHANCERS = {
    "Color": ImageEnhance.Color,
    "Contrast": ImageEnhance.Contrast,
    "Brightness": ImageEnhance.Brightness,
    "Sharpness": ImageEnhance.Sharpness,
}


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program with Pillow; images are uint8 ``[B, 3, H, W]`` or ``[B, 1, H, W]`` (then run as three channels)."""
    channels = images.shape[1]
    red, green, blue = fill if channels == 3 else fill * 3
    arrays = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().contiguous().numpy()
    codes = program.resample_or_unset().tolist()
    patches = None if program.patch is None else program.patch.tolist()
    output = np.empty_like(arrays)
    for i, (ops, args) in enumerate(zip(program.op.tolist(), program.arg.tolist())):
        chosen = [resample if code == UNSET else code for code in codes[i]]
        patch = None if patches is None else patches[i]
        output[i] = np.asarray(
            run_image(Image.fromarray(arrays[i]), ops, args, chosen, patch, (red, green, blue), channels == 1)
        )
    result = torch.from_numpy(output).permute(0, 3, 1, 2)[:, :channels]
    return result.contiguous().to(images.device)


def run_image(
    image: Image.Image,
    ops: Sequence[int],
    args: Sequence[float],
    codes: Sequence[int],
    patches: Sequence[Sequence[int]] | None,
    fill: tuple[int, int, int],
    grey: bool,
) -> Image.Image:
    """Run the program of one RGB image.

    Args:
        image: The image; it is returned as it is if no op changes it.
        ops: Op indices.
        args: Their arguments.
        codes: Their filters.
        patches: What Cutout paints, five numbers per slot, or None.
        fill: Colour of what geometric ops bring in.
        grey: Whether the image is a grey one, and Cutout's colours become grey.
    """
    for k, (op, arg, code) in enumerate(zip(ops, args, codes)):
        if patches is not None and by_index(op).kind is Kind.PATCH:
            image = _cutout(image, patches[k], grey)
        else:
            image = apply_op(image, op, arg, code, fill)
    return image


def apply_op(image: Image.Image, op: int, arg: float, resample: int, fill: tuple[int, int, int]) -> Image.Image:
    """Apply one op, other than Cutout, to one RGB image by calling Pillow."""
    name, kind = by_index(op).name, by_index(op).kind
    if kind is Kind.NONE:
        return image
    if kind is Kind.OWN:
        return registry.run_pillow(op, image, arg)
    if kind is Kind.MIRROR:
        return image.transpose(_MIRRORS[name])
    if kind is Kind.GEOMETRIC:
        return _geometric(image, name, arg, _FILTERS[resample], fill)
    if name in _ENHANCERS:
        return _ENHANCERS[name](image).enhance(arg)
    if name == "AutoContrast":
        return ImageOps.autocontrast(image)
    if name == "Equalize":
        return ImageOps.equalize(image)
    if name == "Invert":
        return ImageOps.invert(image)
    if name == "Solarize":
        return ImageOps.solarize(image, arg)  # type: ignore[arg-type]  # compared with 0..255: a float is right
    if name == "Posterize" and arg >= 1:
        return ImageOps.posterize(image, int(arg))
    # SolarizeAdd has no function in Pillow, and its posterize refuses 0 bits.
    return image.point(_table(op, arg))


@lru_cache(maxsize=64)
def _table(op: int, arg: float) -> list[int]:
    table = pointwise_table(torch.tensor([op], device="cpu"), torch.tensor([arg], dtype=torch.float64, device="cpu"))[0]
    return table.tolist() * 3


def _cutout(image: Image.Image, patch: Sequence[int], grey: bool) -> Image.Image:
    left, top, right, bottom, packed = patch
    if left >= right or top >= bottom:
        return image
    colour = (packed >> 16, packed >> 8 & 255, packed & 255)
    image = image.copy()
    fill = (luminance(colour),) * 3 if grey else colour
    ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), fill=fill)
    return image


def _geometric(
    image: Image.Image, name: str, arg: float, resample: Image.Resampling, fill: tuple[int, int, int]
) -> Image.Image:
    if name in ("Rotate", "Rotate90"):
        return image.rotate(arg, resample=resample, fillcolor=fill)
    if name == "ShearX":
        matrix = (1.0, arg, 0.0, 0.0, 1.0, 0.0)
    elif name == "ShearY":
        matrix = (1.0, 0.0, 0.0, arg, 1.0, 0.0)
    elif name == "TranslateX":
        matrix = (1.0, 0.0, _shift(arg, image.width), 0.0, 1.0, 0.0)
    else:
        matrix = (1.0, 0.0, 0.0, 0.0, 1.0, _shift(arg, image.height))
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=resample, fillcolor=fill)


@lru_cache(maxsize=256)
def _shift(fraction: float, side: int) -> float:
    return float(pixels_shifted(torch.tensor(fraction, dtype=torch.float64, device="cpu"), side))
