"""Ops that change nothing on the data: Color, where all images are grey.

It is the only built-in op of that kind. Others may leave an image as it is and change it after another op has, as
AutoContrast does after Brightness; of a grey image every built-in op makes a grey one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from particleaugment.core.op_table import OPS
from particleaugment.data.folder import decode_images
from particleaugment.data.listing import ImageList
from particleaugment.data.samples import Samples
from particleaugment.data.split import epoch_permutation
from particleaugment.search.filter_base import Filter

__all__ = ["COLOUR_OPS", "are_grey", "log", "ops_in_use", "without_colour"]

COLOUR_OPS: tuple[str, ...] = ("Color",)
"""The ops that change nothing on grey images."""

_IN_MEMORY, _READ, _DECODED_SIZE = 256, 32, 32


def log(line: str) -> None:
    """Say a line in a program that has no display of its own: it goes to the log ``particleaugment``."""
    logging.getLogger("particleaugment").warning(line)


def ops_in_use(filter: Filter[Any], ops: tuple[str, ...], samples: Samples | ImageList, epochs: int) -> tuple[str, ...]:
    """Return the ops that a filter is given: the default ones without those that change nothing on the samples.

    Ops that somebody chose stay as they are, and so do all ops where the filter's settings are for as many as there
    are.

    Args:
        filter: The filter.
        ops: The ops asked for.
        samples: The training samples; up to 256 of those in memory count, up to 32 of others.
        epochs: Length of the run.
    """
    used = without_colour(filter, ops, epochs)
    if used == ops or not are_grey(samples):
        return ops
    try:
        filter.check(used, epochs)
    except ValueError:
        return ops
    return used


def without_colour(filter: Filter[Any], ops: tuple[str, ...], epochs: int) -> tuple[str, ...]:
    """Return the ops that a filter is given where images are grey.

    >>> from particleaugment.search.paper import PaperFilter
    >>> len(OPS), len(without_colour(PaperFilter(), OPS, 60)), without_colour(PaperFilter(), ("Rotate", "Color"), 60)
    (15, 14, ('Rotate', 'Color'))
    """
    if ops != OPS:
        return ops
    drawn = filter.init(0, ops, epochs).ops  # a filter may have a default set of its own
    return tuple(name for name in drawn if name not in COLOUR_OPS) or ops


def are_grey(samples: Samples | ImageList) -> bool:
    """Whether training images have no colour: one channel, or three equal ones.

    It is a function of the data alone, the same in every process and whatever the seed. Unreadable files do not
    count: training will say what is wrong with them.
    """
    if isinstance(samples, ImageList):
        found = [_is_grey(image) for image in _readable(samples)]
        return bool(found) and all(found)
    in_memory = samples.tensors is not None
    chosen = epoch_permutation(len(samples), seed=0, epoch=0)[: _IN_MEMORY if in_memory else _READ].sort().values
    if in_memory:
        return _is_grey(samples.gather(chosen)[0])
    try:
        return all(_is_grey(samples[index][0]) for index in chosen.tolist())
    except (TypeError, ValueError):  # training will say what is wrong with the image
        return False


def _readable(images: ImageList) -> Iterator[Tensor]:
    """Decode a few images of a list, spread over its classes, one by one."""
    for index in torch.linspace(0, len(images) - 1, min(_READ, len(images))).round().to(torch.int64):
        try:
            yield decode_images(images.subset(index[None]), _DECODED_SIZE)
        except ValueError:
            continue


def _is_grey(images: Tensor) -> bool:
    """Whether the channels of images ``[..., C, H, W]`` are equal."""
    return bool(torch.all(images == images[..., :1, :, :]))
