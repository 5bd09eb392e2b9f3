"""TensorBoard events: scalars of every record and images of the policy."""

import resource

import pytest
import torch

import particleaugment as pa
from particleaugment.report.tensorboard import EventWriter
from particleaugment.util.atomic import SaveError

RECORD = {"kind": "epoch", "epoch": 3, "train_loss": 0.5, "test_loss": 0.6, "test_accuracy": 90.0, "learning_rate": 0.1}


def test_events_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = EventWriter(tmp_path)
    writer.log(RECORD | {"seconds": {"train": 1.5}})
    step = {
        "kind": "filter",
        "epoch": 3,
        "step": 2,
        "skip_reason": None,
        "ops_per_image": 0.5,
        "share": 0.5,
        "lost": None,
    }
    writer.log(step | {"seconds": {"filter": 0.5}})
    policy = pa.ParticlePolicy(torch.full((2, 15), 0.25), torch.ones(2), m=3)
    writer.log_policy(3, policy, torch.zeros(20, 3, 32, 32, dtype=torch.uint8))
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    accuracy = events.Scalars("epoch/test_accuracy")
    assert [(event.step, event.value) for event in accuracy] == [(3, 90.0)]
    of_filter = {name for name in events.Tags()["scalars"] if name.startswith("filter/")}
    assert of_filter == {"filter/share", "filter/skipped"}
    assert events.Scalars("policy/Rotate")[0].value == pytest.approx(0.25)
    assert "policy/augmented" in events.Tags()["images"]


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    writer = EventWriter(tmp_path)
    writer.log(RECORD | {"seconds": {}})
    writer.log_policy(1, pa.Identity(), None)
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_made_or_does_not_fit_is_named(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    record = RECORD | {"seconds": {}}

    def no_inodes(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("particleaugment.util.atomic.os.open", no_inodes)
        with pytest.raises(SaveError, match=r"tfevents\S+ cannot be written: No space left on device"):
            EventWriter(tmp_path).log(record)
    writer = EventWriter(tmp_path)
    writer.log(record)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(SaveError, match=r"tfevents\S+ cannot be written: (File too large|No space left)"):
            writer.log(record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.close()
