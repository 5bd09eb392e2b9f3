"""The records of ``metrics.jsonl``: what each must hold, and in which order they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from particleaugment.util.reading import read_file
from particleaugment.util.strict_json import JSONError, clipped, parse_json

__all__ = ["LARGEST_NUMBER", "MOST_EPOCHS", "RecordError", "check_record", "parse_records", "read_records"]


MOST_EPOCHS = 10**7
LARGEST_NUMBER = 1e30
"""No loss, rate or time of a run is larger; sums and squares of such numbers are finite."""


class RecordError(ValueError):
    """A line of metrics is damaged or not in its place."""


class _Rule(NamedTuple):
    wanted: str
    fits: Callable[[Any], bool]


def _is_number(value: Any, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_EPOCHS


def _is_per_particle(value: Any) -> bool:
    return isinstance(value, list) and all(item is None or _is_number(item) for item in value)


_COUNT = _Rule("a whole number from 1 to 10,000,000", _is_count)
_NUMBER = _Rule("a number below 1e30", _is_number)
_PERCENT = _Rule("a number from 0 to 100", lambda value: _is_number(value, 0, 100))
_NOT_NEGATIVE = _Rule("a number, not negative", lambda value: _is_number(value, 0))
_NUMBER_OR_NULL = _Rule("a number or null", lambda value: value is None or _is_number(value))
_PER_PARTICLE = _Rule("a list of numbers and nulls, one per particle", _is_per_particle)
_TEXT_OR_NULL = _Rule("text or null", lambda value: value is None or isinstance(value, str))
_TRUTH = _Rule("true or false", lambda value: isinstance(value, bool))
_SECONDS = _Rule(
    "an object of numbers, none negative",
    lambda value: isinstance(value, dict) and all(_is_number(item, 0) for item in value.values()),
)

_FIELDS: Mapping[str, Mapping[str, _Rule]] = {
    "epoch": {
        "epoch": _COUNT,
        "train_loss": _NUMBER,
        "test_loss": _NUMBER,
        "test_accuracy": _PERCENT,
        "learning_rate": _NOT_NEGATIVE,
        "seconds": _SECONDS,
    },
    "filter": {
        "epoch": _COUNT,
        "step": _COUNT,
        "skip_reason": _TEXT_OR_NULL,
        "ops_per_image": _NOT_NEGATIVE,
        "seconds": _SECONDS,
    },
}
# What a filter's steps add to that; each filter has its own.
_OPTIONAL = {
    "ops_per_image": _NOT_NEGATIVE,
    "effective_sample_size": _NOT_NEGATIVE,
    "resampled": _TRUTH,
    "d0": _NUMBER_OR_NULL,
    "delta": _PER_PARTICLE,
    "standard_error": _PER_PARTICLE,
    "strength": _NOT_NEGATIVE,
    "training_loss": _NUMBER_OR_NULL,
    "held_out_loss": _NUMBER_OR_NULL,
    "difficulty": _NUMBER_OR_NULL,
    "wanted": _NUMBER_OR_NULL,
}


def check_record(record: Any) -> None:
    """Raise a RecordError that names the field if a record is not as it should be; further fields are let be.

    >>> check_record({"kind": "epoch", "epoch": 0})
    Traceback (most recent call last):
    particleaugment.training.records.RecordError: epoch must be a whole number from 1 to 10,000,000, got 0
    """
    if not isinstance(record, dict):
        raise RecordError("it is not an object")
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise RecordError(clipped(f"kind must be one of {', '.join(_FIELDS)}, got {kind!r}"))
    required = _FIELDS[kind]
    for name, rule in (_OPTIONAL | dict(required)).items():
        if name not in record:
            if name in required:
                raise RecordError(f"it lacks the field {name}")
        elif not rule.fits(record[name]):
            raise RecordError(clipped(f"{name} must be {rule.wanted}, got {record[name]!r}"))
    if kind == "filter" and len(record.get("delta", ())) != len(record.get("standard_error", ())):
        raise RecordError("delta and standard_error must be of the same length")


def parse_records(content: bytes, evaluate_every: int | str = 1) -> list[dict[str, Any]]:
    """Return the records of whole lines, or raise a RecordError that names line and field.

    Epochs are ``evaluate_every`` apart, but for the last (for ``auto``, as far as the first is from the start). A
    filter step follows its epoch, and steps count up from 1.
    """
    records: list[dict[str, Any]] = []
    order = _Order(evaluate_every)
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, start=1):
        try:
            if number == len(lines):
                raise RecordError("it is incomplete: the file is truncated")
            record = parse_json(line)
            check_record(record)
            order.follow(record)
        except (JSONError, RecordError) as error:
            raise RecordError(f"line {number}: {error}") from None
        records.append(record)
    return records


class _Order:
    """What has come so far, and with it what may come next."""

    def __init__(self, evaluate_every: int | str) -> None:
        self.interval = evaluate_every if isinstance(evaluate_every, int) else None
        self.epoch, self.last = 0, False
        self.step, self.step_epoch = 0, 0

    def follow(self, record: dict[str, Any]) -> None:
        epoch = record["epoch"]
        if record["kind"] == "epoch":
            self.interval = self.interval or epoch
            expected = self.epoch + self.interval
            if self.last or not max(self.epoch, self.step_epoch) < epoch <= expected:
                raise RecordError(f"epoch {expected} should come here, got epoch {epoch}")
            self.epoch, self.last = epoch, epoch < expected
            return
        missing = self.interval is not None and epoch >= self.epoch + self.interval
        if record["step"] != self.step + 1 or epoch < self.epoch or epoch <= self.step_epoch or missing:
            raise RecordError(
                f"filter step {record['step']} of epoch {epoch} does not belong after epoch {self.epoch} and step "
                f"{self.step}"
            )
        self.step, self.step_epoch = record["step"], epoch


def read_records(path: Path, evaluate_every: int | str = 1) -> list[dict[str, Any]]:
    """Return the records of a file, in the order that :func:`parse_records` wants; none if there is no file."""
    try:
        return parse_records(read_file(path), evaluate_every)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from None
    except (JSONError, RecordError) as error:
        raise RecordError(f"{path} is damaged: {error}") from None
