"""Gradient alignment, a candidate: would a step on a sample, augmented so, lower the loss on other samples?

With v the direction of the gradient of some plain target samples' loss, a sample's alignment is

    s_k = (loss_k(w + h v) - loss_k(w - h v)) / 2h  ~  <v, gradient of loss_k>,

how fast training on the sample lowers the targets' loss. A regression of s_k on which ops were applied gives each op's
effect.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from particleaugment.policies.particles import ParticlePolicy

_STEP = 0.02  # of the targets' loss, to first order
_RIDGE = 1.0  # as if one more sample without a value had each op


class Network(Protocol):
    """What is measured: a network, its inputs by sample, and its loss."""

    @property
    def model(self) -> nn.Module:
        """The network."""
        ...

    def inputs(self, ids: Tensor, policy: ParticlePolicy | None, epoch_key: int) -> tuple[Tensor, Tensor]:
        """Return network inputs, under a policy or plain, always-on transforms left out, and targets."""
        ...

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss."""
        ...


def sample_alignments(
    policy: ParticlePolicy,
    trainee: Network,
    sample_ids: Tensor,
    target_ids: Tensor,
    key: int,
    *,
    batch: int,
) -> Tensor:
    """Return the alignment of augmented samples with plain target samples, at the network's present weights and modes.

    Args:
        policy: What the samples are augmented under.
        trainee: The network.
        sample_ids: The samples.
        target_ids: Samples whose loss gives the direction.
        key: Epoch key of the draws.
        batch: Samples at a time.
    """
    direction, distance = _gradient(trainee, target_ids, batch)
    found = []
    for ids in sample_ids.split(batch):
        inputs, targets = trainee.inputs(ids, policy, key)
        found.append(_alignment(trainee, inputs, targets, direction, distance))
    return torch.cat(found)


def _gradient(trainee: Network, ids: Tensor, batch: int) -> tuple[list[Tensor], float]:
    """Return the unit gradient of the mean loss, and how far along it the loss changes by its set share."""
    parameters = list(trainee.model.parameters())
    direction, total = [torch.zeros_like(parameter) for parameter in parameters], 0.0
    for part in ids.split(batch):
        inputs, targets = trainee.inputs(part, None, 0)
        loss = trainee.loss(trainee.model(inputs), targets).sum() / len(ids)
        torch._foreach_add_(direction, list(torch.autograd.grad(loss, parameters)))
        total += float(loss.detach())
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(direction))))
    torch._foreach_div_(direction, norm)
    return direction, _STEP * total / norm


@torch.no_grad()
def _alignment(trainee: Network, inputs: Tensor, targets: Tensor, direction: list[Tensor], distance: float) -> Tensor:
    parameters = [parameter.data for parameter in trainee.model.parameters()]
    kept, sides = [parameter.clone() for parameter in parameters], []
    for sign in (1.0, -1.0):
        torch._foreach_copy_(parameters, kept)
        torch._foreach_add_(parameters, direction, alpha=sign * distance)
        sides.append(trainee.loss(trainee.model(inputs), targets).double())
    torch._foreach_copy_(parameters, kept)
    return ((sides[0] - sides[1]) / (2 * distance)).cpu()


def op_effects(applied: Tensor, values: Tensor) -> Tensor:
    """Return the ops' effects on a number per sample: ridge regression on which ops were applied.

    Args:
        applied: 1 where an op was applied to a sample, else 0: [N, n].
        values: the samples' numbers [N].
    """
    applied, values = applied.cpu().double(), values.cpu().double()
    centred = applied - applied.mean(0)
    gram = centred.T @ centred + _RIDGE * torch.eye(applied.shape[1], dtype=torch.float64)
    effects: Tensor = torch.linalg.solve(gram, centred.T @ (values - values.mean()))
    return effects
