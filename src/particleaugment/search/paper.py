"""The paper's filter: particles that help a clone of the network learn gain weight.

One step:

1. *transition*: every probability of every particle moves, x ← clip(x - c + N(0, σ²), 0, 1);
2. *clone training*: a copy of the network trains e_p epochs on D_tp under the noised particles;
3. *measurement*: d_i is by how much the clone's loss fell on D_vp under particle i, d_0 on the plain samples, and
   δ_i = d_i / d_0;
4. *update*: w_i ← w_i (tanh(δ_i - 1) + 1)^η, normalised;
5. *resampling* if the effective sample size is below α·r.

If d_0 is not clearly positive, or a loss is not finite, the measurement is meaningless: the step ends after the
transition and counts as skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.filter._checks import as_real
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.schedule import Schedule, ScheduleStep
from particleaugment.search.checks import (
    check_choice,
    check_count,
    check_moments,
    check_particles,
    check_resampling,
    check_size,
)
from particleaugment.search.clone import CloneLosses, clone_samples, probe
from particleaugment.search.filter_base import Filter, FilterRecord, FilterState, Subject

__all__ = ["PaperFilter", "PaperRecord", "PaperState", "ParticleRecord"]


@dataclass(frozen=True, kw_only=True)
class PaperState(FilterState):
    """The particles and their weights, the only state of the paper's filter.

    Attributes:
        particles: Particles, each a probability per op, and their log-weights.
    """

    particles: pf.ParticleSet

    def to_dict(self) -> dict[str, Tensor | int | float]:
        """Return what steps change, as tensors and plain numbers."""
        return super().to_dict() | {
            "particles": self.particles.particles,
            "log_weights": self.particles.log_weights,
        }

    def restored(self, saved: Mapping[str, Any]) -> Self:
        """Return a first state as it was when :meth:`to_dict` was called."""
        particles = pf.ParticleSet(saved["particles"], saved["log_weights"])
        return replace(super().restored(saved), particles=particles)


@dataclass(frozen=True, kw_only=True)
class ParticleRecord(FilterRecord):
    """What a step did to particles, measured or not.

    Attributes:
        effective_sample_size: N_eff after the update, before resampling.
        resampled: Whether the particles were resampled.
    """

    effective_sample_size: float
    resampled: bool = False


@dataclass(frozen=True, kw_only=True)
class PaperRecord(ParticleRecord):
    """What a step of the paper's filter measured and did.

    Attributes:
        d0: By how much the clone's summed loss on plain samples fell.
        delta: δ of each particle; nan if undefined.
        standard_error: Standard error of each.
    """

    d0: float
    delta: tuple[float, ...]
    standard_error: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PaperFilter(Filter[PaperState]):
    """The paper's filter, as written.

    >>> filter = PaperFilter(num_particles=4, nonzero=2, eta=0.25)
    >>> filter.init(seed=0, ops=("Rotate", "Invert", "Posterize"), epochs=60).particles
    ParticleSet(r=4, n=3, N_eff=4, ops_per_image=0.5)

    Attributes:
        num_particles: Number of particles, r.
        nonzero: Number of ops per particle with a non-zero initial probability, l.
        m: Level of all ops.
        start_value: Initial probability of those ops.
        unit_vectors: Let the first particles have a single op each.
        measure_on: ``train`` draws the measured samples (D_vp) from the training data at each step, as in the paper;
            ``heldout`` uses the same samples at all steps and never trains on them.
        sigma: Standard deviation of the transition noise, σ.
        velocity: Drift c, subtracted at every transition: one number, or one per op.
        eta: Exponent of the weight update, η.
        alpha: Resample when the effective sample size falls below α·r.
        resampling: ``systematic``, ``multinomial``, ``stratified`` or ``residual``.
        every: Epochs between filter steps, i_f. ``auto``: every epoch, or about a hundred steps if epochs are short.
        warmup: First epoch that may end with a filter step.
        clone_epochs: Epochs that the clone trains, e_p.
        clone_size: Samples that the clone trains on (D_tp): a number, or a fraction of the data.
        measure_size: Samples that particles are measured on (D_vp): a number, or a fraction of the data.
        order: Order in which ops are applied: ``fixed`` or ``random``.
        semantics: Name of the mapping from level to argument.
    """

    num_particles: int = 50
    nonzero: int = 3
    m: float = 3.0
    start_value: float = 0.25
    unit_vectors: bool = False
    measure_on: str = "train"
    sigma: float = 0.05
    velocity: float | tuple[float, ...] = 0.0
    eta: float = 1.0
    alpha: float = 0.8
    resampling: str = "systematic"
    every: int | str = "auto"
    warmup: int = 1
    clone_epochs: int = 1
    clone_size: int | float = 0.512
    measure_size: int | float = 512
    order: str = "fixed"
    semantics: str = "timm-increasing"

    kind: ClassVar[str] = "paper"
    trains_clone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_particles(
            num_particles=self.num_particles,
            nonzero=self.nonzero,
            start_value=self.start_value,
            m=self.m,
            semantics=self.semantics,
            order=self.order,
        )
        check_choice("measure_on", self.measure_on, ("train", "heldout"))
        for velocity in self.velocity if isinstance(self.velocity, tuple) else (self.velocity,):
            pf.transition(pf.ParticleSet([[0.0], [0.0]]), sigma=self.sigma, velocity=velocity, seed=0, step=0)
        as_real("eta", self.eta, "pass a positive exponent (the paper uses 0.15 to 1)", low=0.0, above=True)
        check_resampling(self.alpha, self.resampling)
        check_moments(self.every, self.warmup)
        check_count("clone_epochs", self.clone_epochs, 1, 1000)
        check_size("clone_size", self.clone_size)
        check_size("measure_size", self.measure_size)
        if self.clone_size == 1:
            raise ValueError("clone_size must be at least 2: batch norm cannot train on one sample")

    # The algorithm.

    def init(self, seed: int, ops: tuple[str, ...], epochs: int) -> PaperState:
        """Return the particles that a search starts from, however long it is."""
        return self.scattered(seed, ops)

    def scattered(self, seed: int, ops: tuple[str, ...]) -> PaperState:
        """Return particles that have l random ops each, at the start value, with equal weights."""
        particles = pf.sparse_init(
            num_particles=self.num_particles,
            num_ops=len(ops),
            nonzero=self.nonzero,
            value=self.start_value,
            unit_vectors=self.unit_vectors,
            seed=seed,
        )
        return PaperState(seed=seed, ops=ops, particles=particles)

    def policy(self, state: PaperState) -> ParticlePolicy:
        """Return the weighted particles as a policy: nothing is averaged."""
        particles = state.particles
        return ParticlePolicy(particles.particles, particles.weights, self.m, self.semantics, self.order, state.ops)

    def step(
        self, state: PaperState, subject: Subject, *, epoch: int, epochs: int
    ) -> tuple[PaperState, ParticleRecord]:
        """Take one step; see the top of this file."""
        noised = self.moved(state)
        losses = probe(
            self.policy(noised),
            subject.trainee,
            subject.labels,
            subject.snapshot,
            clone_size=self.clone_size,
            measure_size=self.measure_size,
            split=subject.split,
            clone_epochs=self.clone_epochs,
            seed=state.seed,
            step=noised.steps,
            progress=subject.progress,
        )
        return self.update(noised, losses)

    def moved(self, state: PaperState) -> PaperState:
        """Return the state after the transition; a step begins with it."""
        step = state.steps + 1
        particles = pf.transition(state.particles, sigma=self.sigma, velocity=self.velocity, seed=state.seed, step=step)
        return replace(state, steps=step, particles=particles)

    def update(self, noised: PaperState, losses: CloneLosses) -> tuple[PaperState, PaperRecord]:
        """Return the state after the weight update and resampling, and what was found."""
        found = pf.relative_loss_difference(losses.ref, losses.upd, losses.ref_clean, losses.upd_clean)
        errors = torch.full_like(found.delta, torch.nan) if found.standard_error is None else found.standard_error
        delta, errors = self.scores(noised, found.delta, errors)
        reason = self.skip_reason(found)
        if reason is None:
            weighted, info = pf.reweight(noised.particles, delta, eta=self.eta)
            particles, resampling = pf.resample(
                weighted, alpha=self.alpha, scheme=self.resampling, seed=noised.seed, step=noised.steps
            )
            state = replace(noised, particles=particles)
            size, resampled = info.effective_sample_size, resampling.resampled
        else:
            state = replace(noised, skipped=noised.skipped + 1)
            size, resampled = pf.effective_sample_size(noised.particles), False
        record = PaperRecord(
            step=state.steps,
            d0=found.d0,
            delta=tuple(delta.tolist()),
            standard_error=tuple(errors.tolist()),
            skip_reason=reason,
            effective_sample_size=size,
            resampled=resampled,
            ops_per_image=self.policy(state).ops_per_image,
            seconds=losses.seconds,
        )
        return state, record

    def scores(self, noised: PaperState, delta: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the particles are weighted by, and its errors: δ."""
        return delta, errors

    def skip_reason(self, found: pf.LossDifference) -> str | None:
        """Return why a measurement must not change the weights, if so."""
        return found.skip_reason

    def schedule(self, history: Sequence[tuple[int, PaperState]], epochs: int) -> Schedule:
        """Return all particles so far as a schedule."""
        policies = [(start, self.policy(state)) for start, state in history]
        steps = tuple(ScheduleStep(start, policy.particles, policy.weights) for start, policy in policies)
        return Schedule(steps, epochs, None, self.m, self.semantics, self.order, policies[-1][1].ops)

    # What it needs.

    def held_out_of(self, samples: int) -> int | float:
        """Return the size of D_vp, if it is held out."""
        return self.measure_size if self.measure_on == "heldout" else 0

    def check(self, ops: tuple[str, ...], epochs: int) -> None:
        """Raise a ValueError where the settings do not suit the ops."""
        state = self.init(0, ops, epochs)
        self.policy(state)
        self.moved(state)

    def check_data(self, labels: Tensor, split: tuple[Tensor, Tensor] | None, seed: int) -> None:
        """Raise a ValueError where D_tp and D_vp cannot be drawn from samples of these labels."""
        try:
            clone_samples(labels, split, self.clone_size, self.measure_size, seed, step=1)
        except (TypeError, ValueError) as error:
            named = "_size=" in str(error)
            raise ValueError(f"{'' if named else 'clone_size and measure_size: '}{error}") from None
