"""From a configuration to the parts of a run: device, precision, data, network, optimizer, and how it is trained."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from particleaugment.augment.batch import Augment
from particleaugment.augment.pipeline import fusable
from particleaugment.augment.transforms import ColorJitter, HorizontalFlip, Normalize, PadCrop, RandomErasing, Transform
from particleaugment.core.program import resample_code
from particleaugment.data import FOLDER_SIZE, ImageData, ImageList, load_data
from particleaugment.data.folder import IMAGENET_STATISTICS, MEMORY_LIMIT, decoded_bytes
from particleaugment.data.listing import FolderListing, find_images
from particleaugment.data.reader import default_workers
from particleaugment.data.samples import Samples
from particleaugment.data.streamed import FolderData, example_images, open_folder
from particleaugment.executors import choose_executor
from particleaugment.models import ShakeShake, build_model
from particleaugment.policies import Identity
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import Progress
from particleaugment.trainee.ranks import Ranks
from particleaugment.trainee.snapshot import Snapshot
from particleaugment.trainee.stream import StreamTrainee, make_pipelines
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.shared import SharedNetwork, SharedParts

__all__ = ["Parts", "always_on", "build", "resolve"]

_EXAMPLES = 16
_STEPS_THAT_REPAY_COMPILING = 20_000
_ALONE = Ranks()


def resolve(config: Config) -> Config:
    """Return the configuration with what ``auto`` means on this machine, and paths that hold from any folder.

    A directory that ``data`` carries behind a colon becomes ``data_dir``.
    """
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = config.precision
    if precision == "auto":
        fast_bfloat16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
        precision = "bf16" if fast_bfloat16 else "fp32"
    if config.data_dir and config.data_place != config.data_dir:
        raise ConfigError(
            f"the data set {config.data_set!r} is given two directories, {config.data_place} and {config.data_dir}; "
            "name one"
        )
    place = str(Path(config.data_place).expanduser().absolute()) if config.data_place else ""
    policy = config.policy
    if config.policy_file is not None:
        policy = f"{policy.partition(':')[0]}:{Path(config.policy_file).expanduser().absolute()}"
    return replace(config.with_data_in(place), device=device, precision=precision, policy=policy)


@dataclass(frozen=True)
class Parts:
    """What a session works with.

    Attributes:
        data: The data set, on the CPU, resident on the device, or as files.
        samples: Its training part.
        examples: A few training images, to show.
        model: The network.
        optimizer: Its optimizer.
        trainee: How the network is trained and measured.
        evaluate: Returns loss and accuracy in percent on the first test images, or on all where no number is given.
        chosen: What was chosen for this machine and why, in a sentence.
    """

    data: ImageData | FolderData
    samples: Samples | ImageList
    examples: Tensor
    model: nn.Module
    optimizer: torch.optim.Optimizer
    trainee: EagerTrainee | GraphTrainee | StreamTrainee
    evaluate: Callable[[int | None, Progress], tuple[float, float]]
    chosen: str


def always_on(config: Config) -> tuple[list[Transform], list[Transform]]:
    """Return the transforms before and after the policy."""
    low, high = 1 - config.jitter, 1 + config.jitter
    before: list[Transform] = [ColorJitter((low, high), (low, high), (low, high))] if config.jitter else []
    before += [PadCrop(config.crop)] if config.crop else []
    before += [HorizontalFlip(config.flip)] if config.flip else []
    return before, [RandomErasing(config.erase)] if config.erase else []


def build(
    config: Config,
    say: Callable[[str], None],
    quiet: bool = False,
    ops: Iterable[str] = (),
    ranks: Ranks = _ALONE,
    shared: SharedParts | None = None,
) -> Parts:
    """Build the parts of a run whose policy draws from ``ops``; on several ranks, at the same time on all of them.

    Where runs follow each other in one process, ``shared`` keeps what the next one can use again.
    """
    config, shared = resolve(config), shared or SharedParts()
    found, description = ranks.everywhere(lambda: _checked_request(config, ranks))
    if description:
        say(description)
    why_streamed = _why_streamed(config, found)
    device = torch.device(config.device)
    executor = choose_executor("auto", device, ops)
    if why_streamed:
        files = ranks.everywhere(lambda: _open_folder(config, quiet, found))
        return _streamed(config, files, why_streamed, say, executor, ranks)
    data, network, resident = ranks.everywhere(lambda: _data_and_model(config, quiet, ranks, shared))
    model = network.model
    if config.part_of_data and not description:
        say(f"{len(data.train_labels):,} training images{config.part_of_data}, {len(data.test_labels):,} test images")
    optimizer = _optimizer(config, model)
    samples = Samples((data.train_images, data.train_labels))
    trainee: EagerTrainee | GraphTrainee
    if resident and executor == "fused" and fusable(*always_on(config)) and ranks.world == 1:
        compiled = _compiles(config, len(samples))
        forward = network.compiled() if compiled else model
        trainee = _graph_trainee(config, model, forward, optimizer, data, say)
        how = "compiled network" if compiled else "network not compiled"
        chosen = f"data resident on the GPU, fused executor, whole steps in a CUDA graph, {how}"
    else:
        trainee = _eager_trainee(config, model, optimizer, data, samples, ranks)
        where = "" if device.type == "cpu" else ", too little GPU memory to hold the data" if not resident else ""
        jitter = ", since colour jitter is not part of a whole step" if resident and config.jitter else ""
        chosen = f"{executor} executor, step by step{where}{jitter}{_together(ranks)}"
    chosen += _how_it_counts(config)

    def evaluate(count: int | None, progress: Progress) -> tuple[float, float]:
        return trainee.evaluate(data.test_images[:count], data.test_labels[:count])

    examples = data.train_images[:_EXAMPLES]
    return Parts(data, samples, examples, model, optimizer, trainee, evaluate, chosen)


def _checked_request(config: Config, ranks: Ranks) -> tuple[FolderListing | None, str]:
    """Refuse what cannot be; return what a folder of images holds, where one is named, and a line that says it."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda was asked for, but torch sees no CUDA device here; set device=cpu")
    if config.batch_size < ranks.world:
        raise ConfigError(
            f"batch_size is the batch of all ranks together: {config.batch_size} leaves some of {ranks.world} ranks "
            "without an image; set a larger one or start fewer ranks"
        )
    if config.data_set != "folder" or not config.data_place:
        return None, ""
    found = find_images(config.data_place, groups=config.groups)
    return found, found.describe(config.validation, config.train_size, config.data_seed)


