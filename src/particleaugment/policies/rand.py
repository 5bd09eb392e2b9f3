"""RandAugment: a few ops drawn at random, all at one level; and the policy that does nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from particleaugment.core.op_table import OPS, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream, log
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import (
    RESAMPLE_CHOICES,
    Draws,
    Policy,
    by_name,
    checked_choice,
    checked_count,
    checked_fraction,
    checked_level,
    checked_ops,
    checked_size,
    checked_spread,
    get_semantics,
    places,
)
from particleaugment.policies.tables import Draw, DrawTables, both_signs

__all__ = ["Identity", "RandAugment"]


@dataclass(frozen=True)
class Identity(Policy):
    """Leave every image as it is.

    >>> Identity().sample(torch.arange(4)).op.shape
    torch.Size([4, 0])
    """

    kind: ClassVar[str] = "identity"

    def with_ops(self, ops: tuple[str, ...]) -> Self:
        """Return itself: it draws from no ops."""
        return self

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Return a program without slots."""
        Draws(ids, epoch, seed, {})
        empty = torch.zeros(len(ids), 0, dtype=torch.int64, device=ids.device)
        return Program.trusted(empty, empty.to(torch.float64))

    def tables(self, size: tuple[int, int]) -> DrawTables:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        no_op = torch.zeros(1, dtype=torch.int64, device="cpu")
        return DrawTables(Draw.RANDOM_OPS, 0, no_op, torch.zeros(1, 2, dtype=torch.float64, device="cpu"))

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        return DrawPlan(kind=Draw.RANDOM_OPS, slots=0, ops=("Identity",), mapping=get_semantics("timm"), levels=[0.0])


