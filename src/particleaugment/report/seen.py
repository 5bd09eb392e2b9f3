"""The part of a report that shows what the network saw: training images under the run's policy."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from particleaugment.data.listing import FolderListing
from particleaugment.policies import Policy
from particleaugment.policies.mixture import Mixture
from particleaugment.report.gallery import draw_strip, policy_rows
from particleaugment.report.html import heading, strips
from particleaugment.report.metrics import RunHistory
from particleaugment.report.strength import strength_of
from particleaugment.training.config import Config

__all__ = ["chosen_part", "what_the_network_saw"]

_LARGEST = 64  # pixels a side of a shown image
_CANDIDATES, _SHOWN = 60, 10


def what_the_network_saw(run: RunHistory, found: FolderListing | None) -> list[Markup | None]:
    """Return the part: images that the policy changes, plain and at the run's start, middle and end.

    Args:
        run: The run.
        found: What its data set of files holds, if it has one.
    """
    try:
        images = _examples(run.config, found)
    except (OSError, ValueError):
        return []
    policies = [(_titled(title, policy), policy) for title, policy in run.policy.moments(run.epochs[-1]["epoch"])]
    rows = [
        (title, torch.stack([image for _, image in cells]))
        for title, cells in policy_rows(images, policies, seed=run.config.seed)
    ]
    chosen = most_changed(images, [augmented for _, augmented in rows], _SHOWN)
    scale = max(1, _LARGEST // images.shape[-1])
    shown = [("plain", images[chosen]), *((title, augmented[chosen]) for title, augmented in rows)]
    count = int((torch.stack([augmented for _, augmented in rows]) != images).flatten(2).any(2).any(0).sum())
    caption = (
        f"{len(chosen)} of {len(images)} training images, the ones that the policy changes most often. Crop, flip and "
        "erasing are not shown."
        if count
        else "Training images; the policy does not change them. Crop, flip and erasing are not shown."
    )
    drawn = [(title, _png(row, scale)) for title, row in (shown if count else shown[:1])]
    return [heading("What the network saw"), strips(drawn, "Training images under the policy", caption)]


def most_changed(images: Tensor, augmented: Sequence[Tensor], count: int) -> Tensor:
    """Return the images that most of some augmented versions differ from, in their order.

    >>> plain = torch.zeros(3, 1, 2, 2)
    >>> most_changed(plain, [plain, plain + torch.tensor([0, 1, 1]).view(3, 1, 1, 1)], count=2)
    tensor([1, 2])
    """
    times = torch.stack([(one != images).flatten(1).any(1) for one in augmented]).sum(0)
    return times.argsort(descending=True, stable=True)[:count].sort().values


def _png(images: Tensor, scale: int) -> bytes:
    buffer = io.BytesIO()
    draw_strip(images, scale).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _titled(title: str, policy: Policy) -> str:
    applied = strength_of(policy) if isinstance(policy, Mixture) else policy.ops_per_image
    return f"{title}\n{applied:.2f} ops per image" if policy.learned else title


def chosen_part(config: Config) -> tuple[int | float, int | float, int]:
    """Return which images of a folder a run trains and is judged on, as its listing takes it."""
    return config.data.validation, config.data.train_size, config.data.data_seed


def _examples(config: Config, found: FolderListing | None) -> Tensor:
    from particleaugment.data import load_data
    from particleaugment.data.streamed import example_images

    if found is not None:  # which may be large: a few files are enough
        size = min(config.data.image_size or _LARGEST, _LARGEST)
        return example_images(found.selected(*chosen_part(config))[0], size, _CANDIDATES)
    validation, train_size, seed = chosen_part(config)
    data = load_data(
        config.data.name,
        config.data.data_dir or None,
        validation=validation,
        train_size=train_size,
        seed=seed,
        quiet=True,
    )
    return data.train_images[:_CANDIDATES]
