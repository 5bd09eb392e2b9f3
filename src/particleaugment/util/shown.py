"""Texts as they may be shown: commands as one types them, and names that a terminal does not act on."""

from __future__ import annotations

import shlex
from pathlib import Path

__all__ = ["printable", "printable_lines", "shortened", "shown_command"]

_LONGEST_NAME = 60


def printable(text: str) -> str:
    """Return a text in one line that any terminal takes: escapes, line ends and bytes that are no text become ``?``.

    >>> printable("photo\\x1b[2J\\n.png")
    'photo?[2J?.png'
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """Return a text with its line ends, otherwise as :func:`printable` does."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def shortened(name: str) -> str:
    """Return a name that a message may quote, however long the name in somebody's file is.

    >>> len(shortened("x" * 5000))
    60
    """
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def shown_command(*words: str | Path) -> str:
    """Return a command of ``particleaugment`` in quotation marks; what stands between them can be given to a shell.

    >>> print(shown_command("resume", "runs/mine"))
    'particleaugment resume runs/mine'
    >>> print(shown_command("resume", "my runs/mine"))
    "particleaugment resume 'my runs/mine'"
    """
    command = shlex.join(["particleaugment", *map(str, words)])
    return f'"{command}"' if "'" in command else f"'{command}'"
