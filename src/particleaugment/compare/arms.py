"""The arms of a comparison: each is a name and the settings that it changes in a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from particleaugment.policies.parse import TIMM_OPS
from particleaugment.recipes.presets import DEFAULT_PRESET, PRESETS, preset_settings
from particleaugment.training.build import resolve
from particleaugment.training.config import Config, ConfigError, override
from particleaugment.util.hints import nearest_name

__all__ = ["ARMS", "Arm", "parse_arms", "parse_seeds"]

_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    >>> ARMS["trivialaugment"].config(Config(recipe="digits"), seed=3).policy
    'trivial'

    Attributes:
        name: Its name in tables and folders.
        settings: What it changes, each as ``key=value``; applied after the comparison's own settings.
        meaning: What it is, in a line.
    """

    name: str
    settings: tuple[str, ...]
    meaning: str = ""

    def config(self, base: Config, seed: int) -> Config:
        """Return the configuration of this arm's run with a seed."""
        try:
            return resolve(override(base, [*self.settings, f"seed={seed}"]))
        except ConfigError as error:
            raise ConfigError(f"arm {self.name!r}: {error}") from None


_LITERAL, _IMPROVED = PRESETS["paper"], PRESETS["improved"]

ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        arm.name: arm
        for arm in (
            Arm("none", ("policy=none",), "crop, flip and erasing only, as the recipe has them"),
            Arm("randaugment", ("policy=randaugment-n3-m4",), "RandAugment, three ops at level 4"),
            Arm("trivialaugment", ("policy=trivial",), "TrivialAugment, wide space"),
            Arm("autoaugment", ("policy=autoaugment-cifar10",), "AutoAugment as published for CIFAR-10"),
            Arm("autoaugment-imagenet", ("policy=autoaugment-imagenet",), "AutoAugment as published for ImageNet"),
            Arm("particles", _LITERAL, "the paper's filter, to the letter"),
            Arm(
                "particles-authors",
                (*_LITERAL, "reset_filter=true", "gate_twice=true", "start_value=0.5", "m=10")
                + ("resampling=multinomial", f"ops={','.join(TIMM_OPS)}"),
                "what the authors' released code does: the filter reset before every step, ops gated twice, level 10",
            ),
            Arm(
                "particles-frozen",
                (*_LITERAL, "measure=none"),
                "control: the paper's transition alone, nothing measured and no weight updated",
            ),
            Arm(
                "particles-shuffled",
                (*_LITERAL, "shuffle_scores=true"),
                "control: the paper's filter with the scores permuted among the particles",
            ),
            Arm("improved", _IMPROVED, "the improved filter, which train uses"),
            Arm(
                "improved-frozen",
                (*_IMPROVED, "measure=none"),
                "control: the improved filter's transition alone, nothing measured and no weight updated",
            ),
        )
    }
)
"""The arms that a comparison knows by name."""


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Return the arms of a list such as ``none,particles,schedule:FILE,mine:sigma=0.02,m=4``.

    What follows ``name:`` up to the next arm are settings; a value that holds commas stands in brackets. A filter's
    settings are changes of the improved one's, or, after ``preset=paper``, of the paper's.

    >>> [arm.name for arm in parse_arms("none, trivialaugment")]
    ['none', 'trivialaugment']
    >>> parse_arms("mine:preset=paper,sigma=0.02,ops=(Rotate,Invert),none")[0].settings[-2:]
    ('sigma=0.02', 'ops=(Rotate,Invert)')
    """
    arms: dict[str, Arm] = {}
    for words in _arm_words(text):
        arm = _arm(words)
        if arms.get(arm.name, arm) != arm:
            raise ConfigError(f"two different arms are called {arm.name!r}; name them, as in other:{words[0]}")
        arms[arm.name] = arm
    if not arms:
        raise ConfigError(f"no arm was given; the arms are {', '.join(ARMS)}, schedule:FILE and name:key=value")
    return tuple(arms.values())


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a list of numbers and ranges.

    >>> parse_seeds("0-3,7")
    (0, 1, 2, 3, 7)
    """
    seeds: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ConfigError(f"{part!r} is not a seed or a range of seeds; write them as 0-11 or 0,3,7")
        if last - first >= _MOST_SEEDS:
            raise ConfigError(f"{part!r} names {last - first + 1} seeds; at most {_MOST_SEEDS} are taken")
        seeds += range(first, last + 1)
    if not seeds:
        raise ConfigError("no seed was given; write seeds as 0-11 or 0,3,7")
    return tuple(dict.fromkeys(seeds))


def _arm_words(text: str) -> list[list[str]]:
    """Split a list of arms at its commas; a word ``key=value`` belongs to the arm before it."""
    found: list[list[str]] = []
    for word in filter(None, (word.strip() for word in re.split(r",(?![^(\[]*[)\]])", text))):
        key = word.partition("=")[0]
        if "=" in word and ":" not in key:
            if not found or ":" not in found[-1][0] or found[-1][0].startswith("schedule:"):
                raise ConfigError(f"the setting {word!r} belongs to no arm; write an arm as name:key=value,key=value")
            found[-1].append(word)
        else:
            found.append([word])
    return found


def _arm(words: list[str]) -> Arm:
    name, colon, rest = words[0].partition(":")
    if not colon:
        if name in ARMS:
            return ARMS[name]
        hint = nearest_name(name, ARMS) or f"; the arms are {', '.join(ARMS)}, schedule:FILE and name:key=value"
        raise ConfigError(f"there is no arm {name!r}{hint}")
    if name == "schedule":
        return _schedule_arm(rest)
    if name in ARMS:
        raise ConfigError(f"the arm {name!r} has its own settings; give an arm with others another name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(f"{name!r} cannot be an arm's name: use letters, digits, '.', '-' and '_'")
    settings = tuple(filter(None, [rest, *words[1:]]))
    if not settings:
        raise ConfigError(f"the arm {name!r} has no settings; write it as {name}:key=value,key=value")
    values = {setting.partition("=")[0].strip(): setting.partition("=")[2].strip() for setting in settings}
    if "seed" in values:
        raise ConfigError(f"the arm {name!r} sets a seed; the seeds of a comparison are given by --seeds")
    preset = preset_settings(values.get("preset", DEFAULT_PRESET))
    filters = values.get("policy", "particles") == "particles"
    own = (setting for setting in settings if setting.partition("=")[0].strip() != "preset")
    return Arm(name, (*(preset if filters else ()), *own), "given on the command line")


def _schedule_arm(file: str) -> Arm:
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"there is no policy file {path} for the arm 'schedule:{file}'")
    label = path.parent.name if path.name == "policy.json" else path.stem
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", label)
    return Arm(f"schedule-{label}", (f"policy=schedule:{file}",), "a recorded schedule, replayed")
