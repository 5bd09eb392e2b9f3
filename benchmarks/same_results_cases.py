"""What ``same_results.py`` runs with both versions, and how the new version spells what the old one calls otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ADDED", "CASES", "LEFT_OUT", "NEW_NAMES_SINCE", "RENAMES", "UNDISTURBED", "Case", "respelled"]

NEW_NAMES_SINCE: str | None = "src/particleaugment/search/training_set.py"
"""A file that only versions with the new names have, such as ``src/particleaugment/search/training_set.py``.

It decides for each version which names are its own. While it is None, OLD has the old ones and NEW the new ones.
"""

RENAMES: Mapping[str, Mapping[str, str | None]] = {
    "command": {
        "--preset paper": "--set filter=paper",
    },
    "metrics.jsonl": {},
    "policy.json": {},
    "model.safetensors": {},
    "compare.json": {
        "version": None,
    },
    "bench": {"policy=particles": "policy=paper"},
}
"""Old names and what they are called in the new version. The cases below use the old names.

``command``: how commands change for a version with new names. ``key=`` renames a setting, anything else is one or more
whole words::

    "command": {"--preset paper": "--set filter=paper", "measure_on=": "filter.measure_on="}

Every other table renames what OLD has written before it is compared. In JSON, at any depth, ``key`` is a key and
``key=value`` a text under it; None leaves a key out in both versions::

    "metrics.jsonl": {"d0": "plain_loss", "effects": None},
    "compare.json": {"arm=particles": "arm=paper", "against=particles": "against=paper"},

For ``model.safetensors`` it is the tensors' names, and for ``bench`` the rows' of ``bench --out``, which is JSON.
"""

ADDED: Mapping[str, frozenset[str]] = {
    "compare.json": frozenset({"evaluated", "filter_settings", "policy", "filter", "ops"})
}
"""Keys that OLD may lack, by file: they are compared where both versions have them."""

LEFT_OUT: Mapping[str, frozenset[str]] = {
    "metrics.jsonl": frozenset(
        {"d0", "delta", "standard_error", "effects", "effect_errors", "gap", "mean_gap", "severity", "wanted_severity"}
    )
}
"""Keys that NEW may leave out where OLD wrote null or an empty list: each filter writes what it has."""

UNDISTURBED = "undisturbed"
"""The folder of a run that was never killed, beside ``run``, the one that was."""
_FILES = ("metrics.jsonl", "policy.json", "model.safetensors")
_RUN_FILES = tuple(f"run/{name}" for name in _FILES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something that both versions do.

    Attributes:
        name: Its name.
        command: Arguments of ``particleaugment``, in the old names; ``{digits}`` is a folder of images, and ``--out``
            is added.
        script: In place of a command, a Python program for a version with the old names, and one with the new names;
            its argument is the folder to write to.
        files: What is compared.
        ranks: Processes that share the run.
        killed: Whether it is killed after its first checkpoint, resumed, and compared with a run that never was.
        since: A setting that OLD must have; the case is left out where it has not.
        gpu: Whether it needs a GPU.
    """

    name: str
    command: str = ""
    script: tuple[str, str] | None = None
    files: tuple[str, ...] = _RUN_FILES
    ranks: int = 1
    killed: bool = False
    since: str = ""
    gpu: bool = False

    def words(self, digits: str, new_names: bool) -> list[str]:
        """Return the command of a version as words."""
        words = shlex.split(self.command)
        if new_names:
            words = respelled(words, RENAMES["command"])
        return [word.replace("{digits}", digits) for word in words]


def respelled(words: list[str], renames: Mapping[str, str | None]) -> list[str]:
    """Return a command in new names.

    >>> table = {"--preset paper": "--set filter=paper", "sigma=": "filter.sigma="}
    >>> respelled(["train", "--preset", "paper", "--set", "sigma=0.1"], table)
    ['train', '--set', 'filter=paper', '--set', 'filter.sigma=0.1']
    """
    for old, new in renames.items():
        if old.endswith("="):
            words = [(new or "") + word.removeprefix(old) if word.startswith(old) else word for word in words]
            continue
        sought, found = shlex.split(old), list[str]()
        while words:
            if words[: len(sought)] == sought:
                found += shlex.split(new or "")
                words = words[len(sought) :]
            else:
                found.append(words[0])
                words = words[1:]
        words = found
    return words


_CPU = "--set device=cpu --set precision=fp32 --set learning_rate=0.02"
_DIGITS = f"train digits {_CPU} --set epochs=3"
_SMALL = "--set num_particles=8 --set clone_size=256 --set measure_size=60"
_PAPER = f"{_DIGITS} --preset paper {_SMALL}"
_IMAGES = "--set data_dir={digits} --set model=wrn-10-1 --set image_size=16 --set batch_size=16"
_FOLDER = f"train folder {_CPU} {_IMAGES} --set flip=0 --set erase=0"
_DIFFICULTY = "--set filter=difficulty --set start=1 --set every=1"
_STEERED = f"{_DIFFICULTY} --set epochs=6 --set measure_size=40 --set crop=0"
_SINCE = "early_difficulty"  # OLD has the difficulty filter
_GPU = "train digits --deterministic --set device=cuda --set epochs=4"

