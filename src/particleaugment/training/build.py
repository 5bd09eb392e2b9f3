"""From a configuration to the parts of a run: device, precision, network, optimizer, and how it is trained."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from particleaugment.augment import Augment
from particleaugment.data import ImageData, load_data
from particleaugment.executors import choose_executor
from particleaugment.models import ShakeShake, build_model
from particleaugment.policies import Identity
from particleaugment.probe import EagerTrainee, Learner, Samples
from particleaugment.program import resample_code
from particleaugment.ranks import Ranks
from particleaugment.snapshot import Snapshot
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.graph import GraphTrainee
from particleaugment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing, Transform

__all__ = ["Parts", "always_on", "build", "resolve"]

_ALONE = Ranks()


def resolve(config: Config) -> Config:
    """Return the configuration with what ``auto`` means on this machine, and paths that hold from any folder."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = config.precision
    if precision == "auto":
        fast_bfloat16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
        precision = "bf16" if fast_bfloat16 else "fp32"
    data_dir = str(Path(config.data_dir).expanduser().absolute()) if config.data_dir else ""
    policy = config.policy
    if policy.startswith("schedule:"):
        policy = f"schedule:{Path(policy.removeprefix('schedule:')).expanduser().absolute()}"
    return replace(config, device=device, precision=precision, data_dir=data_dir, policy=policy)


@dataclass(frozen=True)
class Parts:
    """What a session works with.

    Attributes:
        data: The data set, on the CPU or resident on the device.
        samples: Its training part.
        model: The network.
        optimizer: Its optimizer.
        trainee: How the network is trained and measured.
        chosen: What was chosen for this machine and why, in a sentence.
    """

    data: ImageData
    samples: Samples
    model: nn.Module
    optimizer: torch.optim.Optimizer
    trainee: EagerTrainee | GraphTrainee
    chosen: str


def always_on(config: Config) -> tuple[list[Transform], list[Transform]]:
    """Return the transforms before and after the policy."""
    before: list[Transform] = [PadCrop(config.crop)] if config.crop else []
    before += [HorizontalFlip(config.flip)] if config.flip else []
    return before, [RandomErasing(config.erase)] if config.erase else []


def build(config: Config, say: Callable[[str], None], quiet: bool = False, ranks: Ranks = _ALONE) -> Parts:
    """Build the parts of a run; on several ranks, at the same time on all of them."""
    config = resolve(config)
    data, model, resident = ranks.everywhere(lambda: _data_and_model(config, quiet, ranks))
    device = torch.device(config.device)
    optimizer = _optimizer(config, model)
    samples = Samples((data.train_images, data.train_labels))
    executor = choose_executor("auto", device)
    if resident and executor == "fused" and ranks.world == 1:
        trainee: EagerTrainee | GraphTrainee = _graph_trainee(config, model, optimizer, data, say)
        network = "compiled network" if _compiles(config) else "network not compiled"
        chosen = f"data resident on the GPU, fused executor, whole steps in a CUDA graph, {network}"
    else:
        trainee = _eager_trainee(config, model, optimizer, data, samples, ranks)
        where = "" if device.type == "cpu" else ", too little GPU memory to hold the data" if not resident else ""
        together = f", DistributedDataParallel on {ranks.world} ranks" if ranks.world > 1 else ""
        chosen = f"{executor} executor, step by step{where}{together}"
    chosen += ", deterministic" if config.deterministic and device.type == "cuda" else ""
    return Parts(data, samples, model, optimizer, trainee, f"{chosen}, {config.precision}")


