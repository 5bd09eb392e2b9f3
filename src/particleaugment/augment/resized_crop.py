"""Random resized crops of batches: a random part of each image, magnified to the image's size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from particleaugment.augment.transforms import Transform
from particleaugment.core.program import resample_code
from particleaugment.core.random import sqrt
from particleaugment.data.decode import RandomResizedCrop
from particleaugment.executors import resampled
from particleaugment.executors.steps import Move

__all__ = ["ResizedCrop"]


@dataclass(frozen=True)
class ResizedCrop(Transform):
    """Take a random part of each image and magnify it to the image's size, with Pillow's pixels.

    What torchvision calls a random resized crop, for images that all have their final size already; its draws are those
    of training on image files. Area and aspect ratio are drawn up to ten times until the part fits into the image; if
    it never does, the largest part of the nearest valid aspect ratio is taken from the centre.

    Attributes:
        area: Smallest and largest area as fractions of the image.
        aspect: Smallest and largest width / height, drawn uniformly in its logarithm.
        resample: Filter: ``nearest``, ``bilinear`` or ``bicubic``.

    >>> crop = ResizedCrop()
    >>> crop.sample(torch.arange(3), epoch=0, seed=0, size=(32, 48)).shape  # left, top, width, height
    torch.Size([3, 4])
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    resample: str = "bilinear"

    def __post_init__(self) -> None:
        RandomResizedCrop(self.area, self.aspect)
        resample_code(self.resample)

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, size: tuple[int, int]) -> Tensor:
        """Return the parts, int64 ``[B, 4]``: left, top, width, height."""
        height, width = size
        draws = RandomResizedCrop(self.area, self.aspect).sample(ids, epoch, seed)
        tries = (draws.shape[1] - 2) // 2
        area, aspect, place = draws[:, :tries] * (height * width), draws[:, tries:-2], draws[:, -2:]
        wide, tall = sqrt(area * aspect).round(), sqrt(area / aspect).round()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        first = fits.to(torch.int8).argmax(1, keepdim=True)
        drawn = torch.cat([wide.gather(1, first), tall.gather(1, first)], 1)
        sides = torch.tensor([width, height], dtype=torch.float64, device=ids.device)
        largest = [
            min(width, max(1, round(height * self.aspect[1]))),
            min(height, max(1, round(width / self.aspect[0]))),
        ]
        whole = torch.tensor(largest, dtype=torch.float64, device=ids.device).expand_as(drawn)
        any_fits = fits.any(1, keepdim=True)
        part = torch.where(any_fits, drawn, whole)
        corner = torch.where(any_fits, place * (sides - part + 1), (sides - part) / 2).floor()
        return torch.cat([torch.minimum(corner, sides - part), part], 1).to(torch.int64)

    def run(self, images: Tensor, draws: Tensor) -> Tensor:
        """Cut the parts out and magnify them."""
        return resampled(images, _matrices(draws, images.shape[-2], images.shape[-1]), self.resample)

    def move(self, draws: Tensor, size: tuple[int, int]) -> Move:
        """Return where the parts come from."""
        return Move(_matrices(draws, *size))


def _matrices(draws: Tensor, height: int, width: int) -> Tensor:
    left, top, wide, tall = draws.to(torch.float64).unbind(1)
    zero = torch.zeros_like(left)
    sides = (
        torch.full_like(left, width),
        torch.full_like(left, height),
    )  # CUDA multiplies by a plain number's reciprocal
    return torch.stack([wide / sides[0], zero, left, zero, tall / sides[1], top], 1)
