"""A policy of a new kind is one class: files, exports, workers and reports take it as it is."""

import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import particleaugment as pa
from particleaugment.augment.worker_state import LiveState
from particleaugment.policies import policy as policy_module
from particleaugment.policies.exports import export
from particleaugment.report.loggers import heat_map
from particleaugment.report.metrics import history
from particleaugment.report.summary import leading_ops
from particleaugment.training.config import Config
from particleaugment.training.settings import TrainingSettings

OPS = ("Rotate", "Color", "Posterize")


@pytest.fixture
def kinds(monkeypatch):
    """Leaves the registry of kinds as it was."""
    monkeypatch.setattr(policy_module, "_REGISTRY", dict(policy_module._REGISTRY))


@pytest.fixture
def mixture(kinds):
    @dataclass(frozen=True, eq=False)
    class Mixture(policy_module.Policy):
        """One op per image, drawn evenly, at its own level and applied with its own probability."""

        gates: Tensor = field(repr=False)
        levels: Tensor = field(repr=False)

        kind: ClassVar[str] = "mine"
        learned: ClassVar[bool] = True
        ops: ClassVar[tuple[str, ...]] = OPS

        def sample(self, ids, epoch=0, seed=0, size=(32, 32)):
            return self.static()[0].sample(ids, epoch, seed, size)

        @property
        def inclusion(self):
            return dict(zip(self.ops, (self.gates / len(self.ops)).tolist()))

        def static(self, epoch=None):
            self.at_or_last(epoch)
            rows = zip(self.ops, self.gates.tolist(), self.levels.tolist())
            return pa.SubPolicies(tuple((row,) for row in rows), "timm-increasing"), ["what a mixture is"]

        def numbers(self):
            return torch.stack([self.gates, self.levels])

        def with_numbers(self, numbers):
            return replace(self, gates=numbers[0], levels=numbers[1])

        def __post_init__(self):
            for name in ("gates", "levels"):
                object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))

        def __eq__(self, other):
            return isinstance(other, Mixture) and torch.equal(self.numbers(), other.numbers())

    return Mixture


def test_files(mixture, tmp_path):
    policy = mixture(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([2.0, 5.0, 8.0]))
    policy.save(tmp_path / "policy.json")
    assert pa.load_policy(tmp_path / "policy.json") == policy
    assert policy.rescaled(7) is policy
    with pytest.raises(ValueError, match="it names its own ops"):
        policy.with_ops(("Rotate",))


def test_exports(mixture):
    policy = mixture(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([2.0, 5.0, 8.0]))
    for target in ("timm", "torchvision"):
        made = export(policy, target)
        assert "Rotate" in made.text
        assert made.lost.startswith("Lost: what a mixture is")
    with pytest.raises(ValueError, match="the same in every epoch"):
        export(policy, "json", epoch=3)


def test_workers_see_its_numbers_change(mixture):
    first = mixture(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([2.0, 5.0, 8.0]))
    state = LiveState(first)
    worker = copy.copy(state)  # shares the memory, as a worker does
    state.policy = mixture(torch.tensor([0.0, 0.5, 0.5]), torch.tensor([1.0, 1.0, 1.0]))
    assert worker.policy == state.policy != first
    state.policy = pa.ParticlePolicy(torch.zeros(2, 2), torch.ones(2), ops=("Rotate", "Color"))
    with pytest.raises(RuntimeError, match="replaced by one of another type"):
        _ = worker.policy


def test_reports(mixture):
    policy = mixture(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([2.0, 5.0, 8.0]))
    lines = [{"kind": "epoch", "epoch": epoch, "seconds": {"train": 1.0}} for epoch in (1, 2)]
    found = history(Config(recipe="digits", training=TrainingSettings(epochs=2)), lines, policy)
    assert found.ops == OPS
    np.testing.assert_allclose(found.inclusion, [[1 / 6, 1 / 12, 1 / 3]] * 2, rtol=1e-6)
    np.testing.assert_allclose(found.ops_per_image, [7 / 12] * 2, rtol=1e-6)
    assert [name for name, _ in leading_ops(policy)] == ["Posterize", "Rotate", "Color"]
    assert policy.moments(2) == [("mine", policy)]
    labels = [label.get_text() for label in heat_map(policy, 2).axes[0].get_yticklabels()]
    assert sorted(labels) == sorted(OPS)


def test_what_a_class_leaves_out_is_said(kinds):
    class Bare(policy_module.Policy):
        kind = "bare"

        def sample(self, ids, epoch=0, seed=0, size=(32, 32)):
            return pa.Identity().sample(ids, epoch, seed, size)

        def to_dict(self):
            return {"kind": self.kind}

        @classmethod
        def _from_dict(cls, data):
            return cls()

    policy = Bare()
    assert (policy.ops, policy.inclusion, policy.ops_per_image, policy.distinct) == ((), {}, 0, None)
    assert policy.numbers() is None
    assert policy.tables((32, 32)) is None
    with pytest.raises(ValueError, match="of kind 'bare' cannot be exported"):
        export(policy, "timm")
    with pytest.raises(ValueError, match="of kind 'bare' has no particles"):
        policy.sample_particle(torch.zeros(1), torch.arange(1))
    with pytest.raises(ValueError, match="of kind 'bare' has no numbers"):
        policy.with_numbers(torch.zeros(1))
