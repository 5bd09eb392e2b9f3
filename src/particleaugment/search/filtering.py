"""One step of the search: its settings, and the filter's parts one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.core.ops import OPS
from particleaugment.core.random import Stream, uniform
from particleaugment.data.split import held_out_split
from particleaugment.filter._checks import as_real
from particleaugment.filter.resample import SCHEMES
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.search.clone import Measurement
from particleaugment.search.severity import FINAL, MEMORY, Severity, averaged_gap, final_share
from particleaugment.util.hints import nearest_name

__all__ = ["IMPROVED", "FilterRecord", "FilterSettings", "filter_step"]

IMPROVED: Mapping[str, Any] = MappingProxyType(
    {
        "measure": "loss", "measure_on": "heldout", "update": "tilted", "gain": 2.0, "alpha": 0.5,
        "transition": "sparse", "sigma": 0.05, "velocity": 0.0, "start_value": 0.33, "unit_vectors": False,
        "nonzero": 3, "m": 10.0,
    }
)  # fmt: skip
"""Settings of the improved filter, where they are not the paper's."""

_CHOICES = {
    "measure": ("clone", "loss", "none"),
    "measure_on": ("train", "heldout"),
    "transition": ("gaussian", "sparse"),
    "update": ("paper", "tilted"),
    "resampling": SCHEMES,
}


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """Settings of the search, with the paper's defaults.

    >>> FilterSettings(nonzero=2, eta=0.25).due(epoch=1, epochs=250)
    True

    Attributes:
        num_particles: Particles, r.
        nonzero: Ops with a non-zero start probability per particle, l.
        m: Level shared by all ops.
        start_value: Start probability of those ops.
        unit_vectors: Whether the first particles hold one op each.
        measure: ``clone`` for the paper's relative loss difference, ``loss`` for the ops' severities (see
            :mod:`particleaugment.search.severity`), ``none`` for no measurement and no update.
        measure_on: ``train`` draws D_vp from the training data anew for each step, as the paper does; ``heldout`` holds
            it out: the same samples for all steps, not trained on (with ``measure="loss"``, until the last fifth).
        shuffle_scores: Whether scores are permuted among the particles, as a control.
        transition: ``gaussian`` for the paper's, ``sparse`` for one that keeps l active ops a particle.
        sigma: Standard deviation of the transition's noise.
        velocity: Drift c, subtracted at every transition: one number or one per op.
        update: ``paper`` for factors (tanh(δ - 1) + 1)^η, ``tilted`` for the weights nearest to the old ones that give
            the policy the wanted severity: ``gain`` times the generalisation gap, by how much the loss is higher on
            held-out samples than on training samples.
        gain: Severity that a tilted update steers to, per gap.
        epochs: Length of the training run, over whose last fifth severity goes down to none; 0 where it is not known.
        eta: Strength of the weight update, η.
        alpha: Resample when the effective sample size falls under α·r.
        resampling: ``systematic``, ``multinomial``, ``stratified`` or ``residual``.
        reset_filter: Whether every step starts from the first particles again, as in the authors' released code.
        gate_twice: Whether a chosen op is applied with probability 1/2 only, as there.
        every: Epochs from one filter step to the next, i_f.
        warmup: First epoch after which a step may follow.
        clone_epochs: Epochs of clone training, e_p.
        clone_size: Samples in D_tp, what a clone trains on: a number, or a fraction of the data (the paper's 25,600 of
            50,000).
        measure_size: Samples in D_vp, likewise.
        order: ``fixed`` or ``random`` order of the ops.
        semantics: Name of the mapping from level to argument.
        ops: Op names.
    """

    num_particles: int = 50
    nonzero: int = 3
    m: float = 3.0
    start_value: float = 0.25
    unit_vectors: bool = False
    measure: str = "clone"
    measure_on: str = "train"
    shuffle_scores: bool = False
    transition: str = "gaussian"
    sigma: float = 0.05
    velocity: float | tuple[float, ...] = 0.0
    update: str = "paper"
    gain: float = 1.0
    epochs: int = 0
    eta: float = 1.0
    alpha: float = 0.8
    resampling: str = "systematic"
    reset_filter: bool = False
    gate_twice: bool = False
    every: int = 1
    warmup: int = 1
    clone_epochs: int = 1
    clone_size: int | float = 0.512
    measure_size: int | float = 512
    order: str = "fixed"
    semantics: str = "timm-increasing"
    ops: tuple[str, ...] = OPS

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                hint = nearest_name(getattr(self, name), choices) or f"; it is one of {', '.join(choices)}"
                raise ValueError(f"{name} cannot be {getattr(self, name)!r}{hint}")
        for name, least in (("every", 1), ("warmup", 0), ("clone_epochs", 1), ("epochs", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("clone_size", "measure_size"):
            size = getattr(self, name)
            valid = size >= 1 if isinstance(size, int) else isinstance(size, float) and 0 < size < 1
            if isinstance(size, bool) or not valid:
                raise ValueError(f"{name} must be a number of samples or a fraction between 0 and 1, got {size!r}")
        if (self.measure == "loss") != (self.update == "tilted") and self.measure != "none":
            raise ValueError(
                f"measure={self.measure} and update={self.update} do not go together: severities are what "
                "update=tilted steers by; set measure=loss with it, and only with it"
            )
        if self.measure == "loss" and self.measure_on != "heldout":
            raise ValueError(
                "measure=loss compares training samples with samples never trained on; set measure_on=heldout"
            )
        if self.measure == "loss" and not self.epochs:
            raise ValueError(
                "measure=loss takes augmentation back over the last fifth of training; pass epochs, their number"
            )
        as_real("gain", self.gain, "it is the severity wanted per generalisation gap", low=0.0)
        if self.measure == "loss" and self.measure_size == 1:
            raise ValueError("measure_size must be at least 2 with measure=loss: one sample cannot tell its error")
        if self.measure == "clone" and self.clone_size == 1:
            raise ValueError("clone_size must be at least 2 with measure=clone: batch norm cannot train on one sample")
        # Everything else is checked by the functions that use it, on the smallest input, before any long work.
        state = self.initial_state(seed=0)
        self.policy(state)
        nothing = torch.zeros(self.num_particles, dtype=torch.float64, device="cpu")
        updated, _ = self.reweighted(self.moved(state, 0, 0), nothing + 1, nothing, target=1.0)
        pf.resample(updated, alpha=self.alpha, scheme=self.resampling, seed=0, step=0)

    def initial_state(self, seed: int) -> pf.ParticleSet:
        """Return the particles that the search starts from; before any gap is known, they do nothing."""
        state = pf.sparse_init(
            num_particles=self.num_particles,
            num_ops=len(self.ops),
            nonzero=self.nonzero,
            value=self.start_value,
            unit_vectors=self.unit_vectors,
            seed=seed,
        )
        return pf.ParticleSet(0.0 * state.particles, state.log_weights) if self.measure == "loss" else state

    def moved(self, state: pf.ParticleSet, seed: int, step: int) -> pf.ParticleSet:
        """Return the particles after the prediction step."""
        if self.transition == "sparse":
            return pf.sparse_transition(
                state, nonzero=self.nonzero, value=self.start_value, sigma=self.sigma, seed=seed, step=step
            )
        return pf.transition(state, sigma=self.sigma, velocity=self.velocity, seed=seed, step=step)

    def reweighted(
        self, state: pf.ParticleSet, scores: Tensor, standard_errors: Tensor, target: float
    ) -> tuple[pf.ParticleSet, pf.ReweightInfo]:
        """Return the particles after the weight update; ``target`` is the severity that a tilted one steers to."""
        if self.update == "tilted":
            return pf.tilted_reweight(state, scores, standard_errors, target=target, degrees=len(self.ops))
        return pf.reweight(state, scores, eta=self.eta)

    def wanted_severity(self, gap: float, done: float) -> float:
        """Return the severity to steer to at a generalisation gap, when a share of training is done."""
        return self.gain * max(0.0, gap) * final_share(done)

    def averaged_gap(self, before: float, measured: Severity) -> float:
        """Return the mean gap with one more measurement; as before where there is none."""
        if measured.effects is None or measured.gap is None:
            return before
        return averaged_gap(before, measured.gap, MEMORY * self.epochs / self.every)

    @property
    def holds_out(self) -> bool:
        """Whether D_vp is held out."""
        return self.measure_on == "heldout" and self.measure != "none"

    def holds_out_in(self, epoch: int) -> bool:
        """Whether D_vp is not trained on in an epoch; severities are measured on it after that, but the gap is not."""
        return self.holds_out and (self.measure != "loss" or epoch - 1 < FINAL * self.epochs)

    def split(self, labels: Tensor, seed: int, groups: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """Return the samples to train on and D_vp, or None where D_vp is not held out; no group is on both sides."""
        if not self.holds_out:
            return None
        try:
            trained, held_out = held_out_split(labels, self.measure_size, seed, groups)
        except ValueError as error:
            raise ValueError(f"measure_size={self.measure_size} does not suit {len(labels)} samples: {error}") from None
        if self.measure == "loss" and len(held_out) < 2:
            raise ValueError(
                f"measure_size={self.measure_size} holds one of {len(labels)} samples out for measuring, which cannot "
                "tell its error; set a number, such as measure_size=32, or a larger fraction"
            )
        return trained, held_out

    def policy(self, state: pf.ParticleSet) -> ParticlePolicy:
        """Return a particle set as a policy."""
        particles = state.particles / 2 if self.gate_twice else state.particles
        return ParticlePolicy(particles, state.weights, self.m, self.semantics, self.order, self.ops)

    def due(self, epoch: int, epochs: int | None = None) -> bool:
        """Whether a filter step follows an epoch (counted from 1) of a run of ``epochs``; never after the last."""
        return epoch >= self.warmup and epoch % self.every == 0 and (epochs is None or epoch < epochs)


@dataclass(frozen=True, kw_only=True)
class FilterRecord:
    """What one filter step measured and did.

    Attributes:
        step: Number of the step, from 1.
        d0: Summed loss that the clone shed on plain samples; None where no clone is measured.
        delta: δ, or the severity, of each particle; nan where it has no value, empty where nothing is measured.
        standard_error: Standard error of each.
        effects: Severity of each op, by how much it raises the loss, where that is measured.
        effect_errors: Their standard errors.
        gap: Generalisation gap as measured in this step; see :class:`particleaugment.search.severity.Severity`.
        mean_gap: Its mean over the last twentieth of training, which the wanted severity follows.
        severity: Mean severity of the new policy, where ops' severities are known.
        wanted_severity: What the update steered to.
        skip_reason: Why the update was left out, in a sentence, or None.
        effective_sample_size: N_eff after the update, before resampling.
        resampled: Whether the particles were resampled.
        ops_per_image: Mean number of ops that the new policy applies.
        seconds: Time per phase.
    """

    step: int
    d0: float | None
    delta: tuple[float, ...]
    standard_error: tuple[float, ...]
    skip_reason: str | None
    effective_sample_size: float
    resampled: bool
    ops_per_image: float
    effects: tuple[float, ...] = ()
    effect_errors: tuple[float, ...] = ()
    gap: float | None = None
    mean_gap: float | None = None
    severity: float | None = None
    wanted_severity: float | None = None
    seconds: Mapping[str, float] = field(compare=False)


def filter_step(
    state: pf.ParticleSet,
    settings: FilterSettings,
    measure: Callable[[ParticlePolicy], Measurement | Severity],
    *,
    seed: int,
    step: int,
    done: float = 0.0,
    mean_gap: float = 0.0,
) -> tuple[pf.ParticleSet, FilterRecord]:
    """Take one step of the filter: transition, measurement, weight update, resampling.

    Args:
        state: The particles and weights before the step.
        settings: The search's settings.
        measure: Probes the noised particles.
        seed: The run's seed.
        step: Number of the step; part of every key.
        done: Share of the training run that is done; near its end a tilted update steers to no severity.
        mean_gap: That of the step before, where severities are measured.
    """
    start = time.perf_counter()
    if settings.reset_filter:
        state = settings.initial_state(seed)
    moved = settings.moved(state, seed, step)
    if settings.measure == "none":
        return moved, _unmeasured(moved, settings, step, time.perf_counter() - start)
    before = time.perf_counter()
    policy = settings.policy(moved)
    measured = measure(policy)
    after = time.perf_counter()
    scores, errors, d0, skip_reason = _scores(measured, policy)
    if isinstance(measured, Severity):
        mean_gap = settings.averaged_gap(mean_gap, measured)
    target = settings.wanted_severity(mean_gap, done)
    if settings.shuffle_scores:
        ids = torch.arange(len(scores), device="cpu")
        order = uniform(seed, Stream.SHUFFLE, epoch=step, ids=ids, slots=1)[:, 0].argsort()
        scores, errors = scores[order], errors[order]
    new_state, resampled = moved, False
    size = pf.effective_sample_size(moved)
    if skip_reason is None:
        reweighted, update = settings.reweighted(moved, scores, errors, target)
        size = update.effective_sample_size
        new_state, info = pf.resample(
            reweighted, alpha=settings.alpha, scheme=settings.resampling, seed=seed, step=step
        )
        resampled = info.resampled
    record = FilterRecord(
        step=step,
        d0=d0,
        delta=tuple(scores.tolist()),
        standard_error=tuple(errors.tolist()),
        skip_reason=skip_reason,
        effective_sample_size=size,
        resampled=resampled,
        ops_per_image=settings.policy(new_state).ops_per_image,
        **_severities(measured, settings.policy(new_state), mean_gap, target),
        seconds=dict(measured.seconds) | {"filter": (before - start) + (time.perf_counter() - after)},
    )
    return new_state, record


def _scores(
    measured: Measurement | Severity, policy: ParticlePolicy
) -> tuple[Tensor, Tensor, float | None, str | None]:
    """Return the particles' scores, their errors, d0 where there is one, and why they must not be used, if so."""
    if isinstance(measured, Measurement):
        difference = pf.relative_loss_difference(*measured[:4])
        errors = difference.standard_error
        errors = torch.full_like(difference.delta, torch.nan) if errors is None else errors
        return difference.delta, errors, difference.d0, difference.skip_reason
    if measured.effects is None:
        nothing = torch.full((len(policy.particles),), torch.nan, dtype=torch.float64, device="cpu")
        reason = f"some losses are not finite (D_vp's mean is {measured.loss:.6g}), so the ops' effects are not known"
        return nothing, nothing, None, reason
    return *pf.particle_scores(policy.particles, measured.effects), None, None


def _severities(
    measured: Measurement | Severity, policy: ParticlePolicy, mean_gap: float, wanted: float
) -> dict[str, Any]:
    if isinstance(measured, Measurement) or measured.effects is None:
        return {}
    effects, covariance = measured.effects
    return {
        "effects": tuple(effects.tolist()),
        "effect_errors": tuple(covariance.diagonal().sqrt().tolist()),
        "gap": measured.gap,
        "mean_gap": mean_gap,
        "severity": float(policy.weights @ (policy.particles @ effects)),
        "wanted_severity": wanted,
    }


def _unmeasured(state: pf.ParticleSet, settings: FilterSettings, step: int, seconds: float) -> FilterRecord:
    return FilterRecord(
        step=step,
        d0=None,
        delta=(),
        standard_error=(),
        skip_reason=None,
        effective_sample_size=pf.effective_sample_size(state),
        resampled=False,
        ops_per_image=settings.policy(state).ops_per_image,
        seconds={"filter": seconds},
    )
