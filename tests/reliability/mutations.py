"""Sound files of every format, and ways to damage them."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

import particleaugment as pa
from particleaugment.models import build_model
from particleaugment.policies.policy import document, load
from particleaugment.recipes import get_recipe
from particleaugment.report.metrics import alarms, history
from particleaugment.report.summary import filter_health
from particleaugment.training import checkpoint
from particleaugment.training.checkpoint import CheckpointError, load_checkpoint
from particleaugment.training.config import Config
from particleaugment.training.network import make_optimizer
from particleaugment.training.override import override
from particleaugment.training.records import RecordError, read_records
from particleaugment.training.run import RunError, RunFolder

SECONDS = 5.0
LONGEST_MESSAGE = 1000
CONFIG = get_recipe("digits").override(
    ["filter=paper", "epochs=3", "num_particles=3", "clone_size=20", "measure_size=10"]
)


def epoch_record(epoch: int) -> dict[str, Any]:
    """A line of metrics."""
    numbers = {"train_loss": 1.5, "test_loss": 1.25, "test_accuracy": 50.0, "learning_rate": 0.1, "ops_per_image": 0.7}
    return {"kind": "epoch", "epoch": epoch} | numbers | {"seconds": {"train": 1.0, "resumes": 0}}


def filter_record(step: int) -> dict[str, Any]:
    """A line of metrics."""
    lists = {"delta": [1.0, 0.5, None], "standard_error": [0.1, 0.1, None]}
    what = {"skip_reason": None, "effective_sample_size": 2.5, "resampled": False, "ops_per_image": 0.7}
    return {"kind": "filter", "epoch": step, "step": step, "d0": 3.0} | lists | what | {"seconds": {"clone": 0.5}}


def search(config: Config = CONFIG) -> pa.ParticleAugment:
    """A search that has taken two steps."""
    data = torch.zeros(60, 3, 4, 4, dtype=torch.uint8), torch.arange(60) % 10
    filter, epochs = config.filter.at_every(1), config.training.epochs
    made = pa.ParticleAugment(data, epochs=epochs, filter=filter, seed=config.seed, ops=config.ops)
    for epoch in (1, 2):
        made.state = made.filter.moved(made.state)
        made._history.append((epoch + 1, made.state))
    made._augment.set_epoch(2)
    made._ended = True
    return made


def run_state(config: Config = CONFIG) -> dict[str, Any]:
    """What a checkpoint of a small run holds, after two epochs and two filter steps; its metrics are not there."""
    model = build_model(config.model, 10, seed=0)
    optimizer = make_optimizer(config, model)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return {
        "config": config.to_json(),
        "position": {"epoch": 3, "phase": "train", "batch": 0, "loss_sum": 0.0, "metrics_bytes": 1000},
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "search": search(config).state_dict() if config.searches else None,
        "resumes": 0,
        "metrics_sha256": hashlib.sha256().hexdigest(),
        "data": {"hash": "0" * 64, "samples": 60},
        "policy": "",
    }


def sealed(payload: bytes) -> bytes:
    """A checkpoint whose checksum is right, whatever it holds."""
    return checkpoint._MAGIC + hashlib.sha256(payload).digest() + payload


def payload_of(state: Any) -> bytes:
    """What ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Format:
    """A file format: sound contents, its reader, and the only errors that the reader may raise."""

    name: str
    file: str
    sound: tuple[bytes, ...]
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    is_json: bool = True
    seal: Callable[[bytes], bytes] = bytes

    def outcome(self, folder: Path, content: bytes) -> str:
        """Read a file with this content; ``read`` or the error's one clear sentence, anything else is raised."""
        path = folder / self.file
        path.write_bytes(content)
        start = time.process_time()
        try:
            self.read(path)
            message = ""
        except self.errors as error:
            message = str(error)
            assert self.file in message, message
            assert "\n" not in message, message
            assert len(message) <= LONGEST_MESSAGE, message
            assert message.isprintable(), message
        assert time.process_time() - start < SECONDS
        return message or "read"


def _read_policy(path: Path) -> None:
    policy = load(path)
    policy.sample(torch.arange(3), epoch=1)
    assert document(policy)


def _read_metrics(path: Path) -> None:
    records = read_records(path)
    filter_health(records)
    if any(record["kind"] == "epoch" for record in records):
        alarms(history(CONFIG, records, search().policy))


def _policies() -> tuple[bytes, ...]:
    made = search()
    lists = pa.SubPolicies([[("Rotate", 0.7, 2), ("Invert", 0.1, 0)], [("Equalize", 1.0, 0)]], semantics="timm")
    policies = (made.schedule(3), made.policy, pa.RandAugment(n=2, m=5), pa.parse("rand-m9-n3-mstd0.5-tweights"), lists)
    return tuple(document(policy).encode() for policy in (*policies, pa.TrivialAugment(), pa.AutoAugment("svhn")))


