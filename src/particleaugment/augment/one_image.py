"""One image on its way through a program, without a tensor: Pillow's own bytes, an array's or a tensor's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from particleaugment.data.decode import simplified
from particleaugment.data.samples import to_uint8
from particleaugment.executors import native, pil
from particleaugment.executors.coefficients import MAX_SIDE, luminance
from particleaugment.policies.plan import Drawn

__all__ = ["OneImage"]

_LITTLE = sys.byteorder == "little"


class OneImage:
    """An image of any kind that :func:`particleaugment.data.samples.to_uint8` takes, and the way back to that kind.

    Args:
        given: The image.

    >>> image = OneImage(Image.new("RGB", (5, 4)))
    >>> image.size, image.channels, image.tensor().shape
    ((4, 5), 3, torch.Size([3, 4, 5]))
    """

    __slots__ = ("_tensor", "channels", "given", "picture", "size")

    def __init__(self, given: Any):
        self.given = given
        self.picture: Image.Image | None = None
        self._tensor: Tensor | None = None
        if isinstance(given, Image.Image):
            self.picture = picture = simplified(given)
            self.channels, self.size = (3 if picture.mode == "RGB" else 1), (picture.height, picture.width)
            return
        array = isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim >= 2
        if array and given.shape[2:] in ((), (1,), (3,)):
            self.channels, self.size = (1 if given.ndim == 2 else given.shape[2]), given.shape[:2]
            return
        self._tensor = to_uint8(given.as_subclass(Tensor) if isinstance(given, Tensor) else given)
        self.channels, self.size = self._tensor.shape[0], (self._tensor.shape[1], self._tensor.shape[2])

    def tensor(self) -> Tensor:
        """Return the image as a uint8 tensor ``[C, H, W]``."""
        return to_uint8(self.given if self.picture is None else self.picture) if self._tensor is None else self._tensor

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return torch.device("cpu") if self._tensor is None else self._tensor.device

    @property
    def usual(self) -> bool:
        """Whether it can go through :meth:`run`: on the CPU, not empty, and of a size that executors take."""
        height, width = self.size
        return 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and self.device.type == "cpu"

    def run(self, drawn: Drawn, fill: tuple[int, int, int], compiled: bool) -> Any:
        """Run a program; return a new image of the kind that was given.

        Args:
            drawn: The program.
            fill: Colour of what geometric ops bring in.
            compiled: Whether by compiled code; otherwise by Pillow.
        """
        colour = fill if self.channels == 3 else (luminance(fill),) * 3
        return self._compiled(drawn, colour) if compiled else self._by_pillow(drawn, colour)

    def like(self, result: Tensor) -> Any:
        """Return a tensor ``[C, H, W]`` as the kind that was given, or as it is if it no longer holds bytes."""
        if isinstance(self.given, Tensor):
            return result.as_subclass(type(self.given))
        if result.dtype != torch.uint8 or not isinstance(self.given, (Image.Image, np.ndarray)):
            return result
        if self._tensor is not None:  # an array with its channels first
            return result.numpy()
        flat = self.given.ndim == 2 if isinstance(self.given, np.ndarray) else len(result) == 1
        array = result[0].numpy() if flat else result.permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(array) if self.picture is not None else array

    def _compiled(self, drawn: Drawn, colour: tuple[int, int, int]) -> Any:
        picture, layout = self.picture, native.PLANAR
        if picture is not None and self.channels == 3 and _LITTLE:
            if not drawn.op.any():
                return picture.copy()
            # A copy that may be written to: for another type of array everything would be compiled once more.
            layout, source = native.PACKED, np.frombuffer(bytearray(picture.tobytes("raw", "RGBX")), np.uint8)
        elif picture is not None or self._tensor is None:
            array = np.array(picture if picture is not None else self.given, order="C")
            layout, source = (native.INTERLEAVED if self.channels == 3 else native.PLANAR), array.reshape(-1)
        else:
            source = self._tensor.contiguous().numpy().reshape(-1)
        height, width = self.size
        program = (drawn.op, drawn.arg, drawn.code, drawn.patch)
        result = native.run_image(source, layout, self.channels, height, width, *program, colour)
        if layout == native.PACKED:
            return Image.frombytes("RGB", (width, height), result, "raw", "RGBX")  # type: ignore[arg-type]
        if self._tensor is not None:
            return self.like(torch.from_numpy(result).view(self._tensor.shape))
        shaped = result.reshape((height, width) if self.channels == 1 else (height, width, 3))
        return Image.fromarray(shaped) if picture is not None else shaped.reshape(self.given.shape)

    def _by_pillow(self, drawn: Drawn, colour: tuple[int, int, int]) -> Any:
        ops, args, codes, patches = drawn.lists()
        grey, picture = self.channels == 1, self.picture
        if picture is None:
            pixels = self.tensor()
            array = pixels[0].numpy() if grey else pixels.permute(1, 2, 0).contiguous().numpy()
            picture = Image.fromarray(array)
        whole = picture.convert("RGB") if grey else picture
        result = pil.run_image(whole, ops, args, codes, patches, colour, grey)
        if result is whole and not grey:
            result = picture.copy()
        elif grey:
            result = result.getchannel(0)
        return result if self.picture is not None else self.like(to_uint8(result))
