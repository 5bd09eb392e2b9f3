"""Disks that fill up and folders that vanish: a clear error, and the last good checkpoint loads."""

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import time

import pytest
from runs import TINY_OPTIONS, command, config_of, finish, result

import particleaugment as pa
from particleaugment.training.checkpoint import find_checkpoints, load_latest
from particleaugment.training.run import RunError, RunFolder
from particleaugment.training.session import Session
from particleaugment.util.atomic import SaveError, write_atomically

SETTINGS = TINY_OPTIONS


@contextlib.contextmanager
def largest_file(size):
    """Files of this process cannot grow beyond a size, as under a quota: the system refuses the write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def failed(outcome):
    assert outcome.exit_code == 1
    assert len(outcome.stderr.splitlines()) == 1
    return outcome.stderr


def test_a_checkpoint_that_does_not_fit(tiny, no_report, tmp_path, monkeypatch):
    path, save = tmp_path / "run", Session.save

    def limited(self):
        with largest_file(100_000 if find_checkpoints(path) else resource.RLIM_INFINITY):
            save(self)

    monkeypatch.setattr(Session, "save", limited)
    sentence = failed(command("train", *SETTINGS, "--out", path, "--checkpoint-seconds", 0, "-q"))
    first, second = (path / f"checkpoint-0000000{number}.pt" for number in (0, 1))
    assert f"{second} cannot be written: File too large; the last good checkpoint is {first}" in sentence
    assert find_checkpoints(path) == [first]
    assert not list(path.glob(".checkpoint*")), "what was begun takes up no room"
    state, problems = load_latest(path)
    assert (state["position"]["epoch"], problems) == (2, [])
    monkeypatch.undo()


def test_a_line_of_metrics_that_does_not_fit(tiny, no_report, tmp_path, monkeypatch):
    finish(tmp_path / "whole")
    path, append = tmp_path / "run", RunFolder.append_metrics

    def limited(self, record):
        whole_line = record["kind"] == "epoch"
        with largest_file(resource.RLIM_INFINITY if whole_line else self.metrics.stat().st_size + 20):
            return append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", limited)
        sentence = failed(command("train", *SETTINGS, "--out", path, "--checkpoint-seconds", 0, "-q"))
    assert "metrics.jsonl cannot be written: File too large; there is no checkpoint yet" in sentence
    assert len((path / "metrics.jsonl").read_bytes().splitlines()[1]) == 20, "the line is cut short"
    assert command("resume", path, "-q").exit_code == 0
    assert result(path) == result(tmp_path / "whole")


def test_results_that_do_not_fit(tiny, no_report, tmp_path, monkeypatch):
    finish(tmp_path / "whole")
    path, finish_run = tmp_path / "run", Session.finish

    def limited(self):
        with largest_file(100_000):
            finish_run(self)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "finish", limited)
        sentence = failed(command("train", *SETTINGS, "--out", path, "-q"))
    assert "model.safetensors cannot be written: File too large; the last good checkpoint is " in sentence
    assert not (path / "model.safetensors").exists()
    assert command("resume", path, "-q").exit_code == 0
    assert result(path) == result(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one mebibyte, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here; the tests above reach a limit on file size instead")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full(tiny, no_report, small_disk, tmp_path):
    path = small_disk / "run"
    sentence = failed(command("train", *SETTINGS, "--out", path, "--checkpoint-seconds", 0, "-q"))
    assert "cannot be written: No space left on device; the last good checkpoint is " in sentence
    state, problems = load_latest(path)
    assert (state["position"]["epoch"], problems) == (2, [])
    shutil.copytree(path, tmp_path / "moved")
    assert command("resume", tmp_path / "moved", "-q").exit_code == 0
    finish(tmp_path / "whole")
    assert result(tmp_path / "moved") == result(tmp_path / "whole")


@pytest.mark.parametrize("way", ["removed", "moved"])
def test_a_folder_that_vanishes_under_the_run(way, tiny, no_report, tmp_path, monkeypatch):
    path, evaluate, calls = tmp_path / "run", Session.evaluate, []

    def vanishing(self):
        calls.append(self.position.epoch)
        if len(calls) == 2:
            shutil.rmtree(path) if way == "removed" else os.rename(path, tmp_path / "moved")
        evaluate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "evaluate", vanishing)
        sentence = failed(command("train", *SETTINGS, "--out", path, "--checkpoint-seconds", 0, "-q"))
    assert f"{path / 'metrics.jsonl'} cannot be written: No such file or directory; there is no checkpoint" in sentence
    assert not path.exists(), "it is not made again"
    if way == "moved":
        assert command("resume", tmp_path / "moved", "-q").exit_code == 0
        finish(tmp_path / "whole")
        assert result(tmp_path / "moved") == result(tmp_path / "whole")


def test_a_run_without_shared_memory(tiny, tmp_path):
    with largest_file(8000):
        sentence = failed(command("train", *SETTINGS, "--out", tmp_path / "run"))
    assert "there is no shared memory left (File too large): /dev/shm is full, or the" in sentence
    assert list(tmp_path.iterdir()) == []


def test_more_augmentations_than_files_may_be_open():
    limits, kept = resource.getrlimit(resource.RLIMIT_NOFILE), []
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, limits[1]))
    try:
        with pytest.raises(
            RuntimeError, match=r"no shared memory left \(Too many open files\): .* free some, or raise"
        ):
            kept.extend(pa.Augment("trivial") for _ in range(highest + 4))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_writing_names_the_file(tmp_path):
    with largest_file(10), pytest.raises(SaveError, match=r"policy.json cannot be written: File too large"):
        write_atomically(tmp_path / "policy.json", b"x" * 100)
    assert list(tmp_path.iterdir()) == []


# One writer.


HOLDER = """
import sys, time
from pathlib import Path
from particleaugment.training.run import RunFolder
with RunFolder.open(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(120)
"""


def test_a_second_process_is_told_who_holds_the_folder(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run.path)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    sentence = failed(command("resume", run.path))
    owner = f"process {holder.pid} on {socket.gethostname()}"
    assert f"{run.path} is in use by {owner}; wait for it or stop it" in sentence
    assert run.owner() == owner
    holder.kill()
    holder.communicate()
    assert (run.path / ".lock").read_text() == f"{owner}\n", "the dead owner's name is still there"
    limit = time.monotonic() + 120
    while run.owner() is not None and time.monotonic() < limit:
        time.sleep(0.01)
    with run.locked():
        assert (run.path / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


@pytest.mark.parametrize("left", [b"process 1 on another-host\n", b"", b"\xff\xfe", b"x" * 10**6])
def test_what_lies_in_a_lock_that_nobody_holds_says_nothing(left, tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    (run.path / ".lock").write_bytes(left)
    assert run.owner() is None
    with run.locked(), pytest.raises(RunError, match=rf"in use by process {os.getpid()} on "), run.locked():
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    run = RunFolder.create(tmp_path / "run", config_of())
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with (
        pytest.raises(RunError, match=r"cannot be locked \(Function not implemented\); use a file system"),
        run.locked(),
    ):
        pass