def _data_and_model(
    config: Config, quiet: bool, ranks: Ranks, shared: SharedParts
) -> tuple[ImageData, SharedNetwork, bool]:
    """Return what a machine may lack the means for: the data, the network on its device, and whether both are there."""
    data, resident = shared.data(config, lambda: _load_data(config, quiet))
    return data, shared.network(config, data.num_classes, lambda: _network(config, data.num_classes, ranks)), resident


def _load_data(config: Config, quiet: bool) -> tuple[ImageData, bool]:
    """Return the data, on the device if there is room for them, and whether they are there."""
    device = torch.device(config.device)
    data = load_data(
        config.data,
        config.data_dir or None,
        image_size=config.image_size or None,
        validation=config.validation,
        train_size=config.train_size,
        groups=config.groups,
        seed=config.data_seed,
        quiet=quiet,
    )
    if config.normalization == "imagenet":
        data = replace(data, mean=IMAGENET_STATISTICS[0], std=IMAGENET_STATISTICS[1])
    resident = device.type == "cuda" and _fits(data, device)
    if resident:
        data = replace(
            data,
            train_images=data.train_images.to(device),
            train_labels=data.train_labels.to(device),
            test_images=data.test_images.to(device),
            test_labels=data.test_labels.to(device),
        )
    return data, resident


