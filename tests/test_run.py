import contextlib
import copy
import hashlib
import io
import json
import math
import os
import pickle
import re
import signal
import subprocess
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load as from_safetensors
from torch import nn
from typer.testing import CliRunner

import particleaugment as pa
from particleaugment.cli import app
from particleaugment.data import epoch_permutation, load_digits
from particleaugment.models import build_model
from particleaugment.probe import Learner, NonFiniteLoss
from particleaugment.recipes import get_recipe
from particleaugment.report.summary import filter_health, leading_ops, phase_seconds, print_summary
from particleaugment.search import filter_step
from particleaugment.training import checkpoint, loop
from particleaugment.training import run as run_module
from particleaugment.training.build import build, resolve
from particleaugment.training.checkpoint import (
    CheckpointError,
    find_checkpoints,
    load_checkpoint,
    load_latest,
    save_checkpoint,
    write_atomically,
)
from particleaugment.training.config import Config, ConfigError, override
from particleaugment.training.display import Display
from particleaugment.training.run import RunError, RunFolder
from particleaugment.training.session import Session, learning_rate
from particleaugment.training.stop import Stop, Stopped

TINY = ["epochs=3", "batch_size=20", "clone_size=20", "measure_size=10", "num_particles=4", "precision=fp32"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def few_digits():
    data = load_digits()
    return replace(
        data,
        train_images=data.train_images[:60],
        train_labels=data.train_labels[:60],
        test_images=data.test_images[:20],
        test_labels=data.test_labels[:20],
    )


@pytest.fixture
def tiny(monkeypatch, few_digits):
    """Runs on 60 digits instead of 1437."""
    monkeypatch.setattr("particleaugment.training.build.load_data", lambda name, *_, **__: few_digits)


@pytest.fixture
def no_report(monkeypatch):
    """The report has its own tests and takes longer than a tiny run."""
    monkeypatch.setattr("particleaugment.report.page.write_report", lambda run: run.path / "report.html")


def config_of(*assignments):
    return override(get_recipe("digits"), [*TINY, *assignments])


def session_of(path, *assignments, stop=None, checkpoint_seconds=0.0):
    run = RunFolder.open(path) if path.exists() else RunFolder.create(path, config_of(*assignments))
    return Session(run, Display(quiet=True), stop or Stop(), checkpoint_seconds)


def finish(path, *assignments, stop=None):
    """Start or continue a run in this process; returns the session, and whether it came to its end."""
    session = session_of(path, *assignments, stop=stop)
    session.restore()
    return session, loop.train(session)


def timeless(path):
    """The metrics without what stands under ``seconds``."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        assert record.pop("seconds")
    return records


def result(path):
    """Everything that must be a function of the configuration alone."""
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), timeless(path)


def command(*arguments):
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome


# Configurations.


@pytest.mark.parametrize(
    "config",
    [
        Config(recipe="mine"),
        get_recipe("digits"),
        config_of("velocity=" + ",".join(["0.01"] * 15), "fill=1,2,3", "clone_size=0.25", "flip=1", "unit_vectors=no"),
        config_of("ops=Rotate,Invert,Equalize", "policy=rand-m9-n3-inc1", "nesterov=false", "momentum=0"),
    ],
)
def test_a_configuration_survives_its_file(config):
    text = config.to_json()
    assert Config.from_json(text) == config
    assert Config.from_json(text).to_json() == text
    assert json.loads(text)["version"] == 1


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("epochs=7", "epochs", 7),
        (" learning-rate = 0.5", "learning_rate", 0.5),
        ("learning_rate=1", "learning_rate", 1.0),
        ("clone_size=30", "clone_size", 30),
        ("clone_size=0.5", "clone_size", 0.5),
        ("velocity=-0.001", "velocity", -0.001),
        ("nesterov=No", "nesterov", False),
        ("unit_vectors=true", "num_particles", 15),
        ("fill=(0, 1, 255)", "fill", (0, 1, 255)),
        ("ops=Rotate, Invert, Color", "ops", ("Rotate", "Invert", "Color")),
        ("policy=none", "policy", "none"),
    ],
)
def test_override(assignment, name, value):
    config = override(config_of("num_particles=15"), [assignment])
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epoch=4", "there is no setting 'epoch'; did you mean epochs?"),
        ("Sigma=4", "did you mean sigma?"),
        ("zzz=4", "there is no setting 'zzz'; the settings are seed, data, data_dir"),
        ("recipe=other", "there is no setting 'recipe'; the settings are"),
        ("epochs", "'epochs' is not of the form key=value"),
        ("epochs=four", "epochs takes a whole number, got 'four'"),
        ("epochs=1.5", "epochs takes a whole number, got '1.5'"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("batch_size=-1", "batch_size must be at least 1"),
        ("sigma=much", "sigma takes a number, got 'much'"),
        ("nesterov=maybe", "nesterov takes true or false, got 'maybe'"),
        ("fill=1,2", "fill takes numbers or names separated by commas, got '1,2'"),
        ("fill=1,2,300", "fill must be three whole numbers from 0 to 255"),
        ("clone_size=half", "clone_size takes a whole number or a number, got 'half'"),
        ("clone_size=1.5", "clone_size must be a number of samples or a fraction"),
        ("seed=-1", "seed must not be negative"),
        ("flip=2", "flip must lie in 0..1, got 2.0"),
        ("erase=nan", "erase must lie in 0..1"),
        ("learning_rate=0", "learning_rate must be a positive number, got 0.0"),
        ("learning_rate=nan", "learning_rate must be a positive number"),
        ("weight_decay=-1", "weight_decay must be a non-negative number"),
        ("momentum=0", "nesterov needs a momentum above 0"),
        ("precision=fp8", "precision must be one of auto, bf16, tf32, fp32, got 'fp8'"),
        ("policy=nonne", "nonne"),
        ("num_particles=1", "num_particles must be at least 2"),
        ("nonzero=16", "nonzero must lie in 1..15"),
        ("eta=0", "eta must be finite and above 0"),
        ("resampling=sistematic", "did you mean systematic"),
        ("ops=Rotat,Invert,Color", "did you mean Rotate"),
    ],
)
def test_override_errors(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(get_recipe("digits"), [assignment])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a configuration of version 1"),
        ("{}", "not a configuration of version 1"),
        ('{"version": 2, "recipe": "x"}', "not a configuration of version 1"),
        ('{"version": 1}', "recipe"),
        ('{"version": 1, "recipe": "x", "colour": 1}', "there is no setting 'colour'"),
        ('{"version": 1, "recipe": "x", "epochs": "4"}', "epochs takes a whole number, got '4'"),
        ('{"version": 1, "recipe": "x", "epochs": true}', "epochs takes a whole number, got True"),
        ('{"version": 1, "recipe": "x", "nesterov": 1}', "nesterov takes true or false, got 1"),
        ('{"version": 1, "recipe": 5}', "recipe takes text, got 5"),
        ('{"version": 1, "recipe": "x", "fill": [1, "2", 3]}', "fill takes numbers"),
        ('{"version": 1, "recipe": "x", "fill": [1, 2]}', "fill must be three whole numbers"),
        ('{"version": 1, "recipe": "x", "sigma": NaN}', "sigma must be"),
    ],
)
def test_damaged_configuration_files(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Config.from_json(text)


def test_learning_rate():
    config = config_of("epochs=4", "learning_rate=0.2")
    expected = [0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1, 0.1 * (1 - math.sqrt(0.5))]
    assert [learning_rate(config, epoch) for epoch in (1, 2, 3, 4)] == pytest.approx(expected, rel=1e-12)
    assert learning_rate(config, 5) == pytest.approx(0.0, abs=1e-17)


def test_what_auto_means_is_resolved():
    resolved = resolve(config_of("precision=auto"))
    assert resolved.precision in ("bf16", "fp32")
    assert resolved.device in ("cpu", "cuda")
    assert resolve(config_of("precision=fp32", "device=cpu")) == config_of("precision=fp32", "device=cpu")


def test_a_device_that_is_not_there_is_refused(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match="no CUDA device here; set device=cpu"):
        build(config_of("device=cuda", "precision=fp32"), print)


# Requests that cannot be met: one sentence, an exit code, and nothing left behind.


def refuse(path, *arguments, code):
    outcome = command("train", *arguments, "--out", path)
    assert outcome.exit_code == code
    assert outcome.stdout == ""
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("particleaugment: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "there is no recipe 'digit'; did you mean digits?"),
        (["zzz"], "there is no recipe 'zzz'; the recipes are digits"),
        (["--set", "epoch=3"], "there is no setting 'epoch'; did you mean epochs?"),
        (["--set", "epochs=x"], "epochs takes a whole number, got 'x'"),
        (["--set", "clone_size=50", "--set", "measure_size=11"], "subsets of 50 + 11 samples do not fit into 60"),
        (["--set", "clone_size=0.001"], "holds no sample"),
        (["--set", "data=digitz"], "there is no data set 'digitz'"),
        (["--set", "model=wrn-11-1"], "depth must be 6k + 4"),
        (["--set", "policy=schedule:/nowhere.json"], "there is no policy file /nowhere.json"),
        (["--set", "resample=bilinea"], "did you mean bilinear"),
        (["--set", "fill=1,2,999"], "fill must be three whole numbers"),
        (["--set", "crop=5000"], "pad must be a whole number"),
    ],
)
def test_requests_that_are_not_valid(monkeypatch, few_digits, tmp_path, arguments, message):
    real = pa.data.load_data
    monkeypatch.setattr(
        "particleaugment.training.build.load_data",
        lambda name, *rest, **options: few_digits if name == "digits" else real(name, *rest, **options),
    )
    settings = [part for setting in TINY for part in ("--set", setting)]
    assert message in refuse(tmp_path / "run", *settings, *arguments, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("change", "message"), [({"version": 9}, "version 9"), ({"ops": ["Swirl"] * 15}, "Swirl")])
def test_a_schedule_of_another_version_or_op_set(tiny, tmp_path, change, message):
    file = tmp_path / "policy.json"
    pa.ParticleAugment(num_particles=2, nonzero=1).schedule(3).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert message in refuse(tmp_path / "run", "--set", f"policy=schedule:{file}", code=2)
    assert not (tmp_path / "run").exists()


def test_a_class_with_too_few_samples(few_digits):
    labels = few_digits.train_labels.clone()
    labels[labels == 3] = 4
    labels[0] = 3
    with pytest.raises(ValueError, match="class 3 has a single sample"):
        pa.data.train_validation_split(labels, 20, seed=0)


def test_an_existing_folder_is_left_alone(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "precious").write_text("mine")
    sentence = refuse(path, code=1)
    assert f"{path} exists already; continue it with 'particleaugment resume {path}' or choose --out" in sentence
    assert [file.name for file in tmp_path.rglob("*")] == ["run", "precious"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    sentence = refuse(tmp_path / "file" / "run", code=1)
    assert sentence.endswith("cannot be made: File exists") or sentence.endswith("cannot be made: Not a directory")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot be made: Permission denied" in refuse(tmp_path / "run", code=1)


def test_a_run_folder_that_cannot_be_written(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    (run.path / ".lock").mkdir()
    outcome = command("resume", run.path)
    assert outcome.exit_code == 1
    assert "cannot be written: Is a directory" in outcome.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is not a run folder: it has no config.json"), ("{", "not valid JSON"), ("{}", "of version 1")],
)
def test_resume_needs_a_run_folder(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    outcome = command("resume", tmp_path)
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


# The run folder.


def test_a_run_folder_appears_with_its_configuration(tmp_path):
    run = RunFolder.create(tmp_path / "new" / "run", config_of())
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["run"]
    assert [file.name for file in run.path.iterdir()] == ["config.json"]
    assert RunFolder.open(run.path).config == config_of()
    assert not run.finished


def test_two_processes_make_the_same_folder(tmp_path, monkeypatch):
    rename = os.rename

    def beaten(source, target):
        target.mkdir()
        (target / "config.json").write_text("theirs")
        rename(source, target)

    monkeypatch.setattr(run_module.os, "rename", beaten)
    with pytest.raises(RunError, match="exists already; another process has just made it"):
        RunFolder.create(tmp_path / "run", config_of())
    assert (tmp_path / "run" / "config.json").read_text() == "theirs"
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_a_disk_that_is_full_while_the_folder_is_made(tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Config, "to_json", full)
    with pytest.raises(RunError, match="cannot be made: No space left on device"):
        RunFolder.create(tmp_path / "run", config_of())
    assert list(tmp_path.iterdir()) == []


def test_metrics(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    assert run.read_metrics() == []
    size = run.append_metrics({"kind": "epoch", "delta": (1.5, math.nan, math.inf), "text": "ä"})
    assert run.append_metrics({"kind": "filter", "inner": {"nan": math.nan}}) > size
    assert run.read_metrics() == [
        {"kind": "epoch", "delta": [1.5, None, None], "text": "ä"},
        {"kind": "filter", "inner": {"nan": None}},
    ]
    run.truncate_metrics(size)
    assert len(run.read_metrics()) == 1
    with pytest.raises(RunError, match="shorter than when its checkpoint was written"):
        run.truncate_metrics(size + 1)
    with open(run.metrics, "a") as file:
        file.write('{"kind": "ep')
    with pytest.raises(RunError, match="is damaged"):
        run.read_metrics()
    run.truncate_metrics(size)
    assert len(run.read_metrics()) == 1


def test_a_folder_in_use_is_refused_and_named(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    with run.locked():
        outcome = command("resume", run.path)
        assert outcome.exit_code == 1
        assert f"{run.path} is in use by process {os.getpid()} on " in outcome.stderr
    with run.locked():
        pass
    (run.path / ".lock").write_text("process 1 on elsewhere\n")
    with run.locked():
        assert (run.path / ".lock").read_text().startswith(f"process {os.getpid()} ")


def test_a_dead_owners_lock_does_not_block(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    holder = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True)"
    owner = subprocess.Popen(
        ["python3", "-c", f"{holder}; time.sleep(60)", str(run.path / ".lock")], stdout=subprocess.PIPE
    )
    assert owner.stdout.readline()
    with pytest.raises(RunError, match="is in use"), run.locked():
        pass
    owner.kill()
    owner.communicate()
    with run.locked():
        pass


# Checkpoints.


def state(number=0):
    return {"number": number, "weights": torch.arange(40.0), "nested": {"list": [1, 2.5, "x", None]}}


def test_checkpoints_are_kept_in_twos(tmp_path):
    assert load_latest(tmp_path) == (None, [])
    for number in range(5):
        path = save_checkpoint(tmp_path, state(number))
        assert path.name == f"checkpoint-{number:08d}.pt"
        assert len(find_checkpoints(tmp_path)) == min(number + 1, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint-00000003.pt", "checkpoint-00000004.pt"]
    latest, problems = load_latest(tmp_path)
    assert (latest["number"], problems) == (4, [])
    torch.testing.assert_close(latest["weights"], torch.arange(40.0), rtol=0, atol=0)
    assert latest["nested"] == {"list": [1, 2.5, "x", None]}


def test_what_a_crash_leaves_is_ignored(tmp_path):
    save_checkpoint(tmp_path, state(0))
    (tmp_path / ".checkpoint-00000001.pt.tmp").write_bytes(b"half a check")
    (tmp_path / "checkpoint-1.pt").write_bytes(b"")
    (tmp_path / "checkpoint-00000009.pt.bak").write_bytes(b"")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-00000000.pt"]
    assert load_latest(tmp_path)[0]["number"] == 0
    save_checkpoint(tmp_path, state(1))
    assert not (tmp_path / ".checkpoint-00000001.pt.tmp").exists()
    assert load_latest(tmp_path)[0]["number"] == 1


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "policy.json"
    write_atomically(file, b"old")

    def crash(*_):
        raise KeyboardInterrupt

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.os, step, crash)
            with pytest.raises(KeyboardInterrupt):
                write_atomically(file, b"new")
        assert file.read_bytes() == b"old"
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def damaged_versions(content):
    lengths = {0, 1, 20, 28, 29, 30, 60, 61, 62, len(content) // 2, len(content) - 1, *range(64, len(content), 197)}
    for length in sorted(lengths):
        yield f"cut to {length}", content[:length]
    for position in range(0, len(content), 61):
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
        with pytest.raises(CheckpointError, match=r"is not a checkpoint of this version|damaged or cut short"):
            load_checkpoint(newest)
        latest, problems = load_latest(tmp_path)
        assert latest["number"] == 0, damage
        assert len(problems) == 1
        assert str(newest) in problems[0]
    newest.write_bytes(content)
    assert load_latest(tmp_path)[0]["number"] == 1


def test_no_readable_checkpoint(tmp_path):
    for number in range(2):
        save_checkpoint(tmp_path, state(number)).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read: .*00000001.pt .*; .*00000000.pt"):
        load_latest(tmp_path)


def test_a_checkpoint_that_is_not_a_file(tmp_path):
    (tmp_path / "checkpoint-00000000.pt").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        load_latest(tmp_path)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def sealed(payload):
    """A checkpoint whose checksum is right."""
    return checkpoint._MAGIC + hashlib.sha256(payload).digest() + payload


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
        assert latest["number"] == 0
        assert len(problems) == 1
        assert "\n" not in problems[0]
    assert not canary.exists()


def test_a_checkpoint_that_is_no_dictionary(tmp_path):
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    (tmp_path / "checkpoint-00000000.pt").write_bytes(sealed(buffer.getvalue()))
    with pytest.raises(CheckpointError, match="does not hold a run's state"):
        load_latest(tmp_path)


# The loop.


def test_filter_steps_follow_the_epochs_that_they_should(tiny, no_report, tmp_path):
    cases = {
        "default": ([], 3, [1, 2]),
        "warmup": (["warmup=2", "epochs=4"], 4, [2, 3]),
        "every": (["every=2", "epochs=4"], 4, [2]),
    }
    for name, (assignments, epochs, steps) in cases.items():
        path = tmp_path / name
        assert finish(path, *assignments)[1]
        records = timeless(path)
        kinds = [(record["kind"], record["epoch"]) for record in records]
        expected = [(kind, e) for e in range(1, epochs + 1) for kind in ("epoch", "filter")]
        assert kinds == [pair for pair in expected if pair[0] == "epoch" or pair[1] in steps]
        assert [record["step"] for record in records if record["kind"] == "filter"] == list(range(1, len(steps) + 1))
        schedule = pa.Schedule.load(path / "policy.json")
        assert [step.from_epoch for step in schedule.steps] == [1, *[e + 1 for e in steps]]
        assert schedule.epochs == epochs


def test_metrics_of_a_run(tiny, no_report, tmp_path):
    session, _ = finish(tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["kind"] == "epoch":
            assert 0 < record["train_loss"] < 10
            assert 0 <= record["test_accuracy"] <= 100
            assert record["test_accuracy"] / 5 == pytest.approx(round(record["test_accuracy"] / 5)), "of 20 images"
            assert record["learning_rate"] == learning_rate(session.config, record["epoch"])
            assert record["seconds"].keys() == {"train", "evaluate", "resumes"}
        else:
            assert len(record["delta"]) == len(record["standard_error"]) == 4
            assert record["skip_reason"] is None or isinstance(record["skip_reason"], str)
            assert record["seconds"].keys() == {"clone", "measure", "filter", "resumes"}
    session.model.eval()
    with torch.no_grad():
        inputs = session.trainee.learner.preprocess(session.data.test_images)
        right = (session.model(inputs).argmax(1) == session.data.test_labels).double().mean()
    assert records[-1]["test_accuracy"] == pytest.approx(100 * float(right))


def test_a_baseline_is_plain_training(tiny, no_report, few_digits, tmp_path):
    session, _ = finish(tmp_path / "run", "policy=rand-m3-n2", "crop=2", "flip=0.5", "erase=0.5", "seed=5")
    config = session.config
    assert session.search is None
    assert [record["kind"] for record in timeless(tmp_path / "run")] == ["epoch"] * 3

    model = build_model("wrn-10-1", 10, seed=5).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=True)
    before = [pa.PadCrop(2), pa.HorizontalFlip(0.5)]
    augment = pa.Augment(pa.parse("rand-m3-n2"), seed=5, before=before, after=[pa.RandomErasing(0.5)])
    normalize = pa.Normalize(few_digits.mean, few_digits.std)
    for epoch in (1, 2, 3):
        optimizer.param_groups[0]["lr"] = learning_rate(config, epoch)
        augment.set_epoch(epoch)
        losses = []
        for ids in epoch_permutation(60, 5, epoch).split(20):
            x = normalize.run(augment(few_digits.train_images[ids], ids)).contiguous(memory_format=torch.channels_last)
            loss = nn.functional.cross_entropy(model(x), few_digits.train_labels[ids], reduction="none").mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()) * len(ids))
        assert timeless(tmp_path / "run")[epoch - 1]["train_loss"] == pytest.approx(sum(losses) / 60, rel=1e-12)
    torch.testing.assert_close(session.model.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_recorded_schedule_trains_the_same_network_without_the_search(tiny, no_report, tmp_path):
    learned, _ = finish(tmp_path / "learned", "start_value=0.9")
    file = tmp_path / "learned" / "policy.json"
    replayed, _ = finish(tmp_path / "replayed", f"policy=schedule:{file}")
    torch.testing.assert_close(replayed.model.state_dict(), learned.model.state_dict(), rtol=0, atol=0)
    assert [record["kind"] for record in timeless(tmp_path / "replayed")] == ["epoch"] * 3
    recorded = pa.Schedule.load(file)
    kept = pa.Schedule.load(tmp_path / "replayed" / "policy.json")
    assert [kept.at(epoch) for epoch in (1, 2, 3)] == [recorded.at(epoch) for epoch in (1, 2, 3)]
    constant, _ = finish(tmp_path / "none", "policy=none")
    assert not torch.equal(constant.model.stem.weight, learned.model.stem.weight)

    longer = config_of(f"policy=schedule:{file}", "epochs=6").fixed_policy()
    assert [longer.at(epoch) for epoch in range(1, 7)] == [recorded.at((epoch + 1) // 2) for epoch in range(1, 7)]


def test_the_clone_trains_at_the_learning_rate_of_the_next_epoch(tiny, no_report, tmp_path):
    session = session_of(tmp_path / "run", "clone_epochs=2")
    rates = []
    session.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    assert loop.train(session)
    lr = [learning_rate(session.config, epoch) for epoch in (1, 2, 3)]
    assert rates == [*[lr[0]] * 3, *[lr[1]] * 2, *[lr[1]] * 3, *[lr[2]] * 2, *[lr[2]] * 3]


def test_the_networks_training_does_not_feel_the_clone(tiny, no_report, tmp_path):
    one, _ = finish(tmp_path / "one", "sigma=0", "eta=1e-9", "alpha=0", "clone_epochs=1")
    other, _ = finish(tmp_path / "other", "sigma=0", "eta=1e-9", "alpha=0", "clone_epochs=2", "clone_size=40")
    torch.testing.assert_close(one.model.state_dict(), other.model.state_dict(), rtol=0, atol=0)


def test_the_estimate_changes_nothing(tiny, tmp_path):
    session = session_of(tmp_path / "run")
    before = copy.deepcopy((session.model.state_dict(), session.optimizer.state_dict()))
    assert session.estimate_seconds() > 0
    torch.testing.assert_close((session.model.state_dict(), session.optimizer.state_dict()), before, rtol=0, atol=0)
    assert session.position == session_of(tmp_path / "other").position


def test_weights_do_not_depend_on_the_process_and_can_be_read(tiny, no_report, tmp_path):
    session, _ = finish(tmp_path / "run", "epochs=1", "policy=none")
    first = session.run.model.read_bytes()
    for _ in range(8):
        session.finish()
        assert session.run.model.read_bytes() == first
    weights = session.model.state_dict()
    assert from_safetensors(first).keys() == weights.keys()
    for name, value in from_safetensors(first).items():
        assert torch.equal(value, weights[name])
    with safe_open(session.run.model, "pt") as file:
        assert file.metadata() == {"format": "pt", "model": "wrn-10-1", "data": "digits", "seed": "0"}


def test_identical_configurations_give_identical_files(tiny, no_report, tmp_path):
    for name in ("one", "two"):
        finish(tmp_path / name)
    finish(tmp_path / "three", "seed=1")
    assert result(tmp_path / "one") == result(tmp_path / "two")
    assert all(a != b for a, b in zip(result(tmp_path / "one"), result(tmp_path / "three")))
    text = (tmp_path / "one" / "policy.json").read_text() + (tmp_path / "one" / "metrics.jsonl").read_text()
    assert str(tmp_path) not in text


# Stopping and going on.


class StopAfter(Stop):
    """Asks for a stop at the n-th time that it is looked at."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise Stopped


def test_a_run_stopped_after_any_batch_goes_on_exactly(tiny, no_report, tmp_path):
    counter = StopAfter(10**9)
    finish(tmp_path / "whole", "epochs=2", stop=counter)
    checks = 10**9 - counter.left
    assert checks == 3 + 1 + 3 + 3 + 1, "train, evaluate, filter, train, evaluate"
    expected = result(tmp_path / "whole")
    for number in range(1, checks + 1):
        path = tmp_path / f"stopped-{number}"
        _, ended = finish(path, "epochs=2", stop=StopAfter(number))
        assert not ended
        assert not (path / "model.safetensors").exists()
        assert find_checkpoints(path)
        assert pa.load_policy(path / "policy.json")
        session, ended = finish(path)
        assert ended
        assert session.resumes == 1
        assert result(path) == expected, f"stopped at check {number}"


class Crash(BaseException):
    """The process is killed."""


def test_a_run_killed_at_any_file_operation_goes_on_exactly(tiny, no_report, tmp_path, monkeypatch):
    assert finish(tmp_path / "whole", "epochs=2")[1]
    expected = result(tmp_path / "whole")
    path, allowed, kills = tmp_path / "run", 0, set()
    RunFolder.create(path, config_of("epochs=2"))
    ended = False
    while not ended:
        allowed += 1
        left = allowed

        def dying(name, real):
            def operation(*arguments, **keywords):
                nonlocal left
                left -= 1
                if left == 0:
                    kills.add(name)
                    raise Crash
                return real(*arguments, **keywords)

            return operation

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "truncate", "unlink"):
                patch.setattr(os, name, dying(name, getattr(os, name)))
            with contextlib.suppress(Crash):
                _, ended = finish(path)
    assert kills >= {"fsync", "replace"}
    assert allowed > 5
    assert result(path) == expected