def _data_and_model(config: Config, quiet: bool, ranks: Ranks) -> tuple[ImageData, nn.Module, bool]:
    """Return what a machine may lack the means for: the data, the network on its device, and whether both lie there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda was asked for, but torch sees no CUDA device here; set device=cpu")
    if config.batch_size < ranks.world:
        raise ConfigError(
            f"batch_size is the batch of all ranks together: {config.batch_size} leaves some of {ranks.world} ranks "
            "without an image; set a larger one or start fewer ranks"
        )
    device = torch.device(config.device)
    data = load_data(
        config.data,
        config.data_dir or None,
        image_size=config.image_size or None,
        validation=config.validation,
        quiet=quiet,
    )
    _set_arithmetic(config)
    model = build_model(config.model, data.num_classes, config.seed)
    if isinstance(model, ShakeShake):
        model.set_batch_positions(ranks.rank, ranks.world)
    if config.sync_batchnorm and ranks.world > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    resident = device.type == "cuda" and _fits(data, device)
    if resident:
        data = replace(
            data,
            train_images=data.train_images.to(device),
            train_labels=data.train_labels.to(device),
            test_images=data.test_images.to(device),
            test_labels=data.test_labels.to(device),
        )
    return data, model, resident


def _set_arithmetic(config: Config) -> None:
    if config.device != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    torch.backends.cudnn.benchmark = not config.deterministic
    if config.deterministic:
        # cuBLAS reads this when it is first used, which is after this; without it its sums may come in another order.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)


def _compiles(config: Config) -> bool:
    """Whether the network is compiled: the compiler chooses kernels by timing them, so never where runs must repeat."""
    return config.compile and not config.deterministic


def _optimizer(config: Config, model: nn.Module) -> torch.optim.SGD:
    on_cuda = config.device == "cuda"
    rate = torch.tensor(config.learning_rate, device="cuda") if on_cuda else config.learning_rate
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        fused=True if on_cuda else None,
    )
    if on_cuda and config.momentum:
        # A captured step needs its state from the start; a zero momentum makes the first step what it would be anyway.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _graph_trainee(
    config: Config, model: nn.Module, optimizer: torch.optim.Optimizer, data: ImageData, say: Callable[[str], None]
) -> GraphTrainee:
    before, after = always_on(config)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return GraphTrainee(
        model,
        optimizer,
        data.train_images,
        data.train_labels,
        Normalize(data.mean, data.std, dtype),
        seed=config.seed,
        batch_size=config.batch_size,
        before=before,
        after=after,
        resample=resample_code(config.resample),
        fill=config.fill,
        autocast=_autocast(config),
        compiled=_compiles(config),
        say=say,
    )


def _eager_trainee(
    config: Config,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: ImageData,
    samples: Samples,
    ranks: Ranks,
) -> EagerTrainee:
    before, after = always_on(config)
    normalize = Normalize(data.mean, data.std)
    learner = Learner(
        model,
        optimizer,
        _cross_entropy,
        lambda images: normalize.run(images).contiguous(memory_format=torch.channels_last),
        _autocast(config),
        ranks=ranks,
    )
    augment = Augment(Identity(), config.seed, before=before, after=after, resample=config.resample, fill=config.fill)
    trainee = EagerTrainee(learner, samples, augment, config.batch_size)
    if ranks.world > 1:
        _settle(trainee)
    return trainee


def _settle(trainee: EagerTrainee) -> None:
    """Take one training step and undo it.

    After its first step DistributedDataParallel puts the gradients into another order, in which sums over three or more
    ranks are rounded otherwise. A resumed run must add up like one that has been going on: no real step is the first.
    """
    ids = torch.arange(min(trainee.batch_size, len(trainee.samples)))
    with Snapshot().of(trainee.model, trainee.optimizer):
        trainee.train(Identity(), ids, 0, progress=lambda phase, done, total: None)


def _fits(data: ImageData, device: torch.device) -> bool:
    free, _ = torch.cuda.mem_get_info(device)
    return data.train_images.numel() + data.test_images.numel() < free // 2


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets, reduction="none")


def _autocast(config: Config) -> Callable[[], AbstractContextManager[Any]]:
    if config.precision == "bf16":
        return lambda: torch.autocast(config.device, torch.bfloat16)
    return nullcontext
