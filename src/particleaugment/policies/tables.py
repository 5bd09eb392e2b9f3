"""Policies as tables: what the GPU kernel draws programs from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from particleaugment.core.semantics import get

__all__ = ["Draw", "DrawTables", "both_signs"]


class Draw(IntEnum):
    """How the kernel draws a slot; ``draw_slot`` in ``fused_kernel.cu`` has the same names."""

    GIVEN = 0
    RANDOM_OPS = 1
    RANDOM_LEVELS = 2
    ROWS = 3
    PARTICLES = 4


@dataclass(frozen=True)
class DrawTables:
    """A policy as tables that the kernel draws from; see ``draw_slot`` in ``fused_kernel.cu``."""

    draw: int
    slots: int
    table_op: Tensor
    table_arg: Tensor
    gate: Tensor | None = None
    edges: Tensor | None = None
    rows: int = 0
    choices: int = 0
    levels: int = 0
    random_code: bool = False

    def form(self) -> tuple[object, ...]:
        """What a captured launch has baked in: everything but the tables' values."""
        tables = (self.table_op, self.table_arg, self.gate, self.edges)
        shapes = (None if table is None else table.shape for table in tables)
        return self.draw, self.slots, self.rows, self.choices, self.levels, self.random_code, *shapes

    def tensors(self) -> list[Tensor]:
        """Return the tables that there are."""
        return [tensor for tensor in (self.table_op, self.table_arg, self.gate, self.edges) if tensor is not None]


def both_signs(semantics: str, names: tuple[str, ...], choice: Tensor, levels: Tensor, size: tuple[int, int]) -> Tensor:
    """Arguments with sign + and -, as the last dimension."""
    mapping = get(semantics)
    signs = torch.ones_like(levels)
    pair = [mapping.arguments(names, choice, levels, sign, size) for sign in (signs, -signs)]
    return torch.stack(pair, -1).contiguous()
