"""Whether a checkpoint stands where a run can stand: most of its numbers follow from its configuration and its epoch.

A run of so many images has so many batches an epoch, is evaluated and takes filter steps after known epochs, and has
written a line of metrics for each of these. So a number that has the right type and cannot be is found without data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from particleaugment.data.split import batch_count
from particleaugment.search.filter_base import Filter
from particleaugment.training.config import Config
from particleaugment.training.moments import falls_on, interval
from particleaugment.training.records import LARGEST_NUMBER

__all__ = [
    "ContentError",
    "check_data",
    "check_position",
    "check_records",
    "data_named",
    "filter_of",
    "is_hash",
    "same",
    "steps_before",
]

_PHASES = ("train", "evaluate", "filter")
_MOST_SAMPLES = 1 << 40


class ContentError(ValueError):
    """A checkpoint holds something else than the state of a run."""


def whole(name: str, value: Any, least: int, most: int, what: str = "") -> int:
    """Return a value that is a whole number in a range."""
    if type(value) is not int or not least <= value <= most:
        raise ContentError(f"{name} must be a whole number from {least} to {most}{what and f', {what}'}")
    return value


def check_data(data: Mapping[str, Any]) -> None:
    """Check how a checkpoint names its data: a hash, and how many samples they have."""
    if data.keys() != {"hash", "samples"}:
        raise ContentError("data must have the fields hash, samples")
    if not is_hash(data["hash"]):
        raise ContentError("data.hash must be a hash of the data")
    whole("data.samples", data["samples"], 1, _MOST_SAMPLES)


def data_named(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a checkpoint says of the data, which without these cannot be checked."""
    search = state["search"]
    return {**state["data"], "classes": None if search is None else search["data"]}


def is_hash(value: Any) -> bool:
    """Whether a value is 32 bytes as a text."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def check_position(position: Mapping[str, Any], data: Mapping[str, Any], config: Config) -> None:
    """Check where a run stands: the epoch is one of its own, and training has come as far in it as the phase says."""
    wanted = {"epoch", "phase", "batch", "loss_sum", "metrics_bytes"}
    if position.keys() != wanted:
        raise ContentError(f"position must have the fields {', '.join(sorted(wanted))}")
    epochs = config.training.epochs
    epoch = whole("position.epoch", position["epoch"], 1, epochs + 1)
    whole("position.metrics_bytes", position["metrics_bytes"], 0, 1 << 40)
    phase, loss_sum = position["phase"], position["loss_sum"]
    if phase not in _PHASES:
        raise ContentError(f"position.phase must be one of {', '.join(_PHASES)}")
    over, batches = epoch > epochs, batch_count(data["samples"], config.training.batch_size)
    if over and phase != "train":
        raise ContentError("position.phase must be train, since the last epoch is over")
    most = 0 if over else batches
    batch = whole("position.batch", position["batch"], 0, most, f"the batches of epoch {epoch}" if most else "")
    if phase != "train" and batch < batches:
        raise ContentError(f"position.batch must be {batches} in the phase {phase}, which comes after training")
    if not isinstance(loss_sum, float) or not 0 <= loss_sum <= LARGEST_NUMBER:
        raise ContentError("position.loss_sum must be a finite number, not negative and below 1e30")
    if loss_sum and not batch:
        raise ContentError("position.loss_sum must be 0 before the first batch")


def _every(every: int | str, data: Mapping[str, Any], config: Config) -> int:
    steps = batch_count(data["samples"], config.training.batch_size)
    return interval(every, config.training.epochs, steps)


def filter_of(data: Mapping[str, Any], config: Config) -> Filter[Any]:
    """Return a run's filter, which steps as often as suits the data."""
    return config.filter.at_every(_every(config.filter.every, data, config))


def steps_before(epoch: int, filter: Filter[Any], config: Config) -> Iterator[int]:
    """Return the epochs before an epoch that a filter step follows."""
    return (passed for passed in range(1, epoch) if filter.due(passed, config.training.epochs))


def same(values: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Whether values are those expected; as soon as one is not, no further ones are made."""
    missing = object()
    return all(value == wanted for value, wanted in zip_longest(values, expected, fillvalue=missing))


def check_records(state: Mapping[str, Any], records: Sequence[Mapping[str, Any]], config: Config) -> None:
    """Check that the metrics that a checkpoint knows of are those that a run has written when it stands there.

    Args:
        state: What the checkpoint holds, checked by itself.
        records: The metrics.
        config: The run's configuration.
    """
    position = state["position"]
    written = [(record["kind"], record["epoch"]) for record in records]
    if not same(written, _expected_records(position, state["data"], config)):
        count = sum(kind == "epoch" for kind, _ in written)
        raise ContentError(
            f"position.metrics_bytes leads to metrics of {count} epochs and {len(written) - count} filter steps, which "
            f"are not those of a run in the phase {position['phase']} of epoch {position['epoch']}"
        )
    if records and records[-1]["seconds"].get("resumes", 0) > state["resumes"]:
        raise ContentError("its field resumes is lower than in the metrics")


def _expected_records(
    position: Mapping[str, Any], data: Mapping[str, Any], config: Config
) -> Iterator[tuple[str, int]]:
    epoch, epochs = position["epoch"], config.training.epochs
    evaluated = _every(config.training.evaluate_every, data, config)
    filter = filter_of(data, config) if config.searches else None
    for passed in range(1, epoch + (position["phase"] == "filter")):
        if falls_on(passed, evaluated, epochs):
            yield "epoch", passed
        if filter is not None and passed < epoch and filter.due(passed, epochs):
            yield "filter", passed