def test_a_damaged_checkpoint_costs_time_and_nothing_else(tiny, no_report, tmp_path):
    finish(tmp_path / "whole")
    path = tmp_path / "run"
    _, ended = finish(path, stop=StopAfter(18))
    assert not ended
    checkpoints = find_checkpoints(path)
    assert len(checkpoints) == 2
    checkpoints[1].write_bytes(checkpoints[1].read_bytes()[:-100])
    console = Console(file=io.StringIO(), width=400)
    session = Session(RunFolder.open(path), Display(console=console), Stop(), 0.0)
    assert session.restore()
    assert "damaged or cut short: its checksum does not match; using the one before it" in console.file.getvalue()
    assert loop.train(session)
    assert result(path) == result(tmp_path / "whole")


def test_checkpoints_that_cannot_be_used_stop_the_run_and_lose_nothing(tiny, no_report, tmp_path):
    path = tmp_path / "run"
    finish(path, stop=StopAfter(18))
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != ".lock"}

    def refused(message):
        outcome = command("resume", path, "--quiet")
        assert outcome.exit_code == 1
        assert message in outcome.stderr
        assert len(outcome.stderr.splitlines()) == 1
        assert "Traceback" not in outcome.stderr

    (path / "config.json").write_text(config_of("sigma=0.06").to_json())
    refused("belongs to another configuration than its config.json")
    (path / "config.json").write_bytes(kept["config.json"])

    (path / "metrics.jsonl").write_bytes(kept["metrics.jsonl"][:-1])
    refused("is shorter than when its checkpoint was written")
    (path / "metrics.jsonl").write_bytes(kept["metrics.jsonl"])

    canary = tmp_path / "canary"
    for file in find_checkpoints(path):
        buffer = io.BytesIO()
        torch.save({"config": config_of().to_json(), "bomb": Bomb(canary)}, buffer)
        file.write_bytes(sealed(buffer.getvalue()))
    refused("no checkpoint can be read")
    assert not canary.exists()
    for name, content in kept.items():
        (path / name).write_bytes(content)
    assert finish(path)[1]


