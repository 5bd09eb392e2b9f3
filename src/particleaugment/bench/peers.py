"""What others' augmentation is timed by: timm's transform, or Pillow called as timm calls it, and torchvision v2."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

from particleaugment.policies.parse import TIMM_OPS

__all__ = ["timm_transform", "torchvision_transform"]

_FILL = (128, 128, 128)

_DRAWS = random.Random(0)  # timm itself draws from the global generators


def timm_transform() -> tuple[Callable[[Image.Image], Image.Image], str]:
    """Return timm's RandAugment, or the same Pillow calls where timm cannot be imported, and which of them it is."""
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError):
        return _pillow_as_timm, "Pillow called as timm's op functions call it (timm itself cannot be imported here)"
    hparams = {"img_mean": _FILL, "interpolation": Image.Resampling.BILINEAR}
    return rand_augment_transform("rand-m9-n3-inc1-p1.0", hparams), "timm"


def torchvision_transform() -> Callable[..., Any] | None:
    """Return torchvision v2's RandAugment, or None where it cannot be imported."""
    try:
        from torchvision.transforms import InterpolationMode, v2
    except (ImportError, RuntimeError):
        return None
    transform: Callable[..., Any] = v2.RandAugment(3, 9, interpolation=InterpolationMode.BILINEAR, fill=[128.0])
    return transform


def _pillow_as_timm(image: Image.Image) -> Image.Image:
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
