"""Any file: damaged in any way, it is read as it stands or refused in one clear sentence that names it."""

import json
import os
import random
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from mutations import CONFIG, FORMATS, RAW, mutations, payload_of, run_state, sealed
from runs import command, config_of, finish, leave_out_report, on_few

from particleaugment.training.checkpoint import find_checkpoints, load_checkpoint, load_latest
from particleaugment.training.config import ConfigError
from particleaugment.training.records import RecordError, parse_records
from particleaugment.training.run import RunFolder

JSON = [name for name, made in FORMATS.items() if made.is_json]


@pytest.fixture(scope="module")
def ended(tmp_path_factory, few_digits):
    """The folder of a run that was killed just before it wrote its weights."""
    path = tmp_path_factory.mktemp("runs") / "ended"
    with on_few(few_digits) as patch:
        leave_out_report(patch)
        finish(path, "epochs=2")
    (path / "model.safetensors").unlink()
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_sound_files_are_read(name, tmp_path):
    made = FORMATS[name]
    for content in made.sound:
        assert made.outcome(tmp_path, made.seal(content)) == "read"


@pytest.mark.parametrize("name", JSON)
def test_json_cut_at_every_length(name, tmp_path):
    made = FORMATS[name]
    content = made.sound[0]
    for length in range(len(content.rstrip(b"\n"))):
        whole_lines = name == "metrics" and content[:length].endswith(b"\n")
        if length and not whole_lines:
            assert made.outcome(tmp_path, content[:length]) != "read", f"cut to {length} bytes"


@pytest.mark.parametrize("name", JSON)
def test_bits_flipped_at_500_places(name, tmp_path):
    made, bits = FORMATS[name], random.Random(0)
    content = made.sound[0]
    refused = 0
    for place in bits.sample(range(len(content)), min(500, len(content))):
        flipped = bytearray(content)
        flipped[place] ^= 1 << bits.randrange(8)
        refused += made.outcome(tmp_path, bytes(flipped)) != "read"
    assert refused > 150


def test_checkpoints_cut_and_flipped_at_500_places(tmp_path):
    made, places = FORMATS["checkpoint"], random.Random(0)
    content = made.sound[0]
    for place in places.sample(range(len(content)), 500):
        assert made.outcome(tmp_path, content[:place]) != "read", f"cut to {place} bytes"
        flipped = bytearray(content)
        flipped[place] ^= 1 << places.randrange(8)
        assert made.outcome(tmp_path, bytes(flipped)) != "read", f"a bit flipped in byte {place}"


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files(name, tmp_path_factory):
    made, folder = FORMATS[name], tmp_path_factory.mktemp("files")

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(mutations(made))
    def check(content):
        message = made.outcome(folder, content)
        assert message != "read" or name != "checkpoint" or content in made.sound

    check()


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw[:12])
def test_every_setting_replaced(raw, tmp_path):
    made = FORMATS["config"]
    fields = json.loads(made.sound[0])
    mark = "\ue000"
    for field in fields:
        text = json.dumps(fields | {field: mark}).replace(json.dumps(mark), raw)
        made.outcome(tmp_path, text.encode())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("num_particles=1000000000", "num_particles must be at most 100,000, got 1000000000"),
        ("epochs=1000000000000", "epochs must be at most 1000000"),
        ("image_size=100000", "image_size must be at most 4096"),
        ("seed=9223372036854775808", "seed must be at most 9223372036854775807"),
        ("data_dir=a\nb", r"data_dir must be at most 4096 printable characters, got 'a\nb'"),
        ("data=" + "x" * 5000, "data must be at most 4096 printable characters"),
        ("ops=" + ",".join(["Rotate"] * 65), "ops must name at most 64 ops, got 65"),
    ],
)
def test_settings_that_no_machine_could_meet(setting, message):
    with pytest.raises(ConfigError) as caught:
        config_of(setting)
    assert message.replace("\n", "\\n") in str(caught.value)


