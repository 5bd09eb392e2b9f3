"""What a search must have in common: with those on other ranks, and with the one whose state it takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from particleaugment.search.filter_base import FilterState
from particleaugment.trainee.ranks import RankError, Ranks

__all__ = ["require_same_as_saved", "require_same_on_ranks", "state_tensors"]


def state_tensors(state: FilterState) -> list[Tensor]:
    """Return all that a state remembers."""
    values = state.to_dict().values()
    return [
        value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
        for value in values
    ]


def require_same_on_ranks(ranks: Ranks, state: FilterState, when: str, *given: Tensor) -> None:
    """Refuse a state, and what else is given, that differ between ranks ``before`` or ``after`` a filter step."""
    if differing := ranks.differing([*state_tensors(state), *given]):
        raise RankError(
            f"the search on rank {', '.join(map(str, differing))} differs from that on rank 0 {when} filter step "
            f"{state.steps + (when == 'before')}; create the search with the same seed and data set on all "
            "ranks, and call step at the same epoch with the same batch size"
        )


def require_same_as_saved(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse the state of a search that was made of something else."""
    for key in ("filter", "ops", "epochs", "seed"):
        if saved[key] != mine[key]:
            raise ValueError(
                f"the saved search has a different {key}, {saved[key]!r} instead of {mine[key]!r}; "
                "create ParticleAugment with the saved one"
            )
    if saved["data"] != mine["data"]:
        raise ValueError(
            "the saved search has a different train_set: number, classes or groups of its samples differ; "
            "create ParticleAugment with the same data"
        )
