"""From a configuration to a network on its device: its weights, its optimizer and its arithmetic."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from particleaugment.models import ShakeShake, build_model
from particleaugment.trainee.ranks import Ranks
from particleaugment.training.config import Config

__all__ = ["autocast_of", "cross_entropy", "is_compiled", "make_network", "make_optimizer"]

_STEPS_THAT_REPAY_COMPILING = 20_000


def make_network(config: Config, num_classes: int, ranks: Ranks) -> nn.Module:
    """Return the network on its device."""
    _set_arithmetic(config)
    model = build_model(config.model, num_classes, config.seed)
    if isinstance(model, ShakeShake):
        model.set_batch_positions(ranks.rank, ranks.world)
    if config.training.sync_batchnorm and ranks.in_group:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.to(torch.device(config.training.device), memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def _set_arithmetic(config: Config) -> None:
    if config.training.device != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.training.precision != "fp32"
    torch.backends.cudnn.benchmark = not config.training.deterministic
    if config.training.deterministic:
        # cuBLAS reads this when it is first used, which is after this; without it its sums may come in another order.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.training.deterministic, warn_only=True)
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.SGD:
    """Return SGD as the configuration has it; on a GPU in the form that a captured step needs."""
    on_cuda = config.training.device == "cuda"
    rate = torch.tensor(config.training.learning_rate, device="cuda") if on_cuda else config.training.learning_rate
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=rate,
        momentum=config.training.momentum,
        weight_decay=config.training.weight_decay,
        nesterov=config.training.nesterov,
        fused=True if on_cuda else None,
    )
    if on_cuda and config.training.momentum:
        # A captured step needs its state from the start; a zero momentum makes the first step what it would be anyway.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def is_compiled(config: Config, samples: int) -> bool:
    """Whether the network is compiled: the compiler chooses kernels by timing them, so never where runs must repeat."""
    steps = config.training.epochs * math.ceil(samples / config.training.batch_size)
    wanted = (
        steps >= _STEPS_THAT_REPAY_COMPILING if config.training.compile == "auto" else bool(config.training.compile)
    )
    return wanted and not config.training.deterministic


def autocast_of(config: Config) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context of forward passes."""
    if config.training.precision == "bf16":
        return lambda: torch.autocast(config.training.device, torch.bfloat16)
    return nullcontext


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample."""
    return functional.cross_entropy(logits, targets, reduction="none")
