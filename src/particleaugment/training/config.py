"""The configuration of a run: one flat, frozen dataclass that recipes return and ``config.json`` holds."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from particleaugment.ops import OPS, nearest_name
from particleaugment.policies import Policy, Schedule, parse
from particleaugment.search import FilterSettings

__all__ = ["Config", "ConfigError", "override", "settings_of"]

VERSION = 1
PRECISIONS = ("auto", "bf16", "tf32", "fp32")
DEVICES = ("auto", "cpu", "cuda")


class ConfigError(ValueError):
    """A setting is unknown or its value is not valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that a run's result is a function of.

    The search's settings are those of :class:`particleaugment.FilterSettings` under the same names.

    >>> Config(recipe="mine", epochs=5).filter_settings().num_particles
    50
    """

    recipe: str
    seed: int = 0
    data: str = "digits"
    data_dir: str = ""
    image_size: int = 0
    validation: int | float = 0
    model: str = "wrn-10-1"

    epochs: int = 250
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    device: str = "auto"
    precision: str = "auto"
    compile: bool = True
    deterministic: bool = False
    sync_batchnorm: bool = False

    crop: int = 4
    flip: float = 0.5
    erase: float = 0.5
    resample: str = "bilinear"
    fill: tuple[int, int, int] = (128, 128, 128)

    policy: str = "particles"
    num_particles: int = 50
    nonzero: int = 3
    m: float = 3.0
    start_value: float = 0.25
    unit_vectors: bool = False
    measure: str = "clone"
    shuffle_scores: bool = False
    transition: str = "gaussian"
    sigma: float = 0.05
    velocity: float | tuple[float, ...] = 0.0
    update: str = "paper"
    eta: float = 1.0
    forgetting: float = 0.9
    floor: float = 0.05
    alpha: float = 0.8
    resampling: str = "systematic"
    reset_filter: bool = False
    gate_twice: bool = False
    every: int = 1
    warmup: int = 1
    clone_epochs: int = 1
    clone_size: int | float = 25600
    measure_size: int | float = 512
    order: str = "fixed"
    semantics: str = "timm-increasing"
    ops: tuple[str, ...] = OPS

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("seed", "crop", "image_size", "validation"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("flip", "erase", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie in 0..1, got {getattr(self, name)}")
        for name, positive in (("learning_rate", True), ("weight_decay", False)):
            value = getattr(self, name)
            if not 0 <= value < float("inf") or (positive and value == 0):
                raise ConfigError(f"{name} must be a {'positive' if positive else 'non-negative'} number, got {value}")
        if len(self.fill) != 3 or not all(0 <= value <= 255 for value in self.fill):
            raise ConfigError(f"fill must be three whole numbers from 0 to 255 (red, green, blue), got {self.fill}")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs a momentum above 0; set nesterov=false or a momentum")
        for name, valid in (("precision", PRECISIONS), ("device", DEVICES)):
            if getattr(self, name) not in valid:
                raise ConfigError(f"{name} must be one of {', '.join(valid)}, got {getattr(self, name)!r}")
        if self.sync_batchnorm and self.device == "cpu":
            raise ConfigError("sync_batchnorm works between GPUs only, and this run is on the CPU; leave it out")
        try:
            if self.searches:
                self.filter_settings()
            elif not self.policy.startswith("schedule:"):
                parse(self.policy)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None

    @property
    def searches(self) -> bool:
        """Whether the run learns its policy."""
        return self.policy == "particles"

    def filter_settings(self) -> FilterSettings:
        """Return the search's settings."""
        return FilterSettings(**{name: getattr(self, name) for name in FilterSettings.__dataclass_fields__})

    def fixed_policy(self) -> Policy:
        """Return the policy of a run without a search."""
        if self.policy.startswith("schedule:"):
            try:
                return Schedule.load(self.policy.removeprefix("schedule:"), self.epochs)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        return parse(self.policy)

    def to_json(self) -> str:
        """Return the configuration as JSON text."""
        return json.dumps({"version": VERSION} | asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Rebuild a configuration from :meth:`to_json`, or raise a ConfigError that names the field."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not valid JSON: {error}") from None
        if not isinstance(data, dict) or data.pop("version", None) != VERSION:
            raise ConfigError(f"not a configuration of version {VERSION}")
        kinds = typing.get_type_hints(cls)
        for name, value in data.items():
            if name not in kinds:
                raise ConfigError(f"there is no setting {name!r}")
            data[name] = _checked_type(name, value, kinds[name])
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigError(str(error)) from None


def override(config: Config, assignments: list[str]) -> Config:
    """Return a configuration with settings replaced, each given as ``key=value``.

    >>> override(Config(recipe="mine"), ["epochs=4", "velocity=-0.001", "clone_size=0.5"]).clone_size
    0.5
    """
    kinds = {key: kind for key, kind in typing.get_type_hints(Config).items() if key != "recipe"}
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        key = key.strip().replace("-", "_")
        if not separator:
            raise ConfigError(f"{assignment!r} is not of the form key=value")
        if key not in kinds:
            hint = nearest_name(key, kinds) or f"; the settings are {', '.join(kinds)}"
            raise ConfigError(f"there is no setting {key!r}{hint}")
        changes[key] = _from_text(key, text.strip(), kinds[key])
    return replace(config, **changes)


def settings_of(config: Config) -> Mapping[str, Any]:
    """Return a configuration as a mapping of its settings."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return typing.get_args(kind)
    return (kind,)


def _from_text(key: str, text: str, kind: Any) -> Any:
    for option in _alternatives(kind):
        value = _parsed(text, option)
        if value is not None:
            return value
    raise ConfigError(f"{key} takes {_describe(kind)}, got {text!r}")


def _parsed(text: str, kind: Any) -> Any:
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
    if kind is str:
        return text
    if typing.get_origin(kind) is tuple:
        element, *others = typing.get_args(kind)
        parts = [part.strip() for part in text.strip("()[]").split(",") if part.strip()]
        values = [_parsed(part, element) for part in parts]
        fixed_length = others and others[0] is not Ellipsis
        if None in values or (fixed_length and len(values) != 1 + len(others)):
            return None
        return tuple(values)
    try:
        return kind(text)
    except ValueError:
        return None


def _checked_type(name: str, value: Any, kind: Any) -> Any:
    for option in _alternatives(kind):
        if typing.get_origin(option) is tuple:
            element = typing.get_args(option)[0]
            if isinstance(value, list) and all(_is_a(item, element) for item in value):
                return tuple(value)
        elif _is_a(value, option):
            return value
    raise ConfigError(f"{name} takes {_describe(kind)}, got {value!r}")


def _is_a(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _describe(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return " or ".join(names.get(option, "numbers or names separated by commas") for option in _alternatives(kind))
