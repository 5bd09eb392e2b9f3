"""Measurement of severity: by how much does each op raise the network's loss?

Every op alone is applied to the images of D_vp, and its effect is the mean rise of their losses: one forward pass an op
and image, and no clone. A particle's severity is the sum over its ops, weighted by their probabilities. Unlike what the
paper measures, it keeps its order from one epoch to the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.data.split import disjoint_stratified_subsets
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.probe import MEASUREMENTS, Progress, Trainee

__all__ = ["COURSES", "Severity", "final_share", "measure_severity"]


def final_share(done: float) -> float:
    """Return what is left of severity near the end: all of it for four fifths of training, none at the last epoch.

    >>> [round(final_share(done), 2) for done in (0.0, 0.75, 0.9, 1.0)]
    [1.0, 1.0, 0.24, 0.0]
    """
    return min(1.0, 10.0 * math.cos(0.5 * math.pi * done) ** 2)


COURSES: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda done: 1.0,
        "falling": lambda done: math.cos(0.5 * math.pi * done) ** 2,
        "arched": lambda done: math.sin(math.pi * done) ** 2,
        "late": lambda done: math.sin(0.5 * math.pi * done) ** 2 * final_share(done),
    }
)
"""Wanted severity as a share of the full one, by the share of training done.

``falling`` is a cosine from 1 to 0, as the learning rate's. ``arched`` starts at none, while there is everything to
learn, is full halfway, and ends at none, on images as they are. ``late`` rises for longer, the cosine's complement, and
goes down to none in the last fifth.
"""


class Severity(NamedTuple):
    """What was measured.

    Attributes:
        effects: Effect of each op on the loss, with its errors; None where a loss was not finite.
        loss: Mean loss of D_vp's plain images.
        gap: How much higher that is than the loss of as many training images, where D_vp is held out.
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
    *,
    measure_size: int | float,
    split: tuple[Tensor, Tensor] | None = None,
    seed: int,
    step: int,
    progress: Progress = lambda phase, done, total: None,
) -> Severity:
    """Measure every op of a policy at its level; the network and its modes come back as they were.

    Args:
        policy: Says which ops at which level.
        trainee: The network.
        labels: Class labels of the training samples, for stratification.
        measure_size: Samples of D_vp, as a number or a fraction.
        split: Where D_vp is held out, the samples that are trained on, and D_vp itself.
        seed: The run's seed.
        step: Number of the filter step; part of every key.
        progress: Told after every batch; may raise to stop.
    """
    start = time.perf_counter()
    (ids,) = disjoint_stratified_subsets(labels, [measure_size], seed, step) if split is None else split[1:]
    count = len(policy.ops)
    every_op = torch.eye(count, dtype=torch.float64)
    weights = torch.ones(count, dtype=torch.float64)
    single = ParticlePolicy(every_op, weights, policy.m, policy.semantics, policy.order, policy.ops)
    nothing = ParticlePolicy(0.0 * every_op[:1], weights[:1], policy.m, policy.semantics, policy.order, policy.ops)
    key, gap = MEASUREMENTS + step, None
    modes = [(module, module.training) for module in trainee.model.modules()]
    trainee.model.eval()
    try:
        losses, plain = trainee.measure(single, ids, key, progress=progress, phase="measure")
        if split is not None:
            rest = split[0]
            as_many = min(len(ids), len(rest))
            trained = rest[disjoint_stratified_subsets(labels[rest], [as_many], seed, step)[0]]
            _, fitted = trainee.measure(nothing, trained, key, progress=progress, phase="measure")
            gap = float(plain.mean() - fitted.mean())
    finally:
        for module, training in modes:
            module.training = training
    rises = losses - plain
    effects = None
    if bool(rises.isfinite().all()) and (gap is None or math.isfinite(gap)):
        effects = pf.OpEffects(rises.mean(1), torch.cov(rises).reshape(count, count) / len(ids))
    return Severity(effects, float(plain.mean()), gap, {"measure": time.perf_counter() - start})
