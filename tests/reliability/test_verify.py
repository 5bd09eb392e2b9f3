"""``particleaugment verify``: it finds what is wrong in a run folder, part by part, and changes nothing."""

import json
import os
import re
import shutil

import pytest
import torch
from mutations import payload_of, sealed
from runs import StopAfter, command, config_of, finish, on_few, session_of
from safetensors.torch import load_file, save_file

import particleaugment as pa
from particleaugment.runs.verify import verify
from particleaugment.training.checkpoint import find_checkpoints, load_checkpoint
from particleaugment.training.run import RunFolder


@pytest.fixture(scope="module")
def folders(tmp_path_factory, few_digits):
    """A finished run and one that was stopped."""
    made = tmp_path_factory.mktemp("runs")
    with on_few(few_digits):
        finish(made / "finished")
        finish(made / "stopped", stop=StopAfter(18))
    return made


@pytest.fixture
def finished(folders, tmp_path):
    return shutil.copytree(folders / "finished", tmp_path / "run")


@pytest.fixture
def stopped(folders, tmp_path):
    return shutil.copytree(folders / "stopped", tmp_path / "run")


def told(path, code):
    """What the command prints, at 80 columns, as one text per part; the folder is as before."""
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    outcome = command("verify", path)
    assert outcome.stderr == ""
    assert outcome.exit_code == code, outcome.stdout
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before
    parts = {}
    for line in outcome.stdout.splitlines():
        assert len(line) <= 80 or " " not in line.strip(), "only a path may be longer than a line"
        if not line.startswith(" "):
            label = line[:12].strip()
        parts[label] = f"{parts.get(label, '')} {line[12:].strip()}".strip()
    return parts


def test_a_finished_run(finished):
    parts = told(finished, 0)
    assert list(parts) == ["config", "checkpoint", "metrics", "policy", "model", "report", "finished"]
    assert parts["config"] == "digits: wrn-10-1 on digits, 3 epochs, seed 0"
    assert parts["checkpoint"].endswith("checksums match, the newest is after the last epoch")
    assert re.fullmatch(r"3 epochs, 2 filter steps \(\d skipped\)", parts["metrics"])
    assert parts["policy"].endswith("as in the checkpoint")
    assert parts["model"] == "78,337 numbers in 46 tensors, as in the checkpoint"
    assert parts["finished"] == "every file is valid"
    for file in find_checkpoints(finished):
        file.unlink()
    assert told(finished, 0)["checkpoint"] == "none, and none needed"


def test_a_stopped_run(stopped):
    parts = told(stopped, 0)
    assert parts["checkpoint"].endswith("the newest is in epoch 3")
    assert parts["model"] == "not written yet: written when the run ends"
    assert parts["resumable"] == f"'particleaugment resume {stopped}' continues in epoch 3"
    with open(stopped / "metrics.jsonl", "a") as file:
        file.write('{"kind": "epoch", "epo')
    assert "0 lines newer than the checkpoint, which resume rewrites" in told(stopped, 0)["metrics"]


