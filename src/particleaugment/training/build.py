"""From a configuration to the parts of a run: its data, its network, and how it is trained on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from particleaugment.augment.module import Augment
from particleaugment.augment.pipeline import fusable
from particleaugment.augment.transforms import ColorJitter, HorizontalFlip, Normalize, PadCrop, RandomErasing, Transform
from particleaugment.data import FOLDER_SIZE, ImageData, ImageList, find_files, load_data, needed_place
from particleaugment.data.folder import IMAGENET_STATISTICS, MEMORY_LIMIT, decoded_bytes
from particleaugment.data.hf import absolute_place
from particleaugment.data.listing import FolderListing
from particleaugment.data.reader import default_workers
from particleaugment.data.samples import Samples
from particleaugment.data.streamed import StreamedData, open_folder
from particleaugment.executors import choose_executor
from particleaugment.policies import Identity
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.pipelines import Pipelines, make_pipelines, normalised
from particleaugment.trainee.protocol import Trainee
from particleaugment.trainee.ranks import Ranks
from particleaugment.trainee.stream import StreamTrainee
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.network import autocast_of, cross_entropy, is_compiled, make_network, make_optimizer
from particleaugment.training.shared import SharedNetwork, SharedParts

__all__ = ["Parts", "always_on", "build", "resolve"]

_ALONE = Ranks()


def resolve(config: Config) -> Config:
    """Return the configuration with what ``auto`` means on this machine, and paths that hold from any folder."""
    device = config.training.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = config.training.precision
    if precision == "auto":
        fast_bfloat16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
        precision = "bf16" if fast_bfloat16 else "fp32"
    place = config.data.data_dir
    if place:
        place = absolute_place(place) if config.data.name == "hf" else str(Path(place).expanduser().absolute())
    policy = config.policy
    if config.policy_file is not None:
        policy = f"{policy.partition(':')[0]}:{Path(config.policy_file).expanduser().absolute()}"
    training = replace(config.training, device=device, precision=precision)
    return replace(config.with_data_in(place), training=training, policy=policy)


@dataclass(frozen=True)
class Parts:
    """What a session works with.

    Attributes:
        data: The data set, on the CPU, resident on the device, or as files.
        samples: Its training part.
        trainee: The network and its optimizer, and how it is trained, measured and evaluated.
        chosen: What was chosen for this machine and why, in a sentence.
    """

    data: ImageData | StreamedData
    samples: Samples | ImageList
    trainee: Trainee
    chosen: str

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.trainee.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimizer."""
        return self.trainee.optimizer


def always_on(config: Config) -> tuple[list[Transform], list[Transform]]:
    """Return the transforms before and after the policy."""
    low, high = 1 - config.transforms.jitter, 1 + config.transforms.jitter
    before: list[Transform] = [ColorJitter((low, high), (low, high), (low, high))] if config.transforms.jitter else []
    before += [PadCrop(config.transforms.crop)] if config.transforms.crop else []
    before += [HorizontalFlip(config.transforms.flip)] if config.transforms.flip else []
    return before, [RandomErasing(config.transforms.erase)] if config.transforms.erase else []


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
    executor = choose_executor("auto", torch.device(config.training.device), ops)
    if why := _why_streamed(config, found):
        return _streamed(config, say, quiet, found, why, executor, ranks)
    return _in_memory(config, say, quiet, described=bool(description), executor=executor, ranks=ranks, shared=shared)


def _in_memory(
    config: Config,
    say: Callable[[str], None],
    quiet: bool,
    *,
    described: bool,
    executor: str,
    ranks: Ranks,
    shared: SharedParts,
) -> Parts:
    """Return the parts of a run whose images are held in memory: whole steps in a graph, or step by step."""
    data, network, resident = ranks.everywhere(lambda: _data_and_network(config, quiet, ranks, shared))
    if config.data.part and not described:
        say(f"{len(data.train_labels):,} training images{config.data.part}, {len(data.test_labels):,} test images")
    samples = Samples((data.train_images, data.train_labels))
    train, test = (data.train_images, data.train_labels), (data.test_images, data.test_labels)
    model, optimizer, (before, after) = network.model, make_optimizer(config, network.model), always_on(config)
    trainee: Trainee
    if resident and executor == "fused" and fusable(before, after) and ranks.capturable:
        compiled = is_compiled(config, len(samples))
        pipelines, preprocess = _pipelines(config, data, model, data.train_images.shape[-2:], executor)
        trainee = GraphTrainee(
            Learner(model, optimizer, cross_entropy, preprocess, autocast_of(config), ranks=ranks),
            pipelines,
            train,
            test,
            config.training.batch_size,
            forward=network.compiled() if compiled else model,
            say=say,
        )
        trainee.settle(len(samples))
        how = ("compiled network" if compiled else "network not compiled") + _together(ranks)
        chosen = f"data resident on the GPU, fused executor, whole steps in a CUDA graph, {how}"
    else:
        preprocess = normalised(data.mean, data.std)
        learner = Learner(model, optimizer, cross_entropy, preprocess, autocast_of(config), ranks=ranks)
        augment = Augment(
            Identity(),
            config.seed,
            before=before,
            after=after,
            resample=config.transforms.resample,
            fill=config.transforms.fill,
        )
        trainee = EagerTrainee(learner, samples, augment, config.training.batch_size, test)
        trainee.settle(len(samples))
        where = ", too little GPU memory for the data" if config.training.device == "cuda" and not resident else ""
        jitter = ", because colour jitter cannot be captured" if resident and config.transforms.jitter else ""
        chosen = f"{executor} executor, step by step{where}{jitter}{_together(ranks)}"
    return Parts(data, samples, trainee, chosen + _how_it_counts(config))


