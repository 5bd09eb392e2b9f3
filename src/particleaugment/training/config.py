"""The configuration of a run: frozen sections, one filter, and what stands in ``config.json``."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from particleaugment.core.op_table import OPS
from particleaugment.policies import Policy, Schedule, load, parse
from particleaugment.policies.parse import with_ops
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import DEFAULT, FILTERS, filter_settings
from particleaugment.training.settings import (
    ConfigError,
    DataSettings,
    TrainingSettings,
    TransformSettings,
    check_text,
)
from particleaugment.training.values import from_json_value
from particleaugment.util.hints import nearest_name
from particleaugment.util.strict_json import JSONError, clipped, parse_json

__all__ = ["LEARNED", "SECTIONS", "TOP", "Config", "ConfigError", "kinds_of", "settings_of"]

VERSION = 2
SIZE_LIMIT = 1 << 20
LEARNED = "learned"
SECTIONS = ("data", "training", "transforms", "filter")
TOP = ("seed", "model", "policy", "ops")
"""Settings that stand in no section."""
Made = TypeVar("Made")
_MOST_SEED, _MOST_OPS = (1 << 63) - 1, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that determines a run's result.

    >>> Config(recipe="mine", training=TrainingSettings(epochs=5)).filter.kind
    'difficulty'

    Attributes:
        recipe: Name of the recipe.
        seed: Seed of all random draws.
        data: What the run trains on.
        model: ``wrn-DEPTH-WIDTH``, ``shake-shake-DEPTH-2xWIDTHd``, ``resnet-18`` or ``resnet-50``.
        training: How the network trains.
        transforms: Transforms that are always applied to training images.
        policy: ``learned``, a policy string, ``schedule:FILE`` or ``file:FILE``.
        ops: Ops that a learned policy draws from. If changed, RandAugment and TrivialAugment use them too.
        filter: The filter that learns the policy, with its settings.
    """

    recipe: str
    seed: int = 0
    data: DataSettings = DataSettings()  # noqa: RUF009
    model: str = "wrn-10-1"
    training: TrainingSettings = TrainingSettings()  # noqa: RUF009
    transforms: TransformSettings = TransformSettings()  # noqa: RUF009
    policy: str = LEARNED
    ops: tuple[str, ...] = OPS
    filter: Filter[Any] = DEFAULT

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _MOST_SEED:
            limit = "must not be negative" if self.seed < 0 else f"must be at most {_MOST_SEED}"
            raise ConfigError(f"seed {limit}, got {self.seed}")
        for name in ("recipe", "model", "policy"):
            check_text(name, getattr(self, name))
        if len(self.ops) > _MOST_OPS:
            raise ConfigError(f"ops must name at most {_MOST_OPS} ops, got {len(self.ops)}")
        if self.transforms.crop_scale:
            if not self.data.has_files:
                raise ConfigError(f"crop_scale is for image files, and {self.data.name!r} has none; set crop_scale=0")
            if self.data.stream == "false":
                raise ConfigError("crop_scale crops during decoding; use stream=auto, or set crop_scale=0")
        try:
            if self.searches:
                self.filter.check(self.ops, self.training.epochs)
            elif self.policy_file is None:
                self.fixed_policy()
            elif self.ops != OPS:
                raise ValueError(f"ops cannot be changed for policy={self.policy}: its file names them; omit ops")
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None

    def continues(self, saved: Config) -> bool:
        """Whether a run saved with another configuration may go on with this one.

        The number of workers changes nothing but the speed, and the directory of the data nothing at all.
        """
        data = replace(saved.data, workers=self.data.workers, data_dir=self.data.data_dir)
        return replace(saved, data=data) == self

    def with_data_in(self, data_dir: str) -> Config:
        """Return the configuration with its data elsewhere.

        >>> saved = Config(recipe="own", data=DataSettings(name="folder", data_dir="/old"))
        >>> moved = saved.with_data_in("/new")
        >>> moved.data.data_dir, moved.continues(saved)
        ('/new', True)
        """
        return replace(self, data=replace(self.data, data_dir=data_dir))

    @property
    def searches(self) -> bool:
        """Whether the run learns its policy."""
        return self.policy == LEARNED

    @property
    def policy_file(self) -> str | None:
        """The file that the policy is read from, for ``schedule:FILE`` and ``file:FILE``."""
        prefix, separator, path = self.policy.partition(":")
        return path if separator and prefix in ("schedule", "file") else None

    def fixed_policy(self, copy: Path | None = None) -> Policy:
        """Return the policy of a run without a search; of a file that it names, ``copy`` is read if it exists."""
        if self.policy_file is None:
            policy = parse(self.policy)
            return policy if self.ops == OPS else with_ops(policy, self.policy, self.ops)
        path = copy if copy is not None and copy.exists() else Path(self.policy_file).expanduser()
        try:
            policy = Schedule.load(path) if self.policy.startswith("schedule:") else load(path)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return policy.rescaled(self.training.epochs)

    def to_json(self) -> str:
        """Return the configuration as JSON text."""
        sections = {name: asdict(getattr(self, name)) for name in SECTIONS if name != "filter"}
        others = {name: getattr(self, name) for name in ("recipe", *TOP)}
        data = others | sections | {"filter": filter_settings(self.filter)}
        ordered = {field.name: data[field.name] for field in fields(self)}
        return json.dumps({"version": VERSION} | ordered, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Config:
        """Rebuild a configuration from :meth:`to_json`, or raise a ConfigError that names the field."""
        try:
            data = parse_json(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        except JSONError as error:
            raise ConfigError(str(error)) from None
        if not isinstance(data, dict) or data.pop("version", None) != VERSION:
            raise ConfigError(f"not a configuration of version {VERSION}")
        kinds = kinds_of(cls)
        settings: dict[str, Any] = {}
        for name, value in data.items():
            if name == "filter":
                settings[name] = _filter_from(value)
            elif name in SECTIONS:
                settings[name] = _section_from(kinds[name], name, value)
            elif name in kinds:
                settings[name] = from_json_value(name, value, kinds[name])
            else:
                raise ConfigError(clipped(f"there is no setting {name!r}"))
        return _made(cls, settings)


def _filter_from(data: Any) -> Any:
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in FILTERS:
        raise ConfigError(clipped(f"filter must be an object whose kind is one of {', '.join(FILTERS)}, got {kind!r}"))
    return _section_from(FILTERS[kind], "filter", {name: value for name, value in data.items() if name != "kind"})


def _section_from(kind: type, section: str, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(clipped(f"{section} must be an object, got {data!r}"))
    kinds, settings = kinds_of(kind), {}
    for name, value in data.items():
        if name not in kinds:
            raise ConfigError(clipped(f"there is no setting {f'{section}.{name}'!r}{nearest_name(name, kinds)}"))
        settings[name] = from_json_value(f"{section}.{name}", value, kinds[name])
    return _made(kind, settings)


def _made(kind: Callable[..., Made], settings: dict[str, Any]) -> Made:
    try:
        return kind(**settings)
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(clipped(error)) from None


def kinds_of(section: type) -> dict[str, Any]:
    """Return the type of each setting of a section, or of a filter."""
    hints = _hints(section)
    return {field.name: hints[field.name] for field in fields(section)}


@cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def settings_of(config: Config) -> dict[str, Any]:
    """Return all settings by name, without their sections; ``data`` and ``filter`` are the names of these.

    >>> settings = settings_of(Config(recipe="mine"))
    >>> settings["data"], settings["epochs"], settings["filter"], settings["start"]
    ('digits', 250, 'difficulty', 'auto')
    """
    found: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in SECTIONS:
            found[field.name] = value
            continue
        settings = {each.name: getattr(value, each.name) for each in fields(value)}
        if field.name == "filter":
            found["filter"] = value.kind
        elif field.name == "data":
            found["data"] = settings.pop("name")
        found |= settings
    return found
