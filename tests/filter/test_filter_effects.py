import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from particleaugment import filter as pf

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def planted(effects, count=4000, noise=1.0, share=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    applied = (torch.rand(count, len(effects), generator=generator) < share).double()
    values = applied @ torch.tensor(effects, dtype=torch.float64)
    return applied, 5.0 + values + noise * torch.randn(count, generator=generator, dtype=torch.float64)


def test_planted_effects_are_found_within_their_errors():
    effects = [0.0, 1.0, -0.5, 0.25]
    misses = 0
    for seed in range(50):
        found = pf.op_effects(*planted(effects, seed=seed))
        distance = (found.effects - torch.tensor(effects)) / found.covariance.diagonal().sqrt()
        misses += int((distance.abs() > 2).sum())
    assert 2 <= misses <= 22  # 200 readings, of which 4.6 % lie beyond two standard errors


def test_errors_know_of_noise_that_comes_with_an_op():
    applied, values = planted([0.0, 0.0])
    noise = torch.randn(len(values), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loud = values + 10 * applied[:, 1] * noise
    quiet, errors = (pf.op_effects(applied, v).covariance.diagonal().sqrt() for v in (values, loud))
    # Samples with the op have a hundred times the variance; their number is a tenth of all.
    assert float(errors[1] / quiet[1]) == pytest.approx(10, rel=0.3)
    assert errors[0] < 0.5 * errors[1]


def test_an_op_that_was_never_applied_has_no_effect():
    applied, values = planted([1.0, 1.0])
    applied[:, 1] = 0
    found = pf.op_effects(applied, values)
    assert float(found.effects[1]) == 0
    assert bool(found.covariance.isfinite().all())


@PROPERTY
@given(st.floats(-1e3, 1e3), st.floats(0.01, 1e3))
def test_effects_follow_the_values_units(shift, scale):
    applied, values = planted([0.5, -1.0], count=300)
    plain, moved = pf.op_effects(applied, values), pf.op_effects(applied, scale * values + shift)
    torch.testing.assert_close(moved.effects, scale * plain.effects, rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(moved.covariance, scale**2 * plain.covariance, rtol=1e-5, atol=1e-6 * scale**2)


def test_scores_are_the_particles_expected_effects():
    found = pf.op_effects(*planted([0.5, -1.0, 0.0]))
    particles = torch.rand(6, 3, dtype=torch.float64)
    scores, errors = pf.particle_scores(particles, found)
    for particle, score, error in zip(particles, scores, errors):
        assert float(score) == pytest.approx(float(particle @ found.effects))
        assert float(error) == pytest.approx(math.sqrt(float(particle @ found.covariance @ particle)))


@pytest.mark.parametrize(
    ("applied", "values", "message"),
    [
        ([[1.0], [0.0]], [1.0], r"got \[2, 1\] and \[1\]"),
        ([[1.0]], [1.0], "N at least 2"),
        ([1.0, 0.0], [1.0, 2.0], r"applied must be \[N, n\]"),
        ([[1.0], [0.0]], [1.0, math.nan], "values must be finite"),
    ],
)
def test_bad_arguments_are_named(applied, values, message):
    with pytest.raises(ValueError, match=message):
        pf.op_effects(applied, values)
