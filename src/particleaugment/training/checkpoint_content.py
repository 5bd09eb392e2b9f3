"""What a checkpoint must hold: every value of it is checked before any is used.

A right checksum says that a file is as somebody wrote it, not that we did. Tensors are looked at before they are
converted: one that is sparse, on the meta device, or expanded to more numbers than the file holds never gets that far.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from particleaugment.data import PUBLISHED
from particleaugment.models import build_model
from particleaugment.models.weight_files import mismatch, tensor_problem
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import filter_settings
from particleaugment.search.history import unpacked
from particleaugment.search.idle_ops import without_colour
from particleaugment.training.checkpoint_position import (
    ContentError,
    check_data,
    check_position,
    filter_of,
    is_hash,
    same,
    steps_before,
)
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.records import LARGEST_NUMBER
from particleaugment.util.strict_json import clipped

__all__ = ["ContentError", "check_content", "network_of"]

_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "config": str,
    "position": dict,
    "model": dict,
    "optimizer": dict,
    "search": (dict, type(None)),
    "resumes": int,
    "metrics_sha256": str,
    "data": dict,
    "policy": str,
}
_OF_NOTHING = hashlib.sha256().hexdigest()
_DEPTH = 8
_PLAIN = (type(None), bool, int, str)
_FREE_SETTINGS = ("params", "lr", "initial_lr", "fused")  # set by every epoch, or by the device


def check_content(state: Any, size: int) -> None:
    """Raise a ContentError that names the field, if a state is not what a run saves.

    Args:
        state: What was read.
        size: How many bytes it was read from.
    """
    _check_plain(state, size)
    if not isinstance(state, dict):
        raise ContentError("it must be an object")
    for name, kind in _FIELDS.items():
        if name not in state or not isinstance(state[name], kind):
            raise ContentError(f"its field {name} is missing or of a wrong type")
    if state.keys() != _FIELDS.keys():
        raise ContentError(f"it must have the fields {', '.join(_FIELDS)} and no others")
    if isinstance(state["resumes"], bool) or not 0 <= state["resumes"] < 1 << 31:
        raise ContentError("its field resumes must be a whole number")
    if not is_hash(state["metrics_sha256"]):
        raise ContentError("its field metrics_sha256 must be a checksum")
    try:
        config = Config.from_json(state["config"])
    except ConfigError as error:
        raise ContentError(f"its field config is not valid: {error}") from None
    check_data(state["data"])
    check_position(state["position"], state["data"], config)
    if not state["position"]["metrics_bytes"] and state["metrics_sha256"] != _OF_NOTHING:
        raise ContentError("its field metrics_sha256 must be the checksum of nothing, since there are no metrics yet")
    if not (is_hash(state["policy"]) if config.policy_file is not None else state["policy"] == ""):
        raise ContentError("its field policy must be a hash of the run's policy file, if it has one")
    network = network_of(config, state["model"])
    if problem := mismatch(state["model"], network.state_dict()):
        raise ContentError(f"model: {problem}")
    _check_optimizer(state["optimizer"], config, list(network.parameters()), state["position"])
    if config.searches:
        _check_search(state["search"], config, state["data"], state["position"]["epoch"])
    elif state["search"] is not None:
        raise ContentError("its field search must be empty, since the run learns no policy")


def _check_plain(state: Any, size: int) -> None:
    """Refuse anything but ordinary tensors and plain values, and more of either than so many bytes can hold.

    A file can name the same list or the same numbers again and again, so that a few bytes stand for gigabytes.
    """
    waiting: list[tuple[Any, tuple[str, ...]]] = [(state, ())]
    values = numbers = 0
    while waiting:
        value, place = waiting.pop()
        values += 1
        if values > size or len(place) > _DEPTH:
            raise ContentError("it is nested too deeply, or repeats the same values too often")
        if isinstance(value, (dict, list, tuple)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            values += len(value)
            if values > size:
                raise ContentError("it is nested too deeply, or repeats the same values too often")
            for key, part in parts:
                if not isinstance(key, (str, int)):
                    raise ContentError(f"{_named(place)} has a field whose name is not a string")
                waiting.append((part, (*place, str(key))))
        elif isinstance(value, Tensor):
            if problem := tensor_problem(value):
                raise ContentError(clipped(f"{_named(place)} {problem}"))
            numbers += value.numel() * value.element_size()
            if numbers > size:
                raise ContentError("it repeats the same numbers too often")
            if not bool((value.isfinite() | value.isneginf()).all()):
                raise ContentError(clipped(f"{_named(place)} contains non-finite numbers"))
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ContentError(clipped(f"{_named(place)} must be a finite number, got {value}"))
        elif not isinstance(value, _PLAIN) or (isinstance(value, int) and abs(value) >= 1 << 64):
            raise ContentError(clipped(f"{_named(place)} is neither a tensor nor a plain value"))


def _named(place: Sequence[str]) -> str:
    return ".".join(place) or "it"


def network_of(config: Config, found: Mapping[str, Any]) -> nn.Module:
    """Return the network of a configuration on the meta device; of some data, tensors that were found tell the classes.

    Raises:
        ContentError: if there is no such network.
    """
    head = found.get("head.weight")
    rows = len(head) if isinstance(head, Tensor) and head.dim() else 1
    try:
        with torch.device("meta"):
            # Of a data set that is not the same everywhere, the network's last layer tells the number of classes.
            return build_model(config.model, PUBLISHED.get(config.data.name) or max(1, rows), seed=0)
    except ValueError as error:
        raise ContentError(str(error)) from None


def _check_optimizer(
    saved: Mapping[str, Any], config: Config, parameters: Sequence[nn.Parameter], position: Mapping[str, Any]
) -> None:
    groups, state = saved.get("param_groups"), saved.get("state")
    if saved.keys() != {"param_groups", "state"} or not isinstance(groups, list) or not isinstance(state, dict):
        raise ContentError("optimizer must have the fields param_groups and state")
    training = config.training
    like = torch.optim.SGD(
        parameters,
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.nesterov,
    )
    wanted = like.state_dict()["param_groups"]
    if len(groups) != len(wanted) or not all(isinstance(group, dict) for group in groups):
        raise ContentError(f"optimizer.param_groups must have {len(wanted)} groups")
    for group, expected in zip(groups, wanted):
        if not _is(group.get("params"), expected["params"]):
            raise ContentError("optimizer.param_groups does not name the network's parameters")
        rate, fused = group.get("lr"), group.get("fused")
        sound = rate.numel() == 1 if isinstance(rate, Tensor) else isinstance(rate, float)
        if not sound or not 0 <= float(rate) <= LARGEST_NUMBER:  # type: ignore[arg-type]
            raise ContentError("optimizer.param_groups must have a learning rate, lr")
        if fused is not (True if training.device == "cuda" else None):
            raise ContentError(f"optimizer.param_groups must match the device {training.device}")
        if not _is(_settings(group), _settings(expected)):
            raise ContentError("its optimizer has different settings")
    begun = position["epoch"] > 1 or position["batch"] > 0
    if training.momentum and (state or begun) and state.keys() != set(range(len(parameters))):
        raise ContentError("optimizer.state must have an entry for each of the network's parameters")
    if not training.momentum and state:
        raise ContentError("optimizer.state must be empty without momentum")
    for number, parameter in enumerate(parameters if state else ()):
        kept = state[number]
        if not isinstance(kept, dict):
            raise ContentError(f"optimizer.state.{number} must be an object")
        if problem := mismatch(kept, {"momentum_buffer": parameter}):
            raise ContentError(f"optimizer.state.{number}: {problem}")


def _is(value: Any, expected: Any) -> bool:
    """Whether a value is the plain one that is expected; comparing tensors by themselves gives no answer."""
    if isinstance(expected, dict):
        same = isinstance(value, dict) and value.keys() == expected.keys()
        return same and all(_is(value[name], item) for name, item in expected.items())
    if isinstance(expected, (list, tuple)):
        same = isinstance(value, (list, tuple)) and len(value) == len(expected)
        return same and all(map(_is, value, expected))
    kinds = (int, float) if _is_number(expected) else type(expected)
    return isinstance(value, kinds) and isinstance(value, bool) == isinstance(expected, bool) and value == expected


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in group.items() if name not in _FREE_SETTINGS}
    return {name: None if isinstance(value, Tensor) else value for name, value in plain.items()}


def _check_search(saved: Any, config: Config, data: Mapping[str, Any], epoch: int) -> None:
    if not isinstance(saved, dict):
        raise ContentError("its field search must be an object, since the run learns its policy")
    filter = filter_of(data, config)
    ops = _ops(saved, filter, config)
    wanted = {
        "filter": filter_settings(filter),
        "ops": list(ops),
        "epochs": config.training.epochs,
        "seed": config.seed,
    }
    for name, value in wanted.items():
        if not _is(saved.get(name), value):
            raise ContentError(clipped(f"search.{name} must be {value!r}"))
    others = {"data", "frozen", "ended", "used", "epoch", "observed", "history"}
    if saved.keys() != wanted.keys() | others:
        raise ContentError(f"search must have the fields {', '.join(sorted(wanted.keys() | others))}")
    if not is_hash(saved["data"]):
        raise ContentError("search.data must be a hash of the samples' classes")
    if saved["frozen"] is not False:
        raise ContentError("search.frozen must be false, since a run takes all of its filter steps")
    if not _is(saved["observed"], ()):
        raise ContentError("search.observed must be empty, since the run keeps the sum of its losses itself")
    _check_history(saved["history"], filter, ops, config, epoch)
    last = saved["history"]["starts"][-1] - 1
    for name, value in (("epoch", last), ("ended", last > 0)):
        if type(saved[name]) is not type(value) or saved[name] != value:
            raise ContentError(f"search.{name} must be {value!r} in epoch {epoch} of the run")
    if not isinstance(saved["used"], bool) or (saved["used"] and last):
        raise ContentError("search.used must be false, since the run augments its images itself")


def _ops(saved: Mapping[str, Any], filter: Filter[Any], config: Config) -> tuple[str, ...]:
    """Return a run's ops; those that change nothing on grey images may have been left out."""
    fewer = without_colour(filter, config.ops, config.training.epochs)
    return fewer if _is(saved.get("ops"), list(fewer)) else config.ops


