"""A filter that steers how severe augmentation is by the generalisation gap: held-out loss minus training loss.

The more the network overfits, the more augmentation it gets. One step:

1. *transition*: particles move by a noise that keeps about l active ops in each;
2. *measurement*: each op alone is applied to the images of D_vp, which is held out, and its severity is the mean rise
   of their losses: one forward pass per op and image, and no clone. The loss of as many training images gives the
   generalisation gap. A particle's severity is the sum over its ops, weighted by their probabilities;
3. *target*: the wanted severity is ``gain`` times the gap, averaged over a twentieth of training;
4. *update*: of all weights that give the policy the wanted severity, take the ones nearest to the old weights;
5. *resampling* if the effective sample size is below α·r.

Until the first gap is measured, no op is applied. Over the last fifth of training severity falls to zero, the gap is no
longer measured, and the network also trains on D_vp.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.data.split import disjoint_stratified_subsets
from particleaugment.filter._checks import as_real
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.schedule import Schedule
from particleaugment.search.checks import check_moments, check_particles, check_resampling, check_size
from particleaugment.search.clone import MEASUREMENTS
from particleaugment.search.filter_base import Filter, Subject
from particleaugment.search.particle_state import ParticleRecord, ParticleState, particle_schedule
from particleaugment.trainee.protocol import Progress, Trainee

__all__ = [
    "FINAL",
    "MEMORY",
    "GapFilter",
    "GapRecord",
    "GapState",
    "Severity",
    "averaged_gap",
    "final_share",
    "measure_severity",
]

_STEEPNESS = 10.0  # of final_share; FINAL follows from it
FINAL = 0.8
"""Share of training after which D_vp is needed no more and may be trained on.

