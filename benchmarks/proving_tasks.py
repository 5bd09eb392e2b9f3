"""The proving ground's tasks and arms, as data.

A task is a data set, a number of training images, epochs, a network and its always-on transforms. It is judged on
training images that it never trains on (the judge); the test set is for the final alone. Change a task's settings and
its version together: results are kept by task, version, arm and seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from particleaugment.training.config import Config
from particleaugment.training.override import override
from particleaugment.training.settings import DataSettings, TrainingSettings

__all__ = ["ARMS", "TASKS", "WITHDRAWN", "ProvingArm", "Task"]

EVALUATIONS = 20  # per run: enough for a curve and for the difficulty ratio, at a twentieth of the training time


@dataclass(frozen=True, kw_only=True)
class Task:
    """One row of the proving ground.

    Attributes:
        name: Its name on the command line and in result files.
        title: Its name for people.
        data: Name of the data set.
        folder: Where it is below the data directory; empty for data that come with the package.
        size: Training images.
        judge: Training images that take the test set's place, as a number or a fraction.
        epochs: Epochs.
        settings: What else differs from WRN-28-2 with crop, mirror and erasing, each as ``key=value``.
        train_size: The subset to draw in a judged run, where that is not ``size``.
        final_train_size: The subset to draw where the test set is used, where that is not ``size``.
        classes: Number of classes.
        trap: Whether its op set has ops that destroy labels.
        final_only: Whether no candidate may see it before the final.
        small: Whether it is one of those for a CPU, which screen candidates and are not part of the core.
        version: Counts up with every change of the above.
    """

    name: str
    title: str
    data: str
    folder: str
    size: int
    judge: int | float
    epochs: int
    settings: tuple[str, ...] = ()
    train_size: float | None = None
    final_train_size: float | None = None
    classes: int = 10
    trap: bool = False
    final_only: bool = False
    small: bool = False
    version: int = 1

    @property
    def network(self) -> tuple[object, ...]:
        """What runs must have in common to share a compiled network."""
        shape = tuple(word for word in self.settings if word.startswith(("model=", "image_size=", "batch_size=")))
        return self.classes, *sorted(shape)

    def config(self, arm: Sequence[str], seed: int, data_dir: str, *, final: bool = False) -> Config:
        """Return the configuration of a run with an arm's settings; ``final`` measures on the test set."""
        special = self.final_train_size if final else self.train_size
        base = Config(
            recipe="proving-ground",
            data=DataSettings(
                name=self.data,
                data_dir=f"{data_dir}/{self.folder}" if self.folder else "",
                train_size=self.size if special is None else special,
                validation=0 if final else self.judge,
            ),
            model="wrn-28-2",
            training=TrainingSettings(
                epochs=self.epochs,
                evaluate_every=max(1, self.epochs // EVALUATIONS),
                compile=True,  # runs that follow each other share the compiled network
            ),
        )
        return override(base, [*self.settings, *arm, f"seed={seed}"])


_TURNS = ("Identity", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "FlipX", "FlipY", "Rotate90")
_COLOURS = (
    "Identity", "AutoContrast", "Equalize", "Solarize", "Color", "Contrast", "Brightness", "Posterize", "Invert",
)  # fmt: skip


def _small(name: str, title: str, data: str, folder: str, size: int, epochs: int, *more: str, **fields: Any) -> Task:
    """A task for one CPU core and about two minutes: WRN-10-1, and a judge of a few thousand images."""
    settings = ("model=wrn-10-1", "batch_size=64", "precision=bf16", "compile=false", *more)
    evaluate = f"evaluate_every={max(1, epochs // 10)}"
    return Task(name=name, title=title, data=data, folder=folder, size=size, epochs=epochs,
                settings=(*settings, evaluate), small=True, **{"judge": 4000, **fields})  # fmt: skip


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            Task(name="cifar10-1280", title="CIFAR-10, 1,280 images", data="cifar10", folder="cifar",
                 size=1280, judge=10_000, epochs=500),
            Task(name="cifar10-4000", title="CIFAR-10, 4,000 images", data="cifar10", folder="cifar",
                 size=4000, judge=10_000, epochs=250),
            Task(name="cifar10-12800", title="CIFAR-10, 12,800 images", data="cifar10", folder="cifar",
                 size=12_800, judge=10_000, epochs=100),
            Task(name="cifar100-10000", title="CIFAR-100, 10,000 images", data="cifar100", folder="cifar",
                 size=10_000, judge=10_000, epochs=100, classes=100),
            Task(name="fashion-1000", title="Fashion-MNIST, 1,000 images", data="fashion-mnist", folder="fashion-mnist",
                 size=1000, judge=10_000, epochs=500),
            Task(name="signs-6700", title="Traffic signs, 6,700 images", data="folder", folder="gtsrb",
                 size=6700, judge=0.2, train_size=1.0, final_train_size=0.8, epochs=120, classes=43,
                 settings=("image_size=32", "stream=false", "groups=class-prefix", "flip=0")),
            Task(name="imagenette-2000", title="Imagenette 64x64, 2,000 images", data="folder", folder="imagenette",
                 size=2000, judge=1900, epochs=250,
                 settings=("image_size=64", "stream=false", "model=resnet-18", "crop=8")),
            Task(name="mnist-turns-1000", title="MNIST with flips and turns, 1,000 images", data="mnist",
                 folder="mnist", size=1000, judge=10_000, epochs=500, trap=True,
                 settings=("flip=0", f"ops={','.join(_TURNS)}")),
            Task(name="mnist-tints-2000", title="MNIST in three tints, 2,000 images", data="folder",
                 folder="mnist-close-tints", size=2000, judge=9000, epochs=250, classes=30, trap=True, version=2,
                 settings=("image_size=32", "stream=false", "flip=0", f"ops={','.join(_COLOURS)}")),
            Task(name="cifar10-40000", title="CIFAR-10, 40,000 images", data="cifar10", folder="cifar",
                 size=40_000, judge=10_000, epochs=60, final_only=True),
            Task(name="fashion-10000", title="Fashion-MNIST, 10,000 images", data="fashion-mnist",
                 folder="fashion-mnist", size=10_000, judge=10_000, epochs=100, final_only=True),
            Task(name="imagenette-7500", title="Imagenette 64x64, 7,500 images", data="folder", folder="imagenette",
                 size=7500, judge=1900, epochs=68, final_only=True,
                 settings=("image_size=64", "stream=false", "model=resnet-18", "crop=8")),
            Task(name="digits-300", title="Digits, 300 images", data="digits", folder="", size=300, judge=1000,
                 epochs=40, final_only=True,
                 settings=("model=wrn-10-1", "batch_size=64", "crop=2", "flip=0", "erase=0")),
            *(_small(f"small-cifar10-{size}", f"CIFAR-10, {size:,} images", "cifar10", "cifar", size, 200)
              for size in (300, 600, 1200, 2400)),
            _small("small-cifar10-3000", "CIFAR-10, 3,000 images", "cifar10", "cifar", 3000, 40),
            _small("small-cifar100-3000", "CIFAR-100, 3,000 images", "cifar100", "cifar", 3000, 50, classes=100),
            _small("small-fashion-300", "Fashion-MNIST, 300 images", "fashion-mnist", "fashion-mnist", 300, 300),
            _small("small-turns-300", "MNIST with flips and turns, 300 images", "mnist", "mnist", 300, 300, "flip=0",
                   f"ops={','.join(_TURNS)}", trap=True),
            _small("small-tints-1000", "MNIST in three tints, 1,000 images", "folder", "mnist-close-tints", 1000, 100,
                   "image_size=32", "stream=false", "flip=0", f"ops={','.join(_COLOURS)}", classes=30, trap=True),
            _small("small-mnist-200", "MNIST, 200 images, few steps", "mnist", "mnist", 200, 40, "flip=0"),
            _small("small-imagenette-1000", "Imagenette 64x64, 1,000 images", "folder", "imagenette", 1000, 60,
                   "image_size=64", "stream=false", "crop=8", judge=1900),
        )
    }
)  # fmt: skip
"""Every task by name: the core, two traps, those that are kept for the final, and small ones for a CPU."""


