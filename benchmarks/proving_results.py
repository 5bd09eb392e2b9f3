"""The file of the proving ground's runs: one JSON document, one run per line, each run under its key.

{"version": 1, "runs": [RUN, ...]}; IDENTITY and FIELDS are what a run must have, and it may have more. A run that
failed has its identity, a sentence in ``failed`` and no accuracy. Research runs are kept in other files
of the same format.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from old_names import OLD_ARMS

from particleaugment.util.atomic import write_atomically
from particleaugment.util.reading import read_file
from particleaugment.util.strict_json import JSONError, parse_json

__all__ = [
    "VERSION",
    "Key",
    "ResultsError",
    "Run",
    "add_run",
    "key",
    "load_runs",
    "merge_runs",
    "save_runs",
    "validate",
]

VERSION = 1

Run = dict[str, Any]
Key = tuple[str, int, str, int, str]


class ResultsError(ValueError):
    """A file of runs, or a run, is not what it should be."""


def key(run: Run) -> Key:
    """Return what identifies a run: its settings are no part of that, since they may be renamed.

    >>> key({"task": "digits", "task_version": 1, "arm": "none", "seed": 0, "measured_on": "judge", "steps": 100})
    ('digits', 1, 'none', 0, 'judge')
    """
    return run["task"], run["task_version"], run["arm"], run["seed"], run["measured_on"]


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object, least: float = 0.0, most: float = math.inf) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and least <= value <= most


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_curve(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 4 and all(part is None or _is_number(part) for part in point)
        for point in value
    )


def _is_times(value: object) -> bool:
    return isinstance(value, dict) and "total" in value and all(_is_number(part) for part in value.values())


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


Check = tuple[Callable[[object], bool], str]

IDENTITY: dict[str, Check] = {
    "task": (_is_text, "a task's name"),
    "task_version": (lambda value: _is_whole(value, 1), "a whole number from 1"),
    "arm": (_is_text, "an arm's name"),
    "seed": (_is_whole, "a whole number from 0"),
    "measured_on": (lambda value: value in ("judge", "test"), "'judge' or 'test'"),
}
FIELDS: dict[str, Check] = {
    "accuracy": (lambda value: _is_number(value, 0, 100), "the last epoch's accuracy in percent"),
    "loss": (lambda value: value is None or _is_number(value), "a number from 0, or null"),
    "difficulty": (lambda value: value is None or _is_number(value), "a number from 0, or null"),
    "steps": (_is_whole, "a whole number from 0"),
    "epochs": (_is_whole, "a whole number from 0"),
    "curve": (_is_curve, "a list of [epoch, training loss, held-out loss, accuracy]"),
    "seconds": (_is_times, "seconds by phase, 'total' among them"),
    "shared_gpu": (lambda value: _is_whole(value, 1), "how many processes shared the device, from 1"),
    "machine": (_is_object, "an object"),
    "command": (_is_text, "the command that made the run"),
    "settings": (_is_object, "an object"),
}


def validate(run: object) -> None:
    """Raise a ResultsError that says in one sentence what is wrong with a run, if anything is.

    >>> validate({"task": "digits", "task_version": 0})
    Traceback (most recent call last):
    proving_results.ResultsError: a run's task_version must be a whole number from 1, got 0
    """
    if not isinstance(run, dict):
        raise ResultsError(f"a run must be an object, got {run!r:.60}")
    named = "a run's"
    for checks in (IDENTITY, FIELDS if run.get("failed") is None else {}):
        for name, (holds, expected) in checks.items():
            if name not in run:
                raise ResultsError(f"{named} {name} is missing: it must be {expected}")
            if not holds(run[name]):
                raise ResultsError(f"{named} {name} must be {expected}, got {run[name]!r:.60}")
        named = f"{run['task']}, {run['arm']}, seed {run['seed']}:"
    if run.get("failed") is not None:
        if not _is_text(run["failed"]):
            raise ResultsError(f"{named} failed must be a sentence, got {run['failed']!r:.60}")
        if run.get("accuracy") is not None:
            raise ResultsError(f"{named} a run that failed has no accuracy, got {run['accuracy']!r:.60}")


def merge_runs(runs: Iterable[Run], new: Iterable[Run]) -> list[Run]:
    """Return runs in the order of their keys; a new one replaces an old one with the same key."""
    found = {key(run): run for run in (*runs, *new)}
    return [found[place] for place in sorted(found)]


def load_runs(path: Path) -> list[Run]:
    """Return the runs of a file, none if there is no such file; raise a ResultsError if it is damaged.

    Arms are called by their present names; see ``old_names.py``.
    """
    if not path.exists():
        return []
    try:
        document = parse_json(read_file(path))
    except (JSONError, OSError) as error:
        raise ResultsError(f"{path} is not a file of runs: {error}") from None
    runs: list[Run] | None = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(runs, list) or document.get("version") != VERSION:
        raise ResultsError(f'{path} is not a file of runs: {{"version": {VERSION}, "runs": [...]}} is expected')
    try:
        for run in runs:
            validate(run)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from None
    runs = [run | {"arm": OLD_ARMS.get(run["arm"], run["arm"])} for run in runs]
    merged = merge_runs(runs, ())
    if len(merged) < len(runs):
        twice = next(run for place, run in enumerate(runs) if key(run) in map(key, runs[:place]))
        raise ResultsError(f"{path} holds the run {key(twice)} twice; remove one of the two lines")
    return merged


def save_runs(path: Path, runs: Sequence[Run]) -> None:
    """Write a file of runs, all or nothing, one run per line."""
    for run in runs:
        validate(run)
    lines = [json.dumps(run, ensure_ascii=False, allow_nan=False) for run in merge_runs(runs, ())]
    text = f'{{"version": {VERSION}, "runs": [' + "".join(f"\n{line}," for line in lines).rstrip(",") + "\n]}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def add_run(path: Path, run: Run) -> None:
    """Add a run to a file, in place of one with the same key; several processes may do so at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _held(path.parent):
        save_runs(path, merge_runs(load_runs(path), [run]))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block; the system ends the block of a process that is killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
