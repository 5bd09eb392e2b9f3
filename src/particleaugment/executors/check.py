"""How an op of one's own is compared with its Pillow function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from particleaugment.core.op_table import Kind, Op, lookup
from particleaugment.core.program import Program
from particleaugment.executors import apply

__all__ = ["OpCheck", "check"]

_SIZES = ((32, 32), (17, 23), (8, 40), (1, 1))


@dataclass(frozen=True, slots=True)
class OpCheck:
    """What :func:`particleaugment.ops.check` found.

    Attributes:
        images: Images compared.
        differing: Images with a pixel that is not Pillow's.
        largest: Largest difference of a pixel.
    """

    images: int
    differing: int
    largest: int


def check(name: str, *, images: int = 96, tolerance: int = 0, seed: int = 0) -> OpCheck:
    """Compare a registered op's batch function with its Pillow function, pixel by pixel, on random images.

    Args:
        name: The op.
        images: How many images to compare.
        tolerance: Largest difference of a pixel that passes.
        seed: Seed of the images and arguments.

    Returns:
        How many images were compared and differ, and the largest difference; an AssertionError names the first pixel
        that differs by more than ``tolerance``.
    """
    op = lookup(name)
    if op.kind is not Kind.OWN:
        raise ValueError(f"{name} is built in, and the exactness suite compares it; check ops that you registered")
    if images < 1:
        raise ValueError(f"at least one image must be compared, got {images}")
    differing, largest, first = 0, 0, ""
    for batch, arg in _drawn(op, images, seed):
        program = Program(torch.full((len(batch), 1), op.index, device="cpu"), arg.unsqueeze(1))
        ours, pillows = apply(batch, program, "batch"), apply(batch, program, "pil")
        difference = (ours.to(torch.int16) - pillows.to(torch.int16)).abs()
        differing += int((difference.flatten(1).amax(1) > 0).sum())
        largest = max(largest, int(difference.max()))
        if not first and int(difference.max()) > tolerance:
            i, channel, row, column = (int(place) for place in (difference > tolerance).nonzero()[0])
            first = (
                f"at channel, row, column {(channel, row, column)} of an image of {batch.shape[2]}x{batch.shape[3]} "
                f"pixels with argument {float(arg[i]):g}: {int(ours[i, channel, row, column])} from the batch "
                f"function, Pillow gives {int(pillows[i, channel, row, column])}"
            )
    if first:
        raise AssertionError(
            f"{name} differs from its Pillow function on {differing} of {images} images, by up to {largest}; "
            f"first {first}"
        )
    return OpCheck(images, differing, largest)


def _drawn(op: Op, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of noise, gradients and flat images, with the ends of the op's range among the arguments."""
    rng = np.random.default_rng(seed)
    special = [op.low, op.high, *([] if op.neutral is None else [op.neutral])]
    counts = [count // len(_SIZES) + (i < count % len(_SIZES)) for i in range(len(_SIZES))]
    for (height, width), part in zip(_SIZES, counts):
        if not part:
            continue
        y, x = np.mgrid[:height, :width]
        gradients = y * rng.integers(-9, 9, (part, 3, 1, 1)) + x * rng.integers(-9, 9, (part, 3, 1, 1))
        noise = rng.integers(0, 256, (part, 3, height, width))
        flat = np.broadcast_to(rng.integers(0, 256, (part, 3, 1, 1)), noise.shape)
        kind = np.arange(part).reshape(-1, 1, 1, 1) % 3
        pixels = np.select([kind == 0, kind == 1], [noise, gradients % 256], flat).astype(np.uint8)
        arg = rng.uniform(op.low, op.high, part)
        arg[: len(special)] = special[:part]
        yield torch.from_numpy(pixels), torch.from_numpy(arg)
