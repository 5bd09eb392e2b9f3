"""What every policy is: an immutable value that draws a Program for any sample ids, and has a JSON form."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from particleaugment.core import semantics
from particleaugment.core.op_table import lookup, op_indices
from particleaugment.core.program import Program
from particleaugment.core.random import Stream, standard_normal, uniforms
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.tables import DrawTables
from particleaugment.util.atomic import replacing
from particleaugment.util.hints import nearest_name
from particleaugment.util.reading import read_file
from particleaugment.util.strict_json import JSONError, clipped, parse_json

__all__ = ["FORMAT", "VERSION", "Policy", "from_dict", "load"]

FORMAT = "particleaugment-policy"
VERSION = 1

_REGISTRY: dict[str, type[Policy]] = {}
_CUTOUT = lookup("Cutout")


class Policy(ABC):
    """Draws, for each sample, which ops are applied with which arguments.

    The draw is a pure function of (seed, epoch, sample id): it does not depend on the batch, the worker, the rank or
    the device. The number of slots of the programs depends on the policy alone.

    >>> from particleaugment import RandAugment
    >>> policy = RandAugment(n=2, m=5)
    >>> policy.sample(torch.tensor([3, 8]), epoch=1)[1:].equal(policy.sample(torch.tensor([8]), epoch=1))
    True
    """

    __slots__ = ()
    kind: ClassVar[str]
    learned: ClassVar[bool] = False
    """Whether a search learns policies of this kind, so that reports chart its ops by epoch."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            _REGISTRY[cls.kind] = cls

    @abstractmethod
    def sample(
        self, ids: Tensor, epoch: int | Tensor = 0, seed: int | Tensor = 0, size: tuple[int, int] = (32, 32)
    ) -> Program:
        """Draw the programs of some samples.

        Args:
            ids: Sample ids, int64 ``[B]``, not negative; the program is drawn on their device.
            epoch: A number that changes from epoch to epoch: an int or a 0-d int64 tensor.
            seed: The run's seed: an int or a 0-d int64 tensor.
            size: Height and width of the images (some semantics count in pixels).
        """

    def tables(self, size: tuple[int, int]) -> DrawTables | None:
        """Return the tables, on the CPU, that the GPU kernel draws the policy from.

        None where only :meth:`sample` can draw it: the kernel is then given its programs.

        Args:
            size: Height and width of the images.
        """
        return None

    def plan(self) -> DrawPlan | None:
        """Return what single samples are drawn from, fast, or None where only :meth:`sample` can draw them."""
        return None

    if TYPE_CHECKING:

        @property
        def ops(self) -> tuple[str, ...]:
            """Names of the ops that it draws from."""
    else:
        ops = ()  # a property here would stand in the way of dataclasses with a field of this name

    @property
    def inclusion(self) -> dict[str, float]:
        """How often each op is applied to an image, on average; empty where that has no closed form."""
        return {}

    @property
    def ops_per_image(self) -> float:
        """Mean number of ops applied to an image, Identity not counted."""
        return sum(share for name, share in self.inclusion.items() if name != "Identity")

    @property
    def distinct(self) -> int | None:
        """How many different particles it has, to three decimals; None for a policy without particles."""
        return None

    def with_ops(self, ops: tuple[str, ...]) -> Policy:
        """Return the policy with other ops to draw from, or raise a ValueError where its ops are a part of it."""
        raise ValueError("it names its own ops; omit ops")

    def at(self, epoch: int) -> Policy:
        """Return the policy of an epoch, counted from 1: itself, unless it is a schedule."""
        return self

    def at_or_last(self, epoch: int | None) -> Policy:
        """Return the policy of an epoch that a schedule has, or the last one if it is None."""
        if epoch is not None:
            raise ValueError("this policy is the same in every epoch; omit the epoch")
        return self

    def rescaled(self, epochs: int) -> Policy:
        """Return the policy for a run of so many epochs: itself, unless it is a schedule."""
        return self

    def moments(self, epochs: int) -> list[tuple[str, Policy]]:
        """Return the policies to show of a run of so many epochs, each with its title."""
        return [(self.kind, self)]

    def static(self, epoch: int | None = None) -> tuple[Policy, list[str]]:
        """Return the closest policy that other libraries know, and what that loses, in noun phrases.

        They know Identity, RandAugment, TrivialAugment and weighted sub-policies.

        Args:
            epoch: Of a schedule, which epoch; the last if None.
        """
        return self.at_or_last(epoch), []

    def sample_particle(
        self,
        particle: Tensor,
        ids: Tensor,
        epoch: int | Tensor = 0,
        seed: int | Tensor = 0,
        size: tuple[int, int] = (32, 32),
    ) -> Program:
        """Draw the programs of some samples under given particles, with the uniforms that ``sample`` would use.

        Args:
            particle: Number of the particle of each sample, int64 ``[B]``.
            ids: Sample ids, int64 ``[B]``; ``epoch``, ``seed`` and ``size`` are as in :meth:`sample`.
            epoch: See :meth:`sample`.
            seed: See :meth:`sample`.
            size: See :meth:`sample`.
        """
        raise ValueError(f"a policy of kind {self.kind!r} has no particles to choose")

    def numbers(self) -> Tensor | None:
        """Return what a search changes, as one tensor that worker processes share; None if nothing changes."""
        return None

    def with_numbers(self, numbers: Tensor) -> Policy:
        """Return the policy with other :meth:`numbers` of the same shape."""
        raise ValueError(f"a policy of kind {self.kind!r} has no numbers to change")

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain JSON data, without the header that :meth:`save` adds: its kind and its fields."""
        return {"kind": self.kind} | {name: _plain(getattr(self, name)) for name in self._fields()}

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the policy from :meth:`to_dict`."""
        return cls(**{name: data[name] for name in cls._fields()})

    @classmethod
    def _fields(cls) -> list[str]:
        """Names of the arguments of a policy that is a dataclass; others bring their own :meth:`to_dict`."""
        return [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]

    def save(self, path: str | Path) -> None:
        """Write the policy to a JSON file that :func:`particleaugment.load_policy` reads."""
        with replacing(path) as file:
            file.write(document(self).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a policy of this kind from a file written by :meth:`save`."""
        policy = load(path)
        if not isinstance(policy, cls):
            raise ValueError(f"{path} holds a policy of kind {policy.kind!r}, not {cls.kind!r}; use load_policy")
        return policy


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    return "inf" if value == math.inf else value


def document(policy: Policy) -> str:
    """Return the text of a policy file: JSON with one line per innermost list, so that a person can read it."""
    text = json.dumps({"format": FORMAT, "version": VERSION} | policy.to_dict(), indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text) + "\n"


def from_dict(data: Any) -> Policy:
    """Rebuild any policy from its ``to_dict`` form.

    >>> from particleaugment import RandAugment
    >>> from_dict(RandAugment(n=2, m=5).to_dict()) == RandAugment(n=2, m=5)
    True
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"a policy is a JSON object, got {type(data).__name__}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _REGISTRY:
        hint = nearest_name(str(kind), _REGISTRY) or f"; the kinds are {', '.join(sorted(_REGISTRY))}"
        raise ValueError(clipped(f"there is no policy of kind {kind!r}{hint}"))
    try:
        return _REGISTRY[kind]._from_dict(data)
    except KeyError as error:
        raise ValueError(f"the policy of kind {kind!r} lacks the field {error.args[0]!r}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(clipped(f"the policy of kind {kind!r} is not valid: {error}")) from None


def load(path: str | Path) -> Policy:
    """Read any policy from a file written by :meth:`Policy.save`.

    >>> import tempfile
    >>> from particleaugment import TrivialAugment
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TrivialAugment().save(f"{folder}/policy.json")
    ...     load(f"{folder}/policy.json")
    TrivialAugment(space='wide', resample='default')
    """
    path = Path(path)
    try:
        content = parse_json(read_file(path))
    except FileNotFoundError:
        raise ValueError(f"there is no policy file {path}") from None
    except OSError as error:
        raise ValueError(f"the policy file {path} cannot be read: {error.strerror}") from None
    except JSONError as error:
        raise ValueError(f"{path} is not a valid policy file: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a policy file: its field 'format' must be {FORMAT!r}")
    if content.get("version") != VERSION:
        version = clipped(repr(content.get("version")))
        raise ValueError(f"{path} has version {version}; this release reads version {VERSION}")
    try:
        return from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def listed(data: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Return a field that must be a list, as a tuple, or raise a ValueError."""
    if not isinstance(data[name], (list, tuple)):
        raise ValueError(f"{name} must be a list, got {data[name]!r}")
    return tuple(data[name])


def checked_fraction(name: str, value: Any) -> float:
    """Return a probability as a float, or raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def checked_level(name: str, value: Any, top: float) -> float:
    """Return a level as a float, or raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= top:
        raise ValueError(f"{name} must be a number from 0 to {top:g}, the top level of its semantics, got {value!r}")
    return float(value)


def checked_spread(name: str, value: Any) -> float:
    """Return a standard deviation of levels as a float (infinity, also as a text: uniform from 0), or raise."""
    value = math.inf if value == "inf" else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(f"{name} must be 0 or more, got {value!r}")
    return float(value)


def checked_count(name: str, value: Any, most: int) -> int:
    """Return a count as an int, or raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}, got {value!r}")
    return value


def checked_ops(names: Any) -> tuple[str, ...]:
    """Return op names as a tuple, or raise a ValueError."""
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"ops must be a list of op names, got {names!r}")
    checked = tuple(str(name) for name in names)
    op_indices(checked)
    if not checked:
        raise ValueError("ops must name at least one op")
    return checked


def checked_choice(name: str, value: Any, valid: tuple[str, ...]) -> str:
    """Return one of some strings, or raise a ValueError."""
    if not isinstance(value, str) or value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")
    return str(value)


RESAMPLE_CHOICES = ("default", "random")


def checked_size(size: Any) -> tuple[int, int]:
    """Return (height, width), or raise a ValueError."""
    try:
        height, width = (int(side) for side in size)
    except (TypeError, ValueError):
        raise ValueError(f"size must be (height, width), got {size!r}") from None
    if height < 1 or width < 1:
        raise ValueError(f"size must be two positive numbers, got {size!r}")
    return height, width


class Draws:
    """The uniforms of one ``sample`` call, drawn together, and the small steps that all policies share."""

    def __init__(self, ids: Tensor, epoch: int | Tensor, seed: int | Tensor, slots: Mapping[Stream, int]):
        if isinstance(ids, Tensor) and ids.dim() != 1:
            raise ValueError(f"sample ids must have one dimension, got shape {tuple(ids.shape)}")
        self.uniforms = uniforms(seed, epoch, ids, {stream: count for stream, count in slots.items() if count})

    def __getitem__(self, stream: Stream) -> Tensor:
        return self.uniforms[stream]

    def choice(self, stream: Stream, options: int) -> Tensor:
        """A whole number from 0 to ``options`` - 1 per slot."""
        return (self[stream] * options).to(torch.int64).clamp(max=options - 1)

    def signs(self) -> Tensor:
        """A fair +1 or -1 per slot."""
        return torch.where(self[Stream.SIGN] < 0.5, 1.0, -1.0).to(torch.float64)

    def levels(self, level: Tensor, spread: float, highest: float) -> Tensor:
        """Levels with normal noise of deviation ``spread`` (uniform from 0 if infinite), kept in 0..``highest``."""
        if spread == 0:
            noisy = level
        elif math.isinf(spread):
            noisy = self[Stream.LEVEL] * level
        else:
            noisy = level + standard_normal(self[Stream.LEVEL]) * spread
        return noisy.clamp(0.0, highest)

    def resample(self) -> Tensor | None:
        """Bilinear or bicubic per slot, as timm draws them, or None if no such draw was asked for."""
        if Stream.INTERPOLATION not in self.uniforms:
            return None
        return torch.where(self[Stream.INTERPOLATION] < 0.5, 1, 2)

    def patches(self, mapping: semantics.Semantics, op: Tensor, arg: Tensor, size: Any) -> Tensor | None:
        """What Cutout paints, or None if its place was not drawn."""
        if Stream.PLACE not in self.uniforms:
            return None
        places = self[Stream.PLACE].reshape(*op.shape, 2)
        return torch.where((op == _CUTOUT.index).unsqueeze(-1), mapping.patches(arg, places, checked_size(size)), 0)


def interval_edges(weights: Tensor) -> Tensor:
    """Return the upper edges of intervals of [0, 1) as wide as the weights, on the CPU: every device has the same."""
    edges = weights.cumsum(0)
    edges = edges / edges[-1]
    # Rounding must not leave a gap below 1 that no interval, or one of weight 0, would fall into.
    edges[int(weights.nonzero().max()) :] = 1.0
    return edges


def by_name(names: Sequence[str], shares: Sequence[float]) -> dict[str, float]:
    """Return the shares of ops by name; an op that is named twice has the sum of its shares."""
    found = dict.fromkeys(names, 0.0)
    for name, share in zip(names, shares):
        found[name] += share
    return found


def places(names: tuple[str, ...], slots: int) -> int:
    """Return how many uniforms the places of Cutout need, in programs of some slots that draw from named ops."""
    return 2 * slots if _CUTOUT.name in names else 0


def get_semantics(name: Any) -> semantics.Semantics:
    """Return a semantics by name, or raise a ValueError."""
    if not isinstance(name, (str, semantics.Semantics)):
        raise ValueError(f"semantics must be a name, got {name!r}")
    return semantics.get(name)
