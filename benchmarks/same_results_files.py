"""Comparing what two versions wrote, bit for bit, and saying where they first differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

__all__ = ["IGNORED", "first_difference", "renamed"]

Renames = Mapping[str, str | None]
Labels = tuple[str, str]


class Optional(NamedTuple):
    """Keys that the old or the new file may lack; see :func:`first_difference`."""

    added: frozenset[str]
    left_out: frozenset[str]


IGNORED: Mapping[str, Renames] = {
    "metrics.jsonl": {"seconds": None},
    "compare.json": dict.fromkeys(
        # Times, what depends on them (of two arms that are level the faster one is recommended), and the plan's words.
        ("seconds", "overhead", "search_overhead", "recommendation", "commands", "config", "settings", "meaning")
    ),
}
"""What is no result, by file; see ``RENAMES`` for the form."""


def first_difference(
    old: Path,
    new: Path,
    renames: Renames | None = None,
    added: frozenset[str] = frozenset(),
    left_out: frozenset[str] = frozenset(),
    labels: Labels = ("OLD", "NEW"),
) -> str | None:
    """Return where two files first differ, in words, or None.

    Args:
        old: The old version's file: ``.json``, ``.jsonl`` or ``.safetensors``.
        new: The new version's.
        renames: How the new version calls what the old one's file has; see ``RENAMES``.
        added: Keys that the old file may lack.
        left_out: Keys that the new file may lack where the old one has null or an empty list.
        labels: What the two are called.
    """
    missing = [label for label, path in zip(labels, (old, new)) if not path.is_file()]
    if missing:
        return f"{old.name} is missing in {' and '.join(missing)}"
    renames = {**IGNORED.get(old.name, {}), **(renames or {})}
    if old.suffix == ".safetensors":
        found = _tensors_differ(old, new, renames, labels)
    elif old.suffix == ".jsonl":
        found = _lines_differ(old, new, renames, Optional(added, left_out), labels)
    else:
        ours, theirs = (json.loads(path.read_text()) for path in (old, new))
        found = _json_differs(ours, theirs, renames, Optional(added, left_out), labels)
    return None if found is None else f"{old.name} {found}"


def renamed(data: Any, renames: Renames) -> Any:
    """Return JSON data with keys, and texts under keys, in their new names, and without what is left out.

    >>> renamed({"arm": "particles", "runs": [{"d0": 1.5, "seconds": 2}]},
    ...         {"arm=particles": "arm=paper", "d0": "plain", "seconds": None})
    {'arm': 'paper', 'runs': [{'plain': 1.5}]}
    """
    if isinstance(data, list):
        return [renamed(item, renames) for item in data]
    if not isinstance(data, dict):
        return data
    found = {}
    for key, value in data.items():
        if renames.get(key, key) is None:
            continue
        new_key = renames.get(key) or key
        if isinstance(value, str) and (text := renames.get(f"{key}={value}")) is not None:
            new_key, _, value = text.partition("=")
        found[new_key] = renamed(value, renames)
    return found


def _lines_differ(old: Path, new: Path, renames: Renames, optional: Optional, labels: Labels) -> str | None:
    ours, theirs = ([json.loads(line) for line in path.read_text().splitlines()] for path in (old, new))
    for number, (record, other) in enumerate(zip(ours, theirs), start=1):
        if (found := _json_differs(record, other, renames, optional, labels)) is not None:
            return f"line {number}, {found}"
    return None if len(ours) == len(theirs) else _counts("lines", ours, theirs, labels)


def _json_differs(old: Any, new: Any, renames: Renames, optional: Optional, labels: Labels) -> str | None:
    ignored = {name: None for name, new_name in renames.items() if new_name is None}
    return next(_differences(renamed(old, renames), renamed(new, ignored), "", optional, labels), None)


def _differences(old: Any, new: Any, where: str, optional: Optional, labels: Labels) -> Iterator[str]:
    """Yield where JSON data differ; numbers must be of the same type and equal to the last bit."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old and key not in optional.added)]:
            inner = f"{where}.{key}" if where else key
            if key in old and key in new:
                yield from _differences(old[key], new[key], inner, optional, labels)
            elif not (key in optional.left_out and old.get(key, 0) in (None, [])):
                yield f"{inner} is missing in {labels[key in old]}"
    elif isinstance(old, list) and isinstance(new, list):
        for place, (item, other) in enumerate(zip(old, new)):
            yield from _differences(item, other, f"{where}[{place}]", optional, labels)
        if len(old) != len(new):
            yield f"{where} {_counts('items', old, new, labels)}"
    elif json.dumps(old) != json.dumps(new):  # tells 1 from 1.0 and 0.0 from -0.0, and finds NaN equal to NaN
        yield f"{where}: {_short(old)} in {labels[0]}, {_short(new)} in {labels[1]}"


def _tensors_differ(old: Path, new: Path, renames: Renames, labels: Labels) -> str | None:
    kept = [{name: tensor for name, tensor in load_file(path).items() if _kept(name, renames)} for path in (old, new)]
    ours, theirs = {renames.get(name) or name: tensor for name, tensor in kept[0].items()}, kept[1]
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            return f"{name} is missing in {labels[name in ours]}"
        if (found := _tensor_differs(ours[name], theirs[name], labels)) is not None:
            return f"{name}{found}"
    return None


def _kept(name: str, renames: Renames) -> bool:
    return renames.get(name, name) is not None


def _tensor_differs(old: Tensor, new: Tensor, labels: Labels) -> str | None:
    kinds = [f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (old, new)]
    if kinds[0] != kinds[1]:
        return f": {kinds[0]} in {labels[0]}, {kinds[1]} in {labels[1]}"
    if old.numel() == 0:
        return None
    bits = [tensor.reshape(-1, 1).contiguous().view(torch.uint8) for tensor in (old, new)]
    differing = (bits[0] != bits[1]).any(1).nonzero().flatten()
    if len(differing) == 0:
        return None
    values = [tensor.flatten()[differing[0]].item() for tensor in (old, new)]
    index = [int(part) for part in torch.unravel_index(differing[0], old.shape)] if old.ndim else ""
    return (
        f"{index}: {values[0]!r} in {labels[0]}, {values[1]!r} in {labels[1]}; "
        f"{len(differing)} of {old.numel()} values differ"
    )


def _counts(what: str, old: list[Any], new: list[Any], labels: Labels) -> str:
    return f"has {len(old)} {what} in {labels[0]} and {len(new)} in {labels[1]}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
