"""What a checkpoint must hold: every value of it is checked before any is used.

A right checksum says that a file is as somebody wrote it, not that we did. Tensors are looked at before they are
converted: one that is sparse, on the meta device, or expanded to more numbers than the file holds never gets that far.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from particleaugment.models import build_model
from particleaugment.models.weight_files import mismatch, tensor_problem
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import filter_settings
from particleaugment.search.history import unpacked
from particleaugment.search.idle_ops import without_colour
from particleaugment.training.config import Config, ConfigError
from particleaugment.util.strict_json import clipped

__all__ = ["ContentError", "check_content", "network_of"]

# The classes of data sets that are the same everywhere; of others the network's last layer tells.
_CLASSES = {"digits": 10, "mnist": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100}
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "config": str,
    "position": dict,
    "model": dict,
    "optimizer": dict,
    "search": (dict, type(None)),
    "resumes": int,
    "metrics_sha256": str,
    "data": str,
    "policy": str,
}
_PHASES = ("train", "evaluate", "filter")
_DEPTH = 8
_PLAIN = (type(None), bool, int, str)
_FREE_SETTINGS = ("params", "lr", "initial_lr", "fused")  # set by every epoch, or by the device


class ContentError(ValueError):
    """A checkpoint holds something else than the state of a run."""


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
    if isinstance(state["resumes"], bool) or not 0 <= state["resumes"] < 1 << 31:
        raise ContentError("its field resumes must be a whole number")
    if not re.fullmatch("[0-9a-f]{64}", state["metrics_sha256"]):
        raise ContentError("its field metrics_sha256 must be a checksum")
    try:
        config = Config.from_json(state["config"])
    except ConfigError as error:
        raise ContentError(f"its field config is not sound: {error}") from None
    _check_position(state["position"], config)
    network = network_of(config, state["model"])
    if problem := mismatch(state["model"], network.state_dict()):
        raise ContentError(f"model: {problem}")
    _check_optimizer(state["optimizer"], config, list(network.parameters()), state["position"])
    if config.searches:
        _check_search(state["search"], config)


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
            raise ContentError("it is nested too deeply, or names the same values too often")
        if isinstance(value, (dict, list, tuple)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            values += len(value)
            if values > size:
                raise ContentError("it is nested too deeply, or names the same values too often")
            for key, part in parts:
                if not isinstance(key, (str, int)):
                    raise ContentError(f"{_named(place)} has a field that is not named by a text")
                waiting.append((part, (*place, str(key))))
        elif isinstance(value, Tensor):
            if problem := tensor_problem(value):
                raise ContentError(clipped(f"{_named(place)} {problem}"))
            numbers += value.numel() * value.element_size()
            if numbers > size:
                raise ContentError("it names the same numbers too often")
            if not bool((value.isfinite() | value.isneginf()).all()):
                raise ContentError(clipped(f"{_named(place)} holds numbers that are not finite"))
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ContentError(clipped(f"{_named(place)} must be a finite number, got {value}"))
        elif not isinstance(value, _PLAIN) or (isinstance(value, int) and abs(value) >= 1 << 64):
            raise ContentError(clipped(f"{_named(place)} is neither a tensor nor a plain value"))


def _named(place: Sequence[str]) -> str:
    return ".".join(place) or "it"


def _check_position(position: Mapping[str, Any], config: Config) -> None:
    wanted = {"epoch", "phase", "batch", "loss_sum", "metrics_bytes"}
    if position.keys() != wanted:
        raise ContentError(f"position must have the fields {', '.join(sorted(wanted))}")
    limits = {"epoch": (1, config.training.epochs + 1), "batch": (0, (1 << 63) - 1), "metrics_bytes": (0, 1 << 40)}
    for name, (least, most) in limits.items():
        value = position[name]
        if type(value) is not int or not least <= value <= most:
            raise ContentError(f"position.{name} must be a whole number from {least} to {most}")
    if not isinstance(position["loss_sum"], float):
        raise ContentError("position.loss_sum must be a finite number")
    if position["phase"] not in _PHASES:
        raise ContentError(f"position.phase must be one of {', '.join(_PHASES)}")


def network_of(config: Config, found: Mapping[str, Any]) -> nn.Module:
    """Return the network of a configuration on the meta device; of some data, tensors that were found tell the classes.

    Raises:
        ContentError: if there is no such network.
    """
    head = found.get("head.weight")
    rows = len(head) if isinstance(head, Tensor) and head.dim() else 1
    try:
        with torch.device("meta"):
            return build_model(config.model, _CLASSES.get(config.data.name) or max(1, rows), seed=0)
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
        rate = group.get("lr")
        sound = rate.numel() == 1 if isinstance(rate, Tensor) else isinstance(rate, float)
        if not sound or not float(rate) >= 0:  # type: ignore[arg-type]
            raise ContentError("optimizer.param_groups must have a learning rate, lr")
        if not _is(_settings(group), _settings(expected)):
            raise ContentError("its optimizer has other settings")
    begun = position["epoch"] > 1 or position["batch"] > 0
    if training.momentum and (state or begun) and state.keys() != set(range(len(parameters))):
        raise ContentError("optimizer.state must have an entry for each of the network's parameters")
    if not training.momentum and state:
        raise ContentError("optimizer.state must be empty where there is no momentum")
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


def _check_search(saved: Any, config: Config) -> None:
    if not isinstance(saved, dict):
        raise ContentError("its field search must be an object, since the run learns its policy")
    filter = _filter(saved, config)
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
    if not isinstance(saved["data"], str):
        raise ContentError("search.data must be a text")
    for name in ("frozen", "ended", "used"):
        if not isinstance(saved.get(name), bool):
            raise ContentError(f"search.{name} must be true or false")
    if type(saved.get("epoch")) is not int or not 0 <= saved["epoch"] <= config.training.epochs + 1:
        raise ContentError("search.epoch must be an epoch of the run")
    if not _is(saved.get("observed"), ()):
        raise ContentError("search.observed must be empty, since the run keeps the sum of its losses itself")
    _check_history(saved.get("history"), filter, ops, config)


def _filter(saved: Mapping[str, Any], config: Config) -> Filter[Any]:
    """Return a run's filter; how often it steps may be as it was found to suit the data."""
    settings = saved.get("filter")
    every = settings.get("every") if isinstance(settings, dict) else None
    if config.filter.every == "auto" and type(every) is int and 1 <= every <= config.training.epochs:
        return config.filter.at_every(every)
    return config.filter


