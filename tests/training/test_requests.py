"""Requests that cannot be met: one sentence, an exit code, and nothing left behind."""

import json
import os
import re

import pytest
from runs import TINY_OPTIONS, StopAfter, command, config_of, finish
from toy import search_of

import particleaugment as pa
from particleaugment.recipes import get_recipe
from particleaugment.runs.verify import verify
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunFolder


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
        (["--set", "lr=0.1"], "there is no setting 'lr'; did you mean learning_rate?"),
        (
            ["--set", "measure_on=heldout", "--set", "measure_size=0.02"],
            "measure_size=0.02 holds out one of 60 samples",
        ),
        (
            ["--set", "measure_on=heldout", "--set", "measure_size=0.001"],
            "measure_size=0.001 does not work with 60 samples",
        ),
        (["--set", "speed=3"], "speed is a setting of the filter 'difficulty', but this run uses 'paper'"),
        (["folder"], "the data set 'folder' needs data_dir, a directory with one sub-folder"),
        (["--set", "epochs=x"], "epochs takes a whole number, got 'x'"),
        (["--set", "clone_size=50", "--set", "measure_size=11"], "subsets of 50 + 11 samples do not fit into 60"),
        (["--set", "clone_size=0.001"], "is less than one sample"),
        (["--set", "clone_size=1"], "clone_size must be at least 2: batch norm"),
        (["--set", "clone_size=0.02"], "the search does not fit the data: clone_size=0.02 gives the clone a single"),
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
    settings = TINY_OPTIONS
    assert message in refuse(tmp_path / "run", *settings, *arguments, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data=digitz", "there is no data set 'digitz'; did you mean digits?"),
        ("model=wrn-11-1", "depth must be 6k + 4"),
        ("model=resnt-18", "there is no model 'resnt-18'; did you mean resnet-18?"),
        ("resample=bilinea", "did you mean bilinear"),
        ("policy=trivail", "did you mean trivial"),
        ("filter=papr", "did you mean paper"),
        ("device=gpu", "device must be one of auto, cpu, cuda"),
    ],
)
def test_misspelt_values_are_refused_before_data_are_read(setting, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_recipe("digits").override([setting])


@pytest.mark.parametrize(("change", "message"), [({"version": 9}, "version 9"), ({"ops": ["Swirl"] * 15}, "Swirl")])
def test_a_schedule_of_another_version_or_op_set(tiny, tmp_path, change, message):
    file = tmp_path / "policy.json"
    search_of(num_particles=2, nonzero=1).schedule(3).save(file)
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
    assert sentence.endswith(f"{path} already exists; choose another --out")
    assert [file.name for file in tmp_path.rglob("*")] == ["run", "precious"]


def test_a_runs_folder_is_left_alone(tiny, no_report, tmp_path):
    path = tmp_path / "run"
    finish(path, stop=StopAfter(1))
    shown = f"{path} already exists; continue it with 'particleaugment resume {path}' or choose another --out"
    assert refuse(path, code=1).endswith(shown)
    for file in find_checkpoints(path):
        file.unlink()
    assert "it is a run without a checkpoint: continue it with" in refuse(path, code=1)


def test_the_command_that_continues_a_run_can_be_given_to_a_shell(tmp_path):
    path = RunFolder.create(tmp_path / "my run", config_of()).path
    assert f"continue it with \"particleaugment resume '{path}'\", remove it," in refuse(path, code=1)
    assert f"\"particleaugment resume '{path}'\" continues from the start" in " ".join(verify(path).lines(1000))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    sentence = refuse(tmp_path / "file" / "run", code=1)
    assert sentence.endswith(f"cannot be created: {tmp_path / 'file'} is a file")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot be created: Permission denied" in refuse(tmp_path / "run", code=1)


def test_a_run_folder_that_cannot_be_written(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    (run.path / ".lock").mkdir()
    outcome = command("resume", run.path)
    assert outcome.exit_code == 1
    assert ".lock is a folder, not a regular file; remove it" in outcome.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is not a run folder: it has no config.json"), ("{", "not valid JSON"), ("{}", "of version 2")],
)
def test_resume_needs_a_run_folder(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    outcome = command("resume", tmp_path)
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
