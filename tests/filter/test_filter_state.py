import copy
import dataclasses
import json
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from particleaugment import filter as pf

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
LOG_WEIGHTS = st.lists(st.floats(-1e6, 1e6) | st.floats(-2, 2) | st.just(-math.inf), min_size=2, max_size=30).filter(
    lambda values: max(values) > -math.inf
)


def particle_set(log_weights, num_ops=4):
    generator = torch.Generator().manual_seed(len(log_weights))
    particles = torch.rand(len(log_weights), num_ops, dtype=torch.float64, generator=generator)
    return pf.ParticleSet(particles, log_weights)


@PROPERTY
@given(LOG_WEIGHTS)
def test_weights_are_normalised_whatever_the_scale(log_weights):
    s = particle_set(log_weights)
    assert float(s.weights.sum()) == pytest.approx(1.0, abs=1e-14)
    assert abs(float(torch.logsumexp(s.log_weights, 0))) < 1e-13
    assert s.weights.isfinite().all()
    best = max(log_weights)
    expected = [math.exp(value - best) for value in log_weights]
    torch.testing.assert_close(s.weights, torch.tensor(expected, dtype=torch.float64) / math.fsum(expected))


@PROPERTY
@given(LOG_WEIGHTS)
def test_json_round_trip_is_exact(log_weights):
    s = particle_set(log_weights)
    restored = pf.ParticleSet.from_dict(json.loads(json.dumps(s.to_dict(), allow_nan=False)))
    assert restored == s
    assert torch.equal(restored.log_weights, s.log_weights)
    assert pf.ParticleSet(s.particles, s.log_weights) == s


@PROPERTY
@given(LOG_WEIGHTS, st.randoms(use_true_random=False))
def test_effective_sample_size_has_its_bounds_and_ignores_order(log_weights, random):
    size = pf.effective_sample_size(particle_set(log_weights))
    assert 1.0 <= size <= len(log_weights)
    shuffled = random.sample(log_weights, len(log_weights))
    assert pf.effective_sample_size(particle_set(shuffled)) == pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([0.25] * 4, 4.0), ([1.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.0], 2.0), ([0.5, 0.25, 0.25], 1 / 0.375)],
)
def test_effective_sample_size_by_hand(weights, expected):
    assert pf.effective_sample_size(particle_set(torch.tensor(weights).double().log())) == pytest.approx(
        expected, rel=1e-12
    )


def test_uniform_weights_are_exact():
    for r in (2, 3, 7, 50, 97):
        s = particle_set([-1234.5] * r)
        assert pf.effective_sample_size(s) == r
        assert s.weights.tolist() == [1 / r] * r


