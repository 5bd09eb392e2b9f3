"""Nothing a user can hand us executes code. Each test shows first that its bait works: executed, it makes a folder."""

import copy
import io
import json
import pickle
import zipfile
from functools import reduce

import pytest
import torch
from mutations import CONFIG, payload_of, run_state, sealed
from runs import Bomb, command
from toy import search_of

import particleaugment as pa
from particleaugment.models import build_model
from particleaugment.training.checkpoint import CheckpointError, load_checkpoint
from particleaugment.training.config import Config, ConfigError


@pytest.fixture
def canary(tmp_path):
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "something was executed"


@pytest.fixture
def bait(canary):
    """An expression that makes the canary."""
    text = f"__import__('os').mkdir({str(canary)!r})"
    eval(text)
    assert canary.exists(), "the bait works where it is evaluated"
    canary.rmdir()
    return text


def refused(path):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value), "torch's advice to load the file all the same"
    return str(caught.value)


@pytest.mark.parametrize("place", ["top", "config", "model", "optimizer", "search"])
def test_a_checkpoint_with_a_right_checksum_and_a_malicious_pickle(place, canary, tmp_path):
    state = run_state()
    if place == "top":
        state["further"] = Bomb(canary)
    elif place == "config":
        state["config"] = Bomb(canary)
    else:
        state[place]["bomb"] = Bomb(canary)
    payload = payload_of(state)
    torch.load(io.BytesIO(payload), weights_only=False)
    assert canary.exists(), "the bomb works where it is let off"
    canary.rmdir()
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload))
    assert "holds something other than tensors and plain values; it is not loaded" in refused(path)


@pytest.mark.parametrize("protocol", range(6))
def test_a_checkpoint_that_is_a_bare_pickle(protocol, canary, tmp_path):
    payload = pickle.dumps(Bomb(canary), protocol=protocol)
    pickle.loads(payload)
    canary.rmdir()
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload))
    refused(path)


def test_a_checkpoint_that_unpacks_to_gigabytes(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(payload_of(run_state()))) as sound, zipfile.ZipFile(buffer, "w") as bomb:
        for member in sound.infolist():
            bomb.writestr(member, sound.read(member))
        bomb.writestr("archive/data/99", b"\0" * (64 << 20), zipfile.ZIP_DEFLATED)
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(buffer.getvalue()))
    assert path.stat().st_size < 1 << 20
    assert "is not safe to unpack: its members are larger than the file" in refused(path)


def test_policy_strings_with_expressions(bait, tmp_path):
    heads = ("", "rand-m", "rand-m9-n", "randaugment-p", "original-mstd", "none;", "autoaugment-", "schedule-")
    for text in (*(head + bait for head in heads), "{" + bait + "}", f"`{bait}`", f"$({bait})"):
        with pytest.raises(ValueError, match=r"policy|section"):
            pa.parse(text)
        assert command("train", "--set", f"policy={text}", "--out", tmp_path / "run").exit_code == 2
        assert not (tmp_path / "run").exists()


def test_settings_with_expressions(bait, tmp_path):
    for name in ("epochs", "sigma", "velocity", "ops", "fill", "model", "data", "resampling", "order", "semantics"):
        outcome = command("train", "--set", f"{name}={bait}", "--out", tmp_path / "run")
        assert outcome.exit_code == 2, name
        assert not (tmp_path / "run").exists()
    assert command("train", bait, "--out", tmp_path / "run").exit_code == 2
    with pytest.raises(ValueError, match="there is no model"):
        build_model(bait, 10, 0)


def test_configuration_files_with_expressions(bait):
    fields = json.loads(CONFIG.to_json())
    texts = {("recipe",), ("model",), ("data", "data_dir")}
    sections = [name for name, value in fields.items() if isinstance(value, dict)]
    paths = {(name,) for name in fields} | {(section, name) for section in sections for name in fields[section]}
    assert texts < paths
    for path in paths:
        changed = copy.deepcopy(fields)
        place = changed[path[0]] if len(path) == 2 else changed
        place[path[-1]] = bait
        if path in texts:
            found = Config.from_json(json.dumps(changed))
            assert reduce(getattr, path, found) == bait, "kept as text"
        else:
            with pytest.raises(ConfigError):
                Config.from_json(json.dumps(changed))


def test_policy_files_with_expressions(bait, tmp_path):
    path = tmp_path / "policy.json"
    lists = pa.SubPolicies([[("Rotate", 0.7, 2)]], semantics="timm")
    for policy in (pa.RandAugment(), lists, search_of(num_particles=2, nonzero=1).schedule(3)):
        fields = {"format": "particleaugment-policy", "version": 1} | policy.to_dict()
        for name in fields:
            path.write_text(json.dumps(fields | {name: bait}))
            with pytest.raises(ValueError, match=r"policy\.json"):
                pa.load_policy(path)
            assert command("policy", "show", path).exit_code == 2
