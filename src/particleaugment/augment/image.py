"""``ImageTransform``: a policy as a transform of single samples, for ``Compose`` and data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from particleaugment.augment.batch import Augment, one_id
from particleaugment.augment.structures import MOVED, Mover, is_image, leaves, mapped, move_named, tv_kind
from particleaugment.data.samples import to_uint8
from particleaugment.executors import choose_executor
from particleaugment.executors.targets import TargetOptions
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
    """Augments one sample at a time: an image, and the masks, boxes and keypoints that come with it.

    The image is a Pillow image, a uint8 tensor ``[C, H, W]``, a uint8 array ``[H, W]`` or ``[H, W, C]``, or
    torchvision's ``tv_tensors.Image``. Put it where torchvision's ``RandAugment`` would stand, before the conversion to
    float; what comes back is of the kind that was given. Targets follow their image in two ways:

    - As ``tv_tensors``, anywhere in a sample of tuples, lists and dicts, as in torchvision's own transforms: ``Mask``,
      ``BoundingBoxes`` and ``KeyPoints`` move, boxes are clipped and none is dropped, and everything else passes.
    - By name, as in albumentations: ``transform(image=..., mask=..., bboxes=..., labels=..., keypoints=...)`` returns a
      dict. Boxes that leave the image are dropped with their ``labels`` (or ``class_labels``), keypoints get a last
      column that is 0 for those that left, and other names pass. ``masks`` is a list of masks.

    In workers of a data loader it sees every change of the policy and of the epoch, because both are in
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
        options: How targets are read and moved, such as ``box_format="xywh"``, for a policy or a string likewise: the
            fields of :class:`particleaugment.executors.targets.TargetSettings`.

    >>> transform = ImageTransform("trivial", seed=1)
    >>> transform(Image.new("RGB", (32, 24), "orange")).size
    (32, 24)
    >>> transform(torch.zeros(3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([3, 8, 8])
    >>> sample = transform(image=np.zeros((24, 32, 3), np.uint8), bboxes=[(4, 4, 12, 20)], labels=["cat"])
    >>> sorted(sample), sample["labels"]
    (['bboxes', 'image', 'labels'], ['cat'])
    """

    def __init__(
        self,
        augmentation: Policy | str | Augment | ParticleAugment,
        seed: int | None = None,
        **options: Unpack[TargetOptions],
    ):
        super().__init__()
        kept: Any = getattr(augmentation, "augmentation", augmentation)
        if isinstance(kept, Augment):
            for name in [*([] if seed is None else ["seed"]), *options]:
                raise ValueError(f"the {name} belongs to the {type(augmentation).__name__}; give it there")
            self.augment = kept
        else:
            self.augment = Augment(kept, 0 if seed is None else seed, **options)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, part of every draw's key; call it before each epoch."""
        self.augment.set_epoch(epoch)

    def forward(self, *sample: Any, id: int | None = None, **named: Any) -> Any:
        """Augment a sample.

        Args:
            sample: An image and what comes with it, or one tuple, list or dict of them.
            id: The sample's index in its data set.
            named: The sample by name, which is then returned as a dict.

        Returns:
            The sample with its image augmented, its targets moved and everything else, such as its label, as it was.
        """
        if named:
            if sample or "image" not in named:
                raise TypeError(
                    "give a sample either as it is, transform(image, label), or all of it by name with image=..., "
                    f"got {len(sample)} values and the names {', '.join(named)}"
                )
            result, mover = self._augmented(named["image"], id, wanted=len(named) > 1)
            others = {name: value for name, value in named.items() if name != "image"}
            return {"image": result, **({} if mover is None else move_named(mover, others))}
        if not sample:
            raise TypeError("there is no sample: give an image, or all of it by name with image=...")
        whole = sample if len(sample) > 1 else sample[0]
        image, targets = _image_of(whole)
        result, mover = self._augmented(image, id, wanted=bool(targets))

        def changed(value: Any) -> Any:
            if value is image:
                return result
            return value if mover is None or not _moves_with_the_image(value) else mover.move_tv(value)

        return mapped(whole, changed)

    def _augmented(self, image: Any, id: int | None, wanted: bool) -> tuple[Any, Mover | None]:
        """The augmented image, as the kind that was given, and what moves its targets."""
        id = _sample.get() if id is None else id
        pixels = to_uint8(image.as_subclass(Tensor) if isinstance(image, Tensor) else image)
        ids = None if id is None else one_id(id)
        images, steps = self.augment.with_steps(pixels.unsqueeze(0), ids, wanted=wanted)
        result: Any = images.squeeze(0)
        mover = None
        if steps is not None:
            executor = choose_executor(self.augment.executor, pixels.device)
            mover = Mover(result, steps, self.augment.targets, executor)
        if isinstance(image, Tensor):
            return result.as_subclass(type(image)), mover
        if result.dtype == torch.uint8 and isinstance(image, (Image.Image, np.ndarray)):
            array = result[0].numpy() if image_is_flat(image, result) else result.permute(1, 2, 0).contiguous().numpy()
            return Image.fromarray(array) if isinstance(image, Image.Image) else array, mover
        return result, mover


def image_is_flat(image: Any, pixels: Tensor) -> bool:
    """Whether an image comes back without channels: a grey Pillow image, or an array that had none."""
    return image.ndim == 2 if isinstance(image, np.ndarray) else len(pixels) == 1


def _image_of(sample: Any) -> tuple[Any, list[Any]]:
    """The image of a sample, and the targets that have to move with it."""
    values = list(leaves(sample))
    targets = [value for value in values if _moves_with_the_image(value)]
    for value in targets:
        if tv_kind(value) not in MOVED:
            raise TypeError(f"{tv_kind(value)} cannot follow an image; those that can are {', '.join(MOVED)}")
    images = [value for value in values if is_image(value)]
    if len(images) > 1:
        raise ValueError(
            f"a sample has one image, got {len(images)}; give a mask as tv_tensors.Mask, or by name: "
            "transform(image=..., mask=...)"
        )
    # Without a picture, the first plain tensor or array is one; what is neither is refused by its name.
    plain = [value for value in values if isinstance(value, (Tensor, np.ndarray)) and not tv_kind(value)]
    return next(iter([*images, *plain, *values]), sample), targets


def _moves_with_the_image(value: Any) -> bool:
    return tv_kind(value) not in ("", "Image")
