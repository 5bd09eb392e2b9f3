"""Stopping and going on: a run that was interrupted ends as one that never was."""

import contextlib
import io
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from runs import TINY_OPTIONS, Bomb, StopAfter, command, config_of, finish, on_few, result, sealed, session_of

import particleaugment as pa
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.training import loop
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.display import Display
from particleaugment.training.run import RunError, RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop, Stopped


@pytest.mark.parametrize(("filter", "turns"), [("paper", 3), ("difficulty", 2)])
def test_a_run_stopped_after_any_batch_goes_on_exactly(tiny, no_report, tmp_path, filter, turns):
    settings = [f"filter={filter}", "epochs=2"]
    counter = StopAfter(10**9)
    finish(tmp_path / "whole", *settings, stop=counter)
    checks = 10**9 - counter.left
    assert checks == 3 + 1 + turns + 3 + 1, "train, evaluate, filter, train, evaluate"
    expected = result(tmp_path / "whole")
    for number in range(1, checks + 1):
        path = tmp_path / f"stopped-{number}"
        _, ended = finish(path, *settings, stop=StopAfter(number))
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


@pytest.mark.parametrize("filter", ["paper", "difficulty"])
def test_a_run_killed_at_any_file_operation_goes_on_exactly(tiny, no_report, tmp_path, monkeypatch, filter):
    settings = [f"filter={filter}", "epochs=2"]
    assert finish(tmp_path / "whole", *settings)[1]
    expected = result(tmp_path / "whole")
    path, allowed, kills = tmp_path / "run", 0, set()
    RunFolder.create(path, config_of(*settings))
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
            for name in ("fsync", "replace", "unlink"):
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
    assert "damaged or truncated: its checksum does not match; using the previous one" in console.file.getvalue()
    assert loop.train(session)
    assert result(path) == result(tmp_path / "whole")


def test_a_run_does_not_go_on_with_other_data(few_digits, no_report, tmp_path):
    path, labels = tmp_path / "run", few_digits.train_labels
    pixels = few_digits.train_images.clone()
    pixels[:, :, 0, 0] ^= 1
    one_pixel = few_digits.test_images.clone()
    one_pixel[7, 1, 5, 5] ^= 1
    others = {
        "labels": replace(few_digits, train_labels=(labels + 1) % 10),
        "class names": replace(few_digits, classes=(*few_digits.classes[1:], few_digits.classes[0])),
        "images": replace(few_digits, train_images=pixels),
        "one pixel": replace(few_digits, test_images=one_pixel),
        "fewer": replace(few_digits, test_images=few_digits.test_images[:19], test_labels=few_digits.test_labels[:19]),
    }
    with on_few(few_digits):
        finish(path, stop=StopAfter(18))
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != ".lock"}
    for what, data in others.items():
        with on_few(data):
            outcome = command("resume", path, "--quiet")
        assert outcome.exit_code == 1, what
        assert f"the data differ from those that the run in {path} was started with" in outcome.stderr
    assert {name: (path / name).read_bytes() for name in kept} == kept
    with on_few(few_digits):
        assert command("resume", path, "--quiet").exit_code == 0


def test_a_run_goes_on_with_data_that_were_moved(tiny, no_report, tmp_path):
    finish(tmp_path / "whole")
    path, elsewhere = tmp_path / "run", tmp_path / "else where"
    finish(path, stop=StopAfter(18))
    outcome = command("resume", path, "--quiet", "--data-dir", elsewhere)
    assert outcome.exit_code == 0, outcome.output
    assert RunFolder.open(path).config.data.data_dir == str(elsewhere)
    assert result(path) == result(tmp_path / "whole")


def test_data_that_moved_to_the_hub_keep_their_name(tmp_path):
    run = RunFolder(tmp_path, config_of("data=hf", "data_dir=/old/place"))
    assert run.with_data_in(Path("ylecun/mnist")).config.data.data_dir == "ylecun/mnist"
    assert run.with_data_in(tmp_path).config.data.data_dir == str(tmp_path)


