"""The sections of a configuration: data, training and transforms. Each checks itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from particleaugment.core.program import resample_code
from particleaugment.data import FILE_SETS, check_name
from particleaugment.data.groups import GROUPINGS
from particleaugment.data.selection import check_train_size
from particleaugment.util.strict_json import unprintable

__all__ = ["ConfigError", "DataSettings", "TrainingSettings", "TransformSettings", "check_text"]

# The most that a run could want; beyond it memory, or the generator's 32-bit epochs, would not hold out.
_MOST = {"data_seed": (1 << 63) - 1, "image_size": 4096, "epochs": 10**6, "batch_size": 10**6}
_LONGEST_TEXT = 4096


class ConfigError(ValueError):
    """A setting is unknown or its value is not valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """What a run trains on.

    >>> DataSettings(name="folder", data_dir="~/images").has_files
    True

    Attributes:
        name: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar100``, ``folder`` or ``hf``. Set it with
            ``data=NAME``, or with its directory as ``data=NAME:DIR``.
        data_dir: Directory of the data; for ``hf``, a name on the Hugging Face Hub or a path.
        image_size: Height and width of images from a folder or from ``hf``; 0 means 64.
        validation: Number or fraction of training images to evaluate on instead of the test set; 0 uses the test set.
        train_size: Number or fraction of training images to train on, stratified by class, after ``validation`` is
            removed; 1.0 is all of them.
        data_seed: Seed for choosing the ``validation`` and ``train_size`` images; independent of ``seed``.
        groups: Keep groups of files on one side of every split. A group is the part of the file name before the first
            underscore: ``prefix`` across all classes, ``class-prefix`` within each class, or ``none``.
        normalization: ``data`` for the training images' mean and standard deviation, ``imagenet`` for ImageNet's.
        stream: Decode files during training: ``true``, ``false``, or ``auto`` if they do not fit in memory.
        workers: Number of decoding processes, or ``auto``.
    """

    name: str = "digits"
    data_dir: str = ""
    image_size: int = 0
    validation: int | float = 0
    train_size: int | float = 1.0
    data_seed: int = 0
    groups: str = "none"
    normalization: str = "data"
    stream: str = "auto"
    workers: int | str = "auto"

    def __post_init__(self) -> None:
        _check_bounds(self)
        if ":" in self.name:
            name, _, place = self.name.partition(":")
            raise ConfigError(f"the name of the data set is {name!r}; also pass data_dir={place!r}")
        try:
            check_name(self.name)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        _check_not_negative(self, ("data_seed", "image_size", "validation"))
        _check_choice(self, "groups", GROUPINGS)
        _check_choice(self, "normalization", ("data", "imagenet"))
        _check_choice(self, "stream", ("auto", "true", "false"))
        if self.workers != "auto" and (isinstance(self.workers, str) or self.workers < 0):
            raise ConfigError(f"workers must be auto, or a number of processes of at least 0, got {self.workers!r}")
        if not self.has_files:
            for setting, off in (("stream", "auto"), ("groups", "none")):
                if getattr(self, setting) not in (off, "false"):
                    raise ConfigError(f"{setting} is for image files, and {self.name!r} has none; set {setting}={off}")
        if self.name == "hf" and self.groups != "none":
            raise ConfigError("groups are read from file names, and 'hf' data sets have none; set groups=none")
        try:
            check_train_size(self.train_size)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None

    @property
    def has_files(self) -> bool:
        """Whether the images are files of any size, of a folder or of a Hugging Face data set."""
        return self.name in FILE_SETS

    @property
    def measured_on(self) -> str:
        """The images that accuracies are of: those of the ``test`` set, or of the ``validation`` split."""
        return "validation" if self.validation else "test"

    @property
    def part(self) -> str:
        """How a run that trains on part of its data says so, or nothing."""
        return "" if self.train_size == 1.0 else f" (train_size={self.train_size})"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """How the network trains.

    Attributes:
        epochs: Number of epochs; 0 chooses 20 to 200 from the number of training images, for about 60,000 images in
            total.
        evaluate_every: Epochs between evaluations. ``auto``: every epoch, or about a hundred times if epochs are short.
            The last epoch is always evaluated.
        batch_size: Global batch size, over all processes. A last batch of one image is merged with the one before.
        learning_rate: Initial learning rate (cosine decay to 0).
        momentum: SGD momentum.
        nesterov: Use Nesterov momentum.
        weight_decay: SGD weight decay.
        device: ``cpu``, ``cuda``, or ``auto`` for the GPU if there is one.
        precision: ``fp32``, ``tf32``, ``bf16``, or ``auto`` for bf16 where the hardware is fast at it.
        compile: Use torch.compile on a GPU: ``true``, ``false``, or ``auto`` for runs long enough to benefit.
        deterministic: Use deterministic GPU kernels only: slower, but bit-identical every time.
        sync_batchnorm: Use synchronised batch norm over all GPUs.
    """

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

    def __post_init__(self) -> None:
        _check_bounds(self)
        for name, least in (("epochs", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        _check_shares(self, ("momentum",))
        for name, positive in (("learning_rate", True), ("weight_decay", False)):
            value = getattr(self, name)
            if not 0 <= value < float("inf") or (positive and value == 0):
                raise ConfigError(f"{name} must be a {'positive' if positive else 'non-negative'} number, got {value}")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs a momentum above 0; set nesterov=false, or set a momentum")
        _check_choice(self, "device", ("auto", "cpu", "cuda"))
        _check_choice(self, "precision", ("auto", "bf16", "tf32", "fp32"))
        if isinstance(self.compile, str) and self.compile != "auto":
            raise ConfigError(f"compile must be true, false or auto, got {self.compile!r}")
        every = self.evaluate_every
        if every != "auto" and (isinstance(every, str) or not 1 <= every <= 10**6):
            raise ConfigError(f"evaluate_every must be auto, or a number of epochs from 1 to 1,000,000, got {every!r}")
        if self.sync_batchnorm and self.device == "cpu":
            raise ConfigError("sync_batchnorm works only on GPUs, and this run is on the CPU; omit it")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformSettings:
    """The transforms that are always applied to training images, and how geometric ops interpolate.

    Attributes:
        crop: Padding in pixels for a random crop; 0 disables it.
        crop_scale: Minimum area of a random resized crop, as a fraction of the image file; 0 disables it.
        jitter: Strength of random brightness, contrast and saturation; 0 disables it.
        flip: Probability of a horizontal flip.
        erase: Probability of erasing a random rectangle.
        resample: Interpolation of geometric ops: ``nearest``, ``bilinear`` or ``bicubic``.
        fill: Fill colour of geometric ops: red, green, blue.
    """

    crop: int = 4
    crop_scale: float = 0.0
    jitter: float = 0.0
    flip: float = 0.5
    erase: float = 0.5
    resample: str = "bilinear"
    fill: tuple[int, int, int] = (128, 128, 128)

    def __post_init__(self) -> None:
        _check_bounds(self)
        _check_not_negative(self, ("crop",))
        _check_shares(self, ("flip", "erase", "crop_scale", "jitter"))
        try:
            resample_code(self.resample)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if len(self.fill) != 3 or not all(0 <= value <= 255 for value in self.fill):
            raise ConfigError(f"fill must be three whole numbers from 0 to 255 (red, green, blue), got {self.fill}")
        if self.crop_scale and self.crop:
            raise ConfigError("crop and crop_scale are two ways to crop; set crop=0 or crop_scale=0")


def check_text(name: str, value: object) -> None:
    """Refuse a text that is too long, or that would disturb a terminal."""
    if isinstance(value, str) and (len(value) > _LONGEST_TEXT or unprintable(value)):
        raise ConfigError(f"{name} must be at most {_LONGEST_TEXT} printable characters, got {value[:40]!a}")


def _check_bounds(section: Any) -> None:
    for name in (field.name for field in fields(section)):
        value = getattr(section, name)
        if name in _MOST and value > _MOST[name]:
            raise ConfigError(f"{name} must be at most {_MOST[name]}, got {value}")
        check_text("data" if name == "name" else name, value)


def _check_not_negative(section: Any, names: Iterable[str]) -> None:
    for name in names:
        if getattr(section, name) < 0:
            raise ConfigError(f"{name} must not be negative, got {getattr(section, name)}")


def _check_shares(section: Any, names: Iterable[str]) -> None:
    for name in names:
        if not 0 <= getattr(section, name) <= 1:
            raise ConfigError(f"{name} must be in 0..1, got {getattr(section, name)}")


def _check_choice(section: Any, name: str, choices: tuple[str, ...]) -> None:
    if getattr(section, name) not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(section, name)!r}")
