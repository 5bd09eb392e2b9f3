"""Runs that are evaluated, and take filter steps, less often than every epoch."""

import json

import pytest
from runs import StopAfter, config_of, epoch_record, filter_record, finish, result, timeless

import particleaugment as pa
from particleaugment.report.page import write_report
from particleaugment.runs.verify import verify
from particleaugment.training.config import ConfigError
from particleaugment.training.moments import falls_on, interval
from particleaugment.training.records import RecordError, parse_records
from particleaugment.training.run import RunFolder

SPARSE = ("epochs=8", "evaluate_every=3", "every=2")


def moments_of(path):
    return [(record["kind"], record["epoch"]) for record in timeless(path)]


def test_a_run_is_evaluated_when_asked_and_always_at_its_end(tiny, no_report, tmp_path):
    finish(tmp_path / "run", *SPARSE)
    expected = [("filter", 2), ("epoch", 3), ("filter", 4), ("epoch", 6), ("filter", 6), ("epoch", 8)]
    assert moments_of(tmp_path / "run") == expected
    schedule = pa.Schedule.load(tmp_path / "run" / "policy.json")
    assert [step.from_epoch for step in schedule.steps] == [1, 3, 5, 7]


def test_evaluations_do_not_change_what_is_trained(tiny, no_report, tmp_path):
    finish(tmp_path / "sparse", *SPARSE)
    finish(tmp_path / "dense", "epochs=8", "evaluate_every=1", "every=2")
    sparse, dense = result(tmp_path / "sparse"), result(tmp_path / "dense")
    assert sparse[1] == dense[1]
    assert [record for record in dense[2] if record["epoch"] in (3, 6, 8) or record["kind"] == "filter"] == sparse[2]


@pytest.mark.parametrize("moment", [2, 9, 17, 30])
def test_a_stopped_run_resumes_to_the_same_result(tiny, no_report, tmp_path, moment):
    finish(tmp_path / "whole", *SPARSE)
    _, ended = finish(tmp_path / "stopped", *SPARSE, stop=StopAfter(moment))
    assert not ended
    assert finish(tmp_path / "stopped")[1]
    assert result(tmp_path / "stopped") == result(tmp_path / "whole")


def test_a_sparse_run_is_sound_and_has_a_report(tiny, tmp_path):
    finish(tmp_path / "run", *SPARSE)
    verdict = verify(tmp_path / "run")
    assert verdict.sound
    assert any("8 epochs (3 evaluated)" in line for line in verdict.lines(100))
    assert write_report(RunFolder.open(tmp_path / "run")).exists()


def test_auto_spares_short_epochs_only():
    assert [interval("auto", epochs, 30) for epochs in (1, 100, 101, 250, 1000)] == [1, 1, 2, 3, 10]
    assert interval("auto", 1000, 100) == 1
    for epochs in range(1, 400):
        every = interval("auto", epochs, 10)
        moments = [epoch for epoch in range(1, epochs + 1) if falls_on(epoch, every, epochs)]
        assert moments[-1] == epochs
        assert min(epochs, 50) <= len(moments) <= 101


@pytest.mark.parametrize(
    "setting", ["evaluate_every=0", "evaluate_every=often", "every=0", "every=-3", "compile=maybe"]
)
def test_moments_that_cannot_be_are_refused(setting):
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        config_of(setting)


def content_of(*records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.mark.parametrize(
    ("epochs", "every", "problem"),
    [
        ((3, 6, 8), 3, None),
        ((3, 6, 8), "auto", None),
        ((8,), 30, None),
        ((3, 6, 8, 9), 3, "epoch 11 should come here, got epoch 9"),
        ((3, 9), 3, "epoch 6 should come here, got epoch 9"),
        ((3, 9), "auto", "epoch 6 should come here, got epoch 9"),
        ((3, 3), "auto", "epoch 6 should come here, got epoch 3"),
        ((6,), 3, "epoch 3 should come here, got epoch 6"),
    ],
)
def test_the_order_of_sparse_epochs(epochs, every, problem):
    content = content_of(*(epoch_record(epoch) for epoch in epochs))
    if problem is None:
        assert len(parse_records(content, every)) == len(epochs)
    else:
        with pytest.raises(RecordError, match=problem):
            parse_records(content, every)


def test_a_filter_step_betrays_a_missing_epoch():
    step = filter_record(1, epoch=4)
    assert parse_records(content_of(epoch_record(3), step), 3)
    with pytest.raises(RecordError, match="filter step 1 of epoch 4 does not belong after epoch 0"):
        parse_records(content_of(step, epoch_record(6)), 3)