@dataclass(frozen=True)
class ProvingArm:
    """One way to augment.

    Attributes:
        name: Its name on the command line and in result files.
        meaning: What it is, in a line.
        choice: The settings that it changes, each as ``key=value``.
        fixed: Whether its policy stays the same for the whole run.
        measured: The most samples that it measures on, where it does; a tenth of the data if that is fewer.
        own_ops: Whether its ops are part of the policy, so that it cannot draw from a trap's.
    """

    name: str
    meaning: str
    choice: tuple[str, ...]
    fixed: bool = True
    measured: int = 0
    own_ops: bool = False

    def settings(self, size: int) -> tuple[str, ...]:
        """Return the settings on so many training images."""
        measured = (f"measure_size={min(self.measured, size // 10)}",) if self.measured else ()
        return (*self.choice, *measured)


def _rand(n: int, m: int) -> ProvingArm:
    words = {1: "one op", 2: "two ops", 3: "three ops"}[n]
    return ProvingArm(f"randaugment-{n}-{m}", f"RandAugment, {words} at level {m}", (f"policy=randaugment-n{n}-m{m}",))


ARMS: Mapping[str, ProvingArm] = MappingProxyType(
    {
        arm.name: arm
        for arm in (
            ProvingArm("none", "crop, mirror and erasing only", ("policy=none",)),
            ProvingArm("trivialaugment", "TrivialAugment, wide space", ("policy=trivial",)),
            ProvingArm("trivialaugment-2", "two TrivialAugment ops per image", ("policy=trivial-n2",)),
            _rand(1, 1),
            _rand(1, 3),
            _rand(2, 6),
            _rand(3, 4),
            _rand(2, 10),
            ProvingArm("autoaugment", "AutoAugment as published for CIFAR-10", ("policy=autoaugment-cifar10",),
                       own_ops=True),
            ProvingArm("difficulty", "steers strength so that training stays about as hard as new images: the default",
                       ("filter=difficulty",), fixed=False),
            ProvingArm("difficulty-frozen", "control: keeps its initial strength, measures nothing",
                       ("filter=difficulty-frozen",), fixed=False),
            ProvingArm("paper", "the paper's filter, as written", ("filter=paper",), fixed=False, measured=512),
        )
    }
)  # fmt: skip
"""Every arm that can be run, by name."""

WITHDRAWN: Mapping[str, ProvingArm] = MappingProxyType(
    {
        "difficulty-2-percent": ProvingArm(
            "difficulty-2-percent",
            "withdrawn: the default when it held out 2 %, measured in one way and did not fade out",
            (),
            fixed=False,
        ),
        "difficulty-1-percent": ProvingArm(
            "difficulty-1-percent",
            "withdrawn: the default when it corrected small errors too and wanted a difficulty of 0.6 in the end",
            (),
            fixed=False,
        ),
        "gap": ProvingArm("gap", "withdrawn: steered severity by the generalisation gap", (), fixed=False),
        "gap-frozen": ProvingArm("gap-frozen", "withdrawn: its particles, nothing measured", (), fixed=False),
    }
)
"""Arms of earlier versions, which result files have."""
