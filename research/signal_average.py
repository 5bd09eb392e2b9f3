"""Averaged weights: what a network's training hovers around, for measurements that one step's noise would drown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EVERY = 8
"""Steps from one update of an average to the next."""


class WeightAverage:
    """An exponential average of a network's parameters, kept beside them.

    Args:
        parameters: The network's parameters, the first average.
        steps: Memory of the average, in training steps.
    """

    def __init__(self, parameters: Iterable[Tensor], steps: int = 800):
        self.decay = max(0.0, 1.0 - EVERY / steps)
        self.tensors = [parameter.detach().clone() for parameter in parameters]
        self.steps_seen = 0

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Take a training step into account; only every eighth costs anything."""
        self.steps_seen += 1
        if self.steps_seen % EVERY == 0:
            torch._foreach_lerp_(self.tensors, _tensors(model), 1.0 - self.decay)

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Put the average into the network for a block, and the network's own parameters back after it."""
        kept = [tensor.clone() for tensor in _tensors(model)]
        with torch.no_grad():
            torch._foreach_copy_(_tensors(model), self.tensors)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(_tensors(model), kept)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [parameter.data for parameter in model.parameters()]


@contextmanager
def estimate_batch_statistics(model: nn.Module, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Within a block, the network's batch-normalisation statistics are plain means over some inputs.

    The network is in evaluation mode in the block; what it was before is restored.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    buffers = [(norm, name, buffer, buffer.clone()) for norm in norms for name, buffer in norm.named_buffers()]
    momenta, modes = [norm.momentum for norm in norms], [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        for norm in norms:
            if norm.running_mean is not None:
                norm.reset_running_stats()
                norm.momentum = None
                norm.train()
        with torch.no_grad():
            for batch in inputs if norms else ():
                model(batch)
        model.eval()
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for norm, name, buffer, kept in buffers:
            buffer.copy_(kept)
            norm._buffers[name] = buffer
        for module, training in modes:
            module.training = training
