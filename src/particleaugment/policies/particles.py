"""The paper's policy: a weighted set of particles, each a vector of application probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from particleaugment.core.op_table import OPS, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import (
    RESAMPLE_CHOICES,
    Draws,
    Policy,
    by_name,
    checked_choice,
    checked_level,
    checked_ops,
    checked_size,
    get_semantics,
    interval_edges,
    listed,
    places,
)
from particleaugment.policies.rand import _indices
from particleaugment.policies.subpolicies import SubPolicies
from particleaugment.policies.tables import Draw, DrawTables, both_signs

__all__ = ["ParticlePolicy"]

_ORDERS = ("fixed", "random")


@dataclass(frozen=True, eq=False, repr=False)
class ParticlePolicy(Policy):
    """Each sample draws a particle by weight; each op j of that particle is then applied with probability p_j.

    Attributes:
        particles: Application probabilities, float64 ``[r, n]``, one column per op.
        weights: Float64 ``[r]``; normalised to sum to one.
        m: Level on the scale of ``semantics``: one for all ops, or one per op.
        semantics: Name of the mapping from level to argument.
        order: ``fixed`` applies ops in the order of ``ops``, ``random`` in an order drawn per sample.
        ops: Op names of the columns.
        resample: ``default`` leaves the filter to ``apply``; ``random`` draws bilinear or bicubic per op.

    Two particles see the same uniforms for the same sample (common random numbers), so programs of different particles
    differ only where their probabilities do.

    >>> policy = ParticlePolicy(torch.full((4, 15), 0.2), torch.ones(4), m=3)
    >>> policy.sample(torch.arange(10)).op.shape
    torch.Size([10, 15])
    >>> policy
    ParticlePolicy(4 particles x 15 ops, m=3, semantics='timm-increasing', 2.80 ops per image)
    """

    particles: Tensor
    weights: Tensor
    m: float | Sequence[float] = 3.0
    semantics: str = "timm-increasing"
    order: str = "fixed"
    ops: tuple[str, ...] = OPS
    resample: str = "default"
    _on_device: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, init=False)

    kind: ClassVar[str] = "particles"
    learned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        mapping = get_semantics(self.semantics)
        ops = checked_ops(self.ops)
        for name in ops:
            mapping.rule(name)
        particles = _checked_tensor("particles", self.particles, 2)
        weights = _checked_tensor("weights", self.weights, 1)
        if particles.shape[1] != len(ops):
            raise ValueError(f"particles must have one column per op, {len(ops)}, got shape {tuple(particles.shape)}")
        if len(particles) != len(weights) or not len(weights):
            raise ValueError(f"there must be one weight per particle, got {len(weights)} for {len(particles)}")
        if bool((particles < 0).any()) or bool((particles > 1).any()):
            raise ValueError("particles must hold probabilities from 0 to 1")
        if bool((weights < 0).any()) or float(weights.sum()) <= 0:
            raise ValueError("weights must not be negative and must not all be zero")
        checked = {
            "particles": particles,
            "weights": _normalised(weights),
            "m": _checked_levels(self.m, ops, mapping.top),
            "semantics": mapping.name,
            "order": checked_choice("order", self.order, _ORDERS),
            "ops": ops,
            "resample": checked_choice("resample", self.resample, RESAMPLE_CHOICES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def levels(self) -> tuple[float, ...]:
        """Level of each op."""
        return tuple(self.m) if isinstance(self.m, Sequence) else (self.m,) * len(self.ops)

    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples; see :meth:`Policy.sample`."""
        draws = self._draws(ids, epoch, seed)
        particles, edges, _ = self._constants(ids.device)
        drawn = (draws[Stream.PARTICLE] >= edges).sum(-1)
        return self._program(draws, particles.index_select(0, drawn), size)

    def sample_particle(
        self,
        particle: Tensor,
        ids: Tensor,
        epoch: int | Tensor = 0,
        seed: int | Tensor = 0,
        size: tuple[int, int] = (32, 32),
    ) -> Program:
        """Draw the programs of some samples under given particles; see :meth:`Policy.sample_particle`."""
        particles, _, _ = self._constants(ids.device)
        return self._program(self._draws(ids, epoch, seed), particles.index_select(0, particle.to(ids.device)), size)

    def _draws(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor) -> Draws:
        n = len(self.ops)
        slots = {Stream.PARTICLE: 1, Stream.OP: n, Stream.SIGN: n}
        slots[Stream.ORDER] = n if self.order == "random" else 0
        slots[Stream.INTERPOLATION] = n if self.resample == "random" else 0
        slots[Stream.PLACE] = places(self.ops, n)
        return Draws(ids, epoch, seed, slots)

    def _program(self, draws: Draws, probability: Tensor, size: tuple[int, int]) -> Program:
        mapping, device = get_semantics(self.semantics), probability.device
        *_, levels = self._constants(device)
        columns = torch.arange(len(self.ops), device=device)
        arg = mapping.arguments(self.ops, columns, levels, draws.signs(), checked_size(size))
        applied = draws[Stream.OP] < probability
        op = torch.where(applied, _indices(self.ops, device), 0)
        arg = torch.where(applied, arg, 0.0)
        resample, patch = draws.resample(), draws.patches(mapping, op, arg, size)
        if self.order == "random":
            order = draws[Stream.ORDER].argsort(dim=-1, stable=True)
            op, arg = op.gather(1, order), arg.gather(1, order)
            resample = None if resample is None else resample.gather(1, order)
            patch = None if patch is None else patch.gather(1, order.unsqueeze(-1).expand(-1, -1, 5))
        return Program.trusted(op, arg, resample, patch)

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        if device not in self._on_device:
            edges, levels = interval_edges(self.weights), torch.tensor(self.levels, dtype=torch.float64, device="cpu")
            self._on_device[device] = (self.particles.to(device), edges.to(device), levels.to(device))
        return self._on_device[device]

    def tables(self, size: tuple[int, int]) -> DrawTables | None:
        """Return the kernel's tables; see :meth:`Policy.tables`."""
        if self.order != "fixed":
            return None
        particles, edges, levels = self._constants(torch.device("cpu"))
        choice = torch.arange(len(self.ops), device="cpu")
        return DrawTables(
            Draw.PARTICLES,
            len(self.ops),
            torch.tensor(op_indices(self.ops), device="cpu"),
            both_signs(self.semantics, self.ops, choice, levels, size),
            gate=particles,
            edges=edges,
            rows=len(particles),
            random_code=self.resample == "random",
        )

    def plan(self) -> DrawPlan:
        """Return what single samples are drawn from; see :meth:`Policy.plan`."""
        particles, edges, _ = self._constants(torch.device("cpu"))
        return DrawPlan(
            kind=Draw.PARTICLES,
            slots=len(self.ops),
            ops=self.ops,
            mapping=get_semantics(self.semantics),
            levels=self.levels,
            gates=particles.flatten().tolist(),
            rows=len(particles),
            edges=edges.tolist(),
            random_code=self.resample == "random",
            random_order=self.order == "random",
        )

    @property
    def ops_per_image(self) -> float:
        """Mean number of ops applied to an image, Identity not counted."""
        changing = torch.tensor([name != "Identity" for name in self.ops], dtype=torch.float64, device="cpu")
        return float(self.weights @ self.particles @ changing)

    @property
    def inclusion(self) -> dict[str, float]:
        """Probability with which each op is applied to an image, over all particles."""
        return by_name(self.ops, (self.weights @ self.particles).tolist())

    @property
    def distinct(self) -> int:
        """How many different particles it has, to three decimals."""
        return len(np.unique(self.particles.numpy().round(3), axis=0))

    def static(self, epoch: int | None = None) -> tuple[Policy, list[str]]:
        """Return a sub-policy per particle, drawn by its weight, which is exact; see :meth:`Policy.static`."""
        self.at_or_last(epoch)
        rows = [
            tuple((name, p, m) for name, p, m in zip(self.ops, particle, self.levels) if p > 0 and name != "Identity")
            for particle in self.particles.tolist()
        ]
        lost = ["the random order of the ops (theirs is fixed)"] if self.order == "random" else []
        return SubPolicies(tuple(rows), self.semantics, 0.0, self.resample, tuple(self.weights.tolist())), lost

    def numbers(self) -> Tensor:
        """Return particles and weights; see :meth:`Policy.numbers`."""
        return torch.cat([self.particles, self.weights.unsqueeze(1)], 1)

    def with_numbers(self, numbers: Tensor) -> Self:
        """Return the policy with other particles and weights; see :meth:`Policy.with_numbers`."""
        return replace(self, particles=numbers[:, :-1], weights=numbers[:, -1])

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain JSON data."""
        return {
            "kind": self.kind,
            "m": list(self.m) if isinstance(self.m, Sequence) else self.m,
            "semantics": self.semantics,
            "order": self.order,
            "resample": self.resample,
            "ops": list(self.ops),
            "weights": self.weights.tolist(),
            "particles": self.particles.tolist(),
        }

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = ("particles", "weights", "m", "semantics", "order", "resample")
        return cls(**{name: data[name] for name in fields}, ops=listed(data, "ops"))

    def __getstate__(self) -> dict[str, Any]:
        # What lies on a GPU must not travel to worker processes, nor to machines without one.
        return {**self.__dict__, "_on_device": {}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParticlePolicy):
            return NotImplemented
        same = all(
            getattr(self, name) == getattr(other, name) for name in ("m", "semantics", "order", "ops", "resample")
        )
        return same and torch.equal(self.particles, other.particles) and torch.equal(self.weights, other.weights)

    def __hash__(self) -> int:
        return hash((self.m, self.semantics, self.order, self.ops, self.resample, self.particles.numpy().tobytes()))

    def __repr__(self) -> str:
        r, n = self.particles.shape
        m = "one per op" if isinstance(self.m, Sequence) else f"{self.m:g}"
        return (
            f"ParticlePolicy({r} particles x {n} ops, m={m}, semantics={self.semantics!r}, "
            f"{self.ops_per_image:.2f} ops per image)"
        )


def _checked_levels(value: Any, ops: tuple[str, ...], top: float) -> float | tuple[float, ...]:
    if isinstance(value, (Tensor, np.ndarray)):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return checked_level("m", value, top)
    if len(value) != len(ops):
        raise ValueError(f"m must be one level, or one per op, {len(ops)}, got {len(value)}")
    return tuple(checked_level(f"m of {name}", level, top) for name, level in zip(ops, value))


def _normalised(weights: Tensor) -> Tensor:
    # Weights that already sum to one but for rounding stay as they are, so that a saved policy is loaded bit for bit.
    total = weights.sum()
    return weights if abs(float(total) - 1) < 1e-12 else weights / total


def _checked_tensor(name: str, value: Any, dims: int) -> Tensor:
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name} must be numbers in {dims} dimension(s), got {type(value).__name__}") from None
    if tensor.dim() != dims:
        raise ValueError(f"{name} must have {dims} dimension(s), got shape {tuple(tensor.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite")
    return tensor
