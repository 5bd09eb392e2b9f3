"""Whether a search suits a run's data, and which data a run was started with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from particleaugment.data import ImageData, disjoint_stratified_subsets
from particleaugment.data.streamed import StreamedData
from particleaugment.search.clone import check_clone_samples
from particleaugment.search.search import ParticleAugment
from particleaugment.training.config import ConfigError

__all__ = ["check_search", "data_identity"]

_LOOKED_AT = 256
_FEW = 32


def check_search(search: ParticleAugment, labels: Tensor, say: Callable[[str], None]) -> None:
    """Refuse a search whose subsets cannot be drawn from the data, and say so where they are very small.

    Args:
        search: The search.
        labels: Class labels of the training samples.
        say: Takes the sentence.
    """
    settings = search.settings
    try:
        trained = search.training_ids(labels, epoch=1)
        sizes = [settings.clone_size] if settings.measure != "loss" else []
        if len(trained) == len(labels):  # otherwise D_vp is held out, and drawn
            sizes.append(settings.measure_size)
        if sizes:
            subsets = disjoint_stratified_subsets(labels[trained], sizes, search.seed, 1)
            if settings.measure == "clone":
                check_clone_samples(subsets[0], settings.clone_size)
    except (TypeError, ValueError) as error:
        named = "_size=" in str(error)
        message = str(error) if named else f"clone_size and measure_size do not suit: {error}"
        raise ConfigError(f"the search does not suit the data: {message}; or set policy=trivial") from None
    held_out = len(labels) - len(trained)
    if search.groups is not None and held_out:
        say(f"{held_out:,} images are held out for measuring, in whole groups (measure_size={settings.measure_size})")
    if settings.measure == "loss" and held_out < _FEW:
        say(
            f"only {held_out} images are held out for measuring, so the filter will mostly follow noise; set a larger "
            "measure_size, or policy=trivial"
        )


def data_identity(data: ImageData | StreamedData) -> str:
    """Return a hash of the classes, all labels, and the names of files or, in memory, the pixels of some images and
    their groups, if there are any.

    Where the data lie plays no part, so they may be moved.
    """
    digest = hashlib.sha256(repr(data.classes).encode(errors="surrogateescape"))
    if isinstance(data, StreamedData):
        for images in (data.train.images, data.test.images):
            parts = (images.labels, images.names, images.ends)
            digest.update(b"".join(part.cpu().numpy().tobytes() for part in parts))
    else:
        for pixels, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels)):
            some = torch.linspace(0, len(pixels) - 1, min(_LOOKED_AT, len(pixels))).long()
            digest.update(labels.cpu().numpy().tobytes())
            digest.update(pixels[some.to(pixels.device)].cpu().numpy().tobytes())
        if data.train_groups is not None:
            digest.update(data.train_groups.numpy().tobytes())
    return digest.hexdigest()
