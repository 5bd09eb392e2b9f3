"""Checkpoints: two are kept, damage is noticed, and nothing in them executes."""

import hashlib
import io
import pickle

import pytest
import torch
from runs import Bomb, sealed

from particleaugment.models import build_model
from particleaugment.models.weight_files import network_tensors
from particleaugment.recipes import get_recipe
from particleaugment.training.checkpoint import (
    CheckpointError,
    find_checkpoints,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)
from particleaugment.training.network import make_optimizer

CONFIG = get_recipe("digits").override(["policy=none", "epochs=3", "momentum=0", "nesterov=false"])
WEIGHTS = {name: torch.zeros_like(tensor, device="cpu") for name, tensor in network_tensors("wrn-10-1", 10).items()}
OPTIMIZER = make_optimizer(CONFIG, build_model("wrn-10-1", 10, seed=0)).state_dict()


def state(number=0):
    return {
        "config": CONFIG.to_json(),
        "position": {"epoch": 1, "phase": "train", "batch": 0, "loss_sum": 0.0, "metrics_bytes": 0},
        "model": WEIGHTS | {"head.bias": torch.arange(10.0)},
        "optimizer": OPTIMIZER,
        "search": None,
        "resumes": number,
        "metrics_sha256": hashlib.sha256().hexdigest(),
        "data": {"hash": "0" * 64, "samples": 60},
        "policy": "",
    }


def test_checkpoints_are_kept_in_twos(tmp_path):
    assert load_latest(tmp_path) == (None, [])
    for number in range(5):
        path = save_checkpoint(tmp_path, state(number))
        assert path.name == f"checkpoint-{number:08d}.pt"
        assert len(find_checkpoints(tmp_path)) == min(number + 1, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint-00000003.pt", "checkpoint-00000004.pt"]
    latest, problems = load_latest(tmp_path)
    assert (latest["resumes"], problems) == (4, [])
    torch.testing.assert_close(latest["model"]["head.bias"], torch.arange(10.0), rtol=0, atol=0)
    assert latest["optimizer"] == OPTIMIZER


def test_what_a_crash_leaves_is_ignored(tmp_path):
    save_checkpoint(tmp_path, state(0))
    (tmp_path / ".checkpoint-00000001.pt.0123456789abcdef.tmp").write_bytes(b"half a check")
    (tmp_path / "checkpoint-1.pt").write_bytes(b"")
    (tmp_path / "checkpoint-00000009.pt.bak").write_bytes(b"")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-00000000.pt"]
    assert load_latest(tmp_path)[0]["resumes"] == 0
    save_checkpoint(tmp_path, state(1))
    assert load_latest(tmp_path)[0]["resumes"] == 1


def damaged_versions(content):
    lengths = {0, 1, 20, 28, 29, 30, 60, 61, 62, len(content) // 2, len(content) - 1, *range(64, len(content), 19_700)}
    for length in sorted(lengths):
        yield f"cut to {length}", content[:length]
    for position in range(0, len(content), 6100):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        yield f"bit flipped at {position}", bytes(flipped)
    yield "grown", content + b"\0"
    yield "empty zeros", b"\0" * len(content)


def test_damaged_checkpoints_are_noticed_and_the_older_one_is_used(tmp_path):
    save_checkpoint(tmp_path, state(0))
    newest = save_checkpoint(tmp_path, state(1))
    content = newest.read_bytes()
    for damage, version in damaged_versions(content):
        newest.write_bytes(version)
        with pytest.raises(CheckpointError, match=r"is not a checkpoint of this version|damaged or truncated"):
            load_checkpoint(newest)
        latest, problems = load_latest(tmp_path)
        assert latest["resumes"] == 0, damage
        assert len(problems) == 1
        assert str(newest) in problems[0]
    newest.write_bytes(content)
    assert load_latest(tmp_path)[0]["resumes"] == 1


def test_no_readable_checkpoint(tmp_path):
    for number in range(2):
        save_checkpoint(tmp_path, state(number)).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be used: .*00000001.pt .*; .*00000000.pt"):
        load_latest(tmp_path)


def test_a_checkpoint_that_is_not_a_file(tmp_path):
    (tmp_path / "checkpoint-00000000.pt").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        load_latest(tmp_path)


def test_a_pickle_that_would_execute(tmp_path):
    canary, folder = tmp_path / "canary", tmp_path / "run"
    folder.mkdir()
    buffer = io.BytesIO()
    torch.save({"number": 0, "bomb": Bomb(canary)}, buffer)
    zipped, plain = buffer.getvalue(), pickle.dumps(Bomb(canary), protocol=2)
    buffer.seek(0)
    torch.load(buffer, weights_only=False)
    assert canary.exists(), "the bomb works where it is let off"
    canary.rmdir()
    pickle.loads(plain)
    canary.rmdir()

    save_checkpoint(folder, state(0))
    for payload in (zipped, plain):
        (folder / "checkpoint-00000001.pt").write_bytes(sealed(payload))
        with pytest.raises(CheckpointError, match="holds something other than tensors and plain values"):
            load_checkpoint(folder / "checkpoint-00000001.pt")
        latest, problems = load_latest(folder)
        assert latest["resumes"] == 0
        assert len(problems) == 1
        assert "\n" not in problems[0]
    assert not canary.exists()


def test_a_checkpoint_that_is_no_dictionary(tmp_path):
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    (tmp_path / "checkpoint-00000000.pt").write_bytes(sealed(buffer.getvalue()))
    with pytest.raises(CheckpointError, match="does not hold a run's state"):
        load_latest(tmp_path)
