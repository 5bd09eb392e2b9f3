"""Candidate signals: numbers per particle, measured at one reference model, that might say which policy helps."""

from __future__ import annotations

import torch
from signal_trainee import (
    BATCH,
    SPARSE,
    StudyTrainee,
    held_out_losses,
    particles,
    policy,
    reestimate_statistics,
)
from torch import Tensor
from torch.nn import functional

from particleaugment.data import epoch_permutation
from particleaugment.ops import OPS
from particleaugment.policies import ParticlePolicy
from particleaugment.probe import MEASUREMENTS

OWN_CLONE_STEPS = 64
ALIGNED = 16384


def quiet(phase: str, done: int, total: int) -> None:
    """Show no progress."""


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
    live = alignment(trainee, training, train_ids[:ALIGNED], held_out, epoch)
    effects = per_op(training, train_ids[:ALIGNED], MEASUREMENTS + epoch, seed, live)
    found["gradient alignment with held-out data, live weights"] = scores(effects)
    statistics = train_ids[: 8 * 512].split(512)
    with trainee.averaged_weights(statistics):
        table = policy(range(len(particles())))
        losses, plain = trainee.measure(table, held_out[:1024], MEASUREMENTS + epoch, progress=quiet, phase="")
        found["affinity: held-out loss gap, averaged weights"] = -(losses - plain).mean(1)
        for name, target in (("held-out", held_out), ("training", train_ids[-len(held_out) :])):
            aligned = alignment(trainee, training, train_ids[:ALIGNED], target, epoch)
            effects = per_op(training, train_ids[:ALIGNED], MEASUREMENTS + epoch, seed, aligned)
            found[f"gradient alignment with {name} data, averaged weights"] = scores(effects)
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
    kept = [tensor.clone() for tensor in trainee.averaged]

    def both() -> list[tuple[Tensor, Tensor]]:
        trainee.model.eval()
        live = trainee.measure(table, probe, key, progress=quiet, phase="")
        with trainee.averaged_weights(statistics):
            return [live, trainee.measure(table, probe, key, progress=quiet, phase="")]

    with trainee.snapshot_of():
        before = both()
        trainee.epoch(training, clone.cpu(), seed, (1 << 30) + epoch)
        after = both()
    for tensor, value in zip(trainee.averaged, kept):
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


def alignment(trainee: StudyTrainee, training: ParticlePolicy, ids: Tensor, target: Tensor, epoch: int) -> Tensor:
    """Return, per augmented sample, how much a small step on it would lower the loss on ``target``.

    That is the product of the sample's gradient with the target's unit gradient, by two forward passes a small way up
    and down the latter, in 32-bit arithmetic and with fixed batch statistics.
    """
    parameters: list[Tensor] = list(trainee.model.parameters())
    trainee.model.eval()
    total, gradient = 0.0, [torch.zeros_like(parameter) for parameter in parameters]
    for part in target.split(1024):
        loss = functional.cross_entropy(trainee.model(trainee.plain(part).float()), trainee.labels[part])
        share = len(part) / len(target)
        torch._foreach_add_(gradient, list(torch.autograd.grad(loss, parameters)), alpha=share)
        total += share * float(loss.detach())
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradient)))
    step = 0.02 * total / float(norm)
    torch._foreach_div_(gradient, float(norm))
    kept = [parameter.detach().clone() for parameter in parameters]
    sides = []
    with torch.no_grad():
        for sign in (1.0, -1.0):
            torch._foreach_copy_(parameters, kept)
            torch._foreach_add_(parameters, gradient, alpha=sign * step)
            losses = []
            for part in ids.split(2048):
                logits = trainee.model(trainee.augmented(training, part, MEASUREMENTS + epoch).float())
                losses.append(functional.cross_entropy(logits, trainee.labels[part], reduction="none").double())
            sides.append(torch.cat(losses))
        torch._foreach_copy_(parameters, kept)
    return ((sides[0] - sides[1]) / (2 * step)).cpu()


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
            trainee.train(policy([SPARSE + op]), ids, (1 << 29) + epoch, progress=collect)
            with torch.no_grad():
                torch._foreach_copy_(list(trainee.model.parameters()), mean)
            statistics = [trainee.plain(part) for part in train_ids[: 8 * 512].split(512)]
            reestimate_statistics(trainee.model, statistics, trainee.autocast)
            results.append(held_out_losses(trainee, held_out).mean())
    ends = torch.stack(results).cpu()
    return ends[OPS.index("Identity")] - ends


def per_op(training: ParticlePolicy, ids: Tensor, key: int, seed: int, values: Tensor) -> Tensor:
    """Return each op's effect on a number per sample: least squares on which ops were applied, Identity's being 0."""
    program = training.sample(ids.cpu(), key, seed, (32, 32))
    applied = (program.op != 0).double()
    design = torch.cat([applied[:, 1:], torch.ones(len(applied), 1, dtype=torch.float64)], 1)
    gram = design.T @ design + 1e-3 * torch.eye(design.shape[1], dtype=torch.float64)
    effects = torch.linalg.solve(gram, design.T @ values.double().cpu())
    return torch.cat([torch.zeros(1, dtype=torch.float64), effects[:-1]])


def scores(effects: Tensor) -> Tensor:
    """Return the particles' scores from effects per op."""
    return particles() @ effects
