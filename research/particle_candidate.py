"""Particles with a difficulty of their own, as a candidate filter.

A particle is three slots: an op, the highest level it is drawn at and the probability that it is applied. Its
measurement is the mean training loss of the samples that it augmented. Particles that are too easy or too hard for the
network lose weight; those that stay spread by a random walk. The kernel draws evenly from rows, so every particle is
given rows by its weight, and each row draws its levels afresh every epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from particleaugment.core.op_table import lookup, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream
from particleaugment.policies.policy import Draws, Policy, get_semantics
from particleaugment.policies.tables import Draw, DrawTables, both_signs

SEMANTICS = "trivial-wide"
SLOTS = 3
STEPS = 100  # filter steps in the steered part of a run, at most


@dataclass(frozen=True, eq=False)
class Rows(Policy):
    """Rows of ops with a probability and a level each; one row is drawn per sample.

    Attributes:
        ops: The ops.
        choice: Index of each slot's op, int64 ``[R, K]``.
        gate: Probability that it is applied, float64 ``[R, K]``.
        level: Its level as a share of the semantics' top, float64 ``[R, K]``.
    """

    ops: tuple[str, ...] = field()
    choice: Tensor
    gate: Tensor
    level: Tensor

    kind = "research-rows"

    def tables(self, size: tuple[int, int]) -> DrawTables:
        """Return the kernel's tables."""
        numbers, top = torch.tensor(op_indices(self.ops), device="cpu"), get_semantics(SEMANTICS).top
        return DrawTables(
            Draw.ROWS,
            self.choice.shape[1],
            numbers[self.choice].contiguous(),
            both_signs(SEMANTICS, self.ops, self.choice, top * self.level, size),
            gate=self.gate.contiguous(),
            rows=len(self.choice),
        )

    def sample(self, ids: Tensor, epoch: Any = 0, seed: Any = 0, size: tuple[int, int] = (32, 32)) -> Program:
        """Draw programs; the kernel draws the same."""
        slots, tables = self.choice.shape[1], self.tables(size)
        assert tables.gate is not None
        draws = Draws(ids, epoch, seed, {Stream.OP: 1, Stream.GATE: slots, Stream.SIGN: slots})
        row = draws.choice(Stream.OP, len(self.choice)).squeeze(-1)
        applied = draws[Stream.GATE] < tables.gate[row]
        sign = (draws.signs() < 0).to(torch.int64)
        arg = tables.table_arg[row].gather(-1, sign[..., None]).squeeze(-1)
        return Program.trusted(torch.where(applied, tables.table_op[row], 0), torch.where(applied, arg, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain data."""
        return {"kind": self.kind, "ops": list(self.ops), "choice": self.choice.tolist()}

    @classmethod
    def _from_dict(cls, data: Any) -> Any:
        raise ValueError("policies of candidates are not read from files")


@dataclass(frozen=True, kw_only=True)
class ParticleCandidate:
    """Settings.

    Attributes:
        kappa: Wanted difficulty.
        held_out: Samples held out until 80 % of training.
        count: Particles.
        rows: Rows that the kernel draws from.
        spread: Deviation of log-losses that counts as equally good, tau.
        walk: Deviation of a step of the random walk of levels (in logarithms) and of probabilities.
        mutation: Probability that a slot of a resampled particle draws a new op.
        alpha: Resample when the effective sample size falls under this share.
        strongest: Particles start with strengths from 0 to this, as the knob's.
        shuffled: Whether losses are permuted among the particles, as a control.
    """

    kappa: float = 1.0
    held_out: int = 64
    count: int = 128
    rows: int = 512
    spread: float = 0.35
    walk: float = 0.15
    mutation: float = 0.1
    alpha: float = 0.3
    strongest: float = 2.0
    shuffled: bool = False


class ParticleController:
    """The candidate at work on one run."""

    def __init__(self, settings: ParticleCandidate, ops: tuple[str, ...], epochs: int, classes: int, seed: int):
        self.settings, self.ops, self.epochs, self.classes = settings, ops, epochs, classes
        self._random = torch.Generator().manual_seed(seed)
        count = settings.count
        self.has_level = torch.tensor([lookup(name).takes_argument and name != "Rotate90" for name in ops])
        strength = settings.strongest * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        self.choice = torch.randint(len(ops), (count, SLOTS), generator=self._random)
        self.cap = strength.clamp(0.02, 1)[:, None].repeat(1, SLOTS)
        self.gate = (strength[:, None] - torch.arange(SLOTS)).clamp(0.02, 1)
        self.gate[:, 0] = 1.0
        self.log_weight = torch.zeros(count, dtype=torch.float64)
        self.row_particle = torch.arange(settings.rows) % count
        self._sums = torch.zeros(3, count, dtype=torch.float64)
        self._held: float | None = None
        self.size, self.resampled = float(count), 0

    def policy(self) -> Rows:
        """Return rows by weight, with levels drawn for this epoch."""
        rows = self.settings.rows
        weights = self.log_weight.softmax(0)
        points = (torch.arange(rows, dtype=torch.float64) + torch.rand(1, generator=self._random).double()) / rows
        self.row_particle = torch.searchsorted(weights.cumsum(0), points).clamp(max=self.settings.count - 1)
        choice, cap = self.choice[self.row_particle], self.cap[self.row_particle]
        levelled = self.has_level[choice]
        drawn = torch.rand(rows, SLOTS, generator=self._random).double()
        # Ops without a level are as strong as their probability.
        gate = self.gate[self.row_particle] * torch.where(levelled, 1.0, cap)
        return Rows(self.ops, choice, gate, torch.where(levelled, cap * drawn, 1.0))

    def update(self, epoch: int, held: float | None, row_sums: Tensor) -> None:
        """Take an epoch's losses in: rows' sums, sums of squares and counts; step the filter when it is due."""
        if held is None:
            return
        held = min(held, math.log(self.classes))
        memory = max(1.0, 0.05 * self.epochs)
        self._held = held if self._held is None else self._held + (held - self._held) / memory
        self._sums.index_add_(1, self.row_particle, row_sums)
        if epoch % max(1, round(self.epochs / STEPS)) == 0:
            self._step()

    def _step(self) -> None:
        settings, count = self.settings, self._sums[2]
        assert self._held is not None
        mean = self._sums[0] / count.clamp(min=1)
        variance = (self._sums[1] / count.clamp(min=1) - mean**2).clamp(min=1e-8)
        seen = count >= 4
        relative = (variance / count.clamp(min=1)).sqrt() / mean.clamp(min=1e-4)
        miss = mean.clamp(min=1e-4).log() - math.log(settings.kappa * max(self._held, 1e-4))
        score = torch.where(seen, -0.5 * miss**2 / (settings.spread**2 + relative**2), torch.nan)
        # Particles that augmented too few samples to be measured are taken for average ones.
        score = torch.where(seen, score, score.nanmean() if bool(seen.any()) else 0.0)
        if settings.shuffled:
            score = score[torch.randperm(len(score), generator=self._random)]
        self.log_weight = (self.log_weight + score).log_softmax(0)
        self._sums.zero_()
        weights = self.log_weight.exp()
        self.size = float(1 / (weights**2).sum())
        if self.size < settings.alpha * settings.count:
            points = torch.arange(settings.count, dtype=torch.float64)
            points = (points + torch.rand(1, generator=self._random).double()) / settings.count
            parents = torch.searchsorted(weights.cumsum(0), points).clamp(max=settings.count - 1)
            self.choice, self.cap, self.gate = self.choice[parents], self.cap[parents], self.gate[parents]
            self.log_weight = torch.zeros_like(self.log_weight)
            self.resampled += 1
            new = torch.rand(self.choice.shape, generator=self._random) < settings.mutation
            self.choice = torch.where(
                new, torch.randint(len(self.ops), self.choice.shape, generator=self._random), self.choice
            )
        noise = torch.randn(2, *self.choice.shape, generator=self._random).double() * settings.walk
        self.cap = (self.cap * noise[0].exp()).clamp(0.02, 1)
        self.gate = (self.gate + noise[1]).abs()
        self.gate = torch.where(self.gate > 1, 2 - self.gate, self.gate).clamp(0, 1)

    def trace(self) -> dict[str, Any]:
        """Return where the particles are, for the record."""
        weights = self.log_weight.exp() / self.log_weight.exp().sum()
        share = torch.zeros(len(self.ops), dtype=torch.float64)
        applied = weights[:, None] * self.gate
        share.index_add_(0, self.choice.flatten(), applied.flatten())
        part = share / share.sum()
        entropy = float(-(part * part.clamp(min=1e-12).log()).sum())
        return {
            "ops": round(float(applied.sum()), 3),
            "cap": round(float((weights[:, None] * self.cap).sum() / SLOTS), 3),
            "n_eff": round(self.size, 1),
            "resampled": self.resampled,
            "entropy": round(entropy, 3),
        }
