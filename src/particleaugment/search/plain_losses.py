"""The loss of plain held-out samples, whatever batch norm remembers of augmented ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from particleaugment.search.filter_base import Subject

__all__ = ["evaluation_mode", "held_out_losses", "own_statistics"]


def held_out_losses(subject: Subject) -> Tensor:
    """Return the loss of each plain held-out sample, measured in whichever of two ways has the lower mean.

    With batch norm's running averages, as in evaluation: they lag behind early in training, so the loss jumps. And with
    the statistics of the samples themselves, as in training: if ops change colours, those of plain samples are not what
    the network was trained with, and a network that classifies them well can have a high loss. Both errors raise it.
    """
    assert subject.split is not None  # samples are held out
    model, found = subject.trainee.model, []
    for mode in (evaluation_mode, own_statistics) if _norms(model) else (evaluation_mode,):
        with mode(model):
            found.append(subject.trainee.losses(subject.split[1], progress=subject.progress))
    return min(found, key=lambda losses: mean if math.isfinite(mean := float(losses.mean())) else math.inf)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all of a model into evaluation mode; afterwards, all modes are as they were."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def own_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norm use the statistics of the batch that it is given, as in training, and keep its averages.

    Everything else is in evaluation mode.
    """
    with evaluation_mode(model):
        norms = _norms(model)
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        try:
            yield
        finally:
            for norm in norms:
                norm.track_running_stats = True


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