def _network(config: Config, num_classes: int, ranks: Ranks) -> nn.Module:
    """Return the network on its device."""
    _set_arithmetic(config)
    model = build_model(config.model, num_classes, config.seed)
    if isinstance(model, ShakeShake):
        model.set_batch_positions(ranks.rank, ranks.world)
    if config.sync_batchnorm and ranks.world > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.to(torch.device(config.device), memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def _together(ranks: Ranks) -> str:
    return f", DistributedDataParallel on {ranks.world} ranks" if ranks.world > 1 else ""


def _image_size(config: Config) -> int:
    return config.image_size or FOLDER_SIZE


def _why_streamed(config: Config, found: FolderListing | None) -> str:
    """Return why files are decoded while the network trains, or nothing where images are held in memory."""
    if config.data_set != "folder" or config.stream == "false":
        return ""
    if config.crop_scale:
        return "random resized crops are cut from them"
    if config.stream == "true":
        return "stream=true was asked for"
    if found is None:
        return ""
    needed = decoded_bytes((found.train, found.test), _image_size(config))
    sizes = f"{needed / 2**30:.1f} GiB decoded are more than the {MEMORY_LIMIT / 2**30:.0f} GiB held in memory"
    return sizes if needed > MEMORY_LIMIT else ""


def _open_folder(config: Config, quiet: bool, found: FolderListing | None) -> FolderData:
    if not config.data_place:
        raise ConfigError("the data set 'folder' needs data_dir, a directory with one sub-folder of images per class")
    return open_folder(
        config.data_place,
        _image_size(config),
        validation=config.validation,
        train_size=config.train_size,
        data_seed=config.data_seed,
        seed=config.seed,
        crop_scale=config.crop_scale,
        normalization=config.normalization,
        quiet=quiet,
        found=found,
    )


def _streamed(
    config: Config, data: FolderData, why: str, say: Callable[[str], None], executor: str, ranks: Ranks
) -> Parts:
    """Return the parts of a run whose images are decoded while it goes on."""
    model = ranks.everywhere(lambda: _network(config, data.num_classes, ranks))
    optimizer = _optimizer(config, model)
    device = next(model.parameters()).device
    before, after = always_on(config)
    compiled = _compiles(config, len(data.train.images)) and device.type == "cuda" and ranks.world == 1
    workers = config.workers if isinstance(config.workers, int) else default_workers()
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    pipelines = make_pipelines(
        device,
        _image_size(config),
        Normalize(data.mean, data.std, dtype),
        config.seed,
        executor,
        before=before,
        after=after,
        resample=config.resample,
        fill=config.fill,
    )
    trainee = StreamTrainee(
        Learner(model, optimizer, _cross_entropy, nn.Identity(), _autocast(config), ranks=ranks),
        data,
        pipelines,
        config.batch_size,
        workers,
        compiled=compiled,
        say=say,
    )
    if ranks.world > 1:
        _settle(trainee, len(data.train.images))
    examples = example_images(data.train.images, _image_size(config), _EXAMPLES)
    by_whom = f"by {workers} worker{'s' * (workers > 1)}" if workers else "by the training process"
    chosen = f"files decoded {by_whom} while training ({why}), {executor} executor{_together(ranks)}"
    chosen += f", step by step{', compiled network' if compiled else ''}{_how_it_counts(config)}"
    return Parts(data, data.train.images, examples, model, optimizer, trainee, trainee.evaluate, chosen)


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


def _how_it_counts(config: Config) -> str:
    return f"{', deterministic' if config.deterministic and config.device == 'cuda' else ''}, {config.precision}"


def _compiles(config: Config, samples: int) -> bool:
    """Whether the network is compiled: the compiler chooses kernels by timing them, so never where runs must repeat."""
    steps = config.epochs * math.ceil(samples / config.batch_size)
    wanted = steps >= _STEPS_THAT_REPAY_COMPILING if config.compile == "auto" else bool(config.compile)
    return wanted and not config.deterministic


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
    config: Config,
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    data: ImageData,
    say: Callable[[str], None],
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
        forward=forward,
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
        _settle(trainee, len(samples))
    return trainee


def _settle(trainee: EagerTrainee | StreamTrainee, count: int) -> None:
    """Take one training step and undo it.

    After its first step DistributedDataParallel puts the gradients into another order, in which sums over three or more
    ranks are rounded otherwise. A resumed run must add up like one that has been going on: no real step is the first.
    """
    ids = torch.arange(min(trainee.batch_size, count))
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