def _metrics() -> bytes:
    records = [epoch_record(1), filter_record(1), epoch_record(2), filter_record(2), epoch_record(3)]
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


FORMATS = {
    made.name: made
    for made in (
        Format(
            "config",
            "config.json",
            (CONFIG.to_json().encode(), override(CONFIG, ["policy=rand-m9-n3"]).to_json().encode()),
            lambda path: RunFolder.open(path.parent),
            (RunError,),
        ),
        Format("policy", "policy.json", _policies(), _read_policy, (ValueError,)),
        Format("metrics", "metrics.jsonl", (_metrics(),), _read_metrics, (RecordError,)),
        Format(
            "checkpoint",
            "checkpoint-00000000.pt",
            (sealed(payload_of(run_state())),),
            load_checkpoint,
            (CheckpointError,),
            is_json=False,
        ),
        Format(
            "checkpoint with a right checksum",
            "checkpoint-00000000.pt",
            (payload_of(run_state()),),
            load_checkpoint,
            (CheckpointError,),
            is_json=False,
            seal=sealed,
        ),
    )
}

# Texts put in the place of a value: numbers that no field can hold, nesting, and what is not JSON at all.
RAW = (
    "1e999", "-1e999", "1" + "0" * 400, "9" * 5000, "-" + "9" * 25, "9223372036854775808", "1e308", "1e-320", "-0.0",
    "-1", "0", "2147483648", "NaN", "Infinity", "-Infinity", "[" * 40 + "]" * 40, "[" * 5000 + "]" * 5000,
    '{"a":' * 2000 + "1" + "}" * 2000, '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"' + "x" * 100_000 + '"', "null",
    "true", "[]", "{}", '""', '{"a": 1, "a": 2}', "[[0.5], [0.5, 0.5]]", "[" + "0.5, " * 3000 + "0.5]",
    '"__import__(\'os\').mkdir(\'canary\')"', "01", "+1", "'x'", "1_000",
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def mutations(draw: st.DrawFn, made: Format) -> bytes:
    """Draw a damaged file of a format."""
    content = draw(st.sampled_from(made.sound))
    structured = made.is_json and draw(st.booleans())
    changed = _mutated_text(draw, content) if structured else _mutated_bytes(draw, content)
    return made.seal(changed)


def _mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(changed) - 1)))
        length = draw(st.integers(1, 64))
        way = draw(st.sampled_from(("flip", "cut", "drop", "repeat", "insert", "overwrite")))
        if way == "flip" and changed:
            changed[place] ^= 1 << draw(st.integers(0, 7))
        elif way == "cut":
            del changed[place:]
        elif way == "drop":
            del changed[place : place + length]
        elif way == "repeat":
            changed[place:place] = changed[place : place + length]
        elif way == "insert":
            changed[place:place] = draw(st.binary(min_size=1, max_size=8))
        else:
            changed[place : place + length] = draw(st.binary(min_size=1, max_size=8))
    return bytes(changed)


def _mutated_text(draw: st.DrawFn, content: bytes) -> bytes:
    """Change one value, name or field somewhere in a JSON text, or in one of its lines."""
    lines = content.split(b"\n") if content.startswith(b'{"kind": "epoch"') else [content]
    number = draw(st.integers(0, max(0, len(lines) - 2)))
    value = json.loads(lines[number])
    holders = [(holder, key) for holder in _containers(value) for key in _keys(holder)]
    holder, key = draw(st.sampled_from(holders))
    mark = "\ue000"
    way = draw(st.sampled_from(("raw", "raw", "anything", "delete", "rename", "twice")))
    raw = draw(st.sampled_from(RAW)) if way == "raw" else json.dumps(draw(ANYTHING))
    if way == "delete":
        del holder[key]
    elif way == "rename" and isinstance(holder, dict):
        holder[draw(st.text(max_size=8))] = holder.pop(key)
    elif way == "twice" and isinstance(holder, dict):
        holder[mark], raw = holder[key], json.dumps(key)
        lines[number] = json.dumps(value).replace(json.dumps(mark), raw).encode()
        return b"\n".join(lines)
    else:
        holder[key] = mark
    lines[number] = json.dumps(value).replace(json.dumps(mark), raw).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _containers(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list)):
        return []
    parts = list(value.values()) if isinstance(value, dict) else value
    inner = [found for part in parts for found in _containers(part)]
    return [value, *inner] if value else inner


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))
