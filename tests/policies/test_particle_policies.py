import copy
import dataclasses
import itertools
import math
import pickle
import re

import numpy as np
import pytest
import torch
from policy_cases import MANY, agrees_with, frequencies_agree, particle_policy

import particleaugment as pa

# The paper's policy.


def test_particles_are_drawn_by_weight_and_ops_by_probability():
    # Each particle has ops of its own, so the programs tell which was drawn.
    particles = torch.tensor([[1.0, 0.25, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0]], dtype=torch.float64)
    policy = pa.ParticlePolicy(
        particles, [2.0, 5.0, 3.0], m=5, ops=("Invert", "Rotate", "Equalize", "AutoContrast"), semantics="timm"
    )
    program = policy.sample(MANY)
    first, second, third = ((program.op == index).any(1) for index in (15, 2, 1))
    assert frequencies_agree([first.sum(), second.sum(), third.sum()], [0.2, 0.5, 0.3])
    rotated = (program.op == 3).any(1)
    assert not (rotated & ~first).any()
    assert agrees_with(rotated.sum(), first.sum(), 0.25)
    assert agrees_with((program.arg > 0).sum(), rotated.sum(), 0.5)
    assert policy.inclusion == pytest.approx({"Invert": 0.2, "Rotate": 0.05, "Equalize": 0.5, "AutoContrast": 0.3})
    assert policy.ops_per_image == pytest.approx(1.05)
    assert (program.op != 0).sum() / len(MANY) == pytest.approx(1.05, abs=0.01)


def test_independent_gates_of_a_particle():
    probabilities = torch.tensor([[0.0, 1.0, 0.3, 0.8]], dtype=torch.float64)
    policy = pa.ParticlePolicy(probabilities, [1.0], ops=("Invert", "Equalize", "Rotate", "Color"))
    on = policy.sample(MANY).op != 0
    assert not on[:, 0].any()
    assert on[:, 1].all()
    joint = on[:, 2].long() * 2 + on[:, 3]
    assert frequencies_agree(np.bincount(joint, minlength=4), [0.7 * 0.2, 0.7 * 0.8, 0.3 * 0.2, 0.3 * 0.8])


@pytest.mark.parametrize(
    "weights", [[0, 1, 0, 2, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1e-300, 0, 0], [5e-324] * 5]
)
def test_particles_without_weight_are_never_drawn(weights):
    ops = ("Invert", "Equalize", "AutoContrast", "Rotate", "Color")
    policy = pa.ParticlePolicy(torch.eye(5), torch.tensor(weights, dtype=torch.float64), ops=ops)
    drawn = (policy.sample(MANY).op != 0).sum(0)
    assert drawn.sum() == len(MANY)
    assert [bool(count) for count in drawn] == [weight > 0 for weight in weights]


def test_every_op_may_have_a_level_of_its_own():
    levels = [float(j % 10) for j in range(15)]
    policy = particle_policy(m=levels)
    program = policy.sample(MANY[:2000], 2, 3)
    for level in set(levels):
        shared = particle_policy(m=level).sample(MANY[:2000], 2, 3)
        columns = [j for j in range(15) if levels[j] == level]
        assert torch.equal(program.op, shared.op)
        assert torch.equal(program.arg[:, columns], shared.arg[:, columns])
    assert policy.to_dict()["m"] == levels
    assert policy == particle_policy(m=torch.tensor(levels))
    assert policy != particle_policy(m=levels[::-1])
    static, lost = policy.static()
    assert not lost
    assert {(name, m) for row in static.sub_policies for name, _, m in row if pa.ops.lookup(name).takes_argument} == {
        (name, m) for name, m in zip(pa.OPS, levels) if pa.ops.lookup(name).takes_argument
    }


