"""Measurement by gradient alignment: would a step on a sample, augmented so, lower the loss on other samples?

It keeps the paper's idea, a reference and an updated network compared on augmented data, and swaps the roles: there is
one known update, a small step along the gradient of D_vp's loss, judged on every augmented sample of D_tp. With v that
gradient's direction, a sample's alignment is

    s_k = (loss_k(w + h v) - loss_k(w - h v)) / 2h  ~  <v, gradient of loss_k>,

how fast training on the sample lowers D_vp's loss. A regression of s_k on which ops were applied gives each op's effect
with its error, and the particles' scores follow. All of it happens at averaged weights, with batch statistics estimated
anew, since at a high learning rate the weights of one step say little. No clone is trained.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.average import estimate_batch_statistics
from particleaugment.data.split import disjoint_stratified_subsets
from particleaugment.ops import op_indices
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.probe import MEASUREMENTS, Progress, Trainee
from particleaugment.snapshot import Snapshot

__all__ = ["Alignment", "SampleAlignments", "measure_alignment", "sample_alignments"]

_VALUES_PER_BATCH = {"cuda": 2048 * 3 * 32 * 32, "cpu": 256 * 3 * 32 * 32}
_STATISTICS_BATCHES = 8
_STEP = 0.02  # of D_vp's loss, to first order


class Alignment(NamedTuple):
    """What was measured.

    Attributes:
        effects: Effect of each op on alignment, with its errors; None where a loss was not finite.
        target_loss: Mean loss on D_vp at the averaged weights.
        seconds: Time spent.
    """

    effects: pf.OpEffects | None
    target_loss: float
    seconds: dict[str, float]


class SampleAlignments(NamedTuple):
    """Measured sample by sample.

    Attributes:
        values: Each sample's alignment, float64; empty where the target's loss has no usable gradient.
        lengths: Length of the gradient of each sample's loss by the network's output, float64.
        target_loss: Mean loss of the target samples.
    """

    values: Tensor
    lengths: Tensor
    target_loss: float

    def beyond_length(self) -> Tensor:
        """Return what is left of each alignment without the share that the sample's gradient length has in all of it.

        A product of gradients grows with their length, and severe ops make long ones.
        """
        return self.values - self.lengths * (self.values.sum() / self.lengths.sum().clamp(min=1e-300))


def measure_alignment(
    policy: ParticlePolicy,
    trainee: Trainee,
    labels: Tensor,
    *,
    sample_size: int | float,
    target_size: int | float,
    beyond_length: bool = False,
    seed: int,
    step: int,
    progress: Progress = lambda phase, done, total: None,
) -> Alignment:
    """Measure every op's effect; the network, its optimizer and its modes come back as they were.

    Args:
        policy: The particles and weights that samples are augmented under.
        trainee: The network.
        labels: Class labels of the training samples, for stratification.
        sample_size: Samples of D_tp, as a number or a fraction.
        target_size: Samples of D_vp, likewise.
        beyond_length: Whether what the gradients' length explains is taken off.
        seed: The run's seed.
        step: Number of the filter step; part of every key.
        progress: Told after every batch; may raise to stop.
    """
    start = time.perf_counter()
    sample_ids, target_ids = disjoint_stratified_subsets(labels, [sample_size, target_size], seed, step)
    first, _ = trainee.inputs(target_ids[:1], None, 0)
    batch = batch_size(first)
    key = MEASUREMENTS + step
    kept = Snapshot().of(trainee.model, trainee.optimizer, trainee.scaler)
    with kept, trainee.aside(), _averaged(trainee, target_ids, batch):
        found = sample_alignments(policy, trainee, sample_ids, target_ids, key, batch=batch, progress=progress)
    effects = None
    if len(found.values) and bool(found.values.isfinite().all()):
        program = policy.sample(sample_ids, key, seed, (first.shape[-2], first.shape[-1]))
        effects = _op_effects(program.op, policy, found.beyond_length() if beyond_length else found.values)
    return Alignment(effects, found.target_loss, {"measure": time.perf_counter() - start})


def sample_alignments(
    policy: ParticlePolicy,
    trainee: Trainee,
    sample_ids: Tensor,
    target_ids: Tensor,
    key: int,
    *,
    batch: int,
    progress: Progress = lambda phase, done, total: None,
) -> SampleAlignments:
    """Return the alignment of augmented samples with plain target samples, at the network's present weights and modes.

    Args:
        policy: What the samples are augmented under.
        trainee: The network.
        sample_ids: The samples.
        target_ids: Samples whose loss gives the direction.
        key: Epoch key of the draws.
        batch: Samples at a time.
        progress: Told after every batch; may raise to stop.
    """
    direction, target_loss, distance = _gradient(trainee, target_ids, batch)
    nothing = torch.empty(0, dtype=torch.float64)
    if not target_loss < float("inf") or not distance < float("inf"):
        return SampleAlignments(nothing, nothing, target_loss)
    found, total = [], -(-len(sample_ids) // batch)
    for number, ids in enumerate(sample_ids.split(batch)):
        inputs, targets = trainee.inputs(ids, policy, key)
        found.append(_alignment(trainee, inputs, targets, direction, distance))
        progress("measure", number + 1, total)
    values, lengths = (torch.cat(parts) for parts in zip(*found))
    return SampleAlignments(values, lengths, target_loss)


def batch_size(inputs: Tensor) -> int:
    """Return how many samples like the first of ``inputs`` are measured at a time."""
    return max(1, _VALUES_PER_BATCH.get(inputs.device.type, _VALUES_PER_BATCH["cpu"]) // inputs[:1].numel())


@contextmanager
def _averaged(trainee: Trainee, ids: Tensor, batch: int) -> Iterator[None]:
    """Work at averaged weights, where there are any, with batch statistics of plain images."""
    average = trainee.average
    with nullcontext() if average is None else average.inside(trainee.model):
        parts = [trainee.inputs(part, None, 0)[0] for part in ids[: _STATISTICS_BATCHES * batch].split(batch)]
        with estimate_batch_statistics(trainee.model, parts):
            yield


def _gradient(trainee: Trainee, ids: Tensor, batch: int) -> tuple[list[Tensor], float, float]:
    """Return the unit gradient of the mean loss, that loss, and how far along it the loss changes by its set share."""
    parameters = [parameter for parameter in trainee.model.parameters() if parameter.requires_grad]
    direction, total = [torch.zeros_like(parameter) for parameter in parameters], 0.0
    for part in ids.split(batch):
        inputs, targets = trainee.inputs(part, None, 0)
        loss = trainee.loss(trainee.model(inputs), targets).sum() / len(ids)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        for mine, gradient in zip(direction, found):
            if gradient is not None:
                mine += gradient
        total += float(loss.detach())
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(direction))))
    if not norm > 0:
        return direction, total, float("inf")
    torch._foreach_div_(direction, norm)
    return direction, total, _STEP * total / norm


@torch.no_grad()
def _alignment(
    trainee: Trainee, inputs: Tensor, targets: Tensor, direction: list[Tensor], distance: float
) -> tuple[Tensor, Tensor]:
    """Return each sample's alignment and the length of its loss's gradient by the network's output."""
    parameters = [parameter.data for parameter in trainee.model.parameters() if parameter.requires_grad]
    kept, sides, lengths = [parameter.clone() for parameter in parameters], [], []
    for sign in (1.0, -1.0):
        torch._foreach_copy_(parameters, kept)
        torch._foreach_add_(parameters, direction, alpha=sign * distance)
        output = trainee.model(inputs)
        with torch.enable_grad():
            output = output.detach().float().requires_grad_()
            losses = trainee.loss(output, targets)
            (slope,) = torch.autograd.grad(losses.sum(), output)
        sides.append(losses.detach().double())
        lengths.append(slope.flatten(1).norm(dim=1).double())
    torch._foreach_copy_(parameters, kept)
    return ((sides[0] - sides[1]) / (2 * distance)).cpu(), (0.5 * (lengths[0] + lengths[1])).cpu()


def _op_effects(op: Tensor, policy: ParticlePolicy, aligned: Tensor) -> pf.OpEffects:
    """Return the ops' effects from the ops that were applied; Identity's is 0 and known to be."""
    indices = torch.tensor(op_indices(policy.ops))
    changing = (indices != 0).nonzero()[:, 0]
    applied = (op.cpu().unsqueeze(-1) == indices[changing]).any(1)
    found = pf.op_effects(applied, aligned)
    effects = torch.zeros(len(indices), dtype=torch.float64)
    covariance = torch.zeros(len(indices), len(indices), dtype=torch.float64)
    effects[changing] = found.effects
    covariance[changing.unsqueeze(1), changing] = found.covariance
    return pf.OpEffects(effects, covariance)
