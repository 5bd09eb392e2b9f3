"""The loop: what is trained and measured when, and what a run leaves."""

import json

import pytest
import torch
from runs import StopAfter, config_of, finish, result, session_of, timeless
from safetensors import safe_open
from safetensors.torch import load as from_safetensors
from torch import nn

import particleaugment as pa
from particleaugment.data import epoch_permutation
from particleaugment.models import build_model
from particleaugment.search import paper
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.training import loop
from particleaugment.training.config import ConfigError
from particleaugment.training.session import learning_rate


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
        metadata = file.metadata()
    own = {"format": "pt", "model": "wrn-10-1", "data": "digits", "seed": "0", "size": "32", "margin": "1.0"}
    assert metadata.items() >= own.items()
    assert json.loads(metadata["classes"]) == [str(digit) for digit in range(10)]


def test_identical_configurations_give_identical_files(tiny, no_report, tmp_path):
    for name in ("one", "two"):
        finish(tmp_path / name)
    finish(tmp_path / "three", "seed=1")
    assert result(tmp_path / "one") == result(tmp_path / "two")
    assert all(a != b for a, b in zip(result(tmp_path / "one"), result(tmp_path / "three")))
    text = (tmp_path / "one" / "policy.json").read_text() + (tmp_path / "one" / "metrics.jsonl").read_text()
    assert str(tmp_path) not in text


def test_the_searchs_step_in_a_run_is_the_filters(tiny, no_report, tmp_path):
    session = session_of(tmp_path / "run", "epochs=2")
    start = session.search.state
    measured = []
    probe = paper.probe

    def noting(*arguments, **keywords):
        measured.append(probe(*arguments, **keywords))
        return measured[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "probe", noting)
        loop.train(session)
    filter = session.search.filter
    expected, record = filter.update(filter.moved(start), measured[0])
    assert session.search.state == expected
    logged = timeless(tmp_path / "run")[1]
    assert logged["d0"] == record.d0
    assert logged["delta"] == list(record.delta)
    assert logged["skip_reason"] == record.skip_reason


DIFFICULTY = ("filter=difficulty", "measure_size=10", "every=1")


def test_held_out_samples_are_trained_on_in_the_last_fifth_alone(tiny, no_report, tmp_path, monkeypatch):
    trained, original = [], EagerTrainee.train

    def noted(self, policy, ids, *arguments, **options):
        trained.append(ids.tolist())
        return original(self, policy, ids, *arguments, **options)

    monkeypatch.setattr(EagerTrainee, "train", noted)
    session, _ = finish(tmp_path / "run", *DIFFICULTY, "epochs=5")
    expected = session.search.division.ids_in(1)
    assert len(expected) == 50
    assert len(trained) == 5
    assert all(sorted(set(ids)) == expected.tolist() for ids in trained[:4])
    assert all(len(ids) == 60 for ids in trained), "an epoch has as many steps as without a filter"
    assert sorted(trained[4]) == list(range(60))
    assert all(0 < record["train_loss"] < 10 for record in timeless(tmp_path / "run") if record["kind"] == "epoch")


@pytest.mark.parametrize("looks", [2, 9, 13, 22, 24])
def test_a_run_that_follows_the_difficulty_goes_on_where_it_was(tiny, no_report, tmp_path, looks):
    assert finish(tmp_path / "whole", *DIFFICULTY, "epochs=5")[1]
    assert not finish(tmp_path / "stopped", *DIFFICULTY, "epochs=5", stop=StopAfter(looks))[1]
    assert finish(tmp_path / "stopped")[1]
    assert result(tmp_path / "stopped") == result(tmp_path / "whole")


def test_an_image_that_is_left_over_does_not_end_a_run(tiny, no_report, tmp_path):
    """Batch norm sees one pixel an image in the end, and refuses to train on one image."""
    settings = (*DIFFICULTY, "model=resnet-18", "batch_size=7", "epochs=1")
    assert finish(tmp_path / "whole", *settings)[1]
    assert not finish(tmp_path / "stopped", *settings, stop=StopAfter(6))[1]
    assert finish(tmp_path / "stopped")[1]
    assert result(tmp_path / "stopped") == result(tmp_path / "whole")


@pytest.mark.parametrize("filter", ["difficulty", "paper"])
def test_a_measurement_larger_than_the_data_is_refused_before_training(tiny, tmp_path, filter):
    with pytest.raises(ConfigError, match=r"the search does not fit the data: .*measure_size"):
        session_of(tmp_path / "run", f"filter={filter}", "measure_size=61")
