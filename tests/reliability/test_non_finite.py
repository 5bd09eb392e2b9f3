"""Losses that are not finite: in training they stop the run and are not kept, in a filter step they are passed over."""

import json
import math
import re

import pytest
import torch
from runs import TINY_OPTIONS, command, finish, leave_out_report, result, session_of, timeless

from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.trainee.ranks import Ranks, ReportedByFirst
from particleaugment.training import loop
from particleaugment.training.checkpoint import find_checkpoints, load_latest
from particleaugment.training.run import RunError


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_training_stops_and_names_epoch_batch_and_checkpoint(value, tiny, no_report, tmp_path, monkeypatch):
    path = tmp_path / "run"
    losses, calls = Learner._losses, []

    def sometimes(self, model, images, targets):
        found = losses(self, model, images, targets)
        if self.model.training and torch.is_grad_enabled() and len(find_checkpoints(path)) == 1:
            calls.append(len(images))
            return found * value if len(calls) == 2 else found
        return found

    monkeypatch.setattr(Learner, "_losses", sometimes)
    settings = TINY_OPTIONS
    outcome = command("train", *settings, "--out", path, "--checkpoint-seconds", 0, "-q")
    assert outcome.exit_code == 1
    kept = find_checkpoints(path)
    assert outcome.stderr == (
        f"particleaugment: the training loss is {value} in epoch 2, batch 2: nothing is saved, and the last good "
        f"checkpoint is {kept[-1]}; try a lower learning_rate\n"
    )
    monkeypatch.undo()
    state, problems = load_latest(path)
    assert (state["position"]["epoch"], state["position"]["batch"], problems) == (2, 0, [])
    assert all(bool(tensor.isfinite().all()) for tensor in state["model"].values())


def test_it_goes_on_from_the_last_good_checkpoint(tiny, no_report, tmp_path, monkeypatch):
    finish(tmp_path / "whole")
    path, train = tmp_path / "run", EagerTrainee.train

    def diverging(self, policy, ids, epoch_key, **options):
        if epoch_key == 2:
            raise NonFiniteLoss("the training loss is nan")
        return train(self, policy, ids, epoch_key, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EagerTrainee, "train", diverging)
        with pytest.raises(RunError, match=r"the training loss is nan in epoch 2, batch \d: nothing is saved"):
            finish(path)
    finish(path)
    assert result(path) == result(tmp_path / "whole")


def test_a_network_that_is_not_finite_reaches_no_checkpoint(tiny, no_report, tmp_path):
    session = session_of(tmp_path / "run")
    with torch.no_grad():
        session.model.head.bias[3] = math.inf
    with pytest.raises(RunError, match="the network contains non-finite numbers in epoch 1, batch 1"):
        session.save()
    session.position.phase = "evaluate"
    with pytest.raises(RunError, match=r"the test loss is (nan|inf) in epoch 1"):
        session.evaluate()
    session.ranks = Ranks(rank=1)
    with pytest.raises(ReportedByFirst, match="the test loss is"):
        session.evaluate()
    assert find_checkpoints(tmp_path / "run") == []
    assert not session.run.metrics.exists()


@pytest.mark.parametrize("spoiled", ["clone", "before", "after"])
def test_a_filter_step_is_passed_over_counted_and_reported(spoiled, tiny, tmp_path, monkeypatch):
    if spoiled != "clone":
        leave_out_report(monkeypatch)
    train, measure, done = EagerTrainee.train, EagerTrainee.measure, []

    def training(self, policy, ids, epoch_key, *, phase="train", **options):
        if spoiled == "clone" and phase == "train clone" and not done:
            done.append(phase)
            with torch.no_grad():
                self.model.head.bias.fill_(math.inf)  # the clone's, which is thrown away
        return train(self, policy, ids, epoch_key, phase=phase, **options)

    def measuring(self, policy, ids, epoch_key, *, phase, **options):
        ref, clean = measure(self, policy, ids, epoch_key, phase=phase, **options)
        if phase == f"measure {spoiled}" and not done:
            done.append(phase)
            ref[1, 2] = math.nan
        return ref, clean

    monkeypatch.setattr(EagerTrainee, "train", training)
    monkeypatch.setattr(EagerTrainee, "measure", measuring)
    path = tmp_path / "run"
    settings = TINY_OPTIONS
    outcome = command("train", *settings, "--out", path)
    assert outcome.exit_code == 0, outcome.stderr
    assert len(done) == 1
    steps = [record for record in timeless(path) if record["kind"] == "filter"]
    assert re.search("not finite", steps[0]["skip_reason"])
    skipped = sum(step["skip_reason"] is not None for step in steps)
    assert f"{len(steps)} steps, {skipped} skipped" in outcome.stdout
    if spoiled == "clone":
        assert f"{skipped} skipped updates, with reasons" in (path / "report.html").read_text()
    weights = json.loads((path / "policy.json").read_text())["steps"]
    assert weights[1]["weights"] == weights[0]["weights"], "the weights stay as they were"


def test_the_network_does_not_feel_a_diverged_clone(tiny, no_report, tmp_path, monkeypatch):
    session = session_of(tmp_path / "run", "epochs=2")
    before = {}

    def diverging(self, policy, ids, epoch_key, *, phase="train", **options):
        if phase == "train clone":
            before.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            with torch.no_grad():
                self.model.head.weight.fill_(math.nan)
        return train(self, policy, ids, epoch_key, phase=phase, **options)

    train = EagerTrainee.train
    monkeypatch.setattr(EagerTrainee, "train", diverging)
    session.train_epoch()
    session.evaluate()
    session.filter_step()
    assert before
    assert all(torch.equal(tensor, before[name]) for name, tensor in session.model.state_dict().items())
    session.finish_epoch()
    assert loop.train(session)
