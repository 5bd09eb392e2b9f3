import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from particleaugment import filter as pf

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
PARTICLES = st.integers(1, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.just(0.0) | st.just(1.0) | st.floats(0, 1), min_size=n, max_size=n), min_size=2, max_size=12
    )
)


def centre(num_particles, num_ops, value=0.5):
    return pf.ParticleSet(torch.full((num_particles, num_ops), value, dtype=torch.float64))


@PROPERTY
@given(PARTICLES, st.sampled_from([0.0, 0.05, 1.0, 1e6]), st.floats(-2, 2), st.integers(0, 2**32 - 1))
def test_particles_stay_probabilities_and_weights_stay(particles, sigma, velocity, step):
    s = pf.ParticleSet(particles, torch.arange(len(particles)))
    moved = pf.transition(s, sigma=sigma, velocity=velocity, seed=9, step=step)
    assert moved.particles.shape == s.particles.shape
    assert ((moved.particles >= 0) & (moved.particles <= 1)).all()
    assert torch.equal(moved.log_weights, s.log_weights)


def test_a_move_is_pure():
    s = pf.sparse_init(num_particles=20, num_ops=15, nonzero=3, seed=0)
    before = s.to_dict()
    global_state = torch.random.get_rng_state()
    moved = pf.transition(s, sigma=0.05, seed=0, step=1)
    assert moved == pf.transition(s, sigma=0.05, seed=0, step=1)
    assert moved != pf.transition(s, sigma=0.05, seed=1, step=1)
    assert moved != pf.transition(s, sigma=0.05, seed=0, step=2)
    assert s.to_dict() == before
    assert torch.equal(global_state, torch.random.get_rng_state())


def test_a_particle_has_its_own_draws():
    large = pf.sparse_init(num_particles=30, num_ops=15, nonzero=3, seed=0)
    small = pf.ParticleSet(large.particles[:10])
    whole, part = (pf.transition(s, sigma=0.2, seed=4, step=7).particles for s in (large, small))
    assert torch.equal(whole[:10], part)


def test_seed_and_step_may_be_device_scalars():
    s = pf.sparse_init(num_particles=5, num_ops=4, nonzero=2, seed=0)
    assert pf.transition(s, seed=torch.tensor(3), step=torch.tensor(8)) == pf.transition(s, seed=3, step=8)


def test_noise_is_normal_with_the_asked_spread():
    noise = (pf.transition(centre(4000, 5), sigma=0.05, seed=1, step=3).particles - 0.5).flatten()
    n = len(noise)
    assert abs(float(noise.mean())) < 4 * 0.05 / math.sqrt(n)
    assert abs(float(noise.var()) / 0.05**2 - 1) < 4 * math.sqrt(2 / n)
    assert stats.kstest(noise.numpy() / 0.05, "norm").pvalue > 1e-3


def test_noise_is_independent_between_particles_ops_and_steps():
    first, second = (pf.transition(centre(4000, 4), sigma=0.05, seed=1, step=step).particles for step in (1, 2))
    columns = torch.cat([first, second], dim=1)
    off_diagonal = torch.corrcoef(columns.T) - torch.eye(8)
    assert float(off_diagonal.abs().max()) < 4.5 / math.sqrt(4000)
    neighbours = torch.corrcoef(torch.stack([first[:-1].flatten(), first[1:].flatten()]))[0, 1]
    assert abs(float(neighbours)) < 4.5 / math.sqrt(16000)


def test_half_of_the_noise_is_clipped_at_a_boundary():
    for value in (0.0, 1.0):
        moved = pf.transition(centre(4000, 5, value), sigma=0.05, seed=1, step=3).particles
        stuck = int((moved == value).sum())
        assert stats.binomtest(stuck, moved.numel(), 0.5).pvalue > 1e-3


def test_velocity_is_subtracted():
    s = centre(3, 2)
    drift = partial(pf.transition, s, sigma=0.0, seed=0, step=1)
    assert torch.equal(drift(velocity=-0.25).particles, centre(3, 2, 0.75).particles)
    assert torch.equal(drift(velocity=0.25).particles, centre(3, 2, 0.25).particles)
    moved = drift(velocity=[0.25, -0.5]).particles
    assert moved.tolist() == [[0.25, 1.0]] * 3
    assert drift(velocity=torch.tensor([0.25, -0.5])).particles.tolist() == moved.tolist()


def test_velocity_adds_to_the_same_noise():
    still, drifting = (
        pf.transition(centre(50, 4), sigma=0.02, velocity=c, seed=2, step=5).particles for c in (0.0, -0.125)
    )
    torch.testing.assert_close(drifting - still, torch.full_like(still, 0.125), rtol=0, atol=1e-15)


@PROPERTY
@given(PARTICLES, st.floats(-1, 1), st.randoms(use_true_random=False))
def test_without_noise_the_order_of_particles_is_kept(particles, velocity, random):
    order = random.sample(range(len(particles)), len(particles))
    s, permuted = pf.ParticleSet(particles), pf.ParticleSet([particles[i] for i in order])
    moved, moved_permuted = (pf.transition(x, sigma=0.0, velocity=velocity, seed=0, step=1) for x in (s, permuted))
    assert torch.equal(moved.particles[order], moved_permuted.particles)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma": -0.1}, "sigma must be finite and at least 0, got -0.1"),
        ({"sigma": math.inf}, "sigma must be finite and at least 0, got inf"),
        ({"velocity": [0.1, 0.2]}, r"each of the 3 ops, got shape \[2\]"),
        ({"velocity": [[0.1, 0.2, 0.3]]}, r"each of the 3 ops, got shape \[1, 3\]"),
        ({"velocity": math.nan}, "velocity must be finite, got nan"),
        ({"step": -1}, r"step must be in 0..2\^32-1, got -1"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_a_move_names_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        pf.transition(centre(2, 3), **{"seed": 0, "step": 1} | arguments)


def test_a_move_wants_a_whole_step():
    with pytest.raises(TypeError, match=r"step must be a whole number, got 1\.5"):
        pf.transition(centre(2, 3), seed=0, step=1.5)


def test_without_selection_particles_grow_dense():
    s = pf.sparse_init(num_particles=400, num_ops=15, nonzero=3, value=0.25, seed=0)
    for step in range(1, 251):
        s = pf.transition(s, sigma=0.05, seed=0, step=step)
    assert s.ops_per_image > 5