def test_divergence_is_reported_with_what_to_do(tiny, tmp_path):
    path = tmp_path / "run"
    settings = [part for setting in [*TINY, "learning_rate=1e20"] for part in ("--set", setting)]
    outcome = command("train", *settings, "--out", path, "--quiet")
    assert outcome.exit_code == 1
    assert re.search(
        "the training loss is (nan|inf) in epoch 1, batch 2: this is not saved, and there is no checkpoint yet; "
        "try a lower learning_rate",
        outcome.stderr,
    )
    assert not (path / "model.safetensors").exists()


class NoticesLate:
    """A trainee that finds out about its losses when they are asked for, as one that runs ahead on a device does."""

    def __init__(self, trainee):
        self.trainee = trainee

    def __getattr__(self, name):
        if name == "loss_sum":
            raise NonFiniteLoss("the training loss is nan")
        return getattr(self.trainee, name)


def test_a_stop_does_not_save_a_network_that_has_diverged(tiny, tmp_path):
    session = session_of(tmp_path / "run", stop=StopAfter(2))
    session.trainee = NoticesLate(session.trainee)
    with pytest.raises(RunError, match="the training loss is nan in epoch 1, batch 3: this is not saved"):
        loop.train(session)
    assert find_checkpoints(tmp_path / "run") == []


