"""The paper's measurement: train a clone under the particles and see, per particle and sample, how its loss fell.

:func:`probe` returns raw losses and knows nothing of weights; ``filter.relative_loss_difference`` turns them into δ.
Model, optimizer and everything else come back bit for bit as they were.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from particleaugment.data.split import disjoint_stratified_subsets, epoch_permutation
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.search.filter_base import Filter
from particleaugment.trainee.learner import NonFiniteLoss
from particleaugment.trainee.protocol import Progress, Trainee
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["MEASUREMENTS", "CloneLosses", "clone_samples", "probe", "training_of_clone"]

# Training epochs, clone epochs and measurements are keyed by disjoint ranges of the generator's 32-bit epoch.
CLONE_EPOCHS = 1 << 30
MEASUREMENTS = 1 << 31


class CloneLosses(NamedTuple):
    """Losses of the reference model and of its trained clone on the same images under the same draws.

    Attributes:
        ref: Reference model under each particle, float64 ``[r, N]``.
        upd: Clone under each particle, float64 ``[r, N]``.
        ref_clean: Reference model on the plain images, float64 ``[N]``.
        upd_clean: Clone on the plain images, float64 ``[N]``.
        seconds: Time spent training the clone and measuring.
    """

    ref: Tensor
    upd: Tensor
    ref_clean: Tensor
    upd_clean: Tensor
    seconds: dict[str, float]


def probe(
    policy: ParticlePolicy,
    trainee: Trainee,
    labels: Tensor,
    snapshot: Snapshot,
    *,
    clone_size: int | float,
    measure_size: int | float,
    split: tuple[Tensor, Tensor] | None = None,
    clone_epochs: int,
    seed: int,
    step: int,
    progress: Progress = lambda phase, done, total: None,
) -> CloneLosses:
    """Measure the particles of ``policy`` (the noised ones) on fresh, disjoint, stratified subsets.

    Args:
        policy: The particles and weights to probe.
        trainee: The network; restored bit for bit.
        labels: Class labels of the training samples, for stratification.
        snapshot: Memory for the clone's way back, reused from step to step.
        clone_size: Samples in D_tp, as a number or a fraction.
        measure_size: Samples in D_vp, as a number or a fraction.
        split: Where D_vp is held out, the samples that are trained on, which D_tp is drawn from, and D_vp itself.
        clone_epochs: Epochs of clone training, e_p.
        seed: The run's seed.
        step: Number of this filter step; part of every key.
        progress: Called after every batch; may raise to stop, and the network is restored all the same.
    """
    train_ids, measure_ids = clone_samples(labels, split, clone_size, measure_size, seed, step)
    model = trainee.model
    modes = [(module, module.training) for module in model.modules()] if model.training else None
    key = MEASUREMENTS + step
    start = time.perf_counter()
    with snapshot.of(model, trainee.optimizer, trainee.scaler), trainee.aside():
        model.eval()
        ref, ref_clean = trainee.measure(policy, measure_ids, key, progress=progress, phase="measure before")
        measured = time.perf_counter()
        model.train()
        for module, training in modes or ():
            module.training = training
        try:
            _train_clone(policy, trainee, train_ids, clone_epochs, seed, step, progress)
        except NonFiniteLoss:
            # A diverged clone is a measurement like any other: its losses are not finite, and the filter skips it.
            nothing = torch.full_like(ref, torch.nan)
            seconds = {"clone": time.perf_counter() - measured, "measure": measured - start}
            return CloneLosses(ref, nothing, ref_clean, nothing[0], seconds)
        cloned = time.perf_counter()
        model.eval()
        upd, upd_clean = trainee.measure(policy, measure_ids, key, progress=progress, phase="measure after")
    end = time.perf_counter()
    seconds = {"clone": cloned - measured, "measure": (measured - start) + (end - cloned)}
    return CloneLosses(ref, upd, ref_clean, upd_clean, seconds)


def clone_samples(
    labels: Tensor,
    split: tuple[Tensor, Tensor] | None,
    clone_size: int | float,
    measure_size: int | float,
    seed: int,
    step: int,
) -> tuple[Tensor, Tensor]:
    """Return D_tp and D_vp of a step; the arguments are those of :func:`probe`.

    A clone of a single sample, which is what a small fraction of few samples comes to, is refused.
    """
    if split is None:
        train_ids, measure_ids = disjoint_stratified_subsets(labels, [clone_size, measure_size], seed, step)
    else:
        trained, measure_ids = split
        train_ids = trained[disjoint_stratified_subsets(labels[trained], [clone_size], seed, step)[0]]
    if len(train_ids) == 1:
        raise ValueError(
            f"clone_size={clone_size} gives the clone a single sample, which batch norm cannot train on; set a number, "
            "such as clone_size=32, or a larger fraction"
        )
    return train_ids, measure_ids


def _train_clone(
    policy: ParticlePolicy,
    trainee: Trainee,
    train_ids: Tensor,
    clone_epochs: int,
    seed: int,
    step: int,
    progress: Progress,
) -> None:
    for number in range(clone_epochs):
        epoch_key = CLONE_EPOCHS + step * clone_epochs + number
        order = train_ids[epoch_permutation(len(train_ids), seed, epoch_key)]

        def of_all_epochs(phase: str, done: int, total: int, number: int = number) -> None:
            progress(phase, number * total + done, clone_epochs * total)

        trainee.train(policy, order, epoch_key, progress=of_all_epochs, phase="train clone")


def training_of_clone(
    filter: Filter[Any], model: nn.Module, optimizer: torch.optim.Optimizer | None, batch_size: int | None
) -> tuple[torch.optim.Optimizer, int]:
    """Return the optimizer and the batch size that a clone trains with; where a filter trains none, any will do."""
    if optimizer is not None and batch_size is not None:
        return optimizer, batch_size
    if filter.trains_clone:
        raise ValueError(
            f"the filter {filter.kind!r} trains a clone of the network; pass the network's optimizer and "
            "batch_size to search.step"
        )
    return torch.optim.SGD(model.parameters(), lr=0.0), 1  # never takes a step
