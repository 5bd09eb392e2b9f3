"""What every executor's pixels are compared with: plain calls of Pillow, and nothing from the package."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

FILTERS = ("nearest", "bilinear", "bicubic")
_FILTERS = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


def whole_if_close(pixels: float) -> float:
    """A translation in pixels; one that is a whole number but for rounding is that whole number."""
    return float(round(pixels)) if abs(pixels - round(pixels)) <= 1e-9 else pixels


def affine(image: Image.Image, matrix: tuple[float, ...], code: int, fill: tuple[int, int, int]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=_FILTERS[code], fillcolor=fill)


def apply_op(image: Image.Image, name: str, arg: float, code: int, fill: tuple[int, int, int]) -> Image.Image:
    """One op on one RGB image; ``code`` is the filter's place in FILTERS."""
    width, height = image.size
    match name:
        case "Identity":
            return image
        case "AutoContrast":
            return ImageOps.autocontrast(image)
        case "Equalize":
            return ImageOps.equalize(image)
        case "Invert":
            return ImageOps.invert(image)
        case "Rotate":
            return image.rotate(arg, resample=_FILTERS[code], fillcolor=fill)
        case "Rotate90":
            return image.transpose(_TURNS[arg])
        case "FlipX":
            return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        case "FlipY":
            return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        case "ShearX":
            return affine(image, (1, arg, 0, 0, 1, 0), code, fill)
        case "ShearY":
            return affine(image, (1, 0, 0, arg, 1, 0), code, fill)
        case "TranslateX":
            return affine(image, (1, 0, whole_if_close(arg * width), 0, 1, 0), code, fill)
        case "TranslateY":
            return affine(image, (1, 0, 0, 0, 1, whole_if_close(arg * height)), code, fill)
        case "Color":
            return ImageEnhance.Color(image).enhance(arg)
        case "Contrast":
            return ImageEnhance.Contrast(image).enhance(arg)
        case "Brightness":
            return ImageEnhance.Brightness(image).enhance(arg)
        case "Sharpness":
            return ImageEnhance.Sharpness(image).enhance(arg)
        case "Solarize":
            return ImageOps.solarize(image, arg)
        case "SolarizeAdd":
            return image.point([min(255, v + int(arg)) if v < 128 else v for v in range(256)] * 3)
        case "Posterize":
            # Pillow refuses 0 bits, which leave nothing of a pixel.
            return ImageOps.posterize(image, int(arg)) if int(arg) else image.point([0] * 768)
    raise AssertionError(name)


def run(
    images: np.ndarray,
    names: Sequence[Sequence[str]],
    args: Sequence[Sequence[float]],
    codes: Sequence[Sequence[int]],
    fill: tuple[int, int, int] = (128, 128, 128),
) -> np.ndarray:
    """Run rows of ops on uint8 images [B, C, H, W]; a grey image goes through as three equal channels."""
    channels = images.shape[1]
    if channels == 1:
        images = images.repeat(3, axis=1)
        fill = (Image.new("RGB", (1, 1), fill).convert("L").getpixel((0, 0)),) * 3
    pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    output = np.empty_like(pixels)
    for i, row in enumerate(zip(names, args, codes)):
        image = Image.fromarray(pixels[i])
        for name, arg, code in zip(*row):
            image = apply_op(image, name, arg, code, fill)
        output[i] = np.asarray(image)
    return output.transpose(0, 3, 1, 2)[:, :channels]


_MOVING = ("Rotate", "Rotate90", "FlipX", "FlipY", "ShearX", "ShearY", "TranslateX", "TranslateY")


def run_masks(
    masks: np.ndarray, names: Sequence[Sequence[str]], args: Sequence[Sequence[float]], fill: int = 255
) -> np.ndarray:
    """Run the ops that move pixels on uint8 masks [B, H, W], by nearest neighbour; the others leave masks alone."""
    output = np.empty_like(masks)
    for i, row in enumerate(zip(names, args)):
        image = Image.fromarray(masks[i])
        for name, arg in zip(*row):
            image = apply_op(image, name, arg, 0, fill) if name in _MOVING else image
        output[i] = np.asarray(image)
    return output
