"""Values of JSON as the types that they should have: every field of a file that we read back goes through here."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from particleaugment.util.strict_json import clipped

__all__ = ["Matching", "Within", "rebuilt"]

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class Within:
    """The bounds of a number, as in ``Annotated[float, Within(0, 100)]``."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Matching:
    """What a text must look like: a regular expression, and what it means in words."""

    pattern: str
    meaning: str


def rebuilt(kind: type[Made], value: Any, place: str = "") -> Made:
    """Return a value of JSON as a type; a dataclass is made of an object, and a tuple of a list.

    Args:
        kind: The type: plain ones, tuples, dictionaries, dataclasses and unions of these, in any nesting.
        value: What JSON holds.
        place: The name of the value, for errors.

    >>> @dataclasses.dataclass
    ... class Run:
    ...     seed: int
    ...     accuracy: tuple[typing.Annotated[float, Within(0, 100)], ...] = ()
    >>> rebuilt(Run, {"seed": 3, "accuracy": [90, 91.5]})
    Run(seed=3, accuracy=(90.0, 91.5))
    >>> rebuilt(Run, {"seed": 3, "accuracy": [90, "<b>"]}, "run")
    Traceback (most recent call last):
    ValueError: run.accuracy[1] must be a number, got '<b>'

    Raises:
        ValueError: if a field is missing, not known, or not of its type; it is named.
    """
    return _rebuilt(kind, value, place)  # type: ignore[no-any-return]


def _rebuilt(kind: Any, value: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _bounded(_rebuilt(arguments[0], value, place), arguments[1], place)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, place)
    if origin is tuple:
        return tuple(
            _rebuilt(arguments[0], item, f"{place}[{number}]")
            for number, item in enumerate(_are(list, value, "a list", place))
        )
    if origin in (dict, Mapping):
        items = _are(dict, value, "an object", place).items()
        return {name: _rebuilt(arguments[1], item, _within(place, name)) for name, item in items}
    if dataclasses.is_dataclass(kind):
        return _made(kind, _are(dict, value, "an object", place), place)
    if kind is types.NoneType:
        return _are(kind, value, "null", place)
    if kind is bool:
        return _are(bool, value, "true or false", place)
    if isinstance(value, bool):
        raise ValueError(_wanted("text" if kind is str else "a number", value, place))
    if kind is int:
        return _are(int, value, "a whole number", place)
    if kind is float:
        return float(_are((int, float), value, "a number", place))
    if kind is str:
        return _are(str, value, "text", place)
    raise TypeError(f"values of type {kind} are not read from files")


def _one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not types.NoneType]
    for kind in others[:-1]:
        try:
            return _rebuilt(kind, value, place)
        except ValueError:
            continue
    return _rebuilt(others[-1], value, place)


def _made(kind: Any, fields: Mapping[str, Any], place: str) -> Any:
    hints, known = _hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name in fields:
        if name not in known:
            raise ValueError(clipped(f"there is no field {_within(place, name)!r}"))
    for name, field in known.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in fields and not optional:
            raise ValueError(f"the field {_within(place, name)} is missing")
    return kind(**{name: _rebuilt(hints[name], item, _within(place, name)) for name, item in fields.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _bounded(value: Any, rule: Within | Matching, place: str) -> Any:
    if isinstance(rule, Within):
        if not rule.low <= value <= rule.high:
            raise ValueError(clipped(f"{place} must be from {rule.low:g} to {rule.high:g}, got {value!r}"))
    elif not re.fullmatch(rule.pattern, value):
        raise ValueError(clipped(f"{place} must be {rule.meaning}, got {value!r}"))
    return value


def _are(kind: Any, value: Any, wanted: str, place: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(_wanted(wanted, value, place))
    return value


def _wanted(wanted: str, value: Any, place: str) -> str:
    return clipped(f"{place or 'it'} must be {wanted}, got {value!r}")


def _within(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