def _check_history(history: Any, filter: Filter[Any], ops: tuple[str, ...], config: Config, epoch: int) -> None:
    first = filter.init(config.seed, ops, config.training.epochs)
    columns = first.to_dict()
    if not isinstance(history, dict) or history.keys() != {"starts", *columns}:
        raise ContentError(f"search.history must have the fields starts, {', '.join(columns)}")
    starts = history["starts"]
    expected = chain([1], (passed + 1 for passed in steps_before(epoch, filter, config)))
    if not isinstance(starts, list) or not all(type(start) is int for start in starts) or not same(starts, expected):
        raise ContentError("search.history.starts must be 1 and the epochs after the filter steps so far")
    for name, value in columns.items():
        column = history[name]
        if isinstance(value, Tensor):
            shape = (len(starts), *value.shape)
            if not isinstance(column, Tensor) or (column.dtype, tuple(column.shape)) != (value.dtype, shape):
                raise ContentError(f"search.history.{name} must be {value.dtype} of shape {shape}")
        elif not isinstance(column, list) or len(column) != len(starts) or not all(map(_is_number, column)):
            raise ContentError(f"search.history.{name} must be {len(starts)} numbers")
    counts = history["steps"], history["skipped"]
    if not all(type(count) is int for column in counts for count in column):
        raise ContentError("search.history.steps and skipped must be whole numbers")
    if history["steps"] != list(range(len(starts))):
        raise ContentError("search.history is not valid: steps must count from 0")
    if history["skipped"][0] or any(later - count not in (0, 1) for count, later in pairwise(history["skipped"])):
        raise ContentError("search.history is not valid: each step is skipped once or not at all")
    for name, value in columns.items():
        if not (torch.allclose(history[name][0], value) if isinstance(value, Tensor) else history[name][0] == value):
            raise ContentError(f"search.history.{name} does not match the search's initial state")
    try:
        states = [state for _, state in unpacked(history, first)]
        filter.schedule(list(zip(starts, states)), config.training.epochs)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise ContentError(clipped(f"search.history is not valid: {error}")) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
