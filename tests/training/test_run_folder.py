"""The run folder: it appears whole, belongs to one process, and keeps its metrics."""

import math
import os
import subprocess

import pytest
from runs import command, config_of, epoch_record, filter_record

from particleaugment.training import run as run_module
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util import atomic


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
    with pytest.raises(RunError, match="already exists; another process has just created it"):
        RunFolder.create(tmp_path / "run", config_of())
    assert (tmp_path / "run" / "config.json").read_text() == "theirs"
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_a_disk_that_is_full_while_the_folder_is_made(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(RunError, match="cannot be created: No space left on device"):
        RunFolder.create(tmp_path / "run", config_of())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_is_not_utf_8_is_refused_before_anything_starts(tmp_path):
    path = tmp_path / os.fsdecode(b"nu\xff")
    for folder in (path, path / "run"):
        outcome = command("train", "--out", folder)
        assert outcome.exit_code == 1
        assert outcome.stderr.endswith("must be UTF-8; choose another --out\n")
    assert list(tmp_path.iterdir()) == []
    run = RunFolder.create(tmp_path / "run", config_of())
    try:
        run.path.rename(path)
    except OSError:
        pytest.skip("this file system has no such names")
    for what in ("resume", "report"):
        outcome = command(what, path)
        assert outcome.exit_code == 1
        assert outcome.stderr.endswith("must be UTF-8; rename it\n")
    assert [file.name for file in path.iterdir()] == ["config.json"]


def test_metrics(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    assert run.read_metrics() == []
    size = run.append_metrics(epoch_record(1, text="ä"))
    numbers = (1.5, math.nan, math.inf)
    assert run.append_metrics(filter_record(1, delta=numbers, standard_error=numbers, inner={"nan": math.nan})) > size
    changed = {"delta": [1.5, None, None], "standard_error": [1.5, None, None], "inner": {"nan": None}}
    assert run.read_metrics() == [epoch_record(1, text="ä"), filter_record(1, **changed)]
    run.truncate_metrics(size)
    assert len(run.read_metrics()) == 1
    with pytest.raises(RunError, match="shorter than when its checkpoint was written"):
        run.truncate_metrics(size + 1)
    with open(run.metrics, "a") as file:
        file.write('{"kind": "ep')
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged: line 2: it is incomplete: the file is truncated"):
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