@pytest.mark.parametrize(
    ("m", "complaint"),
    [
        ([3.0] * 14, "m must be one level, or one per op, 15, got 14"),
        ([3.0] * 14 + [11], "m of Posterize must be a number from 0 to 10, the top level of its semantics, got 11"),
        ([True] * 15, "m of Identity must be a number from 0 to 10, the top level of its semantics, got True"),
        ("3", "m must be a number from 0 to 10, the top level of its semantics, got '3'"),
    ],
)
def test_impossible_levels_are_refused(m, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        particle_policy(m=m)


def test_numbers_in_lists_keep_their_precision():
    policy = pa.ParticlePolicy([[0.1] * 15, [1 / 3] * 15], [0.1, 0.9])
    assert policy.particles[:, 0].tolist() == [0.1, 1 / 3]
    assert policy.weights.tolist() == [0.1, 0.9]


def test_weights_need_not_be_normalised():
    particles = torch.rand(3, 15)
    policy = pa.ParticlePolicy(particles, [2.0, 6.0, 2.0])
    assert policy.weights.tolist() == pytest.approx([0.2, 0.6, 0.2])
    assert policy == pa.ParticlePolicy(particles, policy.weights)


def test_common_random_numbers():
    """Particles share a sample's uniforms: equal probabilities give equal ops, and a larger one only adds ops."""
    low = torch.full((15,), 0.3, dtype=torch.float64)
    high = low.clone()
    high[5:9] = 0.6
    policy = pa.ParticlePolicy(torch.stack([low, high]), [0.5, 0.5], m=4)
    ids = MANY[:5000]
    under_low, under_high = (policy.sample_particle(torch.full_like(ids, i), ids, 2, 3) for i in (0, 1))
    assert torch.equal(under_low.op[:, :5], under_high.op[:, :5])
    assert torch.equal(under_low.op[:, 9:], under_high.op[:, 9:])
    on = under_low.op != 0
    assert (under_high.op[on] == under_low.op[on]).all()
    assert torch.equal(under_high.arg[on], under_low.arg[on])
    assert (under_high.op[:, 5:9] != 0).sum() > 1.8 * (under_low.op[:, 5:9] != 0).sum()
    drawn = policy.sample(ids, 2, 3)
    rows = torch.stack([(drawn.op == other.op).all(1) for other in (under_low, under_high)])
    assert rows.any(0).all()


def test_changing_the_weights_keeps_the_draws_within_a_particle():
    particles = torch.rand(2, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ids = MANY[:2000]
    alone = pa.ParticlePolicy(particles, [1.0, 0.0]).sample(ids, 1, 1)
    assert alone.equal(pa.ParticlePolicy(particles, [0.0, 1.0]).sample_particle(torch.zeros_like(ids), ids, 1, 1))


def test_a_random_order_is_a_permutation_of_the_same_ops():
    fixed = particle_policy(seed=4)
    shuffled = dataclasses.replace(fixed, order="random", resample="random")
    plain = dataclasses.replace(fixed, resample="random")
    ids = MANY[:3000]
    one, other = plain.sample(ids, 1, 2), shuffled.sample(ids, 1, 2)
    assert not torch.equal(one.op, other.op)

    def rows(program):
        key = torch.stack([program.op.double(), program.arg, program.resample.double()], -1)
        return [sorted(map(tuple, row)) for row in key.tolist()]

    assert rows(one) == rows(other)


def test_every_order_is_equally_likely():
    ops = ("Invert", "Equalize", "AutoContrast", "Posterize")
    policy = pa.ParticlePolicy(torch.ones(1, 4), [1.0], ops=ops, order="random")
    orders = [tuple(row) for row in policy.sample(MANY).op.tolist()]
    counts = [orders.count(order) for order in itertools.permutations(pa.ops.op_indices(ops))]
    assert frequencies_agree(counts, [1] * 24)


def test_a_fixed_order_is_that_of_the_ops():
    program = pa.ParticlePolicy(torch.ones(1, 15), [1.0], m=3).sample(MANY[:20])
    assert (program.op == torch.arange(15)).all()


def test_what_is_on_a_device_stays_there():
    policy = particle_policy()
    expected = policy.sample(MANY[:20])
    policy._on_device[torch.device("meta")] = (policy.particles.to("meta"), policy.weights.to("meta"))
    for twin in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), copy.copy(policy)):
        assert not twin._on_device
        assert twin == policy
        assert twin.sample(MANY[:20]).equal(expected)
    assert len(policy._on_device) == 2


def test_later_changes_of_the_tensors_do_not_reach_the_policy():
    particles, weights = torch.rand(3, 15, dtype=torch.float64), torch.ones(3, dtype=torch.float64) / 3
    policy = pa.ParticlePolicy(particles, weights)
    before = policy.sample(MANY[:200])
    particles.zero_()
    weights.zero_()
    assert policy.sample(MANY[:200]).equal(before)
    assert policy.particles.any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"particles": torch.rand(3, 14)}, r"particles must have one column per op, 15, got shape \(3, 14\)"),
        ({"particles": torch.rand(15)}, r"particles must have 2 dimension\(s\), got shape \(15,\)"),
        ({"particles": "x"}, r"particles must be numbers in 2 dimension\(s\), got str"),
        ({"particles": [[10**400] * 15] * 3}, r"particles must be numbers in 2 dimension\(s\), got list"),
        ({"particles": torch.full((3, 15), 1.01)}, "particles must hold probabilities from 0 to 1"),
        ({"particles": torch.full((3, 15), -0.01)}, "particles must hold probabilities from 0 to 1"),
        ({"particles": torch.full((3, 15), math.nan)}, "particles must be finite"),
        ({"weights": torch.ones(2)}, "there must be one weight per particle, got 2 for 3"),
        ({"weights": torch.zeros(3)}, "weights must not be negative and must not all be zero"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0])}, "weights must not be negative"),
        ({"weights": torch.tensor([1.0, math.inf, 1.0])}, "weights must be finite"),
        (
            {"weights": torch.ones(0), "particles": torch.ones(0, 15)},
            "there must be one weight per particle, got 0 for 0",
        ),
        ({"order": "sorted"}, "order must be one of fixed, random, got 'sorted'"),
        ({"m": 10.5}, "m must be a number from 0 to 10, the top level of its semantics, got 10.5"),
        ({"semantics": "torchvision"}, "semantics 'torchvision' does not define SolarizeAdd"),
    ],
)
def test_particle_policy_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        pa.ParticlePolicy(**({"particles": torch.rand(3, 15), "weights": torch.ones(3)} | fields))
