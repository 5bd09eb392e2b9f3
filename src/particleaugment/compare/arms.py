"""The arms of a comparison: each has a fixed policy or a filter, and may change other settings of a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from particleaugment.compare.run_record import ARM_NAME, ArmName
from particleaugment.core.op_table import OPS
from particleaugment.policies.parse import TIMM_OPS
from particleaugment.recipes import Recipe
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import DEFAULT, FILTERS, meaning_of
from particleaugment.training.build import resolve
from particleaugment.training.config import LEARNED, Config, ConfigError, settings_of
from particleaugment.training.override import assigned, is_filter_setting, override
from particleaugment.util.hints import nearest_name
from particleaugment.util.typed import rebuilt

__all__ = ["ARMS", "Arm", "Base", "arm_name", "parse_arms", "parse_seeds"]

_MOST_SEEDS = 10_000
_LONGEST_LABEL = 90  # of a schedule: an arm's name has 100 characters at most
_BY_ARMS = ("policy", "filter")


@dataclass(frozen=True)
class Base:
    """What all arms of a comparison share.

    Attributes:
        config: The recipe with the comparison's settings, resolved, before any arm changes it.
        filters: The filters that arms choose from by their kinds.
        filter_settings: Settings of filters, as ``key=value``; they are for the arms whose filter has them.
    """

    config: Config
    filters: Mapping[str, Filter[Any]] = field(default_factory=dict, compare=False)
    filter_settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, assignments: Sequence[str] = ()) -> Base:
        """Return a recipe with settings that are for all arms."""
        for assignment in assignments:
            key, _ = assigned(assignment)
            if key == "seed":
                raise ConfigError("--set seed is not for comparisons: use --seeds")
            if key in _BY_ARMS:
                raise ConfigError(f"--set {key} is not for comparisons: set it per arm, as in --arms name:{assignment}")
        of_filters = tuple(each for each in assignments if is_filter_setting(assigned(each)[0]))
        unfit = {each for each in of_filters if not is_filter_setting(assigned(each)[0], recipe.config.filter)}
        config = recipe.override([each for each in assignments if each not in unfit])
        return cls(resolve(config), recipe.filters, of_filters)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, without the directory of the data, which is another one on every machine."""
        own = dict(assigned(each) for each in self.filter_settings)
        return settings_of(self.config.with_data_in("")) | {key.rpartition(".")[2]: own[key] for key in own}


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    >>> from particleaugment.recipes import get_recipe
    >>> ARMS["trivialaugment"].config(Base.of(get_recipe("digits")), seed=3).policy
    'trivial'

    Attributes:
        name: Its name in tables and folders.
        policy: Its policy, or ``learned``.
        filter: Kind of the filter that learns it.
        ops: Ops that it draws from, where they are its own.
        settings: What else it changes, each as ``key=value``.
        meaning: What it is, in a line.
    """

    name: ArmName
    policy: str = LEARNED
    filter: str = DEFAULT.kind
    ops: tuple[str, ...] = OPS
    settings: tuple[str, ...] = ()
    meaning: str = field(default="", compare=False)

    def config(self, base: Base, seed: int) -> Config:
        """Return the configuration of this arm's run with a seed."""
        chosen = base.filters.get(self.filter) or FILTERS[self.filter]()
        shared = [each for each in base.filter_settings if is_filter_setting(assigned(each)[0], chosen)]
        ops = self.ops if base.config.ops == OPS else base.config.ops  # what the comparison sets counts more
        first = {"policy": self.policy, "filter": chosen, "ops": ops}
        try:
            made = override(base.config, [*shared, *self.settings, f"seed={seed}"], base.filters, first)
            if base.config.training.epochs and not made.training.epochs:
                raise ConfigError(
                    "epochs must be at least 1; to leave it to the data, set it for all arms: --set epochs=0"
                )
            return resolve(made)
        except ConfigError as error:
            raise ConfigError(f"arm {self.name!r}: {error}") from None

    @property
    def learned(self) -> bool:
        """Whether it learns its policy."""
        return self.policy == LEARNED

    @property
    def described(self) -> str:
        """What it sets, as ``key=value, key=value``."""
        first = f"filter={self.filter}" if self.learned else f"policy={self.policy}"
        ops = () if self.ops == OPS else (f"ops={','.join(self.ops)}",)
        return ", ".join((first, *ops, *self.settings))

    def to_dict(self) -> dict[str, Any]:
        """Return the arm as plain JSON data."""
        chosen = {"filter": self.filter} if self.learned else {"policy": self.policy}
        ops = {} if self.ops == OPS else {"ops": list(self.ops)}
        return {"name": self.name, **chosen, **ops, "settings": list(self.settings), "meaning": self.meaning}

    @classmethod
    def from_dict(cls, data: Any, place: str = "arm") -> Arm:
        """Rebuild an arm from :meth:`to_dict`, or raise a ValueError that names the field."""
        arm = rebuilt(cls, data, place)
        if arm.filter not in FILTERS:
            raise ValueError(f"{place}.filter must be one of {', '.join(FILTERS)}")
        return arm


