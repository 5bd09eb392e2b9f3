"""Networks as loops wrap them for several processes."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

__all__ = ["unwrapped"]


def unwrapped(model: nn.Module, *, shared: bool) -> nn.Module:
    """Return the network inside DistributedDataParallel, whose buckets, hooks and count of passes are the training's.

    Args:
        model: The network.
        shared: Whether a step's work is shared by all processes; networks that they do not hold alike are then refused.
    """
    if shared and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        _check_alike(model)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        inside: nn.Module = model.module
        return inside
    return model


def _check_alike(model: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    sharded = any(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in model.modules())
    if sharded or any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            "filter steps do not support sharded models (FSDP, tensor parallelism); search under "
            "DistributedDataParallel or on one device, and train with the schedule: pa.Augment(pa.Schedule.load(...))"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel) and model.process_group.size() != dist.get_world_size():
        raise ValueError(
            f"only {model.process_group.size()} of {dist.get_world_size()} ranks train this network, so they cannot "
            "share a filter step; pass ranks=Ranks() (from particleaugment.trainee.ranks), and each rank computes "
            "the whole step"
        )
