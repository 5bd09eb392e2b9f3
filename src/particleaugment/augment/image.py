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

from particleaugment.augment.module import Augment, whole_id
from particleaugment.augment.one_image import OneImage
from particleaugment.augment.structures import (
    MOVED,
    Mover,
    is_image,
    leaves,
    mapped,
    move_named,
    moves_by_name,
    tv_kind,
)
from particleaugment.executors import choose_executor
from particleaugment.executors.targets import TargetOptions
from particleaugment.policies.policy import Policy

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
    torchvision's ``tv_tensors.Image``. Put it where torchvision's ``RandAugment`` would go, before the conversion to
    float. It returns the type that it is given. Targets follow their image in two ways:

    - As ``tv_tensors``, anywhere in a sample of tuples, lists and dicts, as in torchvision's own transforms: ``Mask``,
      ``BoundingBoxes`` and ``KeyPoints`` move, boxes are clipped but never dropped, and everything else passes through.
    - By name, as in albumentations: ``transform(image=..., mask=..., bboxes=..., labels=..., keypoints=...)`` returns a
      dict. Boxes that leave the image are dropped with their ``labels`` (or ``class_labels``), keypoints get a last
      column that is 0 for points that left the image, and other names pass through. ``masks`` is a list of masks.

    Loader workers see every change of policy and epoch, because both are in shared memory. A change between two epochs
    applies to the whole next epoch, also with ``persistent_workers``. A change during an epoch applies to batches that
    no worker has prepared yet; workers are up to ``num_workers * prefetch_factor`` batches ahead.

    ``Compose`` does not pass on sample ids. Pass the whole chain to
    :meth:`particleaugment.ParticleAugment.training_set`, which gives the transform each sample's id, or let the data
    set call ``transform(image, id=index)``. A fixed policy also works without ids: each worker then counts its images.

    Args:
        augmentation: A policy, a string for :func:`particleaugment.parse`, an :class:`particleaugment.Augment` (with
            its transforms before and after), or a :class:`particleaugment.ParticleAugment`, whose policy it follows.
        seed: Seed of all draws, for a policy or a string; the others have their own.
        resample: Interpolation of the geometric ops, for a policy or a string that does not set it; ``bilinear`` by
            default, while torchvision's default is ``nearest``.
        options: How targets are read and moved, such as ``box_format="xywh"``, for a policy or a string: the fields of
            :class:`particleaugment.executors.targets.TargetSettings`.

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
        *,
        resample: str | None = None,
        **options: Unpack[TargetOptions],
    ):
        super().__init__()
        kept: Any = getattr(augmentation, "augmentation", augmentation)
        if isinstance(kept, Augment):
            given = {name: value for name, value in (("seed", seed), ("resample", resample)) if value is not None}
            for name in [*given, *options]:
                raise ValueError(f"the {name} belongs to the {type(augmentation).__name__}; set it there")
            self.augment = kept
        else:
            chosen = "bilinear" if resample is None else resample
            self.augment = Augment(kept, 0 if seed is None else seed, resample=chosen, **options)

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
                    "pass a sample by position, transform(image, label), or by keyword, with image=...; got "
                    f"{len(sample)} positional arguments and the keywords {', '.join(named)}"
                )
            result, mover = self._augmented(named["image"], id, wanted=moves_by_name(named))
            others = {name: value for name, value in named.items() if name != "image"}
            return {"image": result, **(others if mover is None else move_named(mover, others))}
        if not sample:
            raise TypeError("there is no sample: pass an image, or keyword arguments with image=...")
        whole = sample if len(sample) > 1 else sample[0]
        if isinstance(whole, Image.Image) or type(whole) is Tensor:  # nothing to look through
            return self._augmented(whole, id, wanted=False)[0]
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
        one = OneImage(image)
        result, steps = self.augment.with_steps(one, None if id is None else whole_id(id), wanted=wanted)
        if steps is None:
            return result, None
        executor = choose_executor(self.augment.executor, one.device)
        # Of the image itself only its size and its device count.
        canvas = torch.empty(1, *one.size, dtype=torch.uint8, device=one.device)
        return result, Mover(canvas, steps, self.augment.targets, executor)


def _image_of(sample: Any) -> tuple[Any, list[Any]]:
    """The image of a sample, and the targets that have to move with it."""
    values = list(leaves(sample))
    targets = [value for value in values if _moves_with_the_image(value)]
    for value in targets:
        if tv_kind(value) not in MOVED:
            raise TypeError(f"{tv_kind(value)} cannot be augmented with an image; supported are {', '.join(MOVED)}")
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
