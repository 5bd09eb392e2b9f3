"""The configuration of a run: one flat, frozen dataclass that recipes return and ``config.json`` holds."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from particleaugment.core.ops import OPS, named_set
from particleaugment.data.groups import GROUPINGS
from particleaugment.data.selection import check_train_size
from particleaugment.policies import Policy, Schedule, load, parse
from particleaugment.policies.parse import with_ops
from particleaugment.search.controls import AuthorsFilter, FrozenGapFilter, FrozenPaperFilter, ShuffledPaperFilter
from particleaugment.search.gap import GapFilter
from particleaugment.search.paper import PaperFilter
from particleaugment.search.protocol import Filter
from particleaugment.training.moments import interval
from particleaugment.util.hints import nearest_name
from particleaugment.util.strict_json import JSONError, clipped, parse_json, unprintable

__all__ = ["Config", "ConfigError", "override", "settings_of"]

VERSION = 1
SIZE_LIMIT = 1 << 20
PRECISIONS = ("auto", "bf16", "tf32", "fp32")
DEVICES = ("auto", "cpu", "cuda")
STREAMS = ("auto", "true", "false")
NORMALIZATIONS = ("data", "imagenet")


# The most that a run could want; beyond it memory, or the generator's 32-bit epochs, would not hold out.
_MOST = {
    "seed": (1 << 63) - 1, "data_seed": (1 << 63) - 1, "image_size": 4096, "epochs": 10**6, "batch_size": 10**6,
    "num_particles": 10**5, "clone_epochs": 1000, "warmup": 10**6,
}  # fmt: skip
_LONGEST_TEXT = 4096
_USUAL_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size", "batch": "batch_size"}
"""What others call some of the settings."""
_MOST_OPS = 64


class ConfigError(ValueError):
    """A setting is unknown or its value is not valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that a run's result is a function of.

    >>> Config(recipe="mine", epochs=5).filter().kind
    'paper'

    Attributes:
        recipe: Name of the recipe.
        seed: Seed of everything random.
        data: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar100`` or ``folder``.
        data_dir: Where the data lie.
        image_size: Height and width of a folder's images; 0 is 64.
        validation: Training images, as a number or a fraction, that stand in for the test set; 0 keeps the test set.
        train_size: Training images, as a number or a fraction, that the run trains on, stratified by class; drawn from
            those that ``validation`` leaves. 1.0 is all of them.
        data_seed: Seed of the choice of images by ``validation`` and ``train_size``, which ``seed`` leaves alone.
        groups: ``prefix`` or ``class-prefix`` for a folder whose file names begin with a group, up to the first
            underscore, that no split may take apart: a group across all classes, or within each class.
        normalization: ``data`` for the training images' mean and standard deviation, ``imagenet`` for ImageNet's.
        stream: Whether a folder's files are decoded while the network trains: ``true``, ``false``, or ``auto`` for
            those that memory does not hold.
        workers: Processes that decode them, or ``auto``.
        model: ``wrn-DEPTH-WIDTH``, ``shake-shake-DEPTH-2xWIDTHd``, ``resnet-18`` or ``resnet-50``.
        epochs: Length of the training run.
        evaluate_every: Epochs from one evaluation to the next, or ``auto`` for every epoch, or about a hundred
            evaluations where epochs are short; the last epoch is always evaluated.
        batch_size: Images a step, of all processes together; a single image that would be left over joins the last.
        learning_rate: That of the first epoch; it falls to 0 along a cosine.
        momentum: Momentum of SGD.
        nesterov: Whether it is Nesterov's.
        weight_decay: Weight decay of SGD.
        device: ``cpu``, ``cuda``, or ``auto`` for the GPU if there is one.
        precision: ``fp32``, ``tf32``, ``bf16``, or ``auto`` for bf16 where it is fast.
        compile: Whether the network is compiled on a GPU: ``true``, ``false``, or ``auto`` for runs that are long
            enough to repay it.
        deterministic: Whether a GPU uses deterministic kernels only: slower, the same bits every time.
        sync_batchnorm: Whether batch norm normalises over the images of all GPUs.
        crop: Pixels of padding for a random crop; 0 for none.
        crop_scale: Smallest area of a random resized crop of a file's image, as a fraction; 0 for none.
        jitter: Strength of random changes of brightness, contrast and saturation; 0 for none.
        flip: Probability of a horizontal flip.
        erase: Probability that a rectangle is erased.
        resample: Filter of the geometric ops: ``nearest``, ``bilinear`` or ``bicubic``.
        fill: Their fill colour: red, green, blue.
        measure: ``clone`` for the paper's filter, ``loss`` for the gap filter, ``none`` for no measurement.
        update: ``paper`` for the paper's filter, ``tilted`` for the gap filter.
        transition: The same: ``gaussian`` or ``sparse``.
        shuffle_scores: Whether scores are permuted among the particles, as a control.
        reset_filter: Whether every step starts from the first particles again, as in the authors' released code.
        gate_twice: Whether a chosen op is applied with probability 1/2 only, as there.
        policy: ``particles`` to learn one, a policy string, ``schedule:FILE`` or ``file:FILE``.
        ops: Ops that a learned policy draws from; if changed, RandAugment and TrivialAugment draw from them too.
    """

    recipe: str
    seed: int = 0
    data: str = "digits"
    data_dir: str = ""
    image_size: int = 0
    validation: int | float = 0
    train_size: int | float = 1.0
    data_seed: int = 0
    groups: str = "none"
    normalization: str = "data"
    stream: str = "auto"
    workers: int | str = "auto"
    model: str = "wrn-10-1"

    epochs: int = 250
    evaluate_every: int | str = "auto"
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    device: str = "auto"
    precision: str = "auto"
    compile: bool | str = "auto"
    deterministic: bool = False
    sync_batchnorm: bool = False

    crop: int = 4
    crop_scale: float = 0.0
    jitter: float = 0.0
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
    measure_on: str = "train"
    shuffle_scores: bool = False
    transition: str = "gaussian"
    sigma: float = 0.05
    velocity: float | tuple[float, ...] = 0.0
    update: str = "paper"
    gain: float = 1.0
    eta: float = 1.0
    alpha: float = 0.8
    resampling: str = "systematic"
    reset_filter: bool = False
    gate_twice: bool = False
    every: int | str = "auto"
    warmup: int = 1
    clone_epochs: int = 1
    clone_size: int | float = 25600
    measure_size: int | float = 512
    order: str = "fixed"
    semantics: str = "timm-increasing"
    ops: tuple[str, ...] = OPS

    def __post_init__(self) -> None:
        self._check_bounds()
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("seed", "data_seed", "crop", "image_size", "validation"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("flip", "erase", "momentum", "crop_scale", "jitter"):
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
        choices = {
            "precision": PRECISIONS, "device": DEVICES, "stream": STREAMS, "normalization": NORMALIZATIONS,
            "groups": GROUPINGS,
        }  # fmt: skip
        for name, valid in choices.items():
            if getattr(self, name) not in valid:
                raise ConfigError(f"{name} must be one of {', '.join(valid)}, got {getattr(self, name)!r}")
        if isinstance(self.compile, str) and self.compile != "auto":
            raise ConfigError(f"compile must be true, false or auto, got {self.compile!r}")
        for name in ("evaluate_every", "every"):
            value = getattr(self, name)
            if value != "auto" and (isinstance(value, str) or not 1 <= value <= 10**6):
                raise ConfigError(f"{name} must be auto, or a number of epochs from 1 to 1,000,000, got {value!r}")
        self._check_streaming()
        if self.sync_batchnorm and self.device == "cpu":
            raise ConfigError("sync_batchnorm works between GPUs only, and this run is on the CPU; leave it out")
        try:
            check_train_size(self.train_size)
            if self.searches:
                self.filter().check(self.ops, self.epochs)
            elif self.policy_file is None:
                self.fixed_policy()
            elif self.ops != OPS:
                raise ValueError(f"ops cannot be changed for policy={self.policy}: its file names them; leave ops out")
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None

    @property
    def measured_on(self) -> str:
        """The images that accuracies are of: those of the ``test`` set, or of the ``validation`` split."""
        return "validation" if self.validation else "test"

    @property
    def part_of_data(self) -> str:
        """How a run that trains on part of its data says so, or nothing."""
        return "" if self.train_size == 1.0 else f" (train_size={self.train_size})"

    @property
    def data_set(self) -> str:
        """Name of the data set, without the directory that ``data`` may carry behind a colon."""
        return self.data.partition(":")[0]

    @property
    def data_place(self) -> str:
        """Where the data lie, or nothing where no place is named."""
        return self.data.partition(":")[2] or self.data_dir

    def continues(self, saved: Config) -> bool:
        """Whether a run saved with another configuration may go on with this one.

        The number of workers changes nothing but the speed, and where the data lie nothing at all.
        """
        moved = replace(saved, workers=self.workers, data=self.data, data_dir=self.data_dir)
        return saved.data_set == self.data_set and moved == self

    def with_data_in(self, data_dir: str) -> Config:
        """Return the configuration with its data elsewhere.

        >>> saved = Config(recipe="own", data="folder:/old")
        >>> moved = saved.with_data_in("/new")
        >>> saved.data_place, moved.data, moved.data_place, moved.continues(saved)
        ('/old', 'folder', '/new', True)
        """
        return replace(self, data=self.data_set, data_dir=data_dir)

    def _check_streaming(self) -> None:
        if self.workers != "auto" and (isinstance(self.workers, str) or self.workers < 0):
            raise ConfigError(f"workers must be auto, or a number of processes from 0 on, got {self.workers!r}")
        if self.data_set != "folder":
            for name, off in (("crop_scale", 0), ("stream", "auto"), ("groups", "none")):
                if getattr(self, name) != off and getattr(self, name) != "false":
                    raise ConfigError(f"{name} is for image files, and {self.data!r} has none; set {name}={off}")
        if self.crop_scale and self.crop:
            raise ConfigError("crop and crop_scale are two ways to crop; set crop=0 or crop_scale=0")
        if self.crop_scale and self.stream == "false":
            raise ConfigError("crop_scale cuts its parts from the files; leave stream=auto, or set crop_scale=0")

    def _check_bounds(self) -> None:
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"{name} must be at most {most}, got {getattr(self, name)}")
        for name, value in settings_of(self).items():
            if isinstance(value, str) and (len(value) > _LONGEST_TEXT or unprintable(value)):
                raise ConfigError(f"{name} must be at most {_LONGEST_TEXT} printable characters, got {value[:40]!a}")
        if len(self.ops) > _MOST_OPS:
            raise ConfigError(f"ops must name at most {_MOST_OPS} ops, got {len(self.ops)}")

    @property
    def searches(self) -> bool:
        """Whether the run learns its policy."""
        return self.policy == "particles"

    @property
    def policy_file(self) -> str | None:
        """The file that the policy is read from, for ``schedule:FILE`` and ``file:FILE``."""
        prefix, separator, path = self.policy.partition(":")
        return path if separator and prefix in ("schedule", "file") else None

    def filter(self, steps_per_epoch: int = 1) -> Filter[Any]:
        """Return the filter of a run whose epochs take so many steps."""
        kind: type[GapFilter | PaperFilter] = PaperFilter
        if self.update == "tilted":
            kind = FrozenGapFilter if self.measure == "none" else GapFilter
        elif self.measure == "none":
            kind = FrozenPaperFilter
        elif self.shuffle_scores or self.reset_filter:
            kind = ShuffledPaperFilter if self.shuffle_scores else AuthorsFilter
        settings = {field.name: getattr(self, field.name) for field in fields(kind)}
        return kind(**settings | {"every": interval(self.every, self.epochs, steps_per_epoch)})

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
        return policy.rescaled(self.epochs)

    def to_json(self) -> str:
        """Return the configuration as JSON text."""
        return json.dumps({"version": VERSION} | asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Config:
        """Rebuild a configuration from :meth:`to_json`, or raise a ConfigError that names the field."""
        try:
            data = parse_json(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        except JSONError as error:
            raise ConfigError(str(error)) from None
        if not isinstance(data, dict) or data.pop("version", None) != VERSION:
            raise ConfigError(f"not a configuration of version {VERSION}")
        kinds = typing.get_type_hints(cls)
        for name, value in data.items():
            if name not in kinds:
                raise ConfigError(clipped(f"there is no setting {name!r}"))
            data[name] = _checked_type(name, value, kinds[name])
        try:
            return cls(**data)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(clipped(error)) from None


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
            close = f"; did you mean {_USUAL_NAMES[key]}?" if key in _USUAL_NAMES else nearest_name(key, kinds)
            hint = close or f"; the settings are {', '.join(kinds)}"
            raise ConfigError(f"there is no setting {key!r}{hint}")
        value = _from_text(key, text.strip(), kinds[key])
        changes[key] = named_set(value) if key == "ops" else value
    if ":" in changes.get("data", ""):
        changes.setdefault("data_dir", "")  # the directory behind the colon takes its place
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
    raise ConfigError(clipped(f"{name} takes {_describe(kind)}, got {value!r}"))


def _is_a(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _describe(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return " or ".join(names.get(option, "numbers or names separated by commas") for option in _alternatives(kind))