def test_signals_are_noted_and_handlers_come_back():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with Stop() as stop:
            stop.check()
            os.kill(os.getpid(), number)
            with pytest.raises(Stopped):
                stop.check()
            assert stop.exit_code == code
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_on_the_command_line(tiny, no_report, tmp_path, monkeypatch, number):
    path = tmp_path / "my run"
    settings = [part for setting in TINY for part in ("--set", setting)]
    train_batch, calls = Learner.train_batch, []

    def interrupted(self, images, labels, weight):
        calls.append(len(images))
        if len(calls) == 6:
            os.kill(os.getpid(), number)
        return train_batch(self, images, labels, weight)

    monkeypatch.setattr(Learner, "train_batch", interrupted)
    outcome = command("train", *settings, "--out", path)
    assert outcome.exit_code == 128 + number
    assert outcome.stdout.splitlines()[-1] == f"stopped and saved; continue with: particleaugment resume '{path}'"
    assert len(calls) == 6, "the batch is finished and no other begun"
    outcome = command("resume", path)
    assert outcome.exit_code == 0
    assert f"resuming {path} in epoch 1 of 3" in outcome.stdout
    finish(tmp_path / "whole")
    assert result(path) == result(tmp_path / "whole")


# What is said.


def test_what_a_run_prints(tiny, tmp_path):
    path = tmp_path / "[bold]run [/x] :smile:"
    settings = [part for setting in TINY for part in ("--set", setting)]
    outcome = command("train", *settings, "--out", path)
    assert outcome.exit_code == 0
    assert outcome.stderr == ""
    lines = outcome.stdout.splitlines()
    assert re.fullmatch(
        r"digits: wrn-10-1 on digits, 3 epochs, policy particles; \w+ executor, step by step, fp32; "
        r"about \d+\.\d minutes",
        lines[0],
    )
    for number, line in enumerate(lines[1:4], start=1):
        assert re.match(
            rf"epoch {number}/3  loss \d\.\d+  accuracy \d+\.\d\d %  \d\.\d\d ops/image  \d steps skipped", line
        )
    for row in ("test accuracy, last epoch", "best epoch (not a result)", "leading ops", "filter", "seconds"):
        assert row in outcome.stdout
    assert lines[-2:] == [f"files: {path}", f"report to open: {path / 'report.html'}"]
    names = {file.name for file in path.iterdir() if file.is_file()}
    assert names >= {"config.json", "metrics.jsonl", "policy.json", "model.safetensors", "report.html"}
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}

    again = command("resume", path)
    assert again.exit_code == 0
    assert "is finished: there is nothing to resume." in again.stdout
    silent = command("resume", path, "--quiet")
    assert (silent.exit_code, silent.output) == (0, "")
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == kept


