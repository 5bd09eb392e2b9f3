"""Decode an image file with Pillow, cut a region out and bring it to a fixed size, in one pass.

Whatever a file holds becomes 8-bit RGB: grey is repeated, CMYK and palettes are converted, of 16 bits the upper 8 are
kept, transparency is dropped, and of an animation the first frame is taken. A camera's orientation tag (EXIF) is left
alone, as is customary: turn such images upright beforehand if it matters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from particleaugment.core.random import Stream, exp, uniform
from particleaugment.util.reading import open_file

__all__ = ["EXTENSIONS", "CentreCrop", "RandomResizedCrop", "read_image", "simplified"]

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")
"""How the names of image files end, in lower or upper case."""

Box = tuple[float, float, float, float]
_FORMATS = ("JPEG", "PNG", "WEBP")
_LARGEST_FILE = 1 << 28


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of an image, as is customary in training on ImageNet.

    Area and aspect ratio are drawn up to ten times until the part fits into the image; if it never does, the largest
    part of the nearest valid aspect ratio is taken from the centre.

    Attributes:
        area: Smallest and largest area as fractions of the image.
        aspect: Smallest and largest width / height, drawn uniformly in its logarithm.

    >>> crop = RandomResizedCrop()
    >>> draws = crop.sample(torch.tensor([7]), epoch=0, seed=0)
    >>> left, top, right, bottom = crop.box(draws[0].tolist(), 500, 375)
    >>> 0 <= left < right <= 500 and 0 <= top < bottom <= 375
    True
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    _TRIES = 10

    def __post_init__(self) -> None:
        low, high = self.area
        if not 0 < low <= high <= 1:
            raise ValueError(f"area must be two fractions of the image in rising order, got {self.area!r}")
        low, high = self.aspect
        if not 0 < low <= high < math.inf:
            raise ValueError(f"aspect must be two positive ratios in rising order, got {self.aspect!r}")

    def sample(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor) -> Tensor:
        """Return the draws of some samples, float64 ``[B, 22]``: ten areas, ten aspect ratios, and where to cut."""
        u = uniform(seed, Stream.CROP, epoch, ids, 2 * self._TRIES + 2)
        area = self.area[0] + u[:, : self._TRIES] * (self.area[1] - self.area[0])
        low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
        aspect = exp(low + u[:, self._TRIES : -2] * (high - low))
        return torch.cat([area, aspect, u[:, -2:]], 1)

    def box(self, draws: Sequence[float], width: int, height: int) -> Box:
        """Return left, top, right and bottom of the part of an image that one row of draws means."""
        across, down = draws[-2:]
        for area, aspect in zip(draws[: self._TRIES], draws[self._TRIES : -2]):
            wide = round(math.sqrt(width * height * area * aspect))
            tall = round(math.sqrt(width * height * area / aspect))
            if 0 < wide <= width and 0 < tall <= height:
                left, top = int(across * (width - wide + 1)), int(down * (height - tall + 1))
                return left, top, left + wide, top + tall
        wide = min(width, max(1, round(height * self.aspect[1])))
        tall = min(height, max(1, round(width / self.aspect[0])))
        left, top = (width - wide) // 2, (height - tall) // 2
        return left, top, left + wide, top + tall


@dataclass(frozen=True)
class CentreCrop:
    """The square in the centre that remains after the shorter side is brought to ``margin`` times the final size.

    >>> CentreCrop(margin=1.0).box(500, 375, size=224)  # the whole height
    (62.08..., 0.0, 437.91..., 375.0)
    """

    margin: float = 256 / 224

    def __post_init__(self) -> None:
        if not 1 <= self.margin < math.inf:
            raise ValueError(f"margin must be 1 or more, got {self.margin!r}")

    def box(self, width: int, height: int, size: int) -> Box:
        """Return left, top, right and bottom of the square, in the image's own pixels."""
        shorter = round(size * self.margin)
        wide = shorter if width <= height else int(shorter * width / height)
        tall = shorter if height <= width else int(shorter * height / width)
        left, top = round((wide - size) / 2), round((tall - size) / 2)
        right, bottom = (left + size) * width / wide, (top + size) * height / tall
        return left * width / wide, top * height / tall, min(right, float(width)), min(bottom, float(height))


def read_image(
    path: str | os.PathLike[str],
    size: int,
    region: Callable[[int, int], Box],
    max_pixels: int | None = None,
    out: Tensor | None = None,
    source: IO[bytes] | None = None,
) -> Tensor:
    """Read an image file and return a part of it as a uint8 tensor ``[3, size, size]``.

    A JPEG from which much is to be thrown away is decoded at a half, a quarter or an eighth of its resolution, never
    below the final one.

    Args:
        path: A JPEG, PNG or WebP file.
        size: Side of the result.
        region: Given the image's width and height, returns left, top, right and bottom of the part.
        max_pixels: The largest image that is read; by default, and at most, Pillow's own limit, which is twice
            ``PIL.Image.MAX_IMAGE_PIXELS``.
        out: A uint8 tensor ``[3, size, size]`` that takes the result.
        source: The file's content, where that is elsewhere; ``path`` is then its name.

    Raises:
        ValueError: The file cannot be read or is too large; the message names it.
    """
    try:
        with (
            nullcontext(source) if source is not None else open_file(path) as file,
            Image.open(file if source is not None else _limited(file), formats=_FORMATS) as image,
        ):
            width, height = image.size
            if max_pixels is not None and width * height > max_pixels:
                raise Image.DecompressionBombError(f"{width} x {height} pixels are more than {max_pixels:,}")
            box = region(width, height)
            wide, tall = box[2] - box[0], box[3] - box[1]
            drafted = image.draft(None, (math.ceil(width * size / wide), math.ceil(height * size / tall)))
            if drafted is not None:
                shrunk = drafted[1][2] / width  # 1, 1/2, 1/4 or 1/8, exactly
                box = (box[0] * shrunk, box[1] * shrunk, box[2] * shrunk, box[3] * shrunk)
            pixels = simplified(image).resize((size, size), Image.Resampling.BILINEAR, box=box)
            return _to_tensor(pixels if pixels.mode == "RGB" else pixels.convert("RGB"), out)
    except Image.DecompressionBombError as error:
        raise ValueError(f"the image {path} is too large: {str(error).rstrip('.')}; shrink it or remove it") from None
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a readable JPEG, PNG or WebP image; repair it or remove it") from None
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise ValueError(f"the image {path} cannot be read: {reason.rstrip('.')}; repair it or remove it") from None


def _limited(file: IO[bytes]) -> IO[bytes]:
    """Return a file as it is, if it is not too large."""
    size = os.fstat(file.fileno()).st_size
    if size > _LARGEST_FILE:
        raise Image.DecompressionBombError(f"{size:,} bytes are more than {_LARGEST_FILE:,}")
    return file


def simplified(image: Image.Image) -> Image.Image:
    """Return an image in mode RGB or L, 8 bits."""
    if image.mode in ("RGB", "L"):
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        upper = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
        return Image.fromarray(upper.astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _to_tensor(image: Image.Image, out: Tensor | None) -> Tensor:
    result = torch.empty(3, image.height, image.width, dtype=torch.uint8, device="cpu") if out is None else out
    # Pillow's line-interleaved layout is on the way to planes: whole lines are copied instead of single bytes.
    lines = np.frombuffer(image.tobytes("raw", "RGB;L"), np.uint8).reshape(image.height, 3, image.width)
    np.copyto(result.numpy(), lines.transpose(1, 0, 2))
    return result
