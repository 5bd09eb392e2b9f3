"""Searches logged to TensorBoard and to anything with a wandb-shaped ``log``."""

import sys
import types
from dataclasses import dataclass, replace

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from toy import network, search_of, step

import particleaugment as pa
from particleaugment.report.loggers import SearchLogger, heat_map, search_figures, search_metrics
from particleaugment.report.tensorboard import EventWriter
from particleaugment.search.filter_base import FilterRecord
from particleaugment.search.paper import ParticleRecord


def stepped(steps=2):
    search, model, record = search_of(), network(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(steps):
        record = step(search, model, optimizer)
    return search, record


class Target:
    """Has a ``log`` of wandb's shape and nothing else."""

    def __init__(self):
        self.calls = []

    def log(self, values, step=None):
        self.calls.append((step, values))


def test_numbers_and_figures_reach_any_log():
    search, record = stepped()
    target = Target()
    SearchLogger(target).log(search, record, step=17)
    ((step, values),) = target.calls
    assert step == 17
    assert values["filter/d0"] == record.d0
    assert values["filter/effective_sample_size"] == record.effective_sample_size
    assert values["filter/skipped"] == float(record.skip_reason is not None)
    assert values["policy/ops_per_image"] == pytest.approx(search.policy.ops_per_image)
    assert values["policy/Rotate"] == search.policy.inclusion["Rotate"]
    assert values["filter/seconds_clone"] > 0
    assert {name for name, value in values.items() if isinstance(value, Figure)} == {"policy/heat_map", "filter/delta"}


def test_the_heat_map_shows_every_epoch():
    search, record = stepped(3)
    figure = search_figures(search, record)["policy/heat_map"]
    shown = figure.axes[0].images[0].get_array()
    expected = [list(search.schedule(4).at(epoch).inclusion.values()) for epoch in (1, 2, 3, 4)]
    assert torch.equal(torch.tensor(shown.T.tolist()), torch.tensor(expected))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(pa.OPS)
    assert heat_map(search.policy, 2).axes[0].images[0].get_array().shape == (15, 2)


def test_figures_now_and_then():
    search, record = stepped()
    for every, drawn in ((0, False), (1, True), (2, True), (3, False)):
        target = Target()
        SearchLogger(target, every=every).log(search, record, step=1)
        assert ("policy/heat_map" in target.calls[0][1]) == drawn


def test_pictures_in_the_packages_own_image_class(monkeypatch):
    """A run of wandb gets wandb.Image; so does any package that is built like it."""
    board = types.ModuleType("board")
    board.Image = type("Image", (), {"__module__": "board", "__init__": lambda self, data: setattr(self, "data", data)})
    calls = []
    board.log = lambda values, step=None: calls.append(values)
    board.Run = type("Run", (Target,), {"__module__": "board.run"})
    monkeypatch.setitem(sys.modules, "board", board)
    search, record = stepped(1)
    SearchLogger(board).log(search, record, step=1)
    run = board.Run()
    SearchLogger(run).log(search, record, step=1)
    for values in (calls[0], run.calls[0][1]):
        assert isinstance(values["policy/heat_map"], board.Image)
        assert isinstance(values["policy/heat_map"].data, Image.Image)
        assert values["policy/heat_map"].data.width > 500
        assert isinstance(values["filter/d0"], float)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    search, record = stepped()
    with SummaryWriter(tmp_path) as writer:
        SearchLogger(writer).log(search, record, step=5)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("filter/d0")] == [(5, pytest.approx(record.d0))]
    assert set(events.Tags()["images"]) == {"policy/heat_map", "filter/delta"}


def test_runs_write_a_heat_map(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    search, _ = stepped()
    writer = EventWriter(tmp_path)
    writer.log_figure(3, search.schedule(3))
    writer.log_figure(3, pa.TrivialAugment())
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Images("policy/heat_map")] == [3]


def test_a_step_without_a_measurement_logs_what_there_is():
    search, record = stepped(1)
    lost = replace(record, delta=(float("nan"),) * 4, skip_reason="not finite")
    assert search_figures(search, lost).keys() == {"policy/heat_map"}
    assert search_metrics(search, lost)["filter/skipped"] == 1.0
    unmeasured = ParticleRecord(step=1, effective_sample_size=4.0, ops_per_image=0.5)
    assert search_figures(search, unmeasured).keys() == {"policy/heat_map"}
    assert "filter/d0" not in search_metrics(search, unmeasured)


def test_a_filter_of_a_new_kind_logs_its_own_numbers():
    @dataclass(frozen=True, kw_only=True)
    class Record(FilterRecord):
        share: float
        sudden: bool = True
        loss: float | None = None

    metrics = search_metrics(stepped(1)[0], Record(step=1, ops_per_image=0.5, share=0.25))
    own = {"filter/skipped": 0.0, "filter/share": 0.25, "filter/sudden": 1.0}
    assert {name: value for name, value in metrics.items() if name.startswith("filter/")} == own


def test_what_is_no_logger_is_refused():
    with pytest.raises(TypeError, match=r"a logger must have log\(values, step=...\) or be a SummaryWriter, got dict"):
        SearchLogger({})
