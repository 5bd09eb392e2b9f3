"""Attacks on checkpoints whose checksum is right, and on files of weights and what they say of themselves."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attack_sandbox import STATES, Finding, Sandbox
from PIL import Image
from torch import Tensor

import particleaugment as pa
from particleaugment.training import checkpoint
from particleaugment.training.checkpoint import CheckpointError, find_checkpoints, last_good, load_checkpoint
from particleaugment.training.checkpoint_position import data_named

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 4, 5, 17, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 1 << 64, 10**30, 0.0, 0.5, -1.5, 1e30, 1e308,
    1e-320, float("nan"), float("inf"), -float("inf"), True, False,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, "", "x", "train", "evaluate", "filter", "\x1b[2J", "0" * 64, "f" * 100_000, [], {}, (), [0], [None], {"a": 1},
    {0: 0}, b"bytes", 1j, (1.0, 2), [[[[[[[[[[0]]]]]]]]]],
)  # fmt: skip


def _spoiled(tensor: Tensor, value: float) -> Tensor:
    made = tensor.clone()
    if made.numel():
        made.view(-1)[made.numel() // 2] = value
    return made


TENSORS: Mapping[str, Callable[[Tensor], Any]] = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "compressed": lambda tensor: torch.zeros(2, 2).to_sparse_csr(),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor, tensor]),
    "meta": lambda tensor: tensor.to("meta"),
    "expanded": lambda tensor: torch.zeros(1).expand(3 << 30),
    "expanded to its shape": lambda tensor: tensor.flatten()[:1].expand(tensor.numel()).view(tensor.shape),
    "huge steps": lambda tensor: torch.zeros(100).as_strided(tuple(tensor.shape), (0,) * tensor.dim()),
    "negative": lambda tensor: -tensor if tensor.dtype != torch.bool else tensor,
    "conjugate": lambda tensor: torch.zeros(2, dtype=torch.complex64).conj(),
    "nan": lambda tensor: _spoiled(tensor.float(), torch.nan),
    "infinite": lambda tensor: _spoiled(tensor.float(), torch.inf),
    "minus infinite": lambda tensor: _spoiled(tensor.float(), -torch.inf),
    "half": lambda tensor: tensor.half(),
    "brain float": lambda tensor: tensor.bfloat16(),
    "double": lambda tensor: tensor.double(),
    "whole": lambda tensor: tensor.long(),
    "true": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "empty": lambda tensor: tensor.flatten()[:0],
    "longer": lambda tensor: torch.cat([tensor.flatten(), tensor.flatten()]),
    "turned": lambda tensor: tensor.transpose(0, -1) if tensor.dim() else tensor[None],
    "flat": lambda tensor: tensor.flatten(),
    "more sides": lambda tensor: tensor[None],
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor.float(), 1.0, 0, torch.qint8),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor.float()),
    "a list": lambda tensor: tensor.tolist() if tensor.numel() < 1000 else [0.0] * 10,
    "a view of much": lambda tensor: torch.zeros(100_000)[:3],
    "large numbers": lambda tensor: torch.full_like(tensor.float(), 1e38),
}


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder in a state, with one of its keys."""
    if isinstance(value, dict):
        inner = [place for item in value.values() for place in _places(item)]
        return [(value, key) for key in value] + inner
    if isinstance(value, list):
        return [(value, key) for key in range(len(value))] + [place for item in value for place in _places(item)]
    return []


def _chosen_place(state: dict[str, Any], draw: random.Random) -> tuple[Any, Any]:
    """A place in a state; its many weights do not crowd out the rest."""
    part = draw.choice([state, state["position"], state["search"] or state, state["optimizer"], state["model"]])
    return draw.choice(_places(part))


def _replacement(value: Any, draw: random.Random) -> Any:
    if isinstance(value, Tensor) and draw.random() < 0.8:
        return TENSORS[draw.choice(list(TENSORS))](value)
    if type(value) is int and draw.random() < 0.5:
        return value + draw.choice([-2, -1, 1, 2, 100])
    if draw.random() < 0.15:
        return TENSORS[draw.choice(list(TENSORS))](torch.ones(3))
    return draw.choice([*NUMBERS, *OTHERS])


