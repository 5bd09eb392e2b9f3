"""Policies as plans: what compiled loops, or plain Python where there are none, draw single samples from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from particleaugment.core import semantics
from particleaugment.core.op_table import Kind, check_size, lookup, op_indices
from particleaugment.core.program import UNSET, Program
from particleaugment.core.random import checked_epoch, checked_ids, checked_seed
from particleaugment.executors import threads
from particleaugment.policies.tables import Draw

__all__ = ["DrawPlan", "Drawn"]

Array = NDArray[Any]


class Drawn(NamedTuple):
    """The program of one sample: arrays ``[1, slots]`` where compiled code drew it, and lists by slot otherwise.

    Attributes:
        op: Op indices.
        arg: Arguments.
        code: Resampling filters, none of them unset.
        patch: What Cutout paints, ``[1, slots, 5]`` or a flat list; None if no op can be Cutout.
    """

    op: Any
    arg: Any
    code: Any
    patch: Any

    def lists(self) -> tuple[list[int], list[float], list[int], list[list[int]] | None]:
        """Return it as lists by slot, the rectangles as lists of five."""
        op, arg, code = (np.asarray(part).reshape(-1).tolist() for part in self[:3])
        return op, arg, code, None if self.patch is None else np.asarray(self.patch).reshape(-1, 5).tolist()

    def program(self) -> Program:
        """Return the program of a batch of this one sample."""
        op, code = (torch.tensor(np.asarray(part, np.int64)).reshape(1, -1) for part in (self.op, self.code))
        arg = torch.tensor(np.asarray(self.arg, np.float64)).reshape(1, -1)
        patch = None if self.patch is None else torch.tensor(np.asarray(self.patch, np.int64)).reshape(*op.shape, 5)
        return Program.trusted(op, arg, code, patch)


@dataclass(frozen=True, eq=False, kw_only=True)
class DrawPlan:
    """A policy in numbers; ``draw`` in ``_draw_kernels.py`` reads them.

    Attributes:
        kind: How an op is drawn.
        slots: Slots of a program.
        ops: Names of the ops to choose from.
        mapping: From level to argument.
        levels: Levels: one, the ones to choose from, by slot for particles, or by row and slot.
        gates: Probabilities that an op is applied: one, by slot and op, or by row and slot; None if all are.
        names: Positions in ``ops`` by row and slot, for sub-policies.
        rows: Number of rows.
        edges: Upper edges of the rows' intervals; None if all rows are as wide.
        rates: Weights of the ops, drawn without replacement; None if every op is drawn evenly.
        spread: Standard deviation of normal noise on the levels.
        highest: Highest level after noise.
        random_code: Whether bilinear or bicubic is drawn per slot.
        random_order: Whether the slots are put into a random order.
    """

    kind: Draw
    slots: int
    ops: tuple[str, ...]
    mapping: semantics.Semantics
    levels: Sequence[float]
    gates: Sequence[float] | None = None
    names: Sequence[int] = (0,)
    rows: int = 0
    edges: Sequence[float] | None = None
    rates: Sequence[float] | None = None
    spread: float = 0.0
    highest: float = float("inf")
    random_code: bool = False
    random_order: bool = False

    def draw(self, id: int, epoch: int, seed: int, size: tuple[int, int], code: int) -> Drawn:
        """Draw the program of one sample.

        Args:
            id: The sample's id, not negative.
            epoch: The epoch.
            seed: The seed.
            size: Height and width of the image.
            code: Filter of slots that do not draw their own.
        """
        self._check(size)
        slots, kernels = self.slots, _kernels()
        if kernels.COMPILED:
            op, arg, codes, patch, room = self._outputs(1)
            ids, counter = np.array([id], np.int64), threads.counter()
            kernels.draw_many(*self._arrays, seed, epoch, *size, code, *room, op, arg, codes, patch, ids, counter, 1)
            return Drawn(op, arg, codes, patch if self._has_cutout else None)
        lists: tuple[Any, ...] = [0] * slots, [0.0] * slots, [0] * slots, [0] * 5 * slots
        kernels.draw(*self._lists, seed, epoch, id, *size, code, [0.0] * self._room, [0] * slots, *lists)
        return Drawn(lists[0], lists[1], lists[2], lists[3] if self._has_cutout else None)

    def sample(self, ids: Tensor, epoch: int, seed: int, size: tuple[int, int]) -> Program:
        """Draw the programs of some samples in compiled code, on torch's number of threads.

        Args:
            ids: Sample ids on the CPU, int64 ``[B]``, not negative.
            epoch: The epoch.
            seed: The seed.
            size: Height and width of the images.
        """
        self._check(size)
        count, slots = len(checked_ids(ids)), self.slots
        epoch, seed = checked_epoch(epoch), checked_seed(seed)
        op, arg, codes, patch, room = self._outputs(count)
        outputs = (*room, op, arg, codes, patch, ids.contiguous().numpy())
        arguments = (*self._arrays, seed, epoch, *size, UNSET, *outputs)
        # A slot takes about as long to draw as fifty bytes of an image take to augment.
        threads.on_threads(_kernels().draw_many, arguments, count, 50 * max(1, slots))
        resample = torch.from_numpy(codes) if self.random_code else None
        painted = torch.from_numpy(patch) if self._has_cutout else None
        return Program.trusted(torch.from_numpy(op), torch.from_numpy(arg), resample, painted)

    def _outputs(self, count: int) -> tuple[Array, Array, Array, Array, tuple[Array, Array]]:
        """Arrays for the draws of so many samples, and room to work in."""
        op, codes, chosen = np.empty((3, count, self.slots), np.int64)
        arg, u = np.empty((count, self.slots), np.float64), np.empty((count, self._room), np.float64)
        patch = np.empty((count, self.slots if self._has_cutout else 0, 5), np.int64)
        return op, arg, codes, patch, (u, chosen)

    @property
    def built_in(self) -> bool:
        """Whether it draws from built-in ops alone, whose rules never change."""
        return all(lookup(name).kind is not Kind.OWN for name in self.ops)

    def _check(self, size: tuple[int, int]) -> None:
        if self._turns and size[0] != size[1]:
            check_size(self.ops, size)

    @cached_property
    def _turns(self) -> bool:
        return "Rotate90" in self.ops

    @cached_property
    def _has_cutout(self) -> bool:
        return "Cutout" in self.ops and self.mapping.patch is not None

    @cached_property
    def _room(self) -> int:
        return max(1, len(self.ops) if self.rates is not None else 0, 5 * self.slots)

    @cached_property
    def _lists(self) -> tuple[Any, ...]:
        patch = self.mapping.patch
        placed, colour = 0, 0
        if self._has_cutout and patch is not None:
            placed, colour = (
                (2 if patch.whole_centre else 1),
                patch.colour[0] << 16 | patch.colour[1] << 8 | patch.colour[2],
            )
        weighted = self.rates is not None if self.kind is not Draw.ROWS else self.edges is not None
        whole = [
            int(self.kind), self.slots, len(self.ops), len(self.levels), self.rows, int(self.gates is not None),
            int(self.random_code), int(self.random_order), int(weighted), placed, colour,
        ]  # fmt: skip
        rules = [number for name in self.ops for number in self.mapping.numbers(name)]
        gates, edges = self.gates or (1.0,), self.edges or self.rates or (1.0,)
        tables = (list(op_indices(self.ops)), rules, list(self.names), list(self.levels), list(gates), list(edges))
        return whole, float(self.spread), float(self.highest), *tables

    @cached_property
    def _arrays(self) -> tuple[Any, ...]:
        whole, spread, highest, ops, rules, names, *tables = self._lists
        numbers = [np.array(table, np.float64) for table in tables]
        words = [np.array(table, np.int64) for table in (whole, ops, names)]
        return words[0], spread, highest, words[1], np.array(rules, np.float64), words[2], *numbers


def _kernels() -> Any:
    global _module
    if _module is None:
        from particleaugment.policies import _draw_kernels as _module
    return _module


_module: Any = None
