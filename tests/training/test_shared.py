"""Runs that follow each other in one process compute what they would compute alone."""

import pytest
import torch
from runs import config_of, finish, result

from particleaugment.training import loop
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.training.shared import SharedParts
from particleaugment.util.stop import Stop


def shared_session(path, shared, *assignments):
    run = RunFolder.create(path, config_of(*assignments))
    return Session(run, Display(quiet=True), Stop(), 0.0, shared=shared)


def test_shared_runs_equal_separate_ones(tiny, no_report, tmp_path):
    shared = SharedParts()
    settings = [("seed=0",), ("seed=1", "policy=trivial"), ("seed=0",), ("seed=2", "model=wrn-10-2")]
    networks = []
    for number, assignments in enumerate(settings):
        session = shared_session(tmp_path / f"shared-{number}", shared, *assignments)
        networks.append(session.model)
        assert loop.train(session)
        finish(tmp_path / f"alone-{number}", *assignments)
        assert result(tmp_path / f"shared-{number}") == result(tmp_path / f"alone-{number}")
    assert networks[0] is networks[1] is networks[2], "one network served three runs"
    assert networks[3] is not networks[0]


def test_data_are_loaded_once(few_digits, no_report, tmp_path, monkeypatch):
    loads = []

    def load(name, *_, **options):
        loads.append(name)
        return few_digits

    monkeypatch.setattr("particleaugment.training.build.load_data", load)
    shared = SharedParts()
    for number, assignments in enumerate([("seed=0",), ("seed=1",), ("seed=2", "validation=10")]):
        shared_session(tmp_path / str(number), shared, *assignments)
    assert len(loads) == 2, "other data settings load again"


def test_a_shared_run_writes_no_report_and_no_events(tiny, tmp_path):
    pytest.importorskip("tensorboard")
    assert loop.train(shared_session(tmp_path / "run", SharedParts(), "policy=none"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "metrics.jsonl", "policy.json"} <= names
    assert not names & {"report.html", "tensorboard"}


def test_shake_shake_is_never_shared(tiny, tmp_path):
    shared = SharedParts()
    small = "model=shake-shake-26-2x2d"
    first = shared_session(tmp_path / "a", shared, small, "policy=none")
    second = shared_session(tmp_path / "b", shared, small, "policy=none")
    assert first.model is not second.model
    assert all(torch.equal(*pair) for pair in zip(first.model.parameters(), second.model.parameters()))