def test_a_run_that_has_just_begun(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    parts = told(run.path, 0)
    assert parts["checkpoint"] == "none yet"
    assert parts["resumable"].endswith("continues from the start")
    with run.locked():
        assert told(run.path, 0)["in use"].startswith(f"by process {os.getpid()} on ")


def test_a_fixed_policy(tiny, tmp_path):
    finish(tmp_path / "run", "policy=rand-m3-n2", "epochs=1")
    parts = told(tmp_path / "run", 0)
    assert parts["metrics"] == "1 epochs"
    assert parts["policy"].startswith("RandAugment(")


def flip(path, place=-100):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def cut(path, count=30):
    path.write_bytes(path.read_bytes()[:-count])


def change_metrics(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[0]["test_accuracy"] = 99.0
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def change_weights(path):
    weights = load_file(path)
    weights["head.bias"] = weights["head.bias"] + 1
    save_file(weights, path)


def change_shapes(path):
    weights = load_file(path)
    weights["head.bias"] = torch.zeros(11)
    save_file(weights, path)


def drop_a_tensor(path):
    weights = load_file(path)
    del weights["stem.weight"]
    save_file(weights, path)


def change_policy(path):
    data = json.loads(path.read_text())
    data["steps"][1]["particles"][0][0] += 0.001
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("file", "damage", "part", "message"),
    [
        ("metrics.jsonl", cut, "metrics", "is shorter than when its checkpoint was written"),
        ("metrics.jsonl", change_metrics, "metrics", "has changed since its checkpoint was written"),
        ("policy.json", cut, "policy", "not valid JSON"),
        ("policy.json", change_policy, "policy", "differs from the policy in the checkpoint"),
        ("policy.json", os.unlink, "policy", "policy.json is missing"),
        ("policy.json", pa.TrivialAugment().save, "policy", "of kind 'trivialaugment', not a schedule"),
        ("model.safetensors", flip, "model", "differs from the checkpoint in"),
        ("model.safetensors", cut, "model", "it is damaged ("),
        ("model.safetensors", lambda path: flip(path, 0), "model", "it is damaged ("),
        ("model.safetensors", change_weights, "model", "differs from the checkpoint in head.bias"),
        ("model.safetensors", change_shapes, "model", "head.bias must be torch.float32 of shape (10,), got"),
        ("model.safetensors", drop_a_tensor, "model", "the tensor stem.weight is missing"),
        ("report.html", cut, "report", "report.html is truncated; 'particleaugment report"),
        ("report.html", os.unlink, "report", "report.html is missing"),
    ],
)
def test_what_is_wrong_with_a_finished_run(finished, file, damage, part, message):
    damage(finished / file)
    parts = told(finished, 1)
    assert parts[part].startswith("WRONG: ")
    assert message in parts[part]
    assert sum(text.startswith("WRONG") for text in parts.values()) == 1, "and only that"
    assert "broken" in parts


def test_the_results_can_be_written_anew(finished, tiny):
    expected = {name: (finished / name).read_bytes() for name in ("model.safetensors", "policy.json", "metrics.jsonl")}
    flip(finished / "model.safetensors")
    change_policy(finished / "policy.json")
    parts = told(finished, 1)
    assert f"remove {finished / 'model.safetensors'}, then 'particleaugment resume" in parts["broken"]
    (finished / "model.safetensors").unlink()
    assert command("resume", finished, "-q").exit_code == 0
    told(finished, 0)
    assert {name: (finished / name).read_bytes() for name in expected} == expected


def test_checkpoints_of_a_stopped_run(stopped):
    old, new = find_checkpoints(stopped)
    flip(new)
    parts = told(stopped, 1)
    assert "damaged or truncated: its checksum does not match" in parts["checkpoint"]
    assert "resumable" in parts, "from the older one"
    state = load_checkpoint(old)
    state["model"]["head.bias"] = torch.zeros(3)
    old.write_bytes(sealed(payload_of(state)))
    parts = told(stopped, 1)
    assert "head.bias must be torch.float32 of shape (10,), got torch.float32 of shape (3,)" in parts["checkpoint"]
    assert parts["broken"].startswith("no checkpoint can be used")


def test_another_configuration(stopped):
    (stopped / "config.json").write_text(config_of("sigma=0.06").to_json())
    assert "does not belong to the run's config.json" in told(stopped, 1)["checkpoint"]


def test_what_is_no_run_folder(tmp_path):
    parts = told(tmp_path, 1)
    assert "is not a run folder: it has no config.json" in parts["config"]
    assert parts["broken"] == "without config.json nothing can be resumed"
    (tmp_path / "config.json").write_text('{"version": 1, "recipe": "x", "recipe": "y"}')
    assert "the field 'recipe' appears twice" in told(tmp_path, 1)["config"]


def test_every_part_may_be_nonsense(finished):
    for file in finished.iterdir():
        if file.is_file() and file.name not in ("config.json", ".lock"):
            file.write_bytes(b"\xff\x00nonsense\n")
    verdict = verify(finished)
    assert [finding.part for finding in verdict.findings if finding.sound] == ["config"]
    assert verdict.state == "broken"


def test_a_session_that_goes_on_is_told(stopped, tiny):
    session = session_of(stopped)
    with session.run.locked():
        assert "in use" in told(stopped, 0)
