"""Measurement of severity: by how much does each op raise the network's loss, and how much can the network take?

Every op alone is applied to the images of D_vp, and its effect is the mean rise of their losses: one forward pass an op
and image, and no clone. A particle's severity is the sum over its ops, weighted by their probabilities. Unlike what the
paper measures, it keeps its order from one epoch to the next. How much is wanted follows from the generalisation gap:
D_vp is held out, and its plain loss is compared with that of training images.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.data.split import disjoint_stratified_subsets
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.search.clone import MEASUREMENTS
from particleaugment.trainee.protocol import Progress, Trainee

__all__ = ["FINAL", "MEMORY", "Severity", "averaged_gap", "final_share", "measure_severity"]

_STEEPNESS = 10.0  # of final_share; FINAL follows from it
FINAL = 0.8
"""Share of training after which D_vp is needed no more and may be trained on.

It is where :func:`final_share` begins to fall, 2/π·acos(1/√10) = 0.795, to one decimal. From then on the gap is not
measured, its mean stays, and severity goes down with that share alone."""
MEMORY = 0.05
"""Share of training over which gaps are averaged: one alone is about as large as its error."""
_SLACK = 0.1  # of the held-out loss: early, when losses are high and noisy, a small gap is no overfitting


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
        progress: Told after every batch; may raise to stop.
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
