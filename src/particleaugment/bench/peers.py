"""Others' augmentation, where it is installed: timm's RandAugment and torchvision v2's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

__all__ = ["timm_transform", "torchvision_transform"]


def timm_transform() -> Callable[[Image.Image], Image.Image] | None:
    """Return timm's RandAugment, or None where it cannot be imported (it needs torchvision)."""
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError):
        return None
    hparams = {"img_mean": (128, 128, 128), "interpolation": Image.Resampling.BILINEAR}
    transform: Callable[[Image.Image], Image.Image] = rand_augment_transform("rand-m9-n3-inc1-p1.0", hparams)
    return transform


def torchvision_transform() -> Callable[..., Any] | None:
    """Return torchvision v2's RandAugment, or None where it cannot be imported."""
    try:
        from torchvision.transforms import InterpolationMode, v2
    except (ImportError, RuntimeError):
        return None
    transform: Callable[..., Any] = v2.RandAugment(3, 9, interpolation=InterpolationMode.BILINEAR, fill=[128.0])
    return transform