It is where :func:`final_share` begins to fall, 2/π·acos(1/√10) = 0.795, to one decimal. From then on the gap is not
measured, its mean stays, and severity goes down with that share alone."""
MEMORY = 0.05
"""Share of training over which gaps are averaged: one alone is about as large as its error."""
_SLACK = 0.1  # of the held-out loss: early, when losses are high and noisy, a small gap is no overfitting


@dataclass(frozen=True, kw_only=True)
class GapState(ParticleState):
    """The particles, their weights, and the averaged gap.

    Attributes:
        mean_gap: Mean generalisation gap over the last twentieth of training.
    """

    mean_gap: float = 0.0

    def to_dict(self) -> dict[str, Tensor | int | float]:
        """Return what steps change, as tensors and plain numbers."""
        return super().to_dict() | {"mean_gap": self.mean_gap}

    def restored(self, saved: Mapping[str, Any]) -> Self:
        """Return a first state as it was when :meth:`to_dict` was called."""
        return replace(super().restored(saved), mean_gap=float(saved["mean_gap"]))


@dataclass(frozen=True, kw_only=True)
class GapRecord(ParticleRecord):
    """What a step measured and did. If losses were not finite, the fields after ``standard_error`` are empty.

    Attributes:
        delta: Severity of each particle; nan if undefined.
        standard_error: Standard error of each.
        effects: Severity of each op: by how much it raises the loss.
        effect_errors: Their standard errors.
        gap: Generalisation gap as measured in this step; None in the last fifth of training.
        mean_gap: Its mean over the last twentieth of training, which the wanted severity follows.
        severity: Mean severity of the new policy.
        wanted_severity: Target of the update.
    """

    delta: tuple[float, ...]
    standard_error: tuple[float, ...]
    effects: tuple[float, ...] = ()
    effect_errors: tuple[float, ...] = ()
    gap: float | None = None
    mean_gap: float | None = None
    severity: float | None = None
    wanted_severity: float | None = None


@dataclass(frozen=True, kw_only=True)
class GapFilter(Filter[GapState]):
    """Steers the policy's severity by the generalisation gap.

    ``measure_size`` samples are held out for the first four fifths of training.

    >>> GapFilter(measure_size=64).holds_out_in(epoch=48, epochs=60), GapFilter().holds_out_in(epoch=49, epochs=60)
    (True, False)

    Attributes:
        num_particles: Number of particles, r.
        nonzero: Mean number of active ops per particle, l.
        m: Level of all ops.
        start_value: Mean probability of an active op.
        sigma: Standard deviation of the transition noise.
        gain: Target severity divided by the generalisation gap.
        alpha: Resample when the effective sample size falls below α·r.
        resampling: ``systematic``, ``multinomial``, ``stratified`` or ``residual``.
        every: Epochs between filter steps. ``auto``: every epoch, or about a hundred steps if epochs are short.
        warmup: First epoch that may end with a filter step.
        measure_size: Held-out samples (D_vp): a number, or a fraction of the data.
        order: Order in which ops are applied: ``fixed`` or ``random``.
        semantics: Name of the mapping from level to argument.
    """

    num_particles: int = 50
    nonzero: int = 3
    m: float = 10.0
    start_value: float = 0.33
    sigma: float = 0.05
    gain: float = 2.0
    alpha: float = 0.5
    resampling: str = "systematic"
    every: int | str = "auto"
    warmup: int = 1
    measure_size: int | float = 512
    order: str = "fixed"
    semantics: str = "timm-increasing"

    kind: ClassVar[str] = "gap"

    def __post_init__(self) -> None:
        check_particles(
            num_particles=self.num_particles,
            nonzero=self.nonzero,
            start_value=self.start_value,
            m=self.m,
            semantics=self.semantics,
            order=self.order,
        )
        nothing = pf.ParticleSet([[0.0], [0.0]])
        pf.sparse_transition(nothing, nonzero=1, value=self.start_value, sigma=self.sigma, seed=0, step=0)
        as_real("gain", self.gain, "it is the wanted severity divided by the generalisation gap", low=0.0)
        check_resampling(self.alpha, self.resampling)
        check_moments(self.every, self.warmup)
        check_size("measure_size", self.measure_size)
        if self.measure_size == 1:
            raise ValueError("measure_size must be at least 2: one sample gives no standard error")

    # The algorithm.

    def init(self, seed: int, ops: tuple[str, ...], epochs: int) -> GapState:
        """Return particles that do nothing, with equal weights."""
        state = self.scattered(seed, ops)
        return replace(state, particles=pf.ParticleSet(0.0 * state.particles.particles))

    def scattered(self, seed: int, ops: tuple[str, ...]) -> GapState:
        """Return particles that have l random ops each, at the start value, with equal weights."""
        particles = pf.sparse_init(self.num_particles, len(ops), self.nonzero, self.start_value, seed=seed)
        return GapState(seed=seed, ops=ops, particles=particles)

    def policy(self, state: GapState) -> ParticlePolicy:
        """Return the weighted particles as a policy."""
        particles = state.particles
        return ParticlePolicy(particles.particles, particles.weights, self.m, self.semantics, self.order, state.ops)

    def step(self, state: GapState, subject: Subject, *, epoch: int, epochs: int) -> tuple[GapState, ParticleRecord]:
        """Take one step; see the top of this file."""
        moved = self.moved(state)
        assert subject.split is not None  # D_vp is held out
        found = measure_severity(
            self.policy(moved),
            subject.trainee,
            subject.labels,
            subject.split,
            gap=self.holds_out_in(epoch, epochs),
            seed=state.seed,
            step=moved.steps,
            progress=subject.progress,
        )
        return self.update(moved, found, epoch=epoch, epochs=epochs)

    def moved(self, state: GapState) -> GapState:
        """Return the state after the transition; a step begins with it."""
        step = state.steps + 1
        particles = pf.sparse_transition(
            state.particles, nonzero=self.nonzero, value=self.start_value, sigma=self.sigma, seed=state.seed, step=step
        )
        return replace(state, steps=step, particles=particles)

    def update(self, moved: GapState, found: Severity, *, epoch: int, epochs: int) -> tuple[GapState, GapRecord]:
        """Return the state after the weight update and resampling, and what was found."""
        if found.effects is None:
            return self._skipped(moved, found)
        mean_gap = moved.mean_gap
        if found.gap is not None:
            mean_gap = averaged_gap(mean_gap, found.gap, MEMORY * epochs / self.interval)
        wanted = self.wanted_severity(mean_gap, min(1.0, epoch / epochs))
        scores, errors = pf.particle_scores(moved.particles.particles, found.effects)
        weighted, info = pf.tilted_reweight(moved.particles, scores, errors, target=wanted, degrees=len(moved.ops))
        particles, resampling = pf.resample(
            weighted, alpha=self.alpha, scheme=self.resampling, seed=moved.seed, step=moved.steps
        )
        state = replace(moved, particles=particles, mean_gap=mean_gap)
        policy, (effects, covariance) = self.policy(state), found.effects
        record = GapRecord(
            step=state.steps,
            delta=tuple(scores.tolist()),
            standard_error=tuple(errors.tolist()),
            effects=tuple(effects.tolist()),
            effect_errors=tuple(covariance.diagonal().sqrt().tolist()),
            gap=found.gap,
            mean_gap=mean_gap,
            severity=float(policy.weights @ (policy.particles @ effects)),
            wanted_severity=wanted,
            effective_sample_size=info.effective_sample_size,
            resampled=resampling.resampled,
            ops_per_image=policy.ops_per_image,
            seconds=found.seconds,
        )
        return state, record

    def _skipped(self, moved: GapState, found: Severity) -> tuple[GapState, GapRecord]:
        nothing = (math.nan,) * self.num_particles
        record = GapRecord(
            step=moved.steps,
            delta=nothing,
            standard_error=nothing,
            skip_reason=(
                f"some losses are not finite (D_vp's mean is {found.loss:.6g}), so the ops' effects are unknown"
            ),
            effective_sample_size=pf.effective_sample_size(moved.particles),
            ops_per_image=self.policy(moved).ops_per_image,
            seconds=found.seconds,
        )
        return replace(moved, skipped=moved.skipped + 1), record

    def wanted_severity(self, mean_gap: float, done: float) -> float:
        """Return the severity to steer to, when a share of training is done."""
        return self.gain * max(0.0, mean_gap) * final_share(done)

    def schedule(self, history: Sequence[tuple[int, GapState]], epochs: int) -> Schedule:
        """Return all particles so far as a schedule."""
        return particle_schedule(((start, self.policy(state)) for start, state in history), epochs, self.m)

    # What it needs.

    def held_out_of(self, samples: int) -> int | float:
        """Return the size of D_vp."""
        return self.measure_size

    def holds_out_in(self, epoch: int, epochs: int) -> bool:
        """Whether D_vp is not trained on in an epoch; severities are measured on it after that, but the gap is not."""
        return epoch - 1 < FINAL * epochs

    def check(self, ops: tuple[str, ...], epochs: int) -> None:
        """Raise a ValueError where the settings do not suit the ops."""
        self.policy(self.init(0, ops, epochs))


def final_share(done: float) -> float:
    """Return what is left of severity near the end: all of it for four fifths of training, none at the last epoch.

    It falls with a learning rate that follows a cosine, once that is under a tenth of the first; see :data:`FINAL`.

    >>> [round(final_share(done), 2) for done in (0.0, 0.75, 0.9, 1.0)]
    [1.0, 1.0, 0.24, 0.0]
    """
    return min(1.0, _STEEPNESS * math.cos(0.5 * math.pi * done) ** 2)


def averaged_gap(before: float, measured: float, steps: float) -> float:
    """Return the exponentially weighted mean of all gaps so far and one more; its memory is ``steps`` long.

    >>> averaged_gap(0.0, 0.5, steps=4.0)
    0.125
    """
    return before + (measured - before) / max(1.0, steps)


class Severity(NamedTuple):
    """What was measured.

    Attributes:
        effects: Effect of each op on the loss, with its errors; None where a loss was not finite.
        loss: Mean loss of D_vp's plain images.
        gap: The generalisation gap: how much higher that is than the loss of as many training images, less a tenth of
            it; None where it was not measured.
        seconds: Time spent.
    """

    effects: pf.OpEffects | None
    loss: float
    gap: float | None
    seconds: dict[str, float]


def measure_severity(
    policy: ParticlePolicy,
    trainee: Trainee,
    labels: Tensor,
    split: tuple[Tensor, Tensor],
    *,
    gap: bool = True,
    seed: int,
    step: int,
    progress: Progress = lambda phase, done, total: None,
) -> Severity:
    """Measure every op of a policy at its level; the network and its modes come back as they were.

    Args:
        policy: Says which ops at which level.
        trainee: The network.
        labels: Class labels of all samples, for stratification.
        split: The samples that are trained on, and D_vp, which is held out.
        gap: Whether to measure the gap too: not where D_vp is trained on as well.
        seed: The run's seed.
        step: Number of the filter step; part of every key.
        progress: Called after every batch; may raise to stop.
    """
    start = time.perf_counter()
    trained, held_out = split
    count, key = len(policy.ops), MEASUREMENTS + step
    every_op = torch.eye(count, dtype=torch.float64, device="cpu")
    modes = [(module, module.training) for module in trainee.model.modules()]
    trainee.model.eval()
    try:
        single = _with_particles(policy, every_op)
        losses, plain = trainee.measure(single, held_out, key, progress=progress, phase="measure")
        measured_gap = None
        if gap:
            as_many = min(len(trained), len(held_out))
            fitted_ids = trained[disjoint_stratified_subsets(labels[trained], [as_many], seed, step)[0]]
            nothing = _with_particles(policy, 0.0 * every_op[:1])
            _, fitted = trainee.measure(nothing, fitted_ids, key, progress=progress, phase="measure")
            measured_gap = float((1.0 - _SLACK) * plain.mean() - fitted.mean())
    finally:
        for module, training in modes:
            module.training = training
    rises, effects = losses - plain, None
    if bool(rises.isfinite().all()) and math.isfinite(measured_gap or 0.0):
        effects = pf.OpEffects(rises.mean(1), torch.cov(rises).reshape(count, count) / len(held_out))
    seconds = {"measure": time.perf_counter() - start}
    return Severity(effects, float(plain.mean()), measured_gap, seconds)


def _with_particles(policy: ParticlePolicy, particles: Tensor) -> ParticlePolicy:
    weights = torch.ones(len(particles), dtype=torch.float64, device="cpu")
    return ParticlePolicy(particles, weights, policy.m, policy.semantics, policy.order, policy.ops)
