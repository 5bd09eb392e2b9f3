"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest_name"]

_LONGEST, _MOST = 100, 1000


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the valid name closest to ``name``, or nothing if none is close.

    >>> nearest_name("rotate", ["Rotate", "Invert"])
    '; did you mean Rotate?'
    """
    candidates = {candidate.lower(): candidate for candidate in valid}
    if len(str(name)) > _LONGEST or len(candidates) > _MOST:  # looking takes time that grows with both
        return ""
    close = difflib.get_close_matches(str(name).lower(), candidates, n=1)
    return f"; did you mean {candidates[close[0]]}?" if close else ""
