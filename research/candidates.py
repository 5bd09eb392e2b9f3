"""Candidate filters: each steers a mixture of ops so that training is as hard as new samples are.

Difficulty is the training loss under augmentation over the loss of held-out plain samples. A candidate is a few numbers
in a table below; ``explore.py`` trains it on the proving ground's tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from particle_candidate import ParticleCandidate
from torch import Tensor

from particleaugment.core.op_table import OPS, lookup, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream
from particleaugment.policies.mixture import even_counts
from particleaugment.policies.policy import Draws, Policy, get_semantics
from particleaugment.policies.tables import Draw, DrawTables, both_signs
from particleaugment.policies.trivial import TrivialAugment

WIDE, MODERATE = "trivial-wide", "timm-increasing"
FROZEN_FROM = 0.8  # of training: from there on all samples are trained on, and nothing is steered
SLOTS = 4  # of the shape even-slots
COUNTS = 8  # most ops of the shape even-counts


@dataclass(frozen=True, eq=False)
class Mixture(Policy):
    """Several slots; each draws an op evenly; one draw says which slots are applied; levels are drawn up to a cap.

    Attributes:
        ops: The ops.
        gate: Probability that slot k applies op j once drawn, float64 ``[K, n]``, falling with k.
        cap: Highest level of each op as a share of the semantics' top, float64 ``[n]``.
        level_floor: Lowest level as a share of the cap: 0 draws levels evenly up to the cap, 1 always takes the cap.
        semantics: What levels mean: ``trivial-wide`` turns by up to 135 degrees, ``timm-increasing`` by up to 30.
        level_curve: Levels are drawn evenly and raised to this power: above 1, most are low and a few are high.
    """

    ops: tuple[str, ...] = field()
    gate: Tensor
    cap: Tensor
    level_floor: float = 0.0
    semantics: str = WIDE
    level_curve: float = 1.0

    kind = "research-mixture"

    def _levels(self) -> tuple[Tensor, Tensor]:
        top = get_semantics(self.semantics).top
        steps = torch.arange(int(top) + 1, dtype=torch.float64, device="cpu")
        steps = top * (self.level_floor + (1 - self.level_floor) * (steps / top) ** self.level_curve)
        choice = torch.arange(len(self.ops), device="cpu").repeat_interleave(len(steps))
        return choice, (self.cap[:, None] * steps).flatten()

    def tables(self, size: tuple[int, int]) -> DrawTables:
        """Return the kernel's tables."""
        choice, levels = self._levels()
        return DrawTables(
            Draw.RANDOM_LEVELS,
            len(self.gate),
            torch.tensor(op_indices(self.ops), device="cpu"),
            both_signs(self.semantics, self.ops, choice, levels, size),
            gate=self.gate.contiguous(),
            choices=len(self.ops),
            levels=len(levels) // len(self.ops),
        )

    def sample(self, ids: Tensor, epoch: Any = 0, seed: Any = 0, size: tuple[int, int] = (32, 32)) -> Program:
        """Draw programs; the kernel draws the same."""
        slots, tables = len(self.gate), self.tables(size)
        streams = (Stream.OP, Stream.LEVEL, Stream.SIGN, Stream.GATE)
        draws = Draws(ids, epoch, seed, dict.fromkeys(streams, slots))
        choice = draws.choice(Stream.OP, len(self.ops))
        level = draws.choice(Stream.LEVEL, tables.levels)
        applied = draws[Stream.GATE][:, :1] < self.gate.to(ids.device)[torch.arange(slots, device=ids.device), choice]
        sign = (draws.signs() < 0).to(torch.int64)
        arg = tables.table_arg.to(ids.device).view(-1, 2)[choice * tables.levels + level, sign]
        op = tables.table_op.to(ids.device)[choice]
        return Program.trusted(torch.where(applied, op, 0), torch.where(applied, arg, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain data."""
        return {"kind": self.kind, "ops": list(self.ops), "gate": self.gate.tolist(), "cap": self.cap.tolist()}

    @classmethod
    def _from_dict(cls, data: Any) -> Any:
        return cls(tuple(data["ops"]), torch.tensor(data["gate"]), torch.tensor(data["cap"]))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A candidate's settings.

    Attributes:
        shape: What strength does to the mixture: ``level-then-ops`` (one op up to full level, then a second and a
            third), ``three-mild`` (three ops whose level rises), ``ops-then-level`` (more ops first, then their level),
            ``even-slots`` (four slots, each applied with a quarter of the strength as probability, at any level),
            ``even-counts`` (images get from none to twice the strength, all numbers of ops as often, at any level),
            ``per-op`` (a cap for each op, each steered by the loss of the samples that it was applied to).
        kappa: Wanted difficulty.
        held_out: Samples held out until 80 % of training.
        start: Strength at the start: from 0 to 3, or the caps' first value for ``per-op``.
        gain: How far strength can move over the whole run, at most.
        slots: Ops per image, for ``per-op``.
        pull: For ``per-op``: how strongly caps follow their own op's loss rather than the mean over ops (1: only).
        frozen: Whether strength stays where it starts.
        wait: Whether early losses count less: an update is weighted by how far the held-out loss is below chance.
        late: Whether updates grow with time, from none at the start to twice the gain at the end.
        kappa_start: Wanted difficulty at the start, from where it goes to ``kappa`` at half of training.
        semantics: What levels mean.
        level_floor: Lowest level, as a share of the highest.
        level_curve: Power that evenly drawn levels are raised to.
        level_cap: Highest level of ``even-slots``, as a share of the semantics' top.
        memory: Share of training over which losses, or the logarithm of their ratio, are averaged.
        all_ops: Whether to draw from RandAugment's fifteen ops instead of TrivialAugment's fourteen.
        same_mode: Whether held-out samples are measured as training samples are, with a batch's own statistics. In
            evaluation mode their loss jumps early in training, while batch norm's averages lag behind.
        log_mean: Whether the logarithm of the losses' ratio is averaged, each epoch's cut at -1 and 1, rather than the
            losses: then a single jump counts for little.
    """

    shape: str = "level-then-ops"
    kappa: float = 1.0
    held_out: int = 64
    start: float = 1.0
    gain: float = 12.0
    slots: int = 3
    pull: float = 1.0
    frozen: bool = False
    wait: bool = False
    late: bool = False
    kappa_start: float | None = None
    semantics: str = WIDE
    level_floor: float = 0.0
    level_curve: float = 1.0
    level_cap: float = 1.0
    memory: float = 0.05
    all_ops: bool = False
    same_mode: bool = False
    log_mean: bool = False

    @property
    def policy_slots(self) -> int:
        """Slots of its policy."""
        return {"per-op": self.slots, "even-slots": SLOTS, "even-counts": COUNTS}.get(self.shape, 3)

    @property
    def strongest(self) -> float:
        """The highest strength."""
        return {"even-slots": float(SLOTS), "even-counts": COUNTS / 2}.get(self.shape, 3.0)


@dataclass
class Controller:
    """A candidate at work on one run."""

    settings: Candidate
    ops: tuple[str, ...]
    epochs: int
    classes: int
    strength: float = 0.0
    log_cap: Tensor = field(default_factory=lambda: torch.zeros(0))
    _train: float | None = None
    _held: float | None = None
    _log: float | None = None
    _op_sum: Tensor | None = None
    _op_count: Tensor | None = None

    def __post_init__(self) -> None:
        self.strength = self.settings.start
        first = max(1e-3, self.settings.start if self.settings.shape == "per-op" else 1.0)
        self.log_cap = torch.full((len(self.ops),), math.log(first), dtype=torch.float64)
        self.has_level = torch.tensor([lookup(name).takes_argument and name != "Rotate90" for name in self.ops])

    def policy(self) -> Mixture:
        """Return the mixture at the present strength."""
        n, s, shape = len(self.ops), self.strength, self.settings.shape
        ones = torch.ones(n, dtype=torch.float64)
        if shape == "per-op":
            cap = self.log_cap.exp()
            gate = torch.where(self.has_level, ones, cap).repeat(self.settings.slots, 1)
            return Mixture(self.ops, gate, torch.where(self.has_level, cap, ones))
        if shape == "even-slots":
            # One draw says how many slots are applied: at least k of four, each with the same probability.
            gate = torch.tensor([at_least(k, SLOTS, s / SLOTS) for k in range(1, SLOTS + 1)], dtype=torch.float64)
            gate = gate[:, None].repeat(1, n)
            extra = self.settings.level_floor, self.settings.semantics, self.settings.level_curve
            return Mixture(self.ops, gate, self.settings.level_cap * ones, *extra)
        if shape == "even-counts":
            gate = torch.tensor(even_counts(s, COUNTS), dtype=torch.float64)[:, None].repeat(1, n)
            extra = self.settings.level_floor, self.settings.semantics, self.settings.level_curve
            return Mixture(self.ops, gate, self.settings.level_cap * ones, *extra)
        slots = torch.arange(3, dtype=torch.float64)
        if shape == "level-then-ops":
            level, share = min(1.0, s), (s - slots).clamp(0, 1)
            share[0] = 1.0
        elif shape == "three-mild":
            level, share = min(1.0, s / 3), torch.ones(3, dtype=torch.float64)
        elif shape == "ops-then-level":
            level, share = min(1.0, 0.2 + 0.8 * max(0.0, s - 1) / 2), (3 * s - slots).clamp(0, 1)
        else:
            raise ValueError(f"there is no shape {shape!r}")
        # Ops without a level are as strong as their probability.
        gate = share[:, None] * torch.where(self.has_level, 1.0, level)
        return Mixture(self.ops, gate, level * ones, self.settings.level_floor, self.settings.semantics)

    def _average(self, before: float | None, now: float) -> float:
        return now if before is None else before + (now - before) / max(1.0, self.settings.memory * self.epochs)

    def _kappa(self, epoch: int) -> float:
        start = self.settings.kappa if self.settings.kappa_start is None else self.settings.kappa_start
        return start + (self.settings.kappa - start) * min(1.0, 2 * epoch / self.epochs)

    def update(self, epoch: int, train: float, held: float | None, op_sum: Tensor, op_count: Tensor) -> None:
        """Take an epoch's losses in and move the strength."""
        if held is None or self.settings.frozen or epoch > FROZEN_FROM * self.epochs:
            return
        held = min(held, math.log(self.classes))  # worse than chance says nothing about new samples
        self._train, self._held = self._average(self._train, train), self._average(self._held, held)
        keep = 1 - 1 / max(1.0, self.settings.memory * self.epochs)
        self._op_sum = op_sum if self._op_sum is None else keep * self._op_sum + op_sum
        self._op_count = op_count if self._op_count is None else keep * self._op_count + op_count
        kappa, rate = self._kappa(epoch), self.settings.gain / self.epochs
        target = math.log(kappa * max(self._held, 1e-6))
        if self.settings.late:
            rate *= 2 * epoch / self.epochs
        if self.settings.wait:
            rate *= max(0.0, 1.0 - self._held / math.log(self.classes))
        error = max(-1.0, min(1.0, target - math.log(max(self._train, 1e-6))))
        if self.settings.log_mean:
            now = math.log(kappa * max(held, 1e-6)) - math.log(max(train, 1e-6))
            error = self._log = self._average(self._log, max(-1.0, min(1.0, now)))
        if self.settings.shape != "per-op":
            self.strength = max(0.0, min(self.settings.strongest, self.strength + rate * error))
            return
        mean = self._op_sum / self._op_count.clamp(min=1.0)
        own = (target - mean.clamp(min=1e-6).log()).clamp(-1, 1)
        own = torch.where(self._op_count > 0, own, torch.full_like(own, error))
        step = self.settings.pull * own + (1 - self.settings.pull) * error
        self.log_cap = (self.log_cap + rate * step).clamp(math.log(1e-3), 0.0)

    def trace(self) -> dict[str, Any]:
        """Return the present strength for the record."""
        if self.settings.shape == "per-op":
            caps = {name: round(cap, 3) for name, cap in zip(self.ops, self.log_cap.exp().tolist())}
            return {"caps": caps}
        return {"strength": round(self.strength, 3)}


def at_least(k: int, slots: int, probability: float) -> float:
    """Return the probability that at least k of some slots are applied, each with the same probability."""
    count = range(k, slots + 1)
    return sum(math.comb(slots, c) * probability**c * (1 - probability) ** (slots - c) for c in count)


def task_ops(configured: tuple[str, ...], all_ops: bool = False) -> tuple[str, ...]:
    """Return the ops of a task: its own op set, or TrivialAugment's fourteen, or RandAugment's fifteen."""
    return TrivialAugment().ops if configured == OPS and not all_ops else configured


STEERED: dict[str, Any] = {
    "shape": "even-slots", "gain": 80.0, "memory": 0.01, "same_mode": True, "log_mean": True, "wait": True,
}  # fmt: skip
COUNTED: dict[str, Any] = STEERED | {"shape": "even-counts", "start": 2.0, "semantics": MODERATE}

CANDIDATES: dict[str, Candidate | ParticleCandidate] = {
    "knob": Candidate(),
    "knob-k0.7": Candidate(kappa=0.7),
    "knob-k0.5": Candidate(kappa=0.5),
    "knob-k1.4": Candidate(kappa=1.4),
    "knob-fast": Candidate(gain=36.0),
    "knob-fast-held32": Candidate(gain=36.0, held_out=32),
    "knob-fast-from2": Candidate(gain=36.0, start=2.0),
    "knob-fast-wait": Candidate(gain=60.0, wait=True),
    "ops-2": Candidate(start=2.0, frozen=True, held_out=2),
    "ops-3": Candidate(start=3.0, frozen=True, held_out=2),
    "knob-held32": Candidate(held_out=32),
    "knob-held128": Candidate(held_out=128),
    "mild": Candidate(shape="three-mild"),
    "mild-k0.5": Candidate(shape="three-mild", kappa=0.5),
    "mild-k0.3": Candidate(shape="three-mild", kappa=0.3),
    "ops-first": Candidate(shape="ops-then-level"),
    "ops-first-fast": Candidate(shape="ops-then-level", gain=36.0),
    "mild-fast": Candidate(shape="three-mild", gain=36.0),
    "knob-fast-k0.7": Candidate(gain=36.0, kappa=0.7),
    "knob-faster": Candidate(gain=100.0),
    "knob-from0": Candidate(gain=60.0, start=0.0, same_mode=True, log_mean=True),
    "knob-same-mode": Candidate(gain=36.0, same_mode=True, log_mean=True),
    "wide-slots-from0": Candidate(shape="even-slots", gain=60.0, start=0.0, same_mode=True, log_mean=True),
    "moderate-slots-from0": Candidate(
        shape="even-slots", gain=60.0, start=0.0, same_mode=True, log_mean=True, semantics=MODERATE
    ),
    "moderate-slots-k0.5": Candidate(
        shape="even-slots", gain=60.0, start=0.0, same_mode=True, log_mean=True, semantics=MODERATE, kappa=0.5
    ),
    "wide-slots-1": Candidate(shape="even-slots", start=1.0, frozen=True, held_out=2),
    "wide-slots-2": Candidate(shape="even-slots", start=2.0, frozen=True, held_out=2),
    "moderate-slots-2": Candidate(shape="even-slots", start=2.0, frozen=True, held_out=2, semantics=MODERATE),
    "moderate-slots-3": Candidate(shape="even-slots", start=3.0, frozen=True, held_out=2, semantics=MODERATE),
    "moderate-4": Candidate(shape="even-slots", start=4.0, frozen=True, held_out=2, semantics=MODERATE),
    "moderate-top-2": Candidate(
        shape="even-slots", start=2.0, frozen=True, held_out=2, semantics=MODERATE, level_floor=0.5
    ),
    "curved-slots-2": Candidate(shape="even-slots", start=2.0, frozen=True, held_out=2, level_curve=2.0),
    "curved-slots-3": Candidate(shape="even-slots", start=3.0, frozen=True, held_out=2, level_curve=2.0),
    "moderate-all-3": Candidate(
        shape="even-slots", start=3.0, frozen=True, held_out=2, semantics=MODERATE, all_ops=True
    ),
    "curved-slots-from0": Candidate(
        shape="even-slots", gain=60.0, start=0.0, same_mode=True, log_mean=True, level_curve=2.0
    ),
    "moderate-all-from0": Candidate(
        shape="even-slots", gain=60.0, start=0.0, same_mode=True, log_mean=True, semantics=MODERATE, all_ops=True
    ),
    "mild-slots-3": Candidate(
        shape="even-slots", start=3.0, frozen=True, held_out=2, semantics=MODERATE, level_cap=0.5
    ),
    "mild-4": Candidate(shape="even-slots", start=4.0, frozen=True, held_out=2, semantics=MODERATE, level_cap=0.5),
    "level-4-slots-3": Candidate(
        shape="even-slots", start=3.0, frozen=True, held_out=2, semantics=MODERATE, level_cap=0.4, level_floor=1.0
    ),
    "third-wide-slots-3": Candidate(shape="even-slots", start=3.0, frozen=True, held_out=2, level_cap=0.3),
    "third-wide-4": Candidate(shape="even-slots", start=4.0, frozen=True, held_out=2, level_cap=0.3),
    "moderate-slots-1": Candidate(shape="even-slots", start=1.0, frozen=True, held_out=2, semantics=MODERATE),
    "moderate-steered": Candidate(**STEERED, semantics=MODERATE),
    "moderate-steered-k0.8": Candidate(**STEERED, semantics=MODERATE, kappa=0.8),
    "moderate-steered-0": Candidate(**STEERED, semantics=MODERATE, start=0.0),
    "moderate-steered-2": Candidate(**STEERED, semantics=MODERATE, start=2.0),
    "wide-steered-k0.8": Candidate(**STEERED, kappa=0.8),
    **{
        f"{name}-counts-{mean}": Candidate(
            shape="even-counts", start=float(mean), frozen=True, held_out=2, semantics=semantics, level_curve=curve
        )
        for name, semantics, curve in (("moderate", MODERATE, 1.0), ("wide", WIDE, 1.0), ("curved", WIDE, 2.0))
        for mean in (1, 2, 3, 4)
    },
    "counts-steered": Candidate(**COUNTED, kappa=0.85),
    "counts-late": Candidate(**COUNTED | {"wait": False, "late": True}, kappa=0.85),
    "counts-falling": Candidate(**COUNTED, kappa=0.85, kappa_start=1.15),
    "counts-late-falling": Candidate(**COUNTED | {"wait": False, "late": True}, kappa=0.85, kappa_start=1.15),
    "wide-counts-late": Candidate(**COUNTED | {"wait": False, "late": True, "semantics": WIDE}, kappa=0.85),
    "own-difficulty": ParticleCandidate(),
    "own-difficulty-shuffled": ParticleCandidate(shuffled=True),
    "per-op": Candidate(shape="per-op", start=0.5, gain=24.0),
    "per-op-k0.3": Candidate(shape="per-op", start=0.5, gain=24.0, kappa=0.3),
    "per-op-k0.5": Candidate(shape="per-op", start=0.5, gain=24.0, kappa=0.5),
    "per-op-k0.7": Candidate(shape="per-op", start=0.5, gain=24.0, kappa=0.7),
    "per-op-k1.4": Candidate(shape="per-op", start=0.5, gain=24.0, kappa=1.4),
    "per-op-2": Candidate(shape="per-op", start=0.7, gain=24.0, slots=2),
    "per-op-1": Candidate(shape="per-op", start=1.0, gain=24.0, slots=1),
    "per-op-4": Candidate(shape="per-op", start=0.4, gain=24.0, slots=4),
    "per-op-pull0": Candidate(shape="per-op", start=0.5, gain=24.0, pull=0.0),
}
