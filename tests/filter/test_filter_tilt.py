import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from particleaugment import filter as pf

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
VALUES = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=30, unique=True)


def uniform_set(count, n=15):
    return pf.sparse_init(num_particles=count, num_ops=n, nonzero=3, value=0.25, seed=0)


def mean(state, values):
    return float(state.weights @ torch.as_tensor(values, dtype=torch.float64))


@PROPERTY
@given(VALUES, st.floats(0.05, 0.95), st.integers(0, 9))
def test_the_mean_becomes_the_target(values, share, seed):
    """Wherever the target lies between the smallest and the largest value, as far as the particles left allow."""
    generator = torch.Generator().manual_seed(seed)
    logs = torch.randn(len(values), generator=generator, dtype=torch.float64)
    state = pf.ParticleSet(uniform_set(len(values)).particles, logs)
    target = min(values) + share * (max(values) - min(values))
    new, info = pf.tilted_reweight(state, values, torch.zeros(len(values)), target=target, least=0.0)
    assert mean(new, values) == pytest.approx(target, abs=1e-6 * (max(values) - min(values)))
    assert torch.equal(new.particles, state.particles)
    assert info.effective_sample_size == pytest.approx(pf.effective_sample_size(new))


@PROPERTY
@given(VALUES, st.floats(-2e3, 2e3), st.floats(0.1, 0.9))
def test_no_target_leaves_too_few_particles(values, target, least):
    state = uniform_set(len(values))
    new, info = pf.tilted_reweight(state, values, torch.zeros(len(values)), target=target, least=least)
    assert info.effective_sample_size >= least * len(values) - 1e-6
    before, after = mean(state, values), mean(new, values)
    spread = 1e-9 * (max(values) - min(values))
    assert min(before, target) - spread <= after <= max(before, target) + spread


def test_no_other_weights_with_that_mean_are_nearer():
    """The smallest relative entropy to the old weights, compared with many others of the same mean."""
    values = torch.tensor([0.0, 0.2, 0.5, 0.9], dtype=torch.float64)
    old = pf.ParticleSet(uniform_set(4).particles, torch.tensor([0.1, -0.5, 0.3, 0.0]))
    new, _ = pf.tilted_reweight(old, values, torch.zeros(4), target=0.3, least=0.0)

    def distance(weights):
        return float((weights * (weights / old.weights).log()).sum())

    constraints = torch.stack([torch.ones(4, dtype=torch.float64), values])
    free = torch.linalg.svd(constraints)[2][2:]  # moves that change neither the sum nor the mean
    for seed in range(200):
        move = torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) @ free
        other = new.weights + 0.02 * move
        if bool((other > 0).all()):
            assert distance(other) > distance(new.weights)


def test_pure_noise_selects_nothing():
    state, generator = uniform_set(50), torch.Generator().manual_seed(0)
    kept = 0
    for _ in range(1000):
        values = torch.randn(50, generator=generator, dtype=torch.float64)
        _, info = pf.tilted_reweight(state, values, torch.ones(50), target=-1.0)
        kept += info.effective_sample_size > 0.98 * 50
    assert kept >= 950


@pytest.mark.parametrize("seed", range(5))
def test_a_particle_set_follows_a_falling_target(seed):
    """Ops of known severity, measured with noise, under the sparse transition: the mean severity is what is wanted."""
    severity = torch.linspace(0.0, 0.7, 15, dtype=torch.float64)
    state = uniform_set(50)
    generator = torch.Generator().manual_seed(seed)
    for step in range(60):
        state = pf.sparse_transition(state, nonzero=3, value=0.25, sigma=0.05, seed=seed, step=step)
        noisy = severity + 0.03 * torch.randn(15, generator=generator, dtype=torch.float64)
        found = pf.OpEffects(noisy, 0.03**2 * torch.eye(15, dtype=torch.float64))
        target = 3 * 0.25 * float(severity.mean()) * (1 - step / 60)
        state, _ = pf.tilted_reweight(state, *pf.particle_scores(state.particles, found), target=target, degrees=15)
        state, _ = pf.resample(state, alpha=0.5, seed=seed, step=step)
        assert float(state.weights @ state.particles @ severity) == pytest.approx(target, abs=0.04)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [1.0, 2.0]}, r"values must be 4 finite numbers, one for each particle, got shape \[2\]"),
        ({"values": [1.0, 2.0, 3.0, math.nan]}, "values must be 4 finite numbers"),
        ({"standard_errors": [1.0] * 3 + [math.inf]}, "standard_errors must be 4 finite numbers"),
        ({"target": math.nan}, "target must be finite"),
        ({"least": 1.5}, r"least must be in \[0, 1\]"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    given = {"values": [1.0, 2.0, 3.0, 4.0], "standard_errors": [1.0] * 4, "target": 2.0} | arguments
    with pytest.raises(ValueError, match=message):
        pf.tilted_reweight(uniform_set(4), **given)