def _ops(saved: Mapping[str, Any], filter: Filter[Any], config: Config) -> tuple[str, ...]:
    """Return a run's ops; those that change nothing on grey images may have been left out."""
    fewer = without_colour(filter, config.ops)
    return fewer if _is(saved.get("ops"), list(fewer)) else config.ops


def _check_history(history: Any, filter: Filter[Any], ops: tuple[str, ...], config: Config) -> None:
    first = filter.init(config.seed, ops)
    columns = first.to_dict()
    if not isinstance(history, dict) or history.keys() != {"starts", *columns}:
        raise ContentError(f"search.history must have the fields starts, {', '.join(columns)}")
    starts = history["starts"]
    if not isinstance(starts, list) or not starts or not all(type(start) is int for start in starts):
        raise ContentError("search.history.starts must be epochs")
    if starts != sorted(set(starts)) or not 1 == starts[0] <= starts[-1] <= config.training.epochs + 1:
        raise ContentError("search.history.starts must be epochs of the run, in rising order from 1")
    for name, value in columns.items():
        column = history[name]
        if isinstance(value, Tensor):
            shape = (len(starts), *value.shape)
            if not isinstance(column, Tensor) or (column.dtype, tuple(column.shape)) != (value.dtype, shape):
                raise ContentError(f"search.history.{name} must be {value.dtype} of shape {shape}")
        elif not isinstance(column, list) or len(column) != len(starts) or not all(map(_is_number, column)):
            raise ContentError(f"search.history.{name} must be {len(starts)} numbers")
    try:
        states = [state for _, state in unpacked(history, first)]
        if [state.steps for state in states] != list(range(len(states))) or history["steps"] != list(
            range(len(states))
        ):
            raise ValueError("steps must count from 0")
        if any(not 0 <= state.skipped <= state.steps for state in states):
            raise ValueError("more steps were skipped than taken")
        filter.schedule(list(zip(starts, states)), config.training.epochs)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise ContentError(clipped(f"search.history is not sound: {error}")) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
