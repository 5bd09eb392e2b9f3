"""Others' augmentation, where it is installed: timm's RandAugment and torchvision v2's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

__all__ = ["timm_transform", "torchvision_transform", "torchvision_trivial"]


def timm_transform(
    text: str = "rand-m9-n3-inc1-p1.0", interpolation: Any = Image.Resampling.BILINEAR
) -> Callable[[Image.Image], Image.Image] | None:
    """Return timm's RandAugment, or None where it cannot be imported (it needs torchvision).

    Args:
        text: Its string.
        interpolation: Filter of the geometric ops; None draws bilinear or bicubic per op, which is timm's default.
    """
    try:
        from timm.data.auto_augment import rand_augment_transform
    except (ImportError, RuntimeError):
        return None
    hparams = {"img_mean": (128, 128, 128)} | ({} if interpolation is None else {"interpolation": interpolation})
    transform: Callable[[Image.Image], Image.Image] = rand_augment_transform(text, hparams)
    return transform


def torchvision_transform() -> Callable[..., Any] | None:
    """Return torchvision v2's RandAugment, or None where it cannot be imported."""
    try:
        from torchvision.transforms import InterpolationMode, v2
    except (ImportError, RuntimeError):
        return None
    transform: Callable[..., Any] = v2.RandAugment(3, 9, interpolation=InterpolationMode.BILINEAR, fill=[128.0])
    return transform


def torchvision_trivial() -> Callable[..., Any] | None:
    """Return torchvision's TrivialAugmentWide with its own settings (nearest), or None where it cannot be imported."""
    try:
        from torchvision.transforms import TrivialAugmentWide
    except (ImportError, RuntimeError):
        return None
    transform: Callable[..., Any] = TrivialAugmentWide()
    return transform
