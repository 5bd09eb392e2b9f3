"""Always-on transforms in the style of policies: draws first, a pure function of their key; then the batch.

Each has ``sample(ids, epoch, seed, size)``, which returns its draws as a tensor, ``run(images, draws)``, which applies
them, and can be called with ``(images, ids, epoch, seed)`` to do both; ``move(draws, size)`` says how masks, boxes and
keypoints follow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from particleaugment.core.op_table import op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream, exp, sqrt, uniform
from particleaugment.executors import apply
from particleaugment.executors.steps import Move
from particleaugment.policies.policy import checked_count, checked_fraction, checked_size

__all__ = ["ColorJitter", "HorizontalFlip", "Normalize", "PadCrop", "RandomErasing", "Transform"]


class Transform(ABC):
    """A keyed batch transform; see the module's text."""

    __slots__ = ()

    @abstractmethod
    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return the draws of some samples, one row each."""

    @abstractmethod
    def run(self, images: Tensor, draws: Tensor) -> Tensor:
        """Apply draws to a batch of images ``[B, C, H, W]``."""

    def move(self, draws: Tensor, size: tuple[int, int]) -> Move | None:
        """Return how draws move the pixels of images of a height and width, for masks, boxes and keypoints to follow.

        None says that every object stays where it is.
        """
        raise TypeError(
            f"{type(self).__name__} does not say how masks, boxes and keypoints follow it; define its move(draws, size)"
        )

    def __call__(self, images: Tensor, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0) -> Tensor:
        """Draw and apply."""
        if ids.shape != images.shape[:1]:
            raise ValueError(f"there must be one id per image, got {tuple(ids.shape)} ids for {len(images)} images")
        height, width = images.shape[-2:]
        return self.run(images, self.sample(ids, epoch, seed, (height, width)))


def _unmoved(draws: Tensor) -> Tensor:
    """Coefficients ``[B, 6]`` that move nothing, to be changed."""
    matrix = torch.zeros(len(draws), 6, dtype=torch.float64, device=draws.device)
    matrix[:, 0::4] = 1.0
    return matrix


@dataclass(frozen=True)
class PadCrop(Transform):
    """Pad each side and crop a window of the old size at a random place.

    Attributes:
        pad: Pixels added to each side.
        fill: Value of the padding, the same for all channels.

    >>> crop = PadCrop(4)
    >>> crop.sample(torch.arange(3), epoch=0, seed=0, size=(32, 32)).shape  # offsets down and right, 0 to 8
    torch.Size([3, 2])
    """

    pad: int = 4
    fill: int = 0

    def __post_init__(self) -> None:
        checked_count("pad", self.pad, 4096)
        checked_count("fill", self.fill, 255)

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return the window's offsets in the padded image, int64 ``[B, 2]`` (down, right)."""
        places = 2 * self.pad + 1
        return (uniform(seed, Stream.CROP, epoch, ids, 2) * places).to(torch.int64).clamp(max=places - 1)

    def run(self, images: Tensor, draws: Tensor) -> Tensor:
        """Crop the windows."""
        height, width = images.shape[-2:]
        padded = functional.pad(images, (self.pad,) * 4, value=self.fill)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(len(images), device=images.device), :, draws[:, 0], draws[:, 1]]

    def move(self, draws: Tensor, size: tuple[int, int]) -> Move:
        """Return the shift of each window."""
        matrix = _unmoved(draws)
        matrix[:, 2] = (draws[:, 1] - self.pad).to(torch.float64)
        matrix[:, 5] = (draws[:, 0] - self.pad).to(torch.float64)
        return Move(matrix)


