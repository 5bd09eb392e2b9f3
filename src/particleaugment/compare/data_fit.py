"""Finding out, before any process is started or file written, whether the arms of a comparison suit the data."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from particleaugment.compare.arms import Arm, Base
from particleaugment.models import build_model
from particleaugment.training.build import build
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.data_checks import check_search
from particleaugment.training.settings import TrainingSettings, TransformSettings

__all__ = ["check_data"]


@dataclass(frozen=True, eq=False)
class _Facts:
    """What is kept of the data: the images are dropped, since every run loads its own."""

    labels: Tensor
    groups: Tensor | None
    num_classes: int


def check_data(arms: Sequence[Arm], base: Base, *, quiet: bool = True) -> None:
    """Load the data once, and raise a ConfigError where they or an arm's settings cannot be used.

    Arms that take the same data share the loading. Where files are decoded while a network trains, a sample of them is
    read. The sentence names the arm, unless it holds for all of them.

    Args:
        arms: The arms that have runs to do.
        base: The recipe with the comparison's settings.
        quiet: Show no progress bar.
    """
    found = dict[Config, _Facts | str]()
    problems = list[tuple[str, str]]()
    for arm in arms:
        config = arm.config(base, seed=0)
        data = _data_alone(config)
        if data not in found:
            found[data] = _facts(data, quiet)
            gc.collect()  # a cycle of references would keep the images in memory while the runs train
        facts = found[data]
        problem = facts if isinstance(facts, str) else _problem(config, facts)
        if problem:
            problems.append((arm.name, problem))
    if problems:
        name, problem = problems[0]
        of_all = len(problems) == len(arms) and all(other == problem for _, other in problems)
        raise ConfigError(problem if of_all else f"arm {name!r}: {problem}")


def _data_alone(config: Config) -> Config:
    """Return the same data with a small network on the CPU; it is equal for arms that share their data."""
    device = "cpu" if torch.cuda.is_available() else config.training.device
    return Config(
        recipe=config.recipe,
        data=replace(config.data, workers=0),
        model="wrn-10-1",
        training=TrainingSettings(device=device, precision="fp32", compile=False),
        transforms=TransformSettings(crop=0, crop_scale=config.transforms.crop_scale),
        policy="none",
    )


def _facts(config: Config, quiet: bool) -> _Facts | str:
    """Return what is to know about the data, or why they cannot be used."""
    try:
        parts = build(config, say=lambda message: None, quiet=quiet)
        parts.data.examples()  # of files some are read
    except OSError as error:
        name = error.filename or "the data"
        return f"{name} cannot be read: {error.strerror or error}; check the path and its permissions"
    except (TypeError, ValueError) as error:
        return str(error)
    return _Facts(parts.samples.labels, parts.data.train_groups, parts.data.num_classes)


def _problem(config: Config, facts: _Facts) -> str:
    """Return why a run with this configuration could not begin, or nothing."""
    try:
        with torch.device("meta"):
            build_model(config.model, facts.num_classes, config.seed)
    except ValueError as error:
        return str(error)
    return _misfit(config, facts) if config.searches else ""


def _misfit(config: Config, facts: _Facts) -> str:
    """Return why the samples that a filter step asks for cannot be had, or nothing."""
    config.filter.check(config.ops, config.training.epochs)
    try:
        check_search(
            config.filter,
            facts.labels,
            say=lambda sentence: None,
            epochs=config.training.epochs,
            seed=config.seed,
            groups=facts.groups,
        )
    except ConfigError as error:
        return str(error)
    return ""
