"""What a run's epochs compute: arithmetic per phase and per second, and the augmentation's share of a step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from particleaugment.augment.pipeline import FusedPipeline
from particleaugment.augment.transforms import Normalize
from particleaugment.bench.gpu import as_graph, milliseconds
from particleaugment.core.program import resample_code
from particleaugment.data import ImageData, load_data
from particleaugment.models import build_model
from particleaugment.search.difficulty import DifficultyFilter
from particleaugment.search.paper import PaperFilter
from particleaugment.training.build import always_on
from particleaugment.training.config import Config

__all__ = ["augmentation_share", "flops_per_image", "flops_per_phase", "work"]


def work(config: Config, phases: Mapping[str, float]) -> dict[str, Any]:
    """Return what a run achieved per second, phase by phase, and on a GPU the share of its augmentation."""
    data = load_data(
        config.data.name,
        config.data.data_dir or None,
        image_size=config.data.image_size or None,
        validation=config.data.validation,
        train_size=config.data.train_size,
        groups=config.data.groups,
        seed=config.data.data_seed,
        quiet=True,
    )
    flops = flops_per_phase(config, data)
    achieved = {name: float(f"{flops[name] / phases[name] / 1e12:.4g}") for name in flops if name in phases}
    found: dict[str, Any] = {"training_tflops": achieved["train"], "tflops": achieved}
    if config.training.device == "cuda" and not config.searches:
        found["augmentation"] = augmentation_share(config, data, phases["train"])
    return found


def flops_per_image(model: str, num_classes: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return the floating-point operations of one image forward and backward; a multiply-add counts as two.

    >>> forward, backward = flops_per_image("wrn-28-2", 10, (3, 32, 32))
    >>> round(forward / 1e9, 3), 1.9 < backward / forward < 2
    (0.429, True)
    """
    batch = 2
    with torch.device("meta"):
        network = build_model(model, num_classes, seed=0)
        images = torch.zeros(batch, *shape)
    with FlopCounterMode(display=False) as forward:
        logits = network(images)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    return forward.get_total_flops() // batch, backward.get_total_flops() // batch


def flops_per_phase(config: Config, data: ImageData) -> dict[str, int]:
    """Return the floating-point operations of an epoch's phases."""
    forward, backward = flops_per_image(config.model, data.num_classes, data.train_images.shape[1:])
    total = len(data.train_labels)
    work = {"train": total * (forward + backward), "evaluate": len(data.test_labels) * forward}
    filter = config.filter
    if config.searches and isinstance(filter, DifficultyFilter):
        held_out = filter.held_out_of(total)
        work["measure"] = (held_out if isinstance(held_out, int) else int(held_out * total)) * forward
    if config.searches and isinstance(filter, PaperFilter):

        def number(size: int | float) -> int:
            return size if isinstance(size, int) else int(size * total)

        work["clone"] = filter.clone_epochs * number(filter.clone_size) * (forward + backward)
        work["measure"] = 2 * (filter.num_particles + 1) * number(filter.measure_size) * forward
    return work


def augmentation_share(config: Config, data: ImageData, train_seconds: float) -> dict[str, float]:
    """Time the augmentation of a batch alone, drawing included, on the GPU, and return its share of a training step.

    It is captured in a CUDA graph of its own, with the transforms, policy and data of the run; the step's time is the
    epoch's divided by its number of batches.
    """
    device = torch.device("cuda")
    images = data.train_images.to(device)
    dtype = torch.bfloat16 if config.training.precision == "bf16" else torch.float32
    before, after = always_on(config)
    pipeline = FusedPipeline(
        config.fixed_policy(),
        (images.shape[2], images.shape[3]),
        device,
        config.seed,
        before=before,
        after=(*after, Normalize(data.mean, data.std, dtype)),
        resample=resample_code(config.transforms.resample),
        fill=config.transforms.fill,
        dtype=dtype,
        channels_last=True,
    )
    ids = torch.randperm(len(images), device=device)[: config.training.batch_size].contiguous()
    times = milliseconds(as_graph(partial(pipeline, images, ids, index=ids)))
    alone = statistics.median(times) * 1e3
    step = train_seconds / (len(images) / config.training.batch_size) * 1e6
    return {
        "batch": config.training.batch_size,
        "augmentation_microseconds": round(alone, 2),
        "step_microseconds": round(step, 2),
        "share_of_step": round(alone / step, 4),
    }