def _of_filter(kind: str) -> Arm:
    meaning = meaning_of(kind) + ("; the default" if kind == DEFAULT.kind else "")
    return Arm(kind, filter=kind, ops=TIMM_OPS if kind == "paper-authors" else OPS, meaning=meaning)


ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        arm.name: arm
        for arm in (
            Arm("none", "none", meaning="no policy; crop, flip and erasing as the recipe sets them"),
            Arm("randaugment", "randaugment-n3-m4", meaning="RandAugment, three ops at level 4"),
            Arm("trivialaugment", "trivial", meaning="TrivialAugment, wide space"),
            Arm("autoaugment", "autoaugment-cifar10", meaning="AutoAugment as published for CIFAR-10"),
            Arm("autoaugment-imagenet", "autoaugment-imagenet", meaning="AutoAugment as published for ImageNet"),
            *map(_of_filter, FILTERS),
        )
    }
)
"""The arms that a comparison knows by name."""

_ALSO_CALLED = {"trivial": "trivialaugment"}
"""Arms that may also be called by their policy's string."""


def arm_name(name: str) -> str:
    """Return the name of an arm that was given by it, or by another name for it.

    >>> arm_name("trivial"), arm_name("mine")
    ('trivialaugment', 'mine')
    """
    return _ALSO_CALLED.get(name, name)


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Return the arms of a list such as ``none,paper,schedule:FILE,mine:sigma=0.02,m=4``.

    What follows ``name:`` up to the next arm are settings; a value that holds commas stands in brackets. A filter's
    settings are changes of the difficulty filter's or, with ``filter=paper``, of the paper's.

    >>> [arm.name for arm in parse_arms("none, trivial")]
    ['none', 'trivialaugment']
    >>> parse_arms("mine:filter=paper,sigma=0.02,ops=(Rotate,Invert),none")[0].settings
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
            raise ConfigError(f"{part!r} names {last - first + 1} seeds; the limit is {_MOST_SEEDS}")
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
                raise ConfigError(
                    f"the setting {word!r} does not belong to an arm; write an arm as name:key=value,key=value"
                )
            found[-1].append(word)
        else:
            found.append([word])
    return found


def _arm(words: list[str]) -> Arm:
    name, colon, rest = words[0].partition(":")
    if not colon:
        if arm_name(name) in ARMS:
            return ARMS[arm_name(name)]
        hint = nearest_name(name, ARMS) or f"; the arms are {', '.join(ARMS)}, schedule:FILE and name:key=value"
        raise ConfigError(f"there is no arm {name!r}{hint}")
    if name == "schedule":
        return _schedule_arm(rest)
    if arm_name(name) in ARMS:
        raise ConfigError(f"the arm {name!r} is built in; give your own arm another name")
    if not re.fullmatch(ARM_NAME, name):
        raise ConfigError(f"{name!r} cannot be an arm's name: use letters, digits, '.', '-' and '_'")
    settings = tuple(filter(None, [rest, *words[1:]]))
    if not settings:
        raise ConfigError(f"the arm {name!r} has no settings; write it as {name}:key=value,key=value")
    values = dict(assigned(setting) for setting in settings)
    if "seed" in values:
        raise ConfigError(f"the arm {name!r} sets a seed; use --seeds instead")
    policy, kind = values.get("policy", LEARNED), values.get("filter", DEFAULT.kind)
    if kind not in FILTERS:
        hint = nearest_name(kind, FILTERS) or f"; the filters are {', '.join(FILTERS)}"
        raise ConfigError(f"arm {name!r}: there is no filter {kind!r}{hint}")
    own = tuple(setting for setting in settings if assigned(setting)[0] not in _BY_ARMS)
    arm = Arm(name, policy, kind, settings=own)
    return replace(arm, meaning=arm.described)


def _schedule_arm(file: str) -> Arm:
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"there is no policy file {path} for the arm 'schedule:{file}'")
    label = path.parent.name if path.name == "policy.json" else path.stem
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", label)[:_LONGEST_LABEL]
    return Arm(f"schedule-{label}", f"schedule:{file}", meaning="a recorded schedule, replayed")
