"""``ImageTransform``: a policy as a transform of single images, for ``Compose`` and data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from particleaugment.augment.batch import Augment
from particleaugment.data.samples import to_uint8
from particleaugment.policies.base import Policy

if TYPE_CHECKING:
    from particleaugment.search.search import ParticleAugment

__all__ = ["ImageTransform", "sample_id"]

_sample: ContextVar[int | None] = ContextVar("sample", default=None)


@contextmanager
def sample_id(id: int) -> Iterator[None]:
    """Give a sample's id to every :class:`ImageTransform` called in this block without one, such as in ``Compose``."""
    token = _sample.set(id)
    try:
        yield
    finally:
        _sample.reset(token)


class ImageTransform(nn.Module):
    """Augments one image at a time: a Pillow image, a uint8 tensor ``[C, H, W]`` or torchvision's ``tv_tensors.Image``.

    Put it where torchvision's ``RandAugment`` would stand, before the conversion to float; the result is of the kind
    that was given. In workers of a data loader it sees every change of the policy and of the epoch, because both are in
    shared memory: what is set between two epochs holds for the whole next epoch, also with ``persistent_workers``. What
    is set while an epoch runs reaches the batches that workers have not prepared yet, which are up to ``num_workers *
    prefetch_factor`` ahead of the loop.

    ``Compose`` passes no sample ids on. Give the whole chain to :meth:`particleaugment.ParticleAugment.training_set`,
    which tells the transform each sample's id, or let the data set call ``transform(image, id=index)``. A policy
    without a search also works without ids: draws then follow each worker's own count of images.

    Args:
        augmentation: A policy, a string for :func:`particleaugment.parse`, an :class:`particleaugment.Augment` (with
            its transforms before and after), or a :class:`particleaugment.ParticleAugment`, whose policy it follows.
        seed: Seed of all draws, for a policy or a string; the others have their own.

    >>> transform = ImageTransform("trivial", seed=1)
    >>> transform(Image.new("RGB", (32, 24), "orange")).size
    (32, 24)
    >>> transform(torch.zeros(3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([3, 8, 8])
    """

    def __init__(self, augmentation: Policy | str | Augment | ParticleAugment, seed: int | None = None):
        super().__init__()
        kept: Any = getattr(augmentation, "augmentation", augmentation)
        if isinstance(kept, Augment):
            if seed is not None:
                raise ValueError(f"the seed belongs to the {type(augmentation).__name__}; give it there")
            self.augment = kept
        else:
            self.augment = Augment(kept, 0 if seed is None else seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, part of every draw's key; call it before each epoch."""
        self.augment.set_epoch(epoch)

    def forward(self, image: Any, *others: Any, id: int | None = None) -> Any:
        """Augment an image; ``others``, such as its label, are returned behind it as they are.

        Args:
            image: The image.
            others: What comes with it.
            id: The sample's index in its data set.
        """
        for other in others:
            if _moves_with_the_image(other):
                raise TypeError(
                    f"{type(other).__name__} would have to move with the image, which policies here do not do; "
                    "they are for classification"
                )
        id = _sample.get() if id is None else id
        pixels = to_uint8(image.as_subclass(Tensor) if isinstance(image, Tensor) else image)
        result = self.augment(pixels, id)
        if isinstance(image, Tensor):
            result = result.as_subclass(type(image))
        elif isinstance(image, Image.Image) and result.dtype == torch.uint8:
            result = _to_pillow(result)
        return (result, *others) if others else result


def _to_pillow(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())


def _moves_with_the_image(value: Any) -> bool:
    return type(value).__module__.startswith("torchvision.tv_tensors") and type(value).__name__ != "Image"