def test_nothing_outside_can_change_a_set():
    particles, log_weights = torch.full((2, 3), 0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    s, same = pf.ParticleSet(particles, log_weights), pf.ParticleSet(particles, log_weights)
    particles.fill_(9.0)
    log_weights[0] = 5.0
    s.particles.fill_(9.0)
    s.log_weights.fill_(9.0)
    s.weights.fill_(9.0)
    assert s == same
    array = torch.full((2, 3), 0.5, dtype=torch.float64).numpy()
    from_array = pf.ParticleSet(array)
    array[:] = 9.0
    assert from_array == same
    with pytest.raises(dataclasses.FrozenInstanceError):
        s._particles = particles
    with pytest.raises((AttributeError, TypeError)):
        s.extra = 1


def test_everything_is_float64_on_the_cpu_and_detached():
    s = pf.ParticleSet(torch.full((2, 3), 0.5, requires_grad=True), [0, 1])
    for tensor in (s.particles, s.log_weights, s.weights):
        assert tensor.dtype == torch.float64
        assert not tensor.requires_grad


def test_equality_is_by_value():
    s = pf.ParticleSet([[0.5], [0.25]])
    assert s == pf.ParticleSet([[0.5], [0.25]], [7.0, 7.0])
    assert s != pf.ParticleSet([[0.5], [0.75]])
    assert s != pf.ParticleSet([[0.5], [0.25]], [0.0, 1.0])
    assert s != "a particle set"
    assert copy.deepcopy(s) == s
    assert pickle.loads(pickle.dumps(s)) == s


def test_repr_and_ops_per_image_by_hand():
    s = pf.ParticleSet([[0.5, 0.5, 0.0], [1.0, 1.0, 1.0]], torch.tensor([0.75, 0.25]).log())
    assert s.ops_per_image == pytest.approx(0.75 * 1.0 + 0.25 * 3.0)
    assert repr(s) == "ParticleSet(r=2, n=3, N_eff=1.6, ops_per_image=1.5)"
    assert (s.num_particles, s.num_ops) == (2, 3)


@PROPERTY
@given(st.integers(2, 40), st.integers(1, 20), st.data())
def test_sparse_init_sets_exactly_the_asked_number(num_particles, num_ops, data):
    nonzero = data.draw(st.integers(1, num_ops))
    value = data.draw(st.floats(0.01, 1.0))
    s = pf.sparse_init(num_particles, num_ops, nonzero, value, seed=data.draw(st.integers(0, 2**63 - 1)))
    assert s.particles.shape == (num_particles, num_ops)
    assert ((s.particles == value).sum(dim=1) == nonzero).all()
    assert ((s.particles == 0).sum(dim=1) == num_ops - nonzero).all()
    assert s.weights.tolist() == [1 / num_particles] * num_particles


def test_sparse_init_chooses_every_op_and_every_pair_equally_often():
    chosen = pf.sparse_init(num_particles=20000, num_ops=6, nonzero=2, value=1.0, seed=5).particles
    assert stats.chisquare(chosen.sum(dim=0).numpy() / 2).pvalue > 1e-3
    pairs = (chosen.T @ chosen)[torch.triu_indices(6, 6, offset=1).unbind()]
    assert stats.chisquare(pairs.numpy()).pvalue > 1e-3


def test_sparse_init_is_a_function_of_its_seed_and_of_the_particle():
    arguments = {"num_ops": 15, "nonzero": 3, "value": 0.25}
    s = pf.sparse_init(num_particles=50, seed=0, **arguments)
    assert s == pf.sparse_init(num_particles=50, seed=0, **arguments)
    assert s != pf.sparse_init(num_particles=50, seed=1, **arguments)
    assert torch.equal(pf.sparse_init(num_particles=200, seed=0, **arguments).particles[:50], s.particles)


def test_sparse_init_ignores_the_global_generator():
    before = torch.random.get_rng_state()
    pf.sparse_init(num_particles=5, num_ops=4, nonzero=2, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_unit_vectors_come_first_and_leave_the_rest_alone():
    plain = pf.sparse_init(num_particles=20, num_ops=15, nonzero=4, value=0.5, seed=3)
    s = pf.sparse_init(num_particles=20, num_ops=15, nonzero=4, value=0.5, seed=3, unit_vectors=True)
    assert torch.equal(s.particles[:15], 0.5 * torch.eye(15, dtype=torch.float64))
    assert torch.equal(s.particles[15:], plain.particles[15:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_particles": 1}, "num_particles must be at least 2, got 1"),
        ({"num_ops": 0}, "num_ops must be at least 1, got 0"),
        ({"nonzero": 0}, r"nonzero must be in 1..15.*got 0"),
        ({"nonzero": 16}, r"nonzero must be in 1..15.*got 16"),
        ({"value": 1.5}, r"value must be in \[0, 1\], got 1.5"),
        ({"value": -0.1}, r"value must be in \[0, 1\], got -0.1"),
        ({"value": math.nan}, "value must be .* got nan"),
        ({"num_particles": 10, "unit_vectors": True}, "each of the 15 ops, got 10; raise num_particles to 15"),
    ],
)
def test_sparse_init_names_bad_arguments(arguments, message):
    good = {"num_particles": 50, "num_ops": 15, "nonzero": 3, "value": 0.25, "seed": 0}
    with pytest.raises(ValueError, match=message):
        pf.sparse_init(**good | arguments)


@pytest.mark.parametrize("name", ["num_particles", "num_ops", "nonzero"])
def test_sparse_init_wants_whole_numbers(name):
    good = {"num_particles": 50, "num_ops": 15, "nonzero": 3, "value": 0.25, "seed": 0}
    with pytest.raises(TypeError, match=f"{name} must be a whole number, got 2.5"):
        pf.sparse_init(**good | {name: 2.5})


def test_sparse_init_wants_a_number_as_value():
    with pytest.raises(TypeError, match="value must be a number, got 'high'"):
        pf.sparse_init(num_particles=50, num_ops=15, nonzero=3, value="high", seed=0)


@pytest.mark.parametrize(
    ("particles", "log_weights", "message"),
    [
        ([0.5, 0.5], None, r"shape \[r, n\] with n at least 1, got \[2\]"),
        (torch.zeros(3, 0), None, r"n at least 1, got \[3, 0\]"),
        ([[0.5]], None, "at least 2 particles, got 1"),
        ([[0.5], [1.5]], None, r"in \[0, 1\], got 1.5"),
        ([[0.5], [math.nan]], None, "got nan"),
        ([[0.5], [0.1, 0.2]], None, "particles must be numbers in a regular array"),
        ([[0.5], [0.5]], [0.0, 0.0, 0.0], r"log_weights must have shape \[2\], got \[3\]"),
        ([[0.5], [0.5]], [[0.0], [0.0]], r"log_weights must have shape \[2\], got \[2, 1\]"),
        ([[0.5], [0.5]], [0.0, math.nan], "finite or -inf, got nan"),
        ([[0.5], [0.5]], [0.0, math.inf], "finite or -inf, got inf"),
        ([[0.5], [0.5]], [-math.inf, -math.inf], "no particle has any weight"),
    ],
)
def test_particle_set_names_bad_arguments(particles, log_weights, message):
    with pytest.raises(ValueError, match=message):
        pf.ParticleSet(particles, log_weights)


def test_from_dict_names_what_is_missing():
    with pytest.raises(ValueError, match="needs log_weights"):
        pf.ParticleSet.from_dict({"particles": [[0.5], [0.5]]})
