"""Whether a search suits a run's data, whether all ranks have the same, and whether a run goes on with the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from particleaugment.search.filter_base import Filter
from particleaugment.search.held_out import Division
from particleaugment.trainee.ranks import Ranks
from particleaugment.training.checkpoint_position import data_named
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError, RunFolder

__all__ = ["check_search", "require_same_data", "require_same_inputs"]

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
        raise ConfigError(f"the search does not fit the data: {error}; or set policy=trivial") from None
    if split is None:
        return
    held_out = len(split[1])
    if groups is not None:
        say(f"{held_out:,} images are held out for measuring, in whole groups (measure_size={filter.measure_size})")
    if held_out < _FEW:
        say(
            f"only {held_out} images are held out for measuring, so measurements are noisy; train on more images, "
            "set a larger measure_size, or policy=trivial"
        )


def require_same_data(ranks: Ranks, identity: str) -> None:
    """Raise a ConfigError on every rank if one has other data than rank 0."""
    others = ranks.differing([torch.tensor(list(bytes.fromhex(identity)), dtype=torch.uint8)])
    if others:
        error = ConfigError(
            f"the data of rank {', '.join(map(str, others))} differ from rank 0's in classes, labels, files "
            "or images; give every rank the same data"
        )
        raise ranks.common(error)


def require_same_inputs(run: RunFolder, state: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Raise a RunError if the data, or a policy that was given in a file, are not those of a checkpoint.

    Args:
        run: The run.
        state: What the checkpoint holds.
        data: The data that there are now, as checkpoints name them.
    """
    if data_named(state) != data:
        raise RunError(
            f"the data differ from those that the run in {run.path} was started with, in classes, labels or images; "
            "restore them, or start a new run"
        )
    if state["policy"] != run.policy_identity():
        raise RunError(f"{run.given_policy} is not the policy that the run was started with; restore the file")
