"""What the tests of policies share: one of every kind, and how drawn frequencies are judged."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import settings
from scipy import stats

import particleaugment as pa
from particleaugment.policies import Schedule
from particleaugment.policies.schedule import ScheduleStep

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
MANY = torch.arange(40_000)


def particle_policy(r=4, n=15, seed=0, **fields):
    generator = torch.Generator().manual_seed(seed)
    particles = torch.rand(r, n, dtype=torch.float64, generator=generator)
    return pa.ParticlePolicy(particles, torch.rand(r, dtype=torch.float64, generator=generator), **fields)


def sparse_particles(order="fixed", semantics="timm-increasing", ops=pa.OPS, m=4.0):
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(6, len(ops), generator=generator, dtype=torch.float64)
    values[values < 0.5] = 0
    return pa.ParticlePolicy(values, torch.arange(1, 7), m, semantics, order, ops)


def schedule():
    early, late = particle_policy(seed=1), particle_policy(seed=2)
    steps = (ScheduleStep(1, early.particles, early.weights), ScheduleStep(4, late.particles, late.weights))
    return Schedule(steps, epochs=8, m=5)


POLICIES = {
    "identity": pa.Identity(),
    "rand": pa.RandAugment(n=3, m=4),
    "rand-noisy": pa.RandAugment(n=2, m=9, p=0.5, m_std=0.5, m_max=12, resample="random"),
    "rand-uniform": pa.RandAugment(n=2, m=9, m_std=math.inf, semantics="torchvision", ops=("Rotate", "TranslateX")),
    "rand-weighted": pa.parse("rand-m9-mstd0.5-tweights"),
    "trivial": pa.TrivialAugment(),
    "trivial-standard": pa.TrivialAugment("standard", resample="random"),
    "auto-cifar10": pa.AutoAugment("cifar10"),
    "auto-imagenet": pa.AutoAugment(),
    "auto-svhn": pa.AutoAugment("svhn"),
    "sub-policies": pa.SubPolicies([[("Rotate", 0.7, 2), ("Invert", 1, None)], [("Equalize", 0.5, 0)]], m_std=1.0),
    "particles": particle_policy(),
    "particles-shuffled": particle_policy(order="random", resample="random", semantics="timm", m=7),
    "particles-levels": particle_policy(m=tuple(j % 10 for j in range(15)), order="random"),
    "schedule": schedule(),
    "mixture": pa.Mixture(slots=(1.0, 0.4, 0.1), level=0.7),
    "mixture-schedule": pa.MixtureSchedule(((1, 0.0, (0.0, 0.0)), (3, 0.5, (1.0, 0.25))), epochs=6),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


def frequencies_agree(counts, probabilities):
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    assert counts[probabilities == 0].sum() == 0
    kept = probabilities > 0
    return stats.chisquare(counts[kept], counts.sum() * probabilities[kept] / probabilities.sum()).pvalue > 1e-4


def agrees_with(successes, trials, probability):
    return stats.binomtest(int(successes), int(trials), probability).pvalue > 1e-4


def independent(*columns):
    """Whether whole-numbered columns are pairwise independent, by chi-square tests of their tables."""
    p_values = []
    for first, second in itertools.combinations([np.unique(column, return_inverse=True)[1] for column in columns], 2):
        table = np.zeros((first.max() + 1, second.max() + 1))
        np.add.at(table, (first, second), 1)
        p_values.append(stats.chi2_contingency(table).pvalue)
    return min(p_values) > 1e-5
