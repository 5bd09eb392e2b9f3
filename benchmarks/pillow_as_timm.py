"""timm's RandAugment as the Pillow calls that it makes, for machines where timm cannot be imported."""

from __future__ import annotations

import random
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

from particleaugment.policies.parse import TIMM_OPS

__all__ = ["pillow_as_timm"]

_FILL = (128, 128, 128)

_DRAWS = random.Random(0)  # timm itself draws from the global generators


def pillow_as_timm(image: Image.Image) -> Image.Image:
    """Three ops drawn and applied by the Pillow calls that timm makes."""
    for name in _DRAWS.choices(TIMM_OPS, k=3):
        sign = -1.0 if _DRAWS.random() > 0.5 else 1.0
        image = _timm_op(image, name, sign)
    return image


def _timm_op(image: Image.Image, name: str, sign: float) -> Image.Image:
    affine: dict[str, Any] = {"resample": Image.Resampling.BILINEAR, "fillcolor": _FILL}
    width, height = image.size
    match name:
        case "AutoContrast":
            return ImageOps.autocontrast(image)
        case "Equalize":
            return ImageOps.equalize(image)
        case "Invert":
            return ImageOps.invert(image)
        case "Rotate":
            return image.rotate(27.0 * sign, **affine)
        case "Posterize":
            return ImageOps.posterize(image, 1)
        case "Solarize":
            return ImageOps.solarize(image, 26)
        case "SolarizeAdd":
            table = [min(255, value + 99) if value < 128 else value for value in range(256)]
            return image.point(table * 3)
        case "ShearX":
            matrix: tuple[float, ...] = (1, 0.27 * sign, 0, 0, 1, 0)
        case "ShearY":
            matrix = (1, 0, 0, 0.27 * sign, 1, 0)
        case "TranslateX":
            matrix = (1, 0, 0.405 * sign * width, 0, 1, 0)
        case "TranslateY":
            matrix = (1, 0, 0, 0, 1, 0.405 * sign * height)
        case _:
            enhance = getattr(ImageEnhance, name)
            return enhance(image).enhance(max(0.1, 1.0 + 0.81 * sign))  # type: ignore[no-any-return]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **affine)
