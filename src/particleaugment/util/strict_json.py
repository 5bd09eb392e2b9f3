"""JSON from files that nobody has to trust.

Every JSON file of the package comes in through here: UTF-8, no field twice, finite numbers of ordinary size, printable
text, and bounds on size and nesting that are checked before memory is spent.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["JSONError", "clipped", "parse_json", "unprintable"]

DEPTH_LIMIT = 32
# A list, an object or a text costs up to 24 times its bytes in memory; numbers cost at most 9 times theirs.
COSTLY_LIMIT = 2_000_000
_LARGEST_WHOLE = 1 << 64
_TOO_LARGE = 10**30
_MESSAGE_LENGTH = 400

# What a terminal would act on, what breaks a line, and halves of surrogate pairs, which no encoding takes.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class JSONError(ValueError):
    """A file is not valid JSON."""


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text, or raise a JSONError that says in one sentence what is wrong and where.

    >>> parse_json(b'{"m": 3, "ops": ["Rotate"]}')
    {'m': 3, 'ops': ['Rotate']}
    >>> parse_json(b'{"m": [1, 1e999]}')
    Traceback (most recent call last):
    particleaugment.util.strict_json.JSONError: m[1] must be a finite number, got inf
    """
    if content.count(b"[") + content.count(b"{") + content.count(b'"') // 2 > COSTLY_LIMIT:
        raise JSONError(f"it contains more than {COSTLY_LIMIT:,} lists, objects and texts")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JSONError(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_whole, parse_constant=float)
    except RecursionError:
        raise JSONError(f"it is nested more than {DEPTH_LIMIT} deep") from None
    except JSONError:
        raise
    except ValueError as error:
        raise JSONError(f"not valid JSON: {error}") from None
    _check(value)
    return value


def unprintable(text: str) -> bool:
    """Whether a text holds something that must not reach a terminal or a file name.

    >>> unprintable("data/Grüße"), unprintable("\\x1b[2J")
    (False, True)
    """
    return _UNPRINTABLE.search(text) is not None


def clipped(message: object) -> str:
    """Return an error's text in one line of bearable length, whatever it quotes.

    >>> len(clipped("x" * 1000))
    400
    """
    text = str(message)
    text = text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH - 4]} ..."
    return "".join(character if character.isprintable() else " " for character in text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise JSONError(clipped(f"the field {name[:80]!r} appears twice"))
    return fields


def _whole(text: str) -> int:
    # Python takes quadratic time for long numbers and refuses very long ones; the place is named later.
    return int(text) if len(text) <= 30 else _TOO_LARGE


def _check(value: Any) -> None:
    """Check depth, numbers and texts, naming the place of what is wrong."""
    waiting: list[tuple[Any, tuple[str | int, ...]]] = [(value, ())]
    while waiting:
        item, place = waiting.pop()
        if isinstance(item, (dict, list)):
            if len(place) >= DEPTH_LIMIT:
                raise JSONError(f"it is nested more than {DEPTH_LIMIT} deep")
            if isinstance(item, list):
                if not _plain_numbers(item):
                    waiting += [(part, (*place, index)) for index, part in enumerate(item)]
                continue
            for name, part in item.items():
                if unprintable(name):
                    raise JSONError(clipped(f"a field of {_named(place)} has an unprintable name, {name[:80]!a}"))
                waiting.append((part, (*place, name)))
        elif isinstance(item, str):
            if unprintable(item):
                raise JSONError(f"{_named(place)} contains unprintable characters")
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise JSONError(f"{_named(place)} must be a finite number, got {item}")
        elif isinstance(item, int) and abs(item) >= _LARGEST_WHOLE:
            raise JSONError(f"{_named(place)} must be a number below 2^64")


def _plain_numbers(items: list[Any]) -> bool:
    """Whether a list holds nothing but finite numbers; cheap, and may answer False for an odd list of numbers."""
    try:
        total = sum(map(abs, items))
    except (TypeError, OverflowError):
        return False
    return math.isfinite(total) if isinstance(total, float) else abs(total) < _LARGEST_WHOLE


def _named(place: tuple[str | int, ...]) -> str:
    if not place:
        return "the whole value"
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in place)
    return clipped(name.removeprefix("."))
