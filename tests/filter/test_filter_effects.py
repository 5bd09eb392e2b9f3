import math

import pytest
import torch

from particleaugment import filter as pf


def test_scores_are_the_particles_expected_effects():
    generator = torch.Generator().manual_seed(0)
    root = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    found = pf.OpEffects(torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64), root @ root.T)
    particles = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    scores, errors = pf.particle_scores(particles, found)
    for particle, score, error in zip(particles, scores, errors):
        assert float(score) == pytest.approx(float(particle @ found.effects))
        assert float(error) == pytest.approx(math.sqrt(float(particle @ found.covariance @ particle)))


def test_a_variance_below_zero_by_rounding_is_zero():
    tiny = torch.tensor([[1e-30, -1.0000001e-30], [-1.0000001e-30, 1e-30]], dtype=torch.float64)
    _, errors = pf.particle_scores([[1.0, 1.0]], pf.OpEffects(torch.zeros(2, dtype=torch.float64), tiny))
    assert float(errors[0]) == 0
