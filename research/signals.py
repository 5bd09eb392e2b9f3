"""Candidate signals: numbers per particle, measured at one reference model, that might say which policy helps."""

from __future__ import annotations

import torch
from signal_alignment import op_effects, sample_alignments
from signal_average import estimate_batch_statistics
from signal_trainee import (
    BATCH,
    SPARSE,
    StudyTrainee,
    held_out_losses,
    particles,
    policy,
    quiet,
)
from torch import Tensor

from particleaugment.core.op_table import OPS
from particleaugment.data import epoch_permutation
from particleaugment.policies import ParticlePolicy
from particleaugment.search.clone import MEASUREMENTS

OWN_CLONE_STEPS = 64
ALIGNED = 16384


def measure_all(
    trainee: StudyTrainee, training: ParticlePolicy, train_ids: Tensor, held_out: Tensor, clone: Tensor, probe: Tensor,
    epoch: int, seed: int, own: bool,
) -> dict[str, list[float]]:  # fmt: skip
    """Measure every candidate at the network's present state, which is left as it is.

    Args:
        trainee: The network.
        training: The policy it trains under.
        train_ids: Training samples, on the device.
        held_out: Samples it has never trained on.
        clone: D_tp, what the paper's clone trains on.
        probe: D_vp, what the paper measures on; part of the training set.
        epoch: The epoch just trained.
        seed: The run's seed.
        own: Whether to train one clone per op, too.
    """
    found: dict[str, Tensor] = {}
    free = per_op(training, train_ids, epoch, seed, trainee.sample_losses[train_ids].double().cpu())
    found["training loss of the op (free)"] = -scores(free)
    found |= paper(trainee, training, clone, probe, train_ids, epoch, seed)
    aligned = train_ids[:ALIGNED]
    trainee.model.eval()
    live = alignment(trainee, training, aligned, held_out, epoch, seed)
    found["gradient alignment with held-out data, live weights"] = live
    with trainee.averaged_weights(train_ids[: 8 * 512].split(512)):
        table = policy(range(len(particles())))
        losses, plain = trainee.measure(table, held_out[:1024], MEASUREMENTS + epoch, progress=quiet, phase="")
        found["affinity: held-out loss gap, averaged weights"] = -(losses - plain).mean(1)
        for kind, target in (("held-out", held_out), ("training", train_ids[-len(held_out) :])):
            averaged = alignment(trainee, training, aligned, target, epoch, seed)
            found[f"gradient alignment with {kind} data, averaged weights"] = averaged
    if own:
        found["own clone per op"] = scores(own_clones(trainee, train_ids, held_out, epoch, seed))
    return {name: [float(f"{value:.6g}") for value in values.tolist()] for name, values in found.items()}


def paper(
    trainee: StudyTrainee, training: ParticlePolicy, clone: Tensor, probe: Tensor, train_ids: Tensor, epoch: int,
    seed: int,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the paper's measurement in its forms, with live weights and with averaged ones."""
    table, key = policy(range(len(particles()))), MEASUREMENTS + epoch
    statistics = train_ids[: 8 * 512].split(512)
    found: dict[str, Tensor] = {}
    kept = [tensor.clone() for tensor in trainee.average.tensors]

    def both() -> list[tuple[Tensor, Tensor]]:
        trainee.model.eval()
        live = trainee.measure(table, probe, key, progress=quiet, phase="")
        with trainee.averaged_weights(statistics):
            return [live, trainee.measure(table, probe, key, progress=quiet, phase="")]

    with trainee.snapshot_of():
        before = both()
        trainee.epoch(training, clone.cpu(), seed, (1 << 30) + epoch)
        after = both()
    for tensor, value in zip(trainee.average.tensors, kept):
        tensor.copy_(value)
    for name, (ref, ref_plain), (upd, upd_plain) in zip(("", ", averaged weights"), before, after):
        falls, plain = ref - upd, ref_plain - upd_plain
        paired = falls - plain
        d0 = plain.sum()
        found[f"delta{name}"] = falls.sum(1) / d0
        found[f"d_i - d_0{name}"] = paired.sum(1)
        found[f"(d_i - d_0) / error{name}"] = paired.mean(1) / (paired.std(1) / len(probe) ** 0.5).clamp(min=1e-12)
        found[f"loss gap{name}"] = -(ref - ref_plain).mean(1)
        found[f"d_0{name}"] = d0.reshape(1)
    return found


def alignment(
    trainee: StudyTrainee, training: ParticlePolicy, ids: Tensor, target: Tensor, epoch: int, seed: int
) -> Tensor:
    """Return the particles' scores by gradient alignment with target samples."""
    key = MEASUREMENTS + epoch
    values = sample_alignments(training, trainee, ids, target, key, batch=2048)
    return scores(per_op(training, ids, key, seed, values))


def own_clones(trainee: StudyTrainee, train_ids: Tensor, held_out: Tensor, epoch: int, seed: int) -> Tensor:
    """Return, per op, by how much a short clone trained under it alone ends with a lower held-out loss than Identity's.

    All clones see the same samples in the same order with the same uniforms; the average of a clone's later half of
    weights is judged, with batch statistics estimated anew.
    """
    order = epoch_permutation(len(train_ids), seed, (1 << 29) + epoch)
    ids = train_ids.cpu()[order[: OWN_CLONE_STEPS * BATCH]]
    results = []
    for op in range(len(OPS)):
        with trainee.snapshot_of():
            mean = [torch.zeros_like(parameter) for parameter in trainee.model.parameters()]

            def collect(phase: str, done: int, total: int, mean: list[Tensor] = mean) -> None:
                if done > OWN_CLONE_STEPS // 2:
                    with torch.no_grad():
                        torch._foreach_add_(mean, list(trainee.model.parameters()), alpha=2.0 / OWN_CLONE_STEPS)

            trainee.model.train()
            trainee.train(policy([SPARSE + op]), ids, (1 << 29) + epoch, progress=collect, phase="clone")
            with torch.no_grad():
                torch._foreach_copy_(list(trainee.model.parameters()), mean)
            statistics = [trainee.inputs(part, None, 0)[0] for part in train_ids[: 8 * 512].split(512)]
            with estimate_batch_statistics(trainee.model, statistics):
                results.append(held_out_losses(trainee, held_out).mean())
    ends = torch.stack(results).cpu()
    return ends[OPS.index("Identity")] - ends


def per_op(training: ParticlePolicy, ids: Tensor, key: int, seed: int, values: Tensor) -> Tensor:
    """Return each op's effect on a number per sample: least squares on which ops were applied, Identity's being 0."""
    program = training.sample(ids.cpu(), key, seed, (32, 32))
    return torch.cat([torch.zeros(1, dtype=torch.float64), op_effects((program.op != 0)[:, 1:], values)])


def scores(effects: Tensor) -> Tensor:
    """Return the particles' scores from effects per op."""
    return particles() @ effects
