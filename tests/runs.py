"""Small runs that several folders of tests share: 60 digits, three epochs, a few particles."""

import contextlib
import hashlib
import json
import os
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.data import load_digits
from particleaugment.recipes import get_recipe
from particleaugment.report.report_and_events import ReportAndEvents
from particleaugment.training import checkpoint, loop
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop, Stopped

TINY = ["epochs=3", "batch_size=20", "clone_size=20", "measure_size=10", "num_particles=4", "precision=fp32"]
TINY_DIFFICULTY = [setting for setting in TINY if not setting.startswith(("clone_size", "num_particles"))]
TINY_OPTIONS = ["--set", "filter=paper", *(part for setting in TINY for part in ("--set", setting))]
"""The paper's filter on the command line: it has every phase that a step can have, the clone's training among them."""


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


@contextlib.contextmanager
def on_few(digits):
    """Runs train on these digits, in one thread: several would wait for each other, and sum in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("particleaugment.training.build.load_data", lambda name, *_, **__: digits)
        yield patch
    torch.set_num_threads(threads)


@pytest.fixture
def tiny(few_digits):
    """Runs on 60 digits instead of 1437."""
    with on_few(few_digits):
        yield


def leave_out_report(patch):
    """Draw nothing at the end of runs: the report and TensorBoard's figure take longer than a tiny one."""
    patch.setattr("particleaugment.report.page.write_report", lambda run: run.path / "report.html")
    patch.setattr("particleaugment.report.tensorboard.EventWriter.log_figure", lambda events, epochs, policy: None)


@pytest.fixture
def no_report(monkeypatch):
    """Reports and figures have their own tests."""
    leave_out_report(monkeypatch)


def config_of(*assignments):
    """A tiny run by the paper's filter, or by the one that the settings name."""
    tiny = TINY_DIFFICULTY if "filter=difficulty" in assignments else TINY
    return get_recipe("digits").override(["filter=paper", *tiny, *assignments])


def session_of(path, *assignments, stop=None, checkpoint_seconds=0.0):
    run = RunFolder.open(path) if path.exists() else RunFolder.create(path, config_of(*assignments))
    return Session(run, Display(quiet=True), stop or Stop(), checkpoint_seconds, extras=ReportAndEvents(run))


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


def epoch_record(epoch, **fields):
    """A line of metrics."""
    return {
        "kind": "epoch",
        "epoch": epoch,
        "train_loss": 1.5,
        "test_loss": 1.0,
        "test_accuracy": 50.0,
        "learning_rate": 0.1,
        "seconds": {"train": 1.0, "resumes": 0},
    } | fields


def filter_record(step, **fields):
    """A line of metrics of the filter step after the epoch of the same number."""
    return {
        "kind": "filter",
        "epoch": step,
        "step": step,
        "d0": 3.0,
        "delta": [1.0, 0.5, None],
        "standard_error": [0.1, 0.1, None],
        "skip_reason": None,
        "effective_sample_size": 3.0,
        "resampled": False,
        "ops_per_image": 0.7,
        "seconds": {"clone": 0.5, "resumes": 0},
    } | fields


def command(*arguments):
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome


class StopAfter(Stop):
    """Asks for a stop at the n-th time that it is looked at."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def check(self):
        self.left -= 1
        if self.left == 0:
            raise Stopped


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def sealed(payload):
    """A checkpoint whose checksum is right."""
    return checkpoint._MAGIC + hashlib.sha256(payload).digest() + payload