def test_quiet_says_nothing(tiny, no_report, tmp_path):
    settings = [part for setting in [*TINY, "epochs=1"] for part in ("--set", setting)]
    outcome = command("train", *settings, "--out", tmp_path / "run", "--quiet")
    assert (outcome.exit_code, outcome.output) == (0, "")
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_default_folder_and_the_seed(tiny, no_report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [part for setting in [*TINY, "epochs=1", "policy=none"] for part in ("--set", setting)]
    assert command("train", *settings, "--seed", 3, "-q").exit_code == 0
    assert RunFolder.open(tmp_path / "runs" / "digits-3").config.seed == 3
    assert command("train", *settings, "--set", "seed=4", "-q").exit_code == 0
    assert RunFolder.open(tmp_path / "runs" / "digits-4").config.seed == 4


def test_resume_before_the_first_checkpoint_starts_at_the_beginning(tiny, no_report, tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    run.append_metrics({"kind": "epoch", "epoch": 1, "seconds": {"train": 1.0}})
    outcome = command("resume", run.path, "-q")
    assert outcome.exit_code == 0
    finish(tmp_path / "whole")
    assert result(run.path) == result(tmp_path / "whole")


def test_checkpoints_are_as_far_apart_as_asked(tiny, no_report, tmp_path, monkeypatch):
    saved = []
    save = Session.save
    monkeypatch.setattr(Session, "save", lambda self: (saved.append(self.position.epoch), save(self)))
    settings = [part for setting in TINY for part in ("--set", setting)]
    for seconds, expected in ((0, [2, 3, 4]), (1000, [4])):
        saved.clear()
        command("train", *settings, "--out", tmp_path / str(seconds), "--checkpoint-seconds", seconds, "-q")
        assert saved == expected
    assert "Least seconds between two checkpoints" in command("train", "--help").stdout
    assert "--checkpoint-seconds" in command("resume", "--help").stdout


# The summary.


def test_leading_ops_are_those_of_the_last_policy():
    low, high = torch.zeros(2, 15), torch.zeros(2, 15)
    low[:, 0], low[:, 3] = 1.0, 0.5
    high[:, 5], high[:, 7] = 0.25, 0.75
    steps = (
        pa.policies.schedule.ScheduleStep(1, low, torch.ones(2)),
        pa.policies.schedule.ScheduleStep(4, high, torch.ones(2)),
    )
    schedule = pa.Schedule(steps, epochs=4)
    for policy in (schedule, schedule.rescaled(4), schedule.rescaled(40), schedule.at(4)):
        assert leading_ops(policy, count=2) == [("Contrast", 0.75), ("SolarizeAdd", 0.25)]
    assert leading_ops(schedule.at(1), count=1) == [("Rotate", 0.5)], "Identity does not lead"
    assert leading_ops(pa.RandAugment()) == []


def test_summary_numbers(tmp_path):
    records = [
        {"kind": "epoch", "epoch": 1, "test_accuracy": 90.0, "seconds": {"train": 1.0, "resumes": 0}},
        {"kind": "filter", "epoch": 1, "skip_reason": None, "resampled": True, "effective_sample_size": 3.5,
         "ops_per_image": 1.25, "seconds": {"clone": 0.5, "resumes": 0}},
        {"kind": "filter", "epoch": 2, "skip_reason": "d0", "resampled": False, "effective_sample_size": 2.5,
         "ops_per_image": 1.5, "seconds": {"clone": 0.25, "resumes": 1}},
        {"kind": "epoch", "epoch": 2, "test_accuracy": 80.0, "seconds": {"train": 2.0, "resumes": 1}},
    ]  # fmt: skip
    assert phase_seconds(records) == {"train": 3.0, "clone": 0.75}
    assert filter_health(records) == {
        "steps": 2, "skipped": 1, "resampled": 1, "effective_sample_size": 2.5, "ops_per_image": 1.5,
    }  # fmt: skip
    run = RunFolder.create(tmp_path / "run", config_of())
    for record in records:
        run.append_metrics(record)
    console = Console(file=io.StringIO(), width=200)
    print_summary(run, pa.ParticleAugment(num_particles=4).policy, console)
    text = console.file.getvalue()
    assert re.search(r"last epoch\D*80\.00 %", text)
    assert re.search(r"not a result\)\D*90\.00 % in epoch 1", text)
    assert "2 steps, 1 skipped, 1 resampled, N_eff 2.5 of 4" in text
    assert "3.8: train 3.0, clone 0.8" in text


def test_the_searchs_step_in_a_run_is_the_filters(tiny, no_report, tmp_path):
    session = session_of(tmp_path / "run", "epochs=2")
    start = session.search.state
    measured = []
    probe = pa.search.probe

    def noting(*arguments, **keywords):
        measured.append(probe(*arguments, **keywords))
        return measured[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pa.search, "probe", noting)
        loop.train(session)
    settings = session.config.filter_settings()
    expected, record = filter_step(start, settings, lambda policy: measured[0], seed=0, step=1)
    assert session.search.state == expected
    logged = timeless(tmp_path / "run")[1]
    assert logged["d0"] == record.d0
    assert logged["delta"] == list(record.delta)
    assert logged["skip_reason"] == record.skip_reason