_LOOP = """
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Subset

import particleaugment as pa
from particleaugment.data import load_digits

EPOCHS = 4
data = load_digits()
train = pa.IndexedDataset((data.train_images, data.train_labels))
loss = nn.CrossEntropyLoss(reduction="none")


def normalise(images):
    return images / 255


def learn(search, out):
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    ids = search.training_ids(data.train_labels)
    loader = DataLoader(Subset(train, ids), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(1))
    for epoch in range(1, EPOCHS + 1):
        search.set_epoch(epoch)
        for images, labels, ids in loader:
            optimizer.zero_grad()
            loss(model(normalise(search.augment(images, ids))), labels).mean().backward()
            optimizer.step()
        scheduler.step()
        if search.due(epoch, epochs=EPOCHS):
            search.step(model=model, optimizer=optimizer, dataset=train, loss=loss, preprocess=normalise, batch_size=64)
    out.mkdir(parents=True)
    search.schedule(epochs=EPOCHS).save(out / "policy.json")
    save_file(model.state_dict(), out / "model.safetensors")


out = Path(sys.argv[1])
crop = (pa.PadCrop(2),)
paper = {"num_particles": 8, "nonzero": 3, "m": 3, "clone_size": 256, "measure_size": 60}
learn(pa.ParticleAugment(**paper, seed=0, before=crop), out / "paper")
"""

_LOOP_IN_NEW_NAMES = """
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

EPOCHS = 4
data = load_digits()
train = (data.train_images, data.train_labels)
loss = nn.CrossEntropyLoss(reduction="none")


def normalise(images):
    return images / 255


def learn(filter, out):
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    search = pa.ParticleAugment(train, epochs=EPOCHS, filter=filter, seed=0, before=(pa.PadCrop(2),))
    loader = DataLoader(
        search.training_set(), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    for epoch in search.epochs():
        for images, labels, ids in loader:
            losses = loss(model(normalise(search.augment(images, ids))), labels)
            search.observe(ids, losses)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        scheduler.step()
        clone = {"optimizer": optimizer, "batch_size": 64} if search.filter.trains_clone else {}
        search.step(model, loss=loss, preprocess=normalise, **clone)
    out.mkdir(parents=True)
    search.schedule().save(out / "policy.json")
    save_file(model.state_dict(), out / "model.safetensors")


out = Path(sys.argv[1])
learn(pa.PaperFilter(num_particles=8, nonzero=3, m=3, clone_size=256, measure_size=60), out / "paper")
"""
"""The same program as a user of the new version writes it."""
_LOOP_BY_DIFFICULTY = f"""{_LOOP_IN_NEW_NAMES}
learn(pa.DifficultyFilter(measure_size=128, start=1.0), out / "difficulty")
"""

CASES = (
    Case(name="paper", command=f"{_PAPER} --set alpha=1"),  # resamples after every step
    Case(name="paper-random-order", command=f"{_PAPER} --set order=random"),
    Case(name="paper-heldout", command=f"{_PAPER} --set measure_on=heldout"),
    Case(name="difficulty", command=f"{_DIGITS} {_DIFFICULTY} --set measure_size=60", since=_SINCE),
    Case(name="no-policy", command=f"{_DIGITS} --set policy=none"),
    Case(
        name="trivial",
        command=f"{_DIGITS} --set policy=trivial --set flip=0.5 --set erase=0.5 --set jitter=0.4",
    ),
    Case(name="folder", command=f"{_FOLDER} {_STEERED}", since=_SINCE),
    Case(
        name="folder-groups",
        command=f"{_FOLDER} {_STEERED} --set groups=class-prefix --set train_size=0.6",
        since=_SINCE,
    ),
    Case(
        name="stream",
        command=f"{_FOLDER} {_STEERED} --set stream=true --set workers=2 --set crop_scale=0.7",
        since=_SINCE,
    ),
    Case(
        name="stream-paper",
        command=f"{_FOLDER} --preset paper --set epochs=3 {_SMALL} --set stream=true --set workers=0",
    ),
    Case(name="ranks", command=_PAPER, ranks=2),
    Case(name="ranks-difficulty", command=f"{_FOLDER} {_STEERED}", ranks=2, since=_SINCE),
    Case(
        name="killed", command=_PAPER, killed=True, files=(*_RUN_FILES, *(f"{UNDISTURBED}/{name}" for name in _FILES))
    ),
    Case(
        name="compare",
        command=f"compare folder --arms none,difficulty --seeds 0,1 {_CPU} {_IMAGES} --set epochs=3 "
        "--set measure_size=40 --set crop=0",
        files=("run/compare.json",),
        since=_SINCE,
    ),
    Case(
        name="python-loop",
        script=(_LOOP, _LOOP_IN_NEW_NAMES),
        files=("run/paper/policy.json", "run/paper/model.safetensors"),
    ),
    Case(
        name="python-loop-difficulty",
        script=(_LOOP_BY_DIFFICULTY, _LOOP_BY_DIFFICULTY),
        files=("run/difficulty/policy.json", "run/difficulty/model.safetensors"),
        since=_SINCE,
    ),
    Case(name="gpu-paper", command=f"{_GPU} --preset paper", gpu=True),
    Case(name="gpu-difficulty", command=f"{_GPU} {_DIFFICULTY} --set measure_size=120", gpu=True, since=_SINCE),
    Case(name="gpu-no-policy", command=f"{_GPU} --set policy=none", gpu=True),
)
