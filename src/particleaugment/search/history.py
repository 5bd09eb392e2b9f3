"""The states of a search, first to last, as a few tensors for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from particleaugment.search.filter_base import FilterState

__all__ = ["packed", "unpacked"]

State = TypeVar("State", bound=FilterState)


def packed(history: Sequence[tuple[int, FilterState]]) -> dict[str, Any]:
    """Return states, each with its first epoch, as one tensor or list per field."""
    rows = [state.to_dict() for _, state in history]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        "starts": [start for start, _ in history],
        **{name: torch.stack(column) if isinstance(column[0], Tensor) else column for name, column in columns.items()},  # type: ignore[arg-type]
    }


def unpacked(saved: Mapping[str, Any], first: State) -> list[tuple[int, State]]:
    """Return the states that :func:`packed` was given; ``first`` is the one that the search started from."""
    columns = {name: column for name, column in saved.items() if name != "starts"}
    return [
        (int(start), first.restored({name: column[number] for name, column in columns.items()}))
        for number, start in enumerate(saved["starts"])
    ]