def _streamed(
    config: Config,
    say: Callable[[str], None],
    quiet: bool,
    found: FolderListing | None,
    why: str,
    executor: str,
    ranks: Ranks,
) -> Parts:
    """Return the parts of a run whose images are decoded while it trains."""
    data = ranks.everywhere(lambda: _open_folder(config, quiet, found))
    model = ranks.everywhere(lambda: make_network(config, data.num_classes, ranks))
    count, size = len(data.train), data.train.size
    compiled = is_compiled(config, count) and config.training.device == "cuda" and not ranks.in_group
    workers = config.data.workers if isinstance(config.data.workers, int) else default_workers()
    pipelines, preprocess = _pipelines(config, data, model, (size, size), executor)
    trainee = StreamTrainee(
        Learner(model, make_optimizer(config, model), cross_entropy, preprocess, autocast_of(config), ranks=ranks),
        pipelines,
        data,
        config.training.batch_size,
        workers,
        compiled=compiled,
        say=say,
    )
    trainee.settle(count)
    by_whom = f"by {workers} worker{'s' * (workers > 1)}" if workers else "by the training process"
    chosen = f"files decoded {by_whom} during training ({why}), {executor} executor{_together(ranks)}"
    chosen += f", step by step{', compiled network' if compiled else ''}{_how_it_counts(config)}"
    return Parts(data, data.train.images, trainee, chosen)


def _checked_request(config: Config, ranks: Ranks) -> tuple[FolderListing | None, str]:
    """Refuse what cannot be; return what a folder of images holds, where one is named, and a line that says it."""
    if config.training.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda was requested, but torch sees no CUDA device; set device=cpu")
    if config.training.batch_size < ranks.world:
        raise ConfigError(
            f"batch_size is the global batch size: {config.training.batch_size} leaves some of {ranks.world} "
            "ranks without an image; set a larger one or start fewer ranks"
        )
    if not config.data.has_files or not config.data.data_dir:
        return None, ""
    found = find_files(config.data.name, config.data.data_dir, config.data.groups)
    return found, found.describe(config.data.validation, config.data.train_size, config.data.data_seed)


def _data_and_network(
    config: Config, quiet: bool, ranks: Ranks, shared: SharedParts
) -> tuple[ImageData, SharedNetwork, bool]:
    """Return what a machine may lack the means for: the data, the network on its device, and whether both are there."""
    data, resident = shared.data(config, lambda: _load_data(config, quiet))
    classes = data.num_classes
    return data, shared.network(config, classes, lambda: make_network(config, classes, ranks)), resident


def _load_data(config: Config, quiet: bool) -> tuple[ImageData, bool]:
    """Return the data, on the device if there is room for them, and whether they are there."""
    device = torch.device(config.training.device)
    data = load_data(
        config.data.name,
        config.data.data_dir or None,
        image_size=config.data.image_size or None,
        validation=config.data.validation,
        train_size=config.data.train_size,
        groups=config.data.groups,
        seed=config.data.data_seed,
        quiet=quiet,
    )
    if config.data.normalization == "imagenet":
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


def _together(ranks: Ranks) -> str:
    if not ranks.in_group:
        return ""
    return f", DistributedDataParallel on {ranks.world} rank{'s' * (ranks.world > 1)}"


def _image_size(config: Config) -> int:
    return config.data.image_size or FOLDER_SIZE


def _why_streamed(config: Config, found: FolderListing | None) -> str:
    """Return why files are decoded while the network trains, or nothing where images are held in memory."""
    if not config.data.has_files or config.data.stream == "false":
        return ""
    if config.transforms.crop_scale:
        return "random resized crops"
    if config.data.stream == "true":
        return "stream=true"
    if found is None:
        return ""
    needed = decoded_bytes((found.train, found.test), _image_size(config))
    sizes = f"{needed / 2**30:.1f} GiB decoded, more than the limit of {MEMORY_LIMIT / 2**30:.0f} GiB"
    return sizes if needed > MEMORY_LIMIT else ""


def _open_folder(config: Config, quiet: bool, found: FolderListing | None) -> StreamedData:
    if not config.data.data_dir:
        raise ConfigError(needed_place(config.data.name))
    return open_folder(
        config.data.data_dir,
        _image_size(config),
        validation=config.data.validation,
        train_size=config.data.train_size,
        data_seed=config.data.data_seed,
        seed=config.seed,
        crop_scale=config.transforms.crop_scale,
        normalization=config.data.normalization,
        quiet=quiet,
        found=found,
    )


def _how_it_counts(config: Config) -> str:
    training = config.training
    deterministic = ", deterministic" if training.deterministic and training.device == "cuda" else ""
    return f"{deterministic}, {training.precision}"


def _pipelines(
    config: Config, data: ImageData | StreamedData, model: nn.Module, size: Sequence[int], executor: str
) -> tuple[Pipelines, Callable[[Tensor], Tensor]]:
    before, after = always_on(config)
    return make_pipelines(
        next(model.parameters()).device,
        (size[0], size[1]),
        Normalize(data.mean, data.std, torch.bfloat16 if config.training.precision == "bf16" else torch.float32),
        config.seed,
        executor,
        before=before,
        after=after,
        resample=config.transforms.resample,
        fill=config.transforms.fill,
    )


def _fits(data: ImageData, device: torch.device) -> bool:
    free, _ = torch.cuda.mem_get_info(device)
    return data.train_images.numel() + data.test_images.numel() < free // 2