@pytest.mark.parametrize("stream", ["stream=false", "stream=true"])
def test_a_run_on_a_folder_goes_on_from_another_working_directory(no_report, tmp_path, monkeypatch, stream):
    for number in range(24):
        file = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (10 * number, 9 * number, 8 * number)).save(file)
    small = [
        "epochs=2",
        "policy=none",
        "model=wrn-10-1",
        "image_size=16",
        "batch_size=8",
        "device=cpu",
        "workers=0",
        stream,
    ]
    options = [word for setting in ("data=folder:images", *small) for word in ("--set", setting)]
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("particleaugment.training.distributed.StopTogether.check", StopAfter(6).check)
        assert command("train", "folder", "--out", "run", "--quiet", *options).exit_code == 130
    assert find_checkpoints(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    first, last = tmp_path / "images" / "a" / "0.png", tmp_path / "images" / "b" / "23.png"
    contents = first.read_bytes(), last.read_bytes()
    first.write_bytes(contents[1])
    last.write_bytes(contents[0])
    outcome = command("resume", tmp_path / "run", "--quiet")
    assert outcome.exit_code == 1
    assert "the data differ from those that the run" in outcome.stderr, "pixels were swapped between the classes"
    first.write_bytes(contents[0])
    last.write_bytes(contents[1])
    outcome = command("resume", tmp_path / "run", "--quiet")
    assert (outcome.exit_code, outcome.output) == (0, "")


def test_data_that_are_refused_change_nothing(few_digits, no_report, tmp_path):
    path = tmp_path / "run"
    with on_few(few_digits):
        finish(path, stop=StopAfter(18))
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != ".lock"}

    def refused(message, code):
        outcome = command("resume", path, "--quiet", "--data-dir", tmp_path / "nowhere")
        assert outcome.exit_code == code
        assert message in outcome.stderr
        assert {name: (path / name).read_bytes() for name in kept} == kept

    with RunFolder.open(path).locked():
        refused(f"{path} is in use by ", 1)
    with on_few(replace(few_digits, classes=few_digits.classes[::-1])):
        refused("the data differ from those that the run", 1)
    with on_few(few_digits) as patch:

        def missing(*_, **__):
            raise ValueError("there is no such folder")

        patch.setattr("particleaugment.training.build.load_data", missing)
        refused("there is no such folder", 2)
    with on_few(few_digits):
        assert command("resume", path, "--quiet").exit_code == 0
        config = (path / "config.json").read_bytes()
        outcome = command("resume", path, "--data-dir", tmp_path / "nowhere")
    assert outcome.exit_code == 0
    assert "is finished: there is nothing to resume." in outcome.stdout
    assert (path / "config.json").read_bytes() == config == kept["config.json"]


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
    refused("does not belong to the run's config.json")
    (path / "config.json").write_bytes(kept["config.json"])

    (path / "metrics.jsonl").write_bytes(kept["metrics.jsonl"][:-1])
    refused("is shorter than when its checkpoint was written")
    (path / "metrics.jsonl").write_bytes(kept["metrics.jsonl"])

    canary = tmp_path / "canary"
    for file in find_checkpoints(path):
        buffer = io.BytesIO()
        torch.save({"config": config_of().to_json(), "bomb": Bomb(canary)}, buffer)
        file.write_bytes(sealed(buffer.getvalue()))
    refused("no checkpoint can be used")
    assert not canary.exists()
    for name, content in kept.items():
        (path / name).write_bytes(content)
    assert finish(path)[1]


def test_divergence_is_reported_with_what_to_do(tiny, tmp_path):
    path = tmp_path / "run"
    settings = [*TINY_OPTIONS, "--set", "learning_rate=1e20"]
    outcome = command("train", *settings, "--out", path, "--quiet")
    assert outcome.exit_code == 1
    assert re.search(
        "the training loss is (nan|inf) in epoch 1, batch 2: nothing is saved, and there is no checkpoint yet; "
        "try a lower learning_rate",
        outcome.stderr,
    )
    assert not (path / "model.safetensors").exists()


def test_an_error_while_training_is_no_invalid_request(tiny, no_report, tmp_path, monkeypatch):
    path, train_batch, calls = tmp_path / "run", Learner.train_batch, []

    def failing(self, images, labels, weight):
        calls.append(len(images))
        if len(calls) == 6:
            raise ValueError("no such thing")
        return train_batch(self, images, labels, weight)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "train_batch", failing)
        outcome = command("train", *TINY_OPTIONS, "--out", path, "--quiet", "--checkpoint-seconds", 0)
    assert outcome.exit_code == 1
    kept = path / "checkpoint-00000000.pt"
    sentence = f"the run failed (ValueError: no such thing); the last good checkpoint is {kept}"
    assert outcome.stderr == f"particleaugment: {sentence}\n"
    assert command("resume", path, "--quiet").exit_code == 0
    finish(tmp_path / "whole")
    assert result(path) == result(tmp_path / "whole")


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
    with pytest.raises(RunError, match="the training loss is nan in epoch 1, batch 3: nothing is saved"):
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
    settings = TINY_OPTIONS
    train_batch, calls = Learner.train_batch, []

    def interrupted(self, images, labels, weight):
        calls.append(len(images))
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return train_batch(self, images, labels, weight)

    monkeypatch.setattr(Learner, "train_batch", interrupted)
    outcome = command("train", *settings, "--out", path)
    assert outcome.exit_code == 128 + number
    assert outcome.stdout.splitlines()[-1] == f"stopped and saved; continue with: particleaugment resume '{path}'"
    assert len(calls) == 2, "the batch is finished and no other begun"
    outcome = command("resume", path)
    assert outcome.exit_code == 0
    assert f"resuming {path} in epoch 1 of 3" in outcome.stdout
    finish(tmp_path / "whole")
    assert result(path) == result(tmp_path / "whole")
