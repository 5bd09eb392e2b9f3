"""Ctrl-C and SIGTERM, really sent, in every part of a run: the first one saves, the second one ends it at once."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from runs import TINY_OPTIONS, command, finish, leave_out_report, on_few, result

from particleaugment.policies import parse
from particleaugment.report import page
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.training import session
from particleaugment.training.checkpoint import find_checkpoints, load_latest
from particleaugment.util.stop import Stop, StopNow

SETTINGS = TINY_OPTIONS
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, few_digits):
    path = tmp_path_factory.mktemp("runs") / "whole"
    with on_few(few_digits) as patch:
        leave_out_report(patch)
        finish(path)
    return result(path)


def signalling(work, *numbers, at=1):
    """Return a function that does the work, and sends this process signals at the n-th call, just before it."""
    calls = []

    def wrapped(*arguments, **keywords):
        calls.append(None)
        if len(calls) == at:
            for number in numbers:
                os.kill(os.getpid(), number)
        return work(*arguments, **keywords)

    return wrapped


def train(path, *arguments):
    return command("train", *SETTINGS, "--out", path, "--checkpoint-seconds", 0, *arguments)


def goes_on(path, undisturbed):
    outcome = command("resume", path, "-q")
    assert (outcome.exit_code, outcome.output) == (0, "")
    assert result(path) == undisturbed


# What is called, the number of the call that the signal comes before, and the epoch of the checkpoint before that.
PLACES = {
    "set-up": (session, "build", 1, None),
    "training": (EagerTrainee, "train", 5, 3),
    "the clone": (EagerTrainee, "train", 4, 2),
    "evaluation": (EagerTrainee, "evaluate", 2, 2),
    "the filter's measurement": (EagerTrainee, "measure", 2, None),
    "a checkpoint": (session, "save_checkpoint", 2, 2),
}
LATE = {
    "the file of a checkpoint": (os, "replace", 3, 2),
    "the report": (page, "write_report", 1, 4),
}


def in_turn(places):
    """Every place with one of the signals, in turn."""
    return [(place, (signal.SIGINT, signal.SIGTERM)[turn % 2]) for turn, place in enumerate(places)]


@pytest.mark.parametrize(("place", "number"), in_turn(PLACES))
def test_the_first_signal_saves(place, number, tiny, no_report, undisturbed, tmp_path, monkeypatch):
    path, (owner, name, at, _) = tmp_path / "run", PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalling(getattr(owner, name), number, at=at))
        outcome = train(path)
    assert outcome.exit_code == 128 + number
    assert outcome.stderr == ""
    early = place == "set-up"
    what = "stopped before the first batch" if early else "stopped and saved"
    assert outcome.stdout.splitlines()[-1] == f"{what}; continue with: particleaugment resume {path}"
    assert bool(find_checkpoints(path)) != early
    goes_on(path, undisturbed)


@SIGNALS
def test_a_signal_during_the_report_comes_too_late(number, tiny, no_report, undisturbed, tmp_path, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setattr(page, "write_report", signalling(page.write_report, number))
    outcome = train(path, "-q")
    assert (outcome.exit_code, outcome.output) == (0, ""), "all is computed and saved: the run ends"
    assert result(path) == undisturbed


@pytest.mark.parametrize(("place", "number"), in_turn([*reversed(PLACES), *LATE]))
def test_the_second_signal_ends_at_once(place, number, tiny, no_report, undisturbed, tmp_path, monkeypatch):
    path, (owner, name, at, epoch) = tmp_path / "run", (PLACES | LATE)[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalling(getattr(owner, name), number, number, at=at))
        outcome = train(path)
    assert outcome.exit_code == 128 + number
    assert outcome.stderr == "particleaugment: stopped immediately; the last checkpoint is kept\n"
    state, problems = load_latest(path)
    assert problems == []
    assert (state["position"]["epoch"] if state else None) == epoch, "nothing older than the last checkpoint is lost"
    goes_on(path, undisturbed)


def test_the_second_signal_gives_the_code():
    for first, second in ((signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
        with Stop():
            os.kill(os.getpid(), first)
            with pytest.raises(StopNow) as caught:
                os.kill(os.getpid(), second)
            assert caught.value.exit_code == 128 + second


@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_a_closed_output_saves(tmp_path, both):
    path = tmp_path / "my run"
    chosen = ("epochs=1000", "evaluate_every=1", "policy=none", "train_size=200", "device=cpu")
    settings = [word for setting in chosen for word in ("--set", setting)]
    command_line = ["train", "digits", "--out", path, *settings, "--checkpoint-seconds", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "particleaugment", *map(str, command_line)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
    )
    while not process.stdout.readline().startswith(b"epoch 1/1000"):
        assert process.poll() is None
    process.stdout.close()
    errors = b"" if both else process.stderr.read()
    assert process.wait(120) == 141
    resume = f"particleaugment resume '{path}'"
    assert both or errors.decode() == (
        f"particleaugment: the output was closed: stopped and saved; continue with: {resume}\n"
    )
    state, problems = load_latest(path)
    assert (state["position"]["epoch"] >= 2, problems) == (True, [])


@contextlib.contextmanager
def unread_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def ended_without_a_reader(*arguments, **environment):
    """The exit code of a command whose output nobody reads, and what it writes to standard error."""
    command_line = [sys.executable, "-m", "particleaugment", *map(str, arguments)]
    with unread_pipe() as writer:
        ended = subprocess.run(
            command_line, env=os.environ | environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
        )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", ["list", "train --help", "policy show policy.json", "verify nothing-here"])
def test_a_command_whose_output_is_closed_ends_as_others_do(tmp_path, monkeypatch, words, unbuffered):
    monkeypatch.chdir(tmp_path)
    parse("trivial").save("policy.json")
    assert ended_without_a_reader(*words.split(), PYTHONUNBUFFERED=unbuffered) == (141, "")


def test_a_finished_run_whose_output_is_closed(tiny, no_report, tmp_path):
    finish(tmp_path / "run")
    assert ended_without_a_reader("resume", tmp_path / "run") == (141, "")
