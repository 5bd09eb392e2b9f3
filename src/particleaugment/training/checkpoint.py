"""Checkpoints: written atomically, checked on the way in, holding tensors and plain values only."""

from __future__ import annotations

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "CheckpointError",
    "find_checkpoints",
    "load_checkpoint",
    "load_latest",
    "save_checkpoint",
    "write_atomically",
]

_MAGIC = b"particleaugment checkpoint 1\n"
_NAME = re.compile(r"checkpoint-(\d{8})\.pt")
KEPT = 2


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash at any moment leaves either the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name))


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write the next checkpoint of a run and remove all but the last two."""
    existing = find_checkpoints(folder)
    match = _NAME.fullmatch(existing[-1].name) if existing else None
    number = int(match[1]) + 1 if match else 0
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"checkpoint-{number:08d}.pt"
    write_atomically(path, _MAGIC + hashlib.sha256(payload).digest() + payload)
    for old in existing[: 1 - KEPT]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing in it can execute code."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if not content.startswith(_MAGIC):
        raise CheckpointError(f"{path} is not a checkpoint of this version")
    digest, payload = content[len(_MAGIC) : len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if hashlib.sha256(payload).digest() != digest:
        raise CheckpointError(f"{path} is damaged or cut short: its checksum does not match")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{path} holds something other than tensors and plain values: {first_line}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not hold a run's state")
    return state


def load_latest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest readable checkpoint (None if the run has none yet) and what was wrong with newer ones.

    Raises:
        CheckpointError: if there are checkpoints and none can be read.
    """
    problems: list[str] = []
    for path in reversed(find_checkpoints(folder)):
        try:
            return load_checkpoint(path), problems
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("no checkpoint can be read: " + "; ".join(problems))
    return None, []
