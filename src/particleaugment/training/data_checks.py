"""Whether a search suits a run's data, and which data a run was started with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from particleaugment.data import ImageData
from particleaugment.data.streamed import StreamedData
from particleaugment.search.held_out import Division
from particleaugment.search.protocol import Filter
from particleaugment.training.config import ConfigError

__all__ = ["check_search", "data_identity"]

_LOOKED_AT = 256
_FEW = 32


def check_search(
    filter: Filter[Any],
    labels: Tensor,
    say: Callable[[str], None],
    *,
    epochs: int,
    seed: int,
    groups: Tensor | None = None,
) -> None:
    """Refuse a filter whose subsets cannot be drawn from the data, and say so where they are very small.

    Args:
        filter: The filter.
        labels: Class labels of the training samples.
        say: Takes the sentence.
        epochs: Length of the run.
        seed: Its seed.
        groups: Group of each sample, where there are groups.
    """
    try:
        split = Division(filter, labels, epochs=epochs, seed=seed, groups=groups).split
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the search does not suit the data: {error}; or set policy=trivial") from None
    if split is None:
        return
    held_out = len(split[1])
    if groups is not None:
        say(f"{held_out:,} images are held out for measuring, in whole groups (measure_size={filter.held_out})")
    if held_out < _FEW:
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
