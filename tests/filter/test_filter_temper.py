import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from particleaugment import filter as pf

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
SCORES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


def uniform_set(count, n=15):
    return pf.sparse_init(num_particles=count, num_ops=n, nonzero=3, value=0.25, seed=0)


@PROPERTY
@given(SCORES, st.floats(0, 1e3), st.floats(0.01, 3))
def test_one_step_moves_a_log_weight_by_at_most_eta(scores, error, eta):
    state = uniform_set(len(scores))
    errors = torch.full((len(scores),), error)
    new, info = pf.tempered_reweight(state, scores, errors, eta=eta, forgetting=1.0, floor=0.0)
    assert float(info.log_factors.abs().max()) <= eta
    assert new.particles is state.particles or torch.equal(new.particles, state.particles)
    assert info.effective_sample_size >= 0.9 * len(scores) - 1e-6
    order = torch.tensor(scores, dtype=torch.float64).argsort()
    assert (new.log_weights[order].diff() >= -1e-12).all()


def test_pure_noise_selects_nothing():
    state, generator = uniform_set(50), torch.Generator().manual_seed(0)
    kept = 0
    for _ in range(1000):
        scores = torch.randn(50, generator=generator, dtype=torch.float64)
        _, info = pf.tempered_reweight(state, scores, torch.ones(50), eta=0.5)
        kept += info.effective_sample_size > 0.98 * 50
    assert kept >= 950


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_good_op_rises_within_30_steps(seed):
    """Signal to noise 1: the spread of the true scores equals their error."""
    state = uniform_set(50)
    generator = torch.Generator().manual_seed(seed)
    start = float(state.weights @ state.particles[:, 3])
    for step in range(30):
        state = pf.sparse_transition(state, nonzero=3, value=0.25, sigma=0.02, seed=seed, step=step)
        true = state.particles[:, 3]
        error = float(true.std()) or 1.0
        scores = true + error * torch.randn(50, generator=generator, dtype=torch.float64)
        state, _ = pf.tempered_reweight(state, scores, torch.full((50,), error), eta=0.5)
        state, _ = pf.resample(state, alpha=0.5, seed=seed, step=step)
    assert float(state.weights @ state.particles[:, 3]) > 3 * max(start, 0.05)


def test_a_switch_of_the_best_particle_is_followed_within_the_memory():
    state = uniform_set(20)
    good, errors = torch.zeros(20, dtype=torch.float64), torch.full((20,), 0.1)
    good[0] = 1.0
    for _ in range(60):
        state, _ = pf.tempered_reweight(state, good, errors)
    assert int(state.weights.argmax()) == 0
    good[0], good[1] = 0.0, 1.0
    for _ in range(20):  # 2 / (1 - 0.9)
        state, _ = pf.tempered_reweight(state, good, errors)
    assert int(state.weights.argmax()) == 1


def test_without_a_signal_weights_relax_towards_equality():
    state = pf.ParticleSet(uniform_set(4).particles, torch.tensor([0.0, -1.0, -2.0, -3.0]))
    new, info = pf.tempered_reweight(state, torch.zeros(4), torch.ones(4), forgetting=0.5, floor=0.0)
    torch.testing.assert_close(new.weights, torch.softmax(0.5 * state.log_weights, 0))
    assert torch.equal(info.log_factors, torch.zeros(4, dtype=torch.float64))


def test_no_particle_dies_of_one_step():
    state = pf.ParticleSet(uniform_set(4).particles, torch.tensor([0.0, -math.inf, -50.0, 0.0]))
    new, _ = pf.tempered_reweight(state, torch.arange(4.0), torch.full((4,), 0.1), floor=0.05)
    assert float(new.weights.min()) >= 0.05 / 4
    assert float(new.weights.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": [1.0, 2.0]}, r"scores must be 4 finite numbers, one for each particle, got shape \[2\]"),
        ({"scores": [1.0, 2.0, 3.0, math.nan]}, "scores must be 4 finite numbers"),
        ({"standard_errors": [1.0] * 3 + [math.inf]}, "standard_errors must be 4 finite numbers"),
        ({"eta": 0.0}, "eta must be finite and above 0"),
        ({"forgetting": 1.5}, r"forgetting must be in \[0, 1\]"),
        ({"floor": -0.1}, r"floor must be in \[0, 1\]"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    given = {"scores": [1.0, 2.0, 3.0, 4.0], "standard_errors": [1.0] * 4} | arguments
    with pytest.raises(ValueError, match=message):
        pf.tempered_reweight(uniform_set(4), **given)
