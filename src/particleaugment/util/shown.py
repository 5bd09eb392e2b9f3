"""Commands as sentences show them."""

from __future__ import annotations

import shlex
from pathlib import Path

__all__ = ["shown_command"]


def shown_command(*words: str | Path) -> str:
    """Return a command of ``particleaugment`` in quotation marks; what stands between them can be given to a shell.

    >>> print(shown_command("resume", "runs/mine"))
    'particleaugment resume runs/mine'
    >>> print(shown_command("resume", "my runs/mine"))
    "particleaugment resume 'my runs/mine'"
    """
    command = shlex.join(["particleaugment", *map(str, words)])
    return f'"{command}"' if "'" in command else f"'{command}'"
