"""Samples by index: what data sets may look like, and what the rest of the package sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from particleaugment.data.decode import simplified

__all__ = ["IndexedDataset", "Samples", "classes_of", "image_and_target", "to_uint8"]

_IMAGE_NAMES = ("image", "img", "pixel_values")
_TARGET_NAMES = ("label", "labels", "target")


def to_uint8(image: Any) -> Tensor:
    """Return one image as a uint8 tensor ``[C, H, W]``.

    Args:
        image: A uint8 tensor of that shape, a Pillow image (grey stays one channel, everything else becomes RGB), or a
            uint8 array ``[H, W]`` or ``[H, W, C]``.

    >>> to_uint8(Image.new("RGB", (5, 4))).shape
    torch.Size([3, 4, 5])
    """
    if isinstance(image, Image.Image):
        image = np.array(simplified(image))
    if isinstance(image, np.ndarray):
        image = _from_array(image)
    if not isinstance(image, Tensor) or image.dtype != torch.uint8:
        kind = image.dtype if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(
            f"an image must be a uint8 tensor, a uint8 array or a Pillow image, got {kind}; "
            "return it from the data set before converting it to float or normalising it"
        )
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"an image must have shape [1 or 3, height, width], got {tuple(image.shape)}")
    return image


def _from_array(pixels: np.ndarray[Any, Any]) -> Tensor:
    if pixels.dtype != np.uint8:
        raise TypeError(f"image arrays must be uint8 (0 to 255), got {pixels.dtype}")
    if pixels.ndim == 2:
        pixels = pixels[None]
    elif pixels.ndim == 3 and pixels.shape[-1] in (1, 3):
        pixels = pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def image_and_target(item: Any) -> tuple[Any, Any]:
    """Return image and target of a data set's item: of a tuple the first two, of a dict those with the usual names.

    >>> image_and_target({"img": "picture", "label": 3})
    ('picture', 3)
    """
    if isinstance(item, Mapping):
        image = next((name for name in _IMAGE_NAMES if name in item), None)
        target = next((name for name in _TARGET_NAMES if name in item), None)
        if image is None or target is None:
            raise ValueError(
                f"a sample must have an image ({', '.join(_IMAGE_NAMES)}) and a target ({', '.join(_TARGET_NAMES)}), "
                f"got a dict with {', '.join(map(str, item)) or 'nothing'}"
            )
        return item[image], item[target]
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) < 2:
        raise TypeError(f"a data set must return (image, target) or a dict of both, got {type(item).__name__}")
    return item[0], item[1]


class Samples:
    """Training samples by index: uint8 images, targets for the loss, and class labels for stratification.

    Args:
        dataset: ``(images, targets)`` with images uint8 ``[N, C, H, W]`` (as an array also ``[N, H, W, C]``) and
            targets ``[N]``, ``[N, 1]``, soft ``[N, classes]`` or masks ``[N, H, W]``, classes of the images' pixels,
            which move with their images and are not stratified; or any object with ``len`` whose items are ``(image,
            target)`` or a dict of both, the image being anything that :func:`to_uint8` takes. Labels of such an object
            are taken from its ``targets`` or ``labels`` attribute if that has one for each sample, else by reading it
            through once.

    >>> samples = Samples((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])))
    >>> samples.gather(torch.tensor([2, 3]))[1]
    tensor([0, 1])
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if isinstance(dataset, IndexedDataset):
            dataset = dataset.samples.dataset
        self._items = dataset
        if isinstance(dataset, TensorDataset):
            dataset = dataset.tensors
        self.tensors: tuple[Tensor, Tensor] | None = None
        if isinstance(dataset, (tuple, list)) and len(dataset) >= 2 and isinstance(dataset[0], (Tensor, np.ndarray)):
            self.tensors = _checked_pair(dataset[0], dataset[1])
        elif not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"a data set must have len() and items by index, or be (images, targets), got {type(dataset).__name__}"
            )
        if len(self) == 0:
            raise ValueError("the data set is empty")

    def __len__(self) -> int:
        return len(self._items) if self.tensors is None else len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        """Return the image and the target of one sample."""
        image, target = self.item(index)
        return (image if self.tensors is not None else to_uint8(image)), target

    def item(self, index: int) -> tuple[Any, Any]:
        """Return the image of one sample as the data set has it, such as a Pillow image, and the target."""
        if self.tensors is not None:
            return self.tensors[0][index], self.tensors[1][index]
        return image_and_target(self._items[index])

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and targets of some samples."""
        if self.tensors is not None:
            images, targets = self.tensors
            return images[indices.to(images.device)], targets[indices.to(targets.device)]
        items = [self[i] for i in indices.tolist()]
        targets = torch.stack([_as_target(target) for _, target in items])
        return stacked([image for image, _ in items]), targets

    @cached_property
    def labels(self) -> Tensor:
        """The class of every sample, int64 ``[N]``; soft targets count as their likeliest class.

        Masks and quantities have no class and count as one.
        """
        known = classes_of(self.tensors[1]) if self.tensors is not None else known_classes(self._items)
        if known is not None:
            return known
        first = _as_target(self[0][1])
        if first.dim() >= 2:  # a mask: there is nothing to read the others for
            return classes_of(first.unsqueeze(0)).repeat(len(self))
        return classes_of([first, *(_as_target(self[i][1]) for i in range(1, len(self)))])


class IndexedDataset(Dataset[tuple[Tensor, Any, int]]):
    """Wraps any data set of ``(image, target)`` to give ``(image, target, id)``, the image as a uint8 tensor.

    With ids an augmentation is a pure function of (seed, epoch, id), whatever the order, batches and workers.

    Args:
        dataset: Anything that :class:`Samples` takes: a torch or torchvision data set of Pillow images or uint8
            tensors, a Hugging Face one, or ``(images, targets)``.

    >>> pictures = [(Image.new("RGB", (8, 8)), 1), (Image.new("RGB", (8, 8)), 0)]
    >>> image, target, number = IndexedDataset(pictures)[1]
    >>> image.shape, target, number
    (torch.Size([3, 8, 8]), 0, 1)
    """

    def __init__(self, dataset: Any):
        self.samples = Samples(dataset)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Any, int]:
        """Return image, target and id of a sample."""
        if not 0 <= index < len(self):
            raise IndexError(f"the data set has {len(self)} samples, got index {index}")
        return *self.samples[index], int(index)

    @property
    def targets(self) -> Tensor:
        """The class of every sample, int64 ``[N]``."""
        return self.samples.labels


def stacked(images: Sequence[Tensor]) -> Tensor:
    """Return images of one size as a batch."""
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        shown = " and ".join(str(size) for size in sorted(sizes)[:2])
        raise ValueError(f"the images of a batch must have the same size, got {shown}; crop or resize in the data set")
    return torch.stack(list(images))


def known_classes(dataset: Any) -> Tensor | None:
    """Return the class of every sample if a data set can tell them without reading its samples.

    Its ``targets`` or ``labels`` are believed only where they are one class per sample: they may also be names of
    classes, a method, or, in a wrapper that hands on attributes, those of a data set of another length.
    """
    if isinstance(dataset, Subset):
        whole = known_classes(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices, device="cpu")]
    if isinstance(dataset, TensorDataset):
        return classes_of(dataset.tensors[1]) if len(dataset.tensors) > 1 else None
    for name in ("targets", "labels"):
        known = getattr(dataset, name, None)
        try:
            if known is not None and not callable(known) and len(known) == len(dataset):
                return classes_of(known if isinstance(known, (Tensor, np.ndarray)) else list(known))
        except (TypeError, ValueError, RuntimeError):
            continue
    return None


def classes_of(targets: Any) -> Tensor:
    """Return the class of every sample, int64 ``[N]``.

    Args:
        targets: Classes or probabilities of the second of two, ``[N]`` or ``[N, 1]``; or soft or several ones, ``[N,
            classes]``, which count as their likeliest class, the first of equals. Masks, whole numbers ``[N, H, W]``,
            and quantities, floating numbers of which some cannot be probabilities, have no class and count as 0.

    >>> classes_of([[0.0], [0.9]]), classes_of(torch.tensor([[0.2, 0.7, 0.1], [1.0, 0.0, 1.0]]))
    (tensor([0, 1]), tensor([1, 0]))
    >>> classes_of([37.5, 12.0, 0.5])
    tensor([0, 0, 0])
    """
    in_rows = isinstance(targets, (list, tuple)) and len(targets) > 0 and isinstance(targets[0], (Tensor, np.ndarray))
    values = torch.stack([_as_target(target) for target in targets]) if in_rows else _as_target(targets)
    if values.dim() >= 3 and not values.is_floating_point():
        return torch.zeros(len(values), dtype=torch.int64, device="cpu")
    if values.dim() not in (1, 2) or values.shape[1:].numel() == 0:
        raise ValueError(f"targets must have shape [samples] or [samples, classes], got {tuple(values.shape)}")
    if values.dtype == torch.bool:
        values = values.to(torch.uint8)
    if _are_quantities(values):
        return torch.zeros(len(values), dtype=torch.int64, device="cpu")
    if values.shape[1:].numel() > 1:
        values = values.argmax(1)
    elif values.is_floating_point():
        values = values.round()
    return values.flatten().to("cpu", torch.int64)


def _are_quantities(values: Tensor) -> bool:
    """Whether targets are to be regressed: floating numbers that cannot all be probabilities."""
    return values.is_floating_point() and not bool(((values >= 0) & (values <= 1)).all())


def _as_target(target: Any) -> Tensor:
    try:
        return target if isinstance(target, Tensor) else torch.as_tensor(target, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"a target must be a class number or soft class probabilities, got {type(target).__name__}; "
            "number the classes from 0"
        ) from None


def _checked_pair(images: Any, targets: Any) -> tuple[Tensor, Tensor]:
    if isinstance(images, np.ndarray):
        if images.ndim == 3:
            images = images[..., None]
        images = torch.from_numpy(np.ascontiguousarray(images))
        if images.dim() == 4 and images.shape[-1] in (1, 3):
            images = images.permute(0, 3, 1, 2).contiguous()
    targets = _as_target(targets)
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise TypeError(f"images must be uint8 [N, C, H, W], got {images.dtype} of shape {tuple(images.shape)}")
    if len(images) != len(targets):
        raise ValueError(f"the data set has {len(images)} images but {len(targets)} targets")
    return images, targets
