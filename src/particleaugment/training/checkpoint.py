"""Checkpoints: written atomically, checked on the way in, holding tensors and plain values only."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from particleaugment.training.checkpoint_content import check_content
from particleaugment.training.checkpoint_position import ContentError, check_records, data_named
from particleaugment.training.config import Config
from particleaugment.training.records import RecordError, parse_records
from particleaugment.util.atomic import SaveError, saving, write_atomically
from particleaugment.util.reading import open_file, read_file

__all__ = [
    "CheckpointError",
    "find_checkpoints",
    "last_good",
    "load_checkpoint",
    "load_latest",
    "load_optimizer",
    "save_checkpoint",
]

_MAGIC = b"particleaugment checkpoint 1\n"
_DIGEST = 32
_NAME = re.compile(r"checkpoint-(\d{8,})\.pt")
KEPT = 2

SIZE_LIMIT = 8 << 30
"""The most bytes of a checkpoint; a network of a billion parameters has as many."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read."""


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    found = [path for path in folder.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def last_good(folder: Path) -> str:
    """Return where a run can go on from, as the end of a sentence."""
    kept = find_checkpoints(folder)
    for path in reversed(kept):
        with contextlib.suppress(CheckpointError):
            load_checkpoint(path)
            return f"the last good checkpoint is {path}"
    return "no checkpoint can be used" if kept else "there is no checkpoint yet"


def save_checkpoint(folder: Path, state: dict[str, Any], useless: Collection[Path] = ()) -> Path:
    """Write the next checkpoint of a run and remove all but the last two.

    Args:
        folder: The run's folder.
        state: What the run is to go on from.
        useless: Checkpoints that could not be used; they are removed first.
    """
    existing = find_checkpoints(folder)
    match = _NAME.fullmatch(existing[-1].name) if existing else None
    number = int(match[1]) + 1 if match else 0
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    if len(payload) > SIZE_LIMIT:
        raise SaveError(
            f"a checkpoint of {folder} would have {len(payload) / 2**30:.1f} GiB, and {SIZE_LIMIT >> 30} GiB is the "
            "limit; choose a smaller model"
        )
    path = folder / f"checkpoint-{number:08d}.pt"
    write_atomically(path, _MAGIC + hashlib.sha256(payload).digest() + payload)
    with saving(path):
        sound = [old for old in existing if old not in useless]
        for old in {*existing} - {*sound[1 - KEPT :]}:
            old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path, config: Config | None = None) -> dict[str, Any]:
    """Read a checkpoint, every value of it checked; nothing in it can execute code.

    Args:
        path: The file.
        config: The configuration of the run that is to go on from it, if that is to be compared.

    Raises:
        CheckpointError: if it cannot be read, is not as a run saves it, or belongs to another configuration.
    """
    payload = _checked_payload(path)
    _check_archive(path, payload)
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception:  # whatever torch says here, it advises to load the file without the check
        raise CheckpointError(f"{path} holds something other than tensors and plain values; it is not loaded") from None
    try:
        check_content(state, len(payload))
        _check_metrics(path, state)
    except ContentError as error:
        raise CheckpointError(f"{path} does not hold a run's state: {error}") from None
    if config is not None and not config.continues(Config.from_json(state["config"])):
        raise CheckpointError(
            f"{path} does not belong to the run's config.json; restore the config.json that the run was started with"
        )
    return state  # type: ignore[no-any-return]


def _check_metrics(path: Path, state: dict[str, Any]) -> None:
    """Compare a checkpoint with the metrics beside it that it knows of.

    Where these are missing or have changed, they are to be restored, and the checkpoint may be as good as any.
    """
    config, size = Config.from_json(state["config"]), state["position"]["metrics_bytes"]
    try:
        content = read_file(path.with_name("metrics.jsonl"))[:size] if size else b""
    except OSError:
        return
    if len(content) < size or hashlib.sha256(content).hexdigest() != state["metrics_sha256"]:
        return
    try:
        records = parse_records(content, config.training.evaluate_every)
    except RecordError as error:
        raise ContentError(f"position.metrics_bytes leads to metrics that are not whole: {error}") from None
    check_records(state, records, config)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state; a ValueError if it belongs to another network or has other settings."""
    before = [_settings(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    if [_settings(group) for group in optimizer.param_groups] != before:
        raise ValueError("its optimizer has different settings")
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape not in (parameter.shape, torch.Size()):
                raise ValueError(f"its optimizer's {name} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}")


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """What a group is set to, but for the learning rate, which every epoch sets anew."""
    return {name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")}


def load_latest(
    folder: Path, config: Config | None = None, data: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest sound checkpoint (None if the run has none yet) and what was wrong with newer ones.

    One that names other data is passed over if an older one names these. If none does, the data are other ones than
    the run had: it is returned, for the run to say so.

    Args:
        folder: The run's folder.
        config: Its configuration, if checkpoints are to be compared with it.
        data: Its data as checkpoints name them, if they are to be compared with these.

    Raises:
        CheckpointError: if there are checkpoints and none can be used.
    """
    problems: list[str] = []
    other: tuple[dict[str, Any], list[str]] | None = None
    for path in reversed(find_checkpoints(folder)):
        try:
            state = load_checkpoint(path, config)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if data is None or data_named(state) == data:
            return state, problems
        other = other or (state, [*problems])
        problems.append(f"{path} names different data than the run has")
    if other is None and problems:
        raise CheckpointError("no checkpoint can be used: " + "; ".join(problems))
    return other or (None, [])


def _checked_payload(path: Path) -> bytes:
    """Return what follows a checkpoint's checksum; memory is spent on it only if that is right."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > SIZE_LIMIT:
                raise CheckpointError(f"{path} is larger than {SIZE_LIMIT >> 30} GiB, the limit for a checkpoint")
            if file.read(len(_MAGIC)) != _MAGIC:
                raise CheckpointError(f"{path} is not a checkpoint of this version")
            digest = file.read(_DIGEST)
            if hashlib.file_digest(file, "sha256").digest() != digest:
                raise CheckpointError(f"{path} is damaged or truncated: its checksum does not match")
            file.seek(len(_MAGIC) + _DIGEST)
            return file.read()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def _check_archive(path: Path, payload: bytes) -> None:
    """Refuse what ``torch.save`` does not write: anything but a zip archive of members as large as they unpack to."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError):
        raise CheckpointError(f"{path} holds something other than tensors and plain values; it is not loaded") from None
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or sum(member.file_size for member in members) > len(payload):
        raise CheckpointError(f"{path} is not safe to unpack: its members are larger than the file")