@dataclass(frozen=True)
class HorizontalFlip(Transform):
    """Mirror an image left to right with probability ``p``.

    >>> flip = HorizontalFlip(p=1.0)
    >>> flip(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8), torch.tensor([0]))
    tensor([[[[3, 2, 1]]]], dtype=torch.uint8)
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        checked_fraction("p", self.p)

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return which samples are mirrored, bool ``[B]``."""
        return uniform(seed, Stream.FLIP, epoch, ids, 1).squeeze(-1) < self.p

    def run(self, images: Tensor, draws: Tensor) -> Tensor:
        """Mirror the chosen images."""
        return torch.where(draws.view(-1, 1, 1, 1), images.flip(-1), images)

    def move(self, draws: Tensor, size: tuple[int, int]) -> Move:
        """Return which images are mirrored."""
        matrix = _unmoved(draws)
        mirrored = draws.to(torch.float64)
        matrix[:, 0] = 1.0 - 2.0 * mirrored
        matrix[:, 2] = mirrored * size[1]
        return Move(matrix)


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Blacken a random rectangle, as the paper's (and timm's) cutout does.

    Area and aspect ratio are drawn up to ten times until the rectangle is smaller than the image; if it never is, the
    image stays whole.

    Attributes:
        p: Probability of erasing.
        area: Smallest and largest area as fractions of the image.
        aspect: Smallest and largest height / width, drawn uniformly in its logarithm.

    >>> erase = RandomErasing()
    >>> erase.sample(torch.arange(5), epoch=0, seed=0, size=(32, 32)).shape  # top, left, height, width
    torch.Size([5, 4])
    """

    p: float = 0.5
    area: tuple[float, float] = (0.02, 1 / 3)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)

    _ATTEMPTS = 10

    def __post_init__(self) -> None:
        checked_fraction("p", self.p)
        if not _rising(self.area) or self.area[1] > 1:
            raise ValueError(f"area must be two fractions of the image in rising order, got {self.area!r}")
        if not _rising(self.aspect):
            raise ValueError(f"aspect must be two positive ratios in rising order, got {self.aspect!r}")

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return rectangles, int64 ``[B, 4]``: top, left, height, width; height 0 where nothing is erased."""
        height, width = checked_size(size)
        u = uniform(seed, Stream.ERASE, epoch, ids, 3 + 2 * self._ATTEMPTS)
        tries = u[:, 3:].reshape(-1, self._ATTEMPTS, 2)
        area = (self.area[0] + tries[..., 0] * (self.area[1] - self.area[0])) * (height * width)
        log_low, log_high = math.log(self.aspect[0]), math.log(self.aspect[1])
        aspect = exp(log_low + tries[..., 1] * (log_high - log_low))
        tall, wide = sqrt(area * aspect).round(), sqrt(area / aspect).round()
        fits = (tall < height) & (wide < width)
        first = fits.to(torch.int8).argmax(1, keepdim=True)
        tall, wide = tall.gather(1, first), wide.gather(1, first)
        erased = (u[:, :1] < self.p) & fits.any(1, keepdim=True)
        top = (u[:, 1:2] * (height - tall + 1)).floor()
        left = (u[:, 2:3] * (width - wide + 1)).floor()
        box = torch.cat([top, left, tall, wide], 1).to(torch.int64)
        return torch.where(erased, box, 0)

    def run(self, images: Tensor, draws: Tensor) -> Tensor:
        """Blacken the rectangles."""
        height, width = images.shape[-2:]
        top, left, tall, wide = draws.view(-1, 4, 1, 1).unbind(1)
        y = torch.arange(height, device=images.device).view(1, -1, 1)
        x = torch.arange(width, device=images.device).view(1, 1, -1)
        erased = (y >= top) & (y < top + tall) & (x >= left) & (x < left + wide)
        return images.masked_fill(erased.unsqueeze(1), 0)

    def move(self, draws: Tensor, size: tuple[int, int]) -> Move:
        """Return the rectangles; targets are erased only if that is asked for."""
        top, left, tall, wide = draws.unbind(1)
        return Move(erased=torch.stack([left, top, left + wide, top + tall], 1))