@pytest.mark.parametrize("model", ["wrn-9994-1", "wrn-28-9999", "shake-shake-26-2x9998d", "wrn-28-" + "9" * 5000])
def test_networks_that_no_machine_could_hold(model, tmp_path):
    outcome = command("train", "--set", f"model={model}", "--out", tmp_path / "run")
    assert outcome.exit_code == 2
    assert len(outcome.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def lines_of(*changes):
    return b"".join(json.dumps(record).encode() + b"\n" for record in changes)


def sound_records():
    return [json.loads(line) for line in FORMATS["metrics"].sound[0].splitlines()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records.pop(0), "line 1: filter step 1 of epoch 1 does not belong after epoch 0 and step 0"),
        (lambda records: records.pop(2), "line 3: filter step 2 of epoch 2 does not belong after epoch 1 and step 1"),
        (lambda records: records.reverse(), "line 1: epoch 1 should come here, got epoch 3"),
        (lambda records: records.insert(1, records[0]), "line 2: epoch 2 should come here, got epoch 1"),
        (lambda records: records[4].update(test_accuracy=101), "line 5: test_accuracy must be a number from 0 to 100"),
        (lambda records: records[0].update(kind="epoc"), "line 1: kind must be one of epoch, filter, got 'epoc'"),
        (lambda records: records[1].update(resampled=1), "line 2: resampled must be true or false, got 1"),
        (lambda records: records[1].pop("step"), "line 2: it lacks the field step"),
        (lambda records: records[1]["delta"].pop(), "line 2: delta and standard_error must be of the same length"),
        (lambda records: records[0].update(seconds={"train": -1}), "line 1: seconds must be an object of numbers"),
    ],
)
def test_records_out_of_order_or_range(change, message):
    records = sound_records()
    change(records)
    with pytest.raises(RecordError, match=message):
        parse_records(lines_of(*records))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("config"), "its field config is missing or of a wrong type"),
        (lambda state: state.update(model=[1]), "its field model is missing or of a wrong type"),
        (lambda state: state["model"].update(x=3), "model: the tensor x is not one of the network"),
        (lambda state: state.update(resumes="1"), "its field resumes is missing or of a wrong type"),
        (lambda state: state["position"].update(epoch=0), "position.epoch must be a whole number"),
        (lambda state: state["position"].update(batch=10**30), "position.batch is neither a tensor nor a plain value"),
        (lambda state: state["position"].update(loss_sum=float("nan")), "position.loss_sum must be a finite number"),
        (lambda state: state["position"].update(phase="sleep"), "position.phase must be one of train, evaluate"),
    ],
)
def test_checkpoints_with_a_right_checksum_and_wrong_fields(change, message, tmp_path):
    state = run_state()
    change(state)
    assert message in FORMATS["checkpoint"].outcome(tmp_path, sealed(payload_of(state)))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["position"].update(colour=1),
        lambda state: state["model"].pop("head.bias"),
        lambda state: state["model"].update({"head.bias": torch.zeros(11)}),
        lambda state: state["optimizer"].pop("param_groups"),
        lambda state: state["optimizer"]["param_groups"].pop(),
        lambda state: state["optimizer"]["param_groups"][0].update(momentum="fast"),
        lambda state: state["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(3)),
        lambda state: state["search"].pop("seed"),
        lambda state: state["search"]["history"].update(starts=5),
        lambda state: state["search"]["history"].update(particles=torch.full((2, 2, 2), 7.0)),
        lambda state: state["search"]["history"].update(particles=torch.zeros(0, 4, 15)),
        lambda state: state.update(search=None),
    ],
)
def test_checkpoints_that_do_not_fit_the_run(change, ended, tiny, tmp_path):
    shutil.copytree(ended, tmp_path / "run")
    for path in find_checkpoints(tmp_path / "run"):
        state = load_checkpoint(path)
        change(state)
        path.write_bytes(sealed(payload_of(state)))
    outcome = command("resume", tmp_path / "run", "-q")
    assert outcome.exit_code == 1
    assert len(outcome.stderr.splitlines()) == 1
    assert "no checkpoint can be used: " in outcome.stderr
    assert "does not hold a run's state: " in outcome.stderr


def test_metrics_changed_behind_the_checkpoints_back(ended, tiny, no_report, tmp_path):
    shutil.copytree(ended, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    content = run.metrics.read_bytes()
    run.metrics.write_bytes(content.replace(b'"test_accuracy": ', b'"test_accuracy":  ', 1)[:-1])
    outcome = command("resume", run.path, "-q")
    assert outcome.exit_code == 1
    assert "has changed since its checkpoint was written; restore the file" in outcome.stderr
    run.metrics.write_bytes(content)
    assert command("resume", run.path, "-q").exit_code == 0


def test_a_checkpoint_that_is_a_pipe_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "checkpoint-00000001.pt")
    (tmp_path / "checkpoint-00000000.pt").write_bytes(FORMATS["checkpoint"].sound[0])
    state, problems = load_latest(tmp_path)
    assert state["config"] == CONFIG.to_json()
    assert problems == [f"{tmp_path / 'checkpoint-00000001.pt'} cannot be read: it is a pipe or a device, not a file"]
