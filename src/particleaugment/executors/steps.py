"""What moves the pixels of a batch, step by step: geometric ops, flips, crops, and rectangles that are erased.

Masks, boxes and keypoints follow these steps; every executor reads the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from particleaugment.core.op_table import TABLE, Kind, lookup
from particleaugment.core.program import Program
from particleaugment.executors.coefficients import affine

__all__ = ["GIVEN", "Coefficients", "Move", "Steps"]

Array = NDArray[Any]

GIVEN = -1
"""Stands for an op in ``Steps.op`` where the step's coefficients are given."""
NOTHING, ERASES = -1, -2
"""Stand for a row of coefficients where a step moves nothing, and where it erases a rectangle."""

CUTOUT, FLIP_X, FLIP_Y = (lookup(name).index for name in ("Cutout", "FlipX", "FlipY"))
_IS_GEOMETRIC = np.array([op.kind is Kind.GEOMETRIC for op in TABLE])


class Move(NamedTuple):
    """How an always-on transform moves the pixels of B images: one of the two.

    Attributes:
        matrix: Float64 ``[B, 6]``: the source of output point (x, y) is (m0·x + m1·y + m2, m3·x + m4·y + m5), with
            pixel centres at half-integers.
        erased: Int64 ``[B, 4]``: left, top, right and bottom of a rectangle that is erased, right and bottom excluded.
    """

    matrix: Tensor | None = None
    erased: Tensor | None = None


class Coefficients(NamedTuple):
    """The steps of B images as numbers.

    Attributes:
        row: Int64 ``[B, S]``: which row of the others a step uses, or NOTHING or ERASES.
        matrix: Float64 ``[N, 6]``, as in :class:`particleaugment.executors.coefficients.Affine`; its last row changes
            nothing, so that NOTHING selects it.
        turn: Int64 ``[N]``, likewise.
    """

    row: Array
    matrix: Array
    turn: Array


class Steps(NamedTuple):
    """S steps for each of B images.

    Attributes:
        op: Int64 ``[B, S]``: op indices, or GIVEN. Ops that move no pixel are passed over.
        arg: Float64 ``[B, S]``: their arguments.
        matrix: Float64 ``[B, S, 6]``, read where ``op`` is GIVEN; None if it never is.
        erased: Int64 ``[B, S, 4]``: rectangles, read where ``op`` is Cutout; None if what is erased is left alone.
    """

    op: Tensor
    arg: Tensor
    matrix: Tensor | None = None
    erased: Tensor | None = None

    @classmethod
    def of(
        cls, program: Program, before: Sequence[Move] = (), after: Sequence[Move] = (), *, erases: bool = False
    ) -> Steps:
        """Return the steps of always-on moves, a program, and further moves.

        Args:
            program: The program, on the device of the moves.
            before: Moves before it.
            after: Moves after it.
            erases: Whether targets are erased where the image is.
        """
        before, after = ([move for move in moves if move.matrix is not None or erases] for moves in (before, after))
        moves, first = [*before, *after], len(before)
        patch = program.patch if erases else None
        if not moves:
            return cls(program.op, program.arg, None, None if patch is None else patch[..., :4])

        def joined(columns: list[Tensor], of_program: Tensor) -> Tensor:
            columns = [column.unsqueeze(1) for column in columns]
            return torch.cat([*columns[:first], of_program, *columns[first:]], 1)

        op, arg, batch = program.op, program.arg, len(program)
        codes = [op.new_full((batch,), GIVEN if move.matrix is not None else CUTOUT) for move in moves]
        identity = arg.new_zeros(batch, 6)
        identity[:, 0::4] = 1.0
        matrices = [identity if move.matrix is None else move.matrix for move in moves]
        matrix = joined(matrices, arg.new_zeros(*arg.shape, 6))
        erased = None
        if patch is not None or any(move.erased is not None for move in moves):
            empty = op.new_zeros(batch, 4)
            rectangles = [empty if move.erased is None else move.erased for move in moves]
            erased = joined(rectangles, op.new_zeros(*op.shape, 4) if patch is None else patch[..., :4])
        return cls(joined(codes, op), joined([arg.new_zeros(batch)] * len(moves), arg), matrix, erased)

    def coefficients(self, height: int, width: int) -> Coefficients:
        """Return the steps of images of one size as numbers on the CPU."""
        op, arg = self.op.cpu().numpy(), self.arg.cpu().numpy()
        known = (op >= 0) & (op < len(TABLE))
        geometric = known & _IS_GEOMETRIC[np.where(known, op, 0)]
        # A policy has few distinct pairs of op and argument, and each costs a sine: a pair is argument + i · op.
        pairs, inverse = np.unique(arg[geometric] + 1j * op[geometric], return_inverse=True)
        row = np.full(op.shape, NOTHING, np.int64)
        row[geometric] = inverse.reshape(-1)
        ops = torch.from_numpy(pairs.imag.astype(np.int64))
        matrices, turns = affine(ops, torch.from_numpy(np.ascontiguousarray(pairs.real)), height, width)
        rows = [matrices.numpy(), np.array([mirror(True, height, width), mirror(False, height, width)])]
        row[op == FLIP_X] = len(pairs)
        row[op == FLIP_Y] = len(pairs) + 1
        given = op == GIVEN
        if self.matrix is not None and given.any():
            row[given] = len(pairs) + 2 + np.arange(int(given.sum()))
            rows.append(self.matrix.cpu().numpy()[given])
        if self.erased is not None:
            row[op == CUTOUT] = ERASES
        rows.append(np.array([[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]]))
        matrix = np.concatenate(rows)
        turn = np.full(len(matrix), -1, np.int64)
        turn[: len(pairs)] = turns.numpy()
        return Coefficients(row, matrix, turn)


def mirror(sideways: bool, height: int, width: int) -> list[float]:
    """Return the coefficients of a flip left to right, or top to bottom.

    >>> mirror(True, 4, 6)
    [-1.0, 0.0, 6.0, 0.0, 1.0, 0.0]
    """
    if sideways:
        return [-1.0, 0.0, float(width), 0.0, 1.0, 0.0]
    return [1.0, 0.0, 0.0, 0.0, -1.0, float(height)]
