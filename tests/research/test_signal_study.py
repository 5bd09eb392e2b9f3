"""The signal study's arithmetic, and its page."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import particleaugment as pa

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "research"), str(ROOT / "benchmarks")]

import matched_schedule  # noqa: E402
import old_names  # noqa: E402
import signal_alignment as alignment  # noqa: E402
import signal_statistics as study  # noqa: E402
from signal_average import WeightAverage, estimate_batch_statistics  # noqa: E402

NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=20)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(NUMBERS)
def test_rank_correlations_are_scipys(pairs):
    first, second = (np.array(column, dtype=float) for column in zip(*pairs))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert study.spearman(first, second) == 0
    else:
        assert study.spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=50)
    assert study.jackknife(list(values), np.mean) == pytest.approx(stats.sem(values))


def results(noise, seed=0):
    generator = np.random.default_rng(seed)
    worth = generator.normal(size=15)
    signal = np.concatenate([generator.normal(size=50), worth])
    models = [{"good": list(signal + noise * generator.normal(size=65)), "d_0": [float(i - 2)]} for i in range(8)]
    truth = {f"op{i}": {str(s): {"accuracy": 80 + w, "train_loss": 1.0} for s in range(2)} for i, w in enumerate(worth)}
    shuffled = dict(sorted(truth.items(), key=lambda item: item[1]["0"]["accuracy"]))  # as runs happen to end
    return {"repeatability": {"large": {"moments": {"low": models}}}, "truth": shuffled}


def test_a_planted_signal_repeats_and_predicts():
    found = study.summary(results(0.1), 50, [f"op{i}" for i in range(15)])
    assert found["repeatability"]["good"]["large low sparse"]["spearman"] > 0.95
    assert found["validity"]["good"]["large low"]["spearman"] > 0.95
    assert found["validity"]["good"]["large low"]["p"] < 0.01
    assert found["repeatability"]["d_0 <= 0"]["large low"]["share"] == 3 / 8
    assert abs(found["shuffled"]["spearman"]) < 0.02


def test_noise_does_neither():
    found = study.summary(results(1000.0), 50, [f"op{i}" for i in range(15)])
    entry = found["repeatability"]["good"]["large low sparse"]
    assert abs(entry["spearman"]) < 4 * max(entry["error"], 0.03)
    assert found["validity"]["good"]["large low"]["p"] > 0.01


def test_the_page_is_up_to_date():
    check = [sys.executable, str(ROOT / "research" / "filter_page.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python research/filter_page.py"


class Network:
    """A small network on images of four brightnesses, in double precision."""

    def __init__(self, norm=False, count=400):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(count) % 4
        noise = torch.randint(0, 70, (count, 3, 8, 8), generator=generator)
        self.images = (noise + 60 * self.labels[:, None, None, None]).to(torch.uint8)
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6) if norm else nn.Identity(), nn.ReLU(), nn.Flatten()]
        self.model = nn.Sequential(*parts, nn.Linear(6 * 36, 4)).double()

    def inputs(self, ids, policy, epoch_key):
        images = self.images[ids]
        if policy is not None:
            images = pa.apply(images, policy.sample(ids, epoch_key, 0, (8, 8)))
        return images.double() / 255.0, self.labels[ids]

    def loss(self, logits, targets):
        return nn.functional.cross_entropy(logits, targets, reduction="none")

    def fit(self, steps=300):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        for step in range(steps):
            ids = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(step))[:64]
            inputs, targets = self.inputs(ids, None, 0)
            optimizer.zero_grad()
            self.loss(self.model(inputs), targets).mean().backward()
            optimizer.step()


def test_alignment_is_the_product_of_gradients(monkeypatch):
    monkeypatch.setattr(alignment, "_STEP", 1e-8)  # near the limit, and no kink of a ReLU on the way
    network = Network()
    target, ids = torch.arange(100), torch.arange(200, 230)
    policy = pa.ParticlePolicy(torch.full((2, 15), 0.2), [1.0, 1.0], m=5)
    found = alignment.sample_alignments(policy, network, ids, target, 7, batch=64)
    parameters = list(network.model.parameters())
    inputs, targets = network.inputs(target, None, 0)
    exact = torch.autograd.grad(network.loss(network.model(inputs), targets).mean(), parameters)
    norm = torch.sqrt(sum(g.square().sum() for g in exact))
    inputs, targets = network.inputs(ids, policy, 7)
    for k in range(len(ids)):
        single = network.loss(network.model(inputs[k : k + 1]), targets[k : k + 1]).sum()
        product = sum((a * b).sum() for a, b in zip(torch.autograd.grad(single, parameters), exact)) / norm
        assert float(found[k]) == pytest.approx(float(product), rel=0.01, abs=2e-3)


def test_to_a_fitted_network_a_severe_op_may_look_useful():
    """Solarize at level 10 inverts the brightness that tells the classes apart, and its long gradients align."""
    network = Network(count=1200)
    network.fit()
    particles = torch.tensor([[0.5, 0.0], [0.0, 0.5]], dtype=torch.float64)
    two = pa.ParticlePolicy(particles, [0.5, 0.5], m=10, ops=("Sharpness", "Solarize"))
    ids = torch.arange(800)
    found = alignment.sample_alignments(two, network, ids, torch.arange(800, 1200), 7, batch=256)
    inputs, targets = network.inputs(torch.arange(800, 1200), None, 0)
    assert network.loss(network.model(inputs), targets).mean().item() < 0.3
    applied = (two.sample(ids, 7, 0, (8, 8)).op == pa.OPS.index("Solarize")).any(1)
    with_op, without = found[applied], found[~applied]
    error = (with_op.var() / len(with_op) + without.var() / len(without)).sqrt()
    assert float(with_op.mean() - without.mean()) > 3 * float(error)


def test_planted_effects_are_found():
    generator = torch.Generator().manual_seed(0)
    applied = torch.rand(4000, 4, generator=generator) < 0.1
    effects = torch.tensor([0.0, 1.0, -0.5, 0.25], dtype=torch.float64)
    noise = torch.randn(4000, generator=generator, dtype=torch.float64)
    found = alignment.op_effects(applied, 5.0 + applied.double() @ effects + noise)
    torch.testing.assert_close(found, effects, rtol=0, atol=0.2)


def test_batch_statistics_are_those_of_the_inputs():
    model = Network(norm=True).model
    inputs = [torch.rand(16, 3, 8, 8, dtype=torch.float64) for _ in range(3)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with estimate_batch_statistics(model, inputs):
        inside = model[1].running_mean.clone()
        assert not model.training
    expected = torch.stack([model[0](batch).mean((0, 2, 3)) for batch in inputs]).mean(0)
    torch.testing.assert_close(inside, expected)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_an_average_follows_the_weights():
    model = nn.Linear(3, 2)
    average = WeightAverage(model.parameters(), steps=16)
    with torch.no_grad():
        model.weight += 1.0
    start = average.tensors[0].clone()
    for _ in range(8):
        average.follow(model)
    torch.testing.assert_close(average.tensors[0], start + 0.5)
    with average.inside(model):
        torch.testing.assert_close(model.weight, start + 0.5)
    torch.testing.assert_close(model.weight, start + 1.0)


def test_the_matched_schedule_applies_as_many_ops_as_the_learned_policies_did_but_chooses_none():
    found = old_names.read_comparison(ROOT / "benchmarks" / "results" / "compare" / "digits")
    schedule = matched_schedule.matched(found, "gap")
    learned = np.mean([run.ops_per_image for run in found.of_arm("gap")], axis=0)
    policies = [schedule.at(epoch) for epoch in range(1, len(learned) + 1)]
    assert [policy.ops_per_image for policy in policies] == pytest.approx(learned.tolist())
    applied = policies[-1].particles.sum(0)
    assert applied[0] == 0
    assert applied[1:].tolist() == pytest.approx([float(applied[1])] * 14)
    assert policies[-1].m == 10
