"""Runs that are paused with SIGSTOP at any moment, and clocks that jump: the result is that of a run left alone."""

import os
import random
import signal
import subprocess
import time

import pytest
from forked import Forked
from runs import TINY_OPTIONS, StopAfter, command, finish, result

from particleaugment.training.checkpoint import find_checkpoints, load_latest
from particleaugment.training.run import RunFolder
from particleaugment.util import atomic

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP here")
SETTINGS = [*TINY_OPTIONS, "--set", "train_size=120", "--set", "device=cpu", "--checkpoint-seconds", "0", "-q"]


def started(path, *more):
    return Forked("-m", "particleaugment", "train", "digits", *SETTINGS, *more, "--out", path)


def ended(process):
    _, errors = process.communicate(timeout=240)
    return process.returncode, errors


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert ended(started(path)) == (0, "")
    return result(path)


@pytest.mark.slow
def test_paused_again_and_again(undisturbed, tmp_path):
    path, moments = tmp_path / "run", random.Random(0)
    process = started(path)
    pauses = 0
    try:
        while process.poll() is None:
            time.sleep(moments.uniform(0.0, 0.15))
            process.send_signal(signal.SIGSTOP)
            pauses += 1
            time.sleep(moments.uniform(0.0, 0.05))
            if pauses % 40 == 0 and (path / "config.json").exists():
                assert load_latest(path)[1] == [], "whatever it was doing, its checkpoints are whole"
            process.send_signal(signal.SIGCONT)
    finally:
        process.send_signal(signal.SIGCONT)
    assert ended(process) == (0, "")
    assert pauses > 20
    assert result(path) == undisturbed


def test_a_run_that_is_paused_holds_its_folder_and_can_be_stopped(undisturbed, tmp_path):
    path = tmp_path / "run"
    process = started(path, "--set", "epochs=3")
    while not find_checkpoints(path):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    try:
        outcome = command("resume", path, "-q")
        assert outcome.exit_code == 1
        assert f"is in use by process {process.pid} on " in outcome.stderr
        assert "in use" in command("verify", path).stdout
        process.send_signal(signal.SIGTERM)
    finally:
        process.send_signal(signal.SIGCONT)
    assert ended(process)[0] == 143
    assert ended(Forked("-m", "particleaugment", "resume", path, "-q")) == (0, "")
    assert result(path) == undisturbed


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_paused_in_the_middle_of_writing_a_checkpoint(tiny, no_report, tmp_path, monkeypatch, step):
    """The process stops itself there, as a scheduler might, and another one lets it go on a moment later."""
    finish(tmp_path / "whole")
    real, pauses = getattr(os, step), []

    def pausing(*arguments):
        if len(pauses) < 6:
            waker = ["/bin/sh", "-c", f"sleep 0.05; kill -CONT {os.getpid()}"]
            pauses.append(subprocess.Popen(waker))
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments)

    monkeypatch.setattr(atomic.os, step, pausing)
    finish(tmp_path / "run")
    monkeypatch.undo()
    assert [process.wait() for process in pauses] == [0] * 6
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_clocks_that_jump(tiny, no_report, tmp_path, monkeypatch):
    """The time of day jumps by up to years, back and forth, at every look."""
    finish(tmp_path / "whole")
    jumps = random.Random(0)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1.7e9 + jumps.uniform(-3e8, 3e8))
        patch.setattr(time, "time_ns", lambda: int(1.7e18 + jumps.uniform(-3e17, 3e17)))
        finish(tmp_path / "run")
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    for record in RunFolder.open(tmp_path / "run").read_metrics():
        assert all(0 <= value < 600 for value in record["seconds"].values())


def test_files_from_the_future_and_the_past(tiny, no_report, tmp_path):
    """A run is resumed on a machine whose clock is wrong: times of files play no part."""
    finish(tmp_path / "whole")
    finish(tmp_path / "run", stop=StopAfter(18))
    for number, file in enumerate(sorted((tmp_path / "run").iterdir())):
        os.utime(file, (0, 0) if number % 2 else (4e9, 4e9))
    assert command("verify", tmp_path / "run").exit_code == 0
    assert command("resume", tmp_path / "run", "-q").exit_code == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")
