"""Values of settings: from a command line's text, and from JSON, each checked against its type."""

from __future__ import annotations

import types
import typing
from typing import Any

from particleaugment.training.settings import ConfigError
from particleaugment.util.strict_json import clipped

__all__ = ["from_json_value", "from_text"]


def from_text(key: str, text: str, kind: Any) -> Any:
    """Return the value that a text stands for.

    >>> from_text("clone_size", "0.5", int | float)
    0.5
    """
    for option in _alternatives(kind):
        value = _parsed(text, option)
        if value is not None:
            return value
    raise ConfigError(f"{key} takes {_describe(kind)}, got {text!r}")


def from_json_value(key: str, value: Any, kind: Any) -> Any:
    """Return a value of JSON; lists become tuples."""
    for option in _alternatives(kind):
        if typing.get_origin(option) is tuple:
            element = typing.get_args(option)[0]
            if isinstance(value, list) and all(_is_a(item, element) for item in value):
                return tuple(value)
        elif _is_a(value, option):
            return value
    raise ConfigError(clipped(f"{key} takes {_describe(kind)}, got {value!r}"))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return typing.get_args(kind)
    return (kind,)


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


def _is_a(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _describe(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return " or ".join(names.get(option, "numbers or names separated by commas") for option in _alternatives(kind))