@dataclass(frozen=True)
class RandAugment(Policy):
    """``n`` ops drawn uniformly with replacement, each applied with probability ``p`` at level ``m``.

    Attributes:
        n: Ops per image.
        m: Level, on the scale of ``semantics``.
        p: Probability with which each drawn op is applied.
        semantics: Name of the mapping from level to argument.
        ops: The ops to draw from.
        m_std: Standard deviation of normal noise on the level; infinity draws it uniformly from 0 to ``m``.
        m_max: Highest level after noise; the top of the semantics if None.
        op_weights: Relative frequency of each op; drawing is then without replacement, as in timm.
        resample: ``default`` leaves the filter to ``apply``; ``random`` draws bilinear or bicubic per op, as timm does.

    >>> policy = RandAugment(n=3, m=4)
    >>> program = policy.sample(torch.arange(8), epoch=0, seed=0, size=(32, 32))
    >>> program.op.shape
    torch.Size([8, 3])
    """

    n: int = 2
    m: float = 9
    p: float = 1.0
    semantics: str = "timm-increasing"
    ops: tuple[str, ...] = OPS
    m_std: float = 0.0
    m_max: float | None = None
    op_weights: tuple[float, ...] | None = None
    resample: str = "default"

    kind: ClassVar[str] = "randaugment"

    def __post_init__(self) -> None:
        mapping = get_semantics(self.semantics)
        ops = checked_ops(self.ops)
        for name in ops:
            mapping.rule(name)
        highest = mapping.top if self.m_max is None else self.m_max
        if isinstance(highest, bool) or not isinstance(highest, (int, float)) or not 0 < highest < math.inf:
            raise ValueError(f"m_max must be a positive number, got {self.m_max!r}")
        checked = {
            "n": checked_count("n", self.n, 64),
            # With an explicit m_max any level is allowed, as in timm: it is cut after the noise.
            "m": checked_level("m", self.m, mapping.top if self.m_max is None else 1000),
            "p": checked_fraction("p", self.p),
            "semantics": mapping.name,
            "ops": ops,
            "m_std": checked_spread("m_std", self.m_std),
            "m_max": None if self.m_max is None else float(highest),
            "op_weights": _checked_weights(self.op_weights, ops, self.n),
            "resample": checked_choice("resample", self.resample, RESAMPLE_CHOICES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image, on average; empty with ``op_weights``."""
        shares = [self.n * self.p / len(self.ops)] * len(self.ops)
        return {} if self.op_weights is not None else by_name(self.ops, shares)

    @property
    def ops_per_image(self) -> float:
        """Mean number of ops applied to an image, Identity not counted; with ``op_weights`` it is."""
        return super().ops_per_image if self.op_weights is None else self.n * self.p

    def with_ops(self, ops: tuple[str, ...]) -> Self:
        """Return the policy with other ops; see :meth:`Policy.with_ops`."""
        if self.op_weights is not None:
            raise ValueError("it has weights for timm's ops; leave ops out")
        return replace(self, ops=ops)

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples; see :meth:`Policy.sample`."""
        mapping, n = get_semantics(self.semantics), self.n
        draws = Draws(
            ids,
            epoch,
            seed,
            {
                Stream.OP: n if self.op_weights is None else len(self.ops),
                Stream.SIGN: n,
                Stream.GATE: n if self.p < 1 else 0,
                Stream.LEVEL: n if self.m_std else 0,
                Stream.INTERPOLATION: n if self.resample == "random" else 0,
                Stream.PLACE: places(self.ops, n),
            },
        )
        if n == 0:
            return Identity().sample(ids)
        choice = draws.choice(Stream.OP, len(self.ops)) if self.op_weights is None else self._weighted(draws[Stream.OP])
        level = torch.full((), self.m, dtype=torch.float64, device=ids.device)
        levels = draws.levels(level, self.m_std, mapping.top if self.m_max is None else self.m_max)
        arg = mapping.arguments(self.ops, choice, levels, draws.signs(), checked_size(size))
        op = _indices(self.ops, ids.device)[choice]
        if self.p < 1:
            applied = draws[Stream.GATE] < self.p
            op, arg = torch.where(applied, op, 0), torch.where(applied, arg, 0.0)
        return Program.trusted(op, arg, draws.resample(), draws.patches(mapping, op, arg, size))

    def tables(self, size: tuple[int, int]) -> DrawTables | None:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        if self.m_std or self.op_weights is not None:
            return None
        highest = get_semantics(self.semantics).top if self.m_max is None else self.m_max
        choice = torch.arange(len(self.ops), device="cpu")
        levels = torch.full((len(self.ops),), float(min(self.m, highest)), dtype=torch.float64, device="cpu")
        return DrawTables(
            Draw.RANDOM_OPS,
            self.n,
            torch.tensor(op_indices(self.ops), device="cpu"),
            both_signs(self.semantics, self.ops, choice, levels, size),
            gate=torch.tensor([self.p], dtype=torch.float64, device="cpu") if self.p < 1 else None,
            choices=len(self.ops),
            random_code=self.resample == "random",
        )

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        mapping = get_semantics(self.semantics)
        return DrawPlan(
            kind=Draw.RANDOM_OPS,
            slots=self.n,
            ops=self.ops,
            mapping=mapping,
            levels=[float(self.m)],
            gates=[self.p] if self.p < 1 else None,
            rates=self.op_weights,
            spread=self.m_std,
            highest=mapping.top if self.m_max is None else self.m_max,
            random_code=self.resample == "random",
        )

    def _weighted(self, u: Tensor) -> Tensor:
        # The n smallest of independent exponentials with rates w are a draw by weight without replacement.
        assert self.op_weights is not None
        rates = _weights(self.op_weights, u.device)
        waiting = -log((1 - u).clamp(min=2.0**-54)) / rates
        return waiting.argsort(dim=-1, stable=True)[:, : self.n]


def _checked_weights(weights: Any, ops: tuple[str, ...], n: int) -> tuple[float, ...] | None:
    if weights is None:
        return None
    weights = tuple(weights)
    if len(weights) != len(ops) or not all(isinstance(w, (int, float)) and 0 < w < math.inf for w in weights):
        raise ValueError(f"op_weights must be {len(ops)} positive numbers, one per op, got {weights!r}")
    if n > len(ops):
        raise ValueError(f"drawing without replacement by op_weights needs n of at most {len(ops)}, got {n}")
    return tuple(float(w) for w in weights)


@lru_cache(maxsize=64)
def _indices(names: tuple[str, ...], device: torch.device) -> Tensor:
    return torch.tensor(op_indices(names), dtype=torch.int64, device=device)


@lru_cache(maxsize=64)
def _weights(weights: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(weights, dtype=torch.float64, device=device)