def _spoil(state: dict[str, Any], draw: random.Random) -> None:
    holder, key = _chosen_place(state, draw)
    match draw.choice(["replace"] * 6 + ["delete", "rename", "add", "swap", "repeat"]):
        case "delete":
            del holder[key]
        case "rename" if isinstance(holder, dict):
            holder[draw.choice([str(key) + "x", 0, (1, 2), "head.bias"])] = holder.pop(key)
        case "add" if isinstance(holder, dict):
            holder[draw.choice(["more", 999, (1, 2)])] = _replacement(holder[key], draw)
        case "swap":
            other, name = _chosen_place(state, draw)
            holder[key], other[name] = other[name], holder[key]
        case "repeat" if isinstance(holder, list):
            holder.append(holder[key])
        case _:
            holder[key] = _replacement(holder[key], draw)


def _form(value: Any, place: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Types, keys and shapes of a state, but for what may differ from run to run."""
    if isinstance(value, dict):
        parts = [_form(item, (*place, key)) for key, item in value.items()]
        return {place: "an object"} | {name: found for part in parts for name, found in part.items()}
    if place[:2] == ("search", "history"):
        return {place: type(value)}
    if isinstance(value, Tensor):
        return {place: (value.dtype, tuple(value.shape), value.layout)}
    if isinstance(value, (list, tuple)):
        return {place: (type(value), len(value))}
    return {place: type(value)}


FREE = {"lr", "initial_lr", "fused", "differentiable", "foreach", "capturable", "maximize"}


def _sealed(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    return checkpoint._MAGIC + hashlib.sha256(payload).digest() + payload


def checkpoints(box: Sandbox, draw: random.Random) -> str:
    """Checkpoints with a right checksum and any value replaced: verify, resume and errors agree about them."""
    kind = draw.choice(box.workshop.kinds)
    run = box.copy(f"{kind}-{STATES[draw.random() < 0.15]}")
    paths = find_checkpoints(run)
    wrong = paths if draw.random() < 0.4 else paths[-1:]
    forms = {path: _form(load_checkpoint(path)) for path in wrong}
    named = data_named(load_checkpoint(paths[0]))
    for path in wrong:
        state = load_checkpoint(path)
        try:
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                _spoil(state, draw)
            path.write_bytes(_sealed(state))
        except (
            RuntimeError,
            AttributeError,
            TypeError,
            IndexError,
            ValueError,
        ):  # torch cannot make or save such a thing
            return "passed over"
    sound = _judged(box, paths, forms)
    other = any(data_named(load_checkpoint(path)) != named for path in sound)
    untouched = all(path not in wrong for path in sound[-1:])
    to_the_end = untouched and bool(sound) and draw.random() < 0.3
    return box.agreement(kind, to_the_end=to_the_end, other_data=other)


def _judged(box: Sandbox, paths: list[Path], forms: Mapping[Path, Any]) -> list[Path]:
    """Return the checkpoints that are accepted; the others' messages name them, and all errors agree about the last."""
    sound = []
    for path in paths:
        found = box.call(load_checkpoint, path, errors=(CheckpointError,))
        if isinstance(found, CheckpointError):
            if str(path) not in str(found):
                raise Finding(f"the message does not name the file: {found}")
            continue
        sound.append(path)
        _check_form(forms.get(path), found)
    said = last_good(box.run)
    if said != (f"the last good checkpoint is {sound[-1]}" if sound else "no checkpoint can be used"):
        raise Finding(f"{sound} are sound, but it is said that {said}")
    return sound


def _check_form(expected: Any, found: Any) -> None:
    if expected is None:
        return
    form = _form(found)
    for place in expected.keys() | form.keys():
        if expected.get(place) != form.get(place) and not FREE & {*place}:
            raise Finding(f"a checkpoint is accepted with {place}: {form.get(place)} for {expected.get(place)}")


# Values of the right type that cannot be.


def _another(value: Any, draw: random.Random, *others: Any) -> Any:
    """A value out of some that is not the one given."""
    return draw.choice([other for other in others if other != value])


def _impossible_position(state: dict[str, Any], draw: random.Random, metrics: bytes) -> None:
    position = state["position"]
    match draw.choice(["batch", "epoch", "phase", "loss_sum", "metrics_bytes", "metrics_bytes", "resumes"]):
        case "batch":
            position["batch"] += draw.choice([4, 5, 100, 1 << 20, 1 << 40, 1 << 62])
        case "epoch":
            position["epoch"] = _another(position["epoch"], draw, 1, 2, 3, 4)
            if draw.random() < 0.3:
                position["batch"], position["loss_sum"] = 0, 0.0
        case "phase":
            position["phase"] = draw.choice(["evaluate", "filter"])
        case "loss_sum":
            position["loss_sum"] = draw.choice([-1.0, -1e-9, 1e31, 1e308] + [3.5] * (not position["batch"]))
        case "metrics_bytes":
            ends = [0, *(number + 1 for number, byte in enumerate(metrics) if byte == ord("\n"))]
            size = _another(position["metrics_bytes"], draw, *ends, position["metrics_bytes"] - 7)
            position["metrics_bytes"] = size
            state["metrics_sha256"] = hashlib.sha256(metrics[:size]).hexdigest()
        case _:
            state["resumes"] = -1


def _impossible_search(state: dict[str, Any], draw: random.Random, metrics: bytes) -> None:
    search = state["search"]
    if search is None:
        state["search"] = {}
        return
    history = search["history"]
    match draw.choice(["epoch", "ended", "frozen", "used", "every", "observed", "starts", "steps", "skipped", "first"]):
        case "epoch":
            search["epoch"] = _another(search["epoch"], draw, 0, 1, 3, 4)
        case "every":
            search["filter"]["every"] = _another(search["filter"]["every"], draw, 2, 3, 100, "auto")
        case "observed":
            search["observed"] = draw.choice([((1.0, 2),), (None,), ((1.0, 2), (3.0, 4)), (1.0, 2)])
        case "starts":
            history["starts"][-1] += draw.choice([-1, 1, 2])
        case "steps":
            history["steps"][draw.randrange(3)] += draw.choice([-1, 1, 5])
        case "skipped":
            history["skipped"] = _another(None, draw, [1, 1, 1], [0, 2, 2], [0, 1, 3], [-1, 0, 0], [0, 0.5, 1])
        case "first":
            column = history[draw.choice([name for name in history if name in ("particles", "strength")])]
            column[0] += 0.25
        case name:
            search[name] = not search[name]


def _impossible_rest(state: dict[str, Any], draw: random.Random, metrics: bytes) -> None:
    match draw.choice(["samples", "policy", "more", "variance", "count", "fused", "sha"]):
        case "samples":
            state["data"]["samples"] = draw.choice([0, -1, 1 << 50])
        case "policy":
            state["policy"] = "x" if state["policy"] else "0" * 64
        case "more":
            state["more"] = draw.choice([0, None, "x", [1]])
        case "variance" | "count" as which:
            end = "running_var" if which == "variance" else "num_batches_tracked"
            tensor = state["model"][draw.choice([name for name in state["model"] if name.endswith(end)])]
            tensor.view(-1)[draw.randrange(tensor.numel())] = -1
        case "fused":
            state["optimizer"]["param_groups"][0]["fused"] = draw.choice([True, False, "x"])
        case _:
            state["position"]["metrics_bytes"] = 0


def impossible(box: Sandbox, draw: random.Random) -> str:
    """Checkpoints with values of the right type that cannot be: refused, and the one before goes on to the same end."""
    kind = draw.choice(box.workshop.kinds)
    run = box.copy(f"{kind}-{STATES[draw.random() < 0.15]}")
    paths = find_checkpoints(run)
    wrong = paths if draw.random() < 0.2 else paths[-1:]
    for path in wrong:
        state = load_checkpoint(path)
        way = draw.choice([_impossible_position, _impossible_position, _impossible_search, _impossible_rest])
        way(state, draw, (run / "metrics.jsonl").read_bytes())
        path.write_bytes(_sealed(state))
    if accepted := [path.name for path in _judged(box, paths, {}) if path in wrong]:
        raise Finding(f"{accepted[0]} holds what cannot be and is accepted")
    return box.agreement(kind, to_the_end=len(wrong) < len(paths) and draw.random() < 0.3)


# Files of weights.

METADATA: tuple[str, ...] = (
    "", "null", "true", "[]", "{}", "-1", "0", "1", "1e999", "NaN", "1" + "0" * 400, "9" * 5000, "[" * 100_000, '"x"',
    '["a"]', '["a", "a"]', '["a", 3]', "[0.5, 0.5]", "[0.5, 0.5, null]", "[2, 2, 2]", "[0, 0, 0]", "[1e-300, 1, 1]",
    "[NaN, 1, 1]", "[true, true, true]", "wrn-10-1", "wrn-16-1", "wrn-40-1000", "wrn-4000000-10", "wrn-999999999999-1",
    "wrn--1--1", "shake-shake-26-2x96d", "resnet50", "wrn-10-100000", "../../x", "\x1b[2J", "4096", "1000000", "0.99",
    "1.0", "10", "11", '["' + "x" * 100_000 + '", "b"]', json.dumps([str(number) for number in range(100_000)]), "x",
    '["\\u001b", "b"]',
    '["\\ud800", "b"]', "8", "8.0", "1e1", "{\"a\": 1, \"a\": 2}",
)  # fmt: skip


def weights(box: Sandbox, draw: random.Random) -> str:
    """Files of weights that say anything of themselves: one ValueError that names the file, or a network that works."""
    run = box.copy(f"{draw.choice(box.workshop.kinds)}-finished")
    file = run / "model.safetensors"
    file.write_bytes(_spoiled_weights(file.read_bytes(), draw))
    found = box.call(pa.load_model, file, errors=(ValueError,))
    if isinstance(found, ValueError):
        if str(file) not in str(found):
            raise Finding(f"the message does not name the file: {found}")
        return "refused"
    image = run / "image.png"
    Image.new("RGB", (20, 16), (9, 99, 5)).save(image)
    if found.size <= 512 and found.classify([image])[0] not in found.classes:
        raise Finding("a network was loaded that cannot be used")
    return "accepted"


def _spoiled_weights(content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.15:
        changed = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(draw.choice([8, 3000, len(changed)]))] = draw.randrange(256)
        return bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    for _ in range(draw.choice([1, 1, 2])):
        _spoil_header(header, draw)
    text = json.dumps(header).encode()
    length = len(text) if draw.random() < 0.95 else draw.choice([0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])
    return length.to_bytes(8, "little") + text + content[start:]


def _spoil_header(header: dict[str, Any], draw: random.Random) -> None:
    facts = header.get("__metadata__")
    if isinstance(facts, dict) and draw.random() < 0.7:
        name = draw.choice(["model", "classes", "mean", "std", "size", "margin", "format", "new"])
        if draw.random() < 0.1:
            facts.pop(name, None)
        else:
            facts[name] = draw.choice([*METADATA, 3, None, ["x"]]) if draw.random() < 0.95 else {"a": 1}
        return
    name = draw.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    match draw.randrange(6):
        case 0:
            del header[name]
        case 1:
            header[name + "x"] = header.pop(name)
        case 2:
            header["__metadata__"] = draw.choice([None, [], "x", {}, {"model": 3}])
        case 3 if isinstance(entry, dict):
            entry["shape"] = draw.choice([[], [1], [-1], [1 << 40, 1 << 40], ["3"], None, [0], [2.0], [1] * 10_000])
        case 4 if isinstance(entry, dict):
            entry["data_offsets"] = draw.choice([[0, 4], [4, 0], [0, 1 << 62], [-4, 0], None, ["0", "4"], [0, 0]])
        case _ if isinstance(entry, dict):
            entry["dtype"] = draw.choice(["F64", "I32", "F16", "F8_E4M3", "X", None, 3])
