"""Lists of sub-policies: one is drawn per image, and each of its ops applied with its own probability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from particleaugment.core.op_table import lookup, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import (
    RESAMPLE_CHOICES,
    Draws,
    Policy,
    checked_choice,
    checked_fraction,
    checked_level,
    checked_size,
    checked_spread,
    get_semantics,
    interval_edges,
    places,
)
from particleaugment.policies.rand import _indices
from particleaugment.policies.tables import Draw, DrawTables, both_signs

__all__ = ["SubPolicies", "SubPolicy"]

SubPolicy = tuple[tuple[str, float, float], ...]
"""Ops in order of application: (op name, probability, level)."""


class _Tables(NamedTuple):
    names: tuple[str, ...]
    choice: Tensor
    probability: Tensor
    level: Tensor
    edges: Tensor | None


@dataclass(frozen=True, repr=False)
class SubPolicies(Policy):
    """A list of sub-policies, each a sequence of (op, probability, level); one is drawn per image.

    Attributes:
        sub_policies: The list.
        semantics: Name of the mapping from level to argument.
        m_std: Standard deviation of normal noise on the levels.
        resample: ``default`` leaves the filter to ``apply``; ``random`` draws bilinear or bicubic per op, as timm does.
        weights: Relative frequency of each sub-policy; all alike if None.

    >>> policy = SubPolicies([[("Rotate", 0.7, 2), ("Invert", 0.1, 0)], [("Equalize", 1.0, 0)]], semantics="timm")
    >>> policy.sample(torch.arange(6)).op.shape
    torch.Size([6, 2])
    >>> policy
    SubPolicies(2 sub-policies, semantics='timm', 0.90 ops per image)
    """

    sub_policies: tuple[SubPolicy, ...]
    semantics: str = "timm-increasing"
    m_std: float = 0.0
    resample: str = "default"
    weights: tuple[float, ...] | None = None

    kind: ClassVar[str] = "sub-policies"

    def __post_init__(self) -> None:
        mapping = get_semantics(self.semantics)
        if isinstance(self.sub_policies, str) or not isinstance(self.sub_policies, Sequence) or not self.sub_policies:
            raise ValueError("sub_policies must be a non-empty list of lists of (op, probability, level)")
        checked: list[SubPolicy] = []
        for number, sub_policy in enumerate(self.sub_policies):
            try:
                checked.append(tuple(_checked_step(step, mapping) for step in sub_policy))
            except (TypeError, ValueError) as error:
                raise ValueError(f"sub-policy {number}: {error}") from None
        object.__setattr__(self, "sub_policies", tuple(checked))
        object.__setattr__(self, "semantics", mapping.name)
        object.__setattr__(self, "m_std", checked_spread("m_std", self.m_std))
        checked_choice("resample", self.resample, RESAMPLE_CHOICES)
        object.__setattr__(self, "weights", _checked_weights(self.weights, len(checked)))

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that occur in it."""
        return _names(self.sub_policies)

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image, on average."""
        weights = self.weights or (1.0,) * len(self.sub_policies)
        shares, total = dict.fromkeys(self.ops, 0.0), sum(weights)
        for weight, sub_policy in zip(weights, self.sub_policies):
            for name, probability, _ in sub_policy:
                shares[name] += weight * probability / total
        return shares

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples; see :meth:`Policy.sample`."""
        mapping = get_semantics(self.semantics)
        slots = _slots(self.sub_policies)
        draws = Draws(
            ids,
            epoch,
            seed,
            {
                Stream.OP: 1,
                Stream.GATE: slots,
                Stream.SIGN: slots,
                Stream.LEVEL: slots if self.m_std else 0,
                Stream.INTERPOLATION: slots if self.resample == "random" else 0,
                Stream.PLACE: places(self.ops, slots),
            },
        )
        tables = _tables(self.sub_policies, ids.device, self.weights)
        if tables.edges is None:
            drawn = draws.choice(Stream.OP, len(self.sub_policies)).squeeze(-1)
        else:
            drawn = (draws[Stream.OP] >= tables.edges).sum(-1)
        choice = tables.choice.index_select(0, drawn)
        levels = draws.levels(tables.level.index_select(0, drawn), self.m_std, mapping.top)
        arg = mapping.arguments(tables.names, choice, levels, draws.signs(), checked_size(size))
        applied = draws[Stream.GATE] < tables.probability.index_select(0, drawn)
        op = torch.where(applied, _indices(tables.names, ids.device)[choice], 0)
        arg = torch.where(applied, arg, 0.0)
        return Program.trusted(op, arg, draws.resample(), draws.patches(mapping, op, arg, size))

    def tables(self, size: tuple[int, int]) -> DrawTables | None:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        if self.m_std or self.weights is not None:
            return None
        rows = _tables(self.sub_policies, torch.device("cpu"))
        return DrawTables(
            Draw.ROWS,
            rows.choice.shape[1],
            torch.tensor(op_indices(rows.names), device="cpu")[rows.choice].contiguous(),
            both_signs(self.semantics, rows.names, rows.choice, rows.level, size),
            gate=rows.probability,
            rows=len(rows.choice),
            random_code=self.resample == "random",
        )

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        mapping, rows = get_semantics(self.semantics), _tables(self.sub_policies, torch.device("cpu"), self.weights)
        return DrawPlan(
            kind=Draw.ROWS,
            slots=rows.choice.shape[1],
            ops=rows.names,
            mapping=mapping,
            levels=rows.level.flatten().tolist(),
            gates=rows.probability.flatten().tolist(),
            names=rows.choice.flatten().tolist(),
            rows=len(rows.choice),
            edges=None if rows.edges is None else rows.edges.tolist(),
            spread=self.m_std,
            highest=mapping.top,
            random_code=self.resample == "random",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain JSON data."""
        return {
            "kind": self.kind,
            "semantics": self.semantics,
            "m_std": "inf" if self.m_std == math.inf else self.m_std,
            "resample": self.resample,
            **({} if self.weights is None else {"weights": list(self.weights)}),
            "sub_policies": [[list(step) for step in sub_policy] for sub_policy in self.sub_policies],
        }

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        optional = {name: data[name] for name in ("m_std", "resample", "weights") if name in data}
        return cls(data["sub_policies"], data["semantics"], **optional)

    def __repr__(self) -> str:
        count, applied = len(self.sub_policies), self.ops_per_image
        return f"SubPolicies({count} sub-policies, semantics={self.semantics!r}, {applied:.2f} ops per image)"


def _checked_step(step: Any, mapping: Any) -> tuple[str, float, float]:
    if not isinstance(step, (tuple, list)) or len(step) != 3:
        raise ValueError(f"expected (op, probability, level), got {step!r}")
    name, probability, level = step
    op = lookup(name)
    mapping.rule(name)
    if level is None and not op.takes_argument:
        level = 0
    return (
        op.name,
        checked_fraction(f"the probability of {name}", probability),
        checked_level(f"the level of {name}", level, mapping.top) if op.takes_argument else 0.0,
    )


def _checked_weights(weights: Any, count: int) -> tuple[float, ...] | None:
    if weights is None:
        return None
    if not isinstance(weights, (tuple, list)) or len(weights) != count:
        raise ValueError(f"weights must be {count} numbers, one per sub-policy, got {weights!r}")
    valid = all(isinstance(w, (int, float)) and not isinstance(w, bool) and 0 <= w < math.inf for w in weights)
    if not valid or sum(weights) <= 0:
        raise ValueError("weights must be finite, must not be negative and must not all be zero")
    return tuple(float(weight) for weight in weights)


def _slots(sub_policies: tuple[SubPolicy, ...]) -> int:
    return max(1, max(len(sub_policy) for sub_policy in sub_policies))


@lru_cache(maxsize=16)
def _names(sub_policies: tuple[SubPolicy, ...]) -> tuple[str, ...]:
    return tuple(sorted({step[0] for sub_policy in sub_policies for step in sub_policy}))


@lru_cache(maxsize=16)
def _tables(
    sub_policies: tuple[SubPolicy, ...], device: torch.device, weights: tuple[float, ...] | None = None
) -> _Tables:
    names = tuple(sorted({*_names(sub_policies), "Identity"}))
    slots = _slots(sub_policies)
    padding = (("Identity", 0.0, 0.0),) * slots
    rows = [(*sub_policy, *padding)[:slots] for sub_policy in sub_policies]
    return _Tables(
        names,
        torch.tensor([[names.index(step[0]) for step in row] for row in rows], device=device),
        torch.tensor([[step[1] for step in row] for row in rows], dtype=torch.float64, device=device),
        torch.tensor([[step[2] for step in row] for row in rows], dtype=torch.float64, device=device),
        None
        if weights is None
        else interval_edges(torch.tensor(weights, dtype=torch.float64, device="cpu")).to(device),
    )