def _rising(values: Any) -> bool:
    """Whether a value is two positive numbers in rising order."""
    try:
        low, high = values
        return bool(0 < low <= high < math.inf)
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Change brightness, contrast and saturation by random factors, in random order, with Pillow's pixels.

    Attributes:
        brightness: Smallest and largest factor; 1 changes nothing, 0 gives black.
        contrast: Likewise; 0 gives plain grey.
        saturation: Likewise; 0 gives a grey image.

    >>> jitter = ColorJitter(contrast=(1.0, 1.0))
    >>> jitter.sample(torch.arange(5), epoch=0, seed=0, size=(32, 32)).shape  # three factors, and their order
    torch.Size([5, 4])
    """

    brightness: tuple[float, float] = (0.6, 1.4)
    contrast: tuple[float, float] = (0.6, 1.4)
    saturation: tuple[float, float] = (0.6, 1.4)

    _OPS = ("Brightness", "Contrast", "Color")

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _checked_range(name, getattr(self, name)))

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return float64 ``[B, 4]``: the factors of brightness, contrast and saturation, and the order's number."""
        u = uniform(seed, Stream.JITTER, epoch, ids, 4)
        columns = [
            low + u[:, k] * (high - low)
            for k, (low, high) in enumerate((self.brightness, self.contrast, self.saturation))
        ]
        return torch.stack([*columns, (u[:, 3] * math.factorial(3)).floor()], 1)

    def run(self, images: Tensor, draws: Tensor) -> Tensor:
        """Change the images' colours."""
        return apply(images, self.program(draws))

    def move(self, draws: Tensor, size: tuple[int, int]) -> None:
        """Return None: colours move nothing."""

    def program(self, draws: Tensor) -> Program:
        """Return the draws as a program of three ops."""
        order, ops = _jitter_orders(draws.device)
        places = order[draws[:, 3].to(torch.int64)]
        return Program.trusted(ops[places], draws[:, :3].gather(1, places))


@lru_cache(maxsize=64)
def _jitter_orders(device: torch.device) -> tuple[Tensor, Tensor]:
    """The six orders of three ops, and the ops' indices; cached, so that a captured graph copies nothing."""
    order = torch.tensor(list(permutations(range(3))), device=device)
    return order, torch.tensor(op_indices(ColorJitter._OPS), device=device)


def _checked_range(name: str, factors: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = (float(factor) for factor in factors)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a smallest and a largest factor, got {factors!r}") from None
    if not 0 <= low <= high <= 10:
        raise ValueError(f"{name} must be two factors from 0 to 10 in rising order, got {factors!r}")
    return low, high


@dataclass(frozen=True)
class Normalize(Transform):
    """Turn uint8 images into ``(x / 255 - mean) / std``; it draws nothing.

    Attributes:
        mean: Mean of each channel, in units of the full range (0 to 1).
        std: Standard deviation of each channel, in the same units.
        dtype: Type of the result; the arithmetic is in float32.

    >>> white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    >>> Normalize((0.5,) * 3, (0.25,) * 3)(white, torch.tensor([0])).flatten()
    tensor([2., 2., 2.])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _checked_channels("mean", self.mean))
        object.__setattr__(self, "std", _checked_channels("std", self.std))
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(
                f"mean and std must have the same length and std must be positive, got {self.mean} and {self.std}"
            )
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating type such as torch.float32, got {self.dtype!r}")

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return an empty row per sample."""
        return torch.zeros(len(ids), 0, device=ids.device)

    def run(self, images: Tensor, draws: Tensor | None = None) -> Tensor:
        """Normalise the images."""
        if not isinstance(images, Tensor) or images.dtype != torch.uint8:
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(f"Normalize takes uint8 images (0 to 255), got {kind}; it converts to float itself")
        if images.shape[1] != len(self.mean):
            raise ValueError(f"Normalize has {len(self.mean)} channels but the images have {images.shape[1]}")
        scale, shift = _on_device(self.coefficients(), images.device)
        return (images.to(torch.float32) * scale + shift).to(self.dtype)

    def move(self, draws: Tensor, size: tuple[int, int]) -> None:
        """Return None: it moves nothing."""

    def coefficients(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return scale and shift of each channel: the result is ``x · scale + shift`` in float32."""
        scale = tuple(1 / (255 * std) for std in self.std)
        return scale, tuple(-mean / std for mean, std in zip(self.mean, self.std))


@lru_cache(maxsize=64)
def _on_device(values: tuple[tuple[float, ...], tuple[float, ...]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Per-channel constants; cached, so that a captured graph copies nothing from the host."""
    scale, shift = torch.tensor(values, dtype=torch.float32, device=device).view(2, 1, -1, 1, 1)
    return scale, shift


def _checked_channels(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        channels = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        channels = ()
    if len(channels) not in (1, 3) or not all(math.isfinite(value) for value in channels):
        raise ValueError(f"{name} must be 1 or 3 finite numbers, one per channel, got {values!r}")
    return channels
