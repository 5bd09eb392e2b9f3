import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from policy_cases import MANY, agrees_with, every_policy, frequencies_agree, independent
from scipy import stats

import particleaugment as pa
from particleaugment.core.op_table import lookup

# RandAugment.


def test_rand_augment_draws_ops_uniformly_and_independently():
    op = pa.RandAugment(n=2, m=4).sample(MANY).op.numpy()
    for slot in (0, 1):
        assert frequencies_agree(np.bincount(op[:, slot], minlength=16), [1] * 15 + [0])
    assert frequencies_agree(np.bincount(op[:, 0] * 15 + op[:, 1], minlength=225), [1] * 225)


def test_rand_augment_gates_and_signs():
    policy = pa.RandAugment(n=2, m=4, p=0.3, ops=("Rotate",))
    program = policy.sample(MANY)
    applied = program.op == 3
    assert agrees_with(applied.sum(), applied.numel(), 0.3)
    assert (program.arg[~applied] == 0).all()
    assert program.arg[applied].unique().tolist() == [-12, 12]
    assert agrees_with((program.arg > 0).sum(), applied.sum(), 0.5)
    both = applied.all(1)
    assert agrees_with(both.sum(), len(MANY), 0.09)
    assert agrees_with((program.arg[both, 0] == program.arg[both, 1]).sum(), both.sum(), 0.5)


def test_rand_augment_probability_ends():
    assert (pa.RandAugment(n=2, p=0.0, ops=("Invert",)).sample(MANY).op == 0).all()
    assert (pa.RandAugment(n=2, p=1.0, ops=("Invert",)).sample(MANY).op == 15).all()


def test_rand_augment_levels_with_normal_noise():
    policy = pa.RandAugment(n=1, m=5, m_std=1.0, ops=("Rotate",), semantics="timm")
    levels = policy.sample(MANY).arg.abs().flatten().numpy() / 3
    assert stats.kstest(levels, stats.norm(5, 1).cdf).pvalue > 1e-4
    high = pa.RandAugment(n=1, m=9, m_std=2.0, ops=("Rotate",), semantics="timm").sample(MANY).arg.abs().flatten() / 3
    assert high.max() == 10
    assert agrees_with((high == 10).sum(), len(MANY), stats.norm.sf(0.5))
    low = pa.RandAugment(n=1, m=1, m_std=2.0, ops=("Rotate",), semantics="timm").sample(MANY).arg.abs().flatten() / 3
    assert agrees_with((low == 0).sum(), len(MANY), stats.norm.sf(0.5))


def test_rand_augment_levels_drawn_uniformly():
    policy = pa.RandAugment(n=1, m=8, m_std=math.inf, ops=("Rotate",), semantics="timm")
    levels = policy.sample(MANY).arg.abs().flatten().numpy() / 3
    assert stats.kstest(levels, stats.uniform(0, 8).cdf).pvalue > 1e-4


def test_rand_augment_m_max_lifts_the_top_level():
    policy = pa.RandAugment(n=1, m=15, m_std=5.0, m_max=20, ops=("Rotate",), semantics="timm")
    levels = policy.sample(MANY).arg.abs().flatten() / 3
    assert 10 < levels.max() <= 20
    capped = dataclasses.replace(policy, m_max=12.0, m_std=0.0).sample(MANY).arg.abs().unique()
    assert capped.tolist() == [36]


def test_weighted_ops_are_drawn_without_replacement():
    weights, ops = (3.0, 1.0, 0.5, 0.5), ("Invert", "Equalize", "AutoContrast", "Rotate")
    policy = pa.RandAugment(n=2, m=4, ops=ops, op_weights=weights)
    index = {pa.ops.lookup(name).index: i for i, name in enumerate(ops)}
    drawn = np.vectorize(index.get)(policy.sample(MANY).op.numpy())
    assert (drawn[:, 0] != drawn[:, 1]).all()
    expected = np.zeros((4, 4))
    for first, second in itertools.permutations(range(4), 2):
        expected[first, second] = weights[first] / 5 * weights[second] / (5 - weights[first])
    assert frequencies_agree(np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16), expected.ravel())


def test_op_gate_sign_level_and_filter_are_independent():
    ops = ("Rotate", "ShearX", "ShearY")
    policy = pa.RandAugment(n=2, m=5, p=0.5, m_std=math.inf, ops=ops, resample="random", semantics="timm")
    program = policy.sample(torch.arange(80_000))
    applied = program.op != 0
    assert independent(applied[:, 0].long(), applied[:, 1].long(), program.resample[:, 0], program.resample[:, 1])
    on = program.op[:, 0] > 0
    op, arg, code = program.op[on, 0], program.arg[on, 0], program.resample[on, 0]
    level = arg.abs() / torch.where(op == 3, 3.0, 0.03)
    assert independent(op, (arg > 0).long(), code, (level * 2).long().clamp(max=9), applied[on, 1].long())


def test_particle_gate_sign_and_filter_are_independent():
    particles = torch.tensor([[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]], dtype=torch.float64)
    policy = pa.ParticlePolicy(particles, [0.4, 0.6], ops=("Rotate", "Invert", "Equalize"), resample="random")
    program = policy.sample(torch.arange(80_000))
    drawn, gate = (program.op[:, 1] != 0).long(), (program.op[:, 0] != 0).long()
    assert independent(drawn, gate, program.resample[:, 0])
    on = gate > 0
    assert independent(drawn[on], (program.arg[on, 0] > 0).long(), program.resample[on, 0])


def test_sub_policy_gates_signs_and_filters_are_independent():
    steps = [[("Rotate", 0.5, 5), ("ShearX", 0.5, 5)], [("ShearY", 0.5, 5), ("Rotate", 0.5, 5)]]
    program = pa.SubPolicies(steps, resample="random").sample(torch.arange(80_000))
    gates = (program.op != 0).long()
    assert independent(gates[:, 0], gates[:, 1], program.resample[:, 0])
    on = gates.all(1)
    assert independent(program.op[on, 0], (program.arg[on] > 0).long()[:, 0], (program.arg[on] > 0).long()[:, 1])


def test_trivial_augment_level_sign_and_op_are_independent():
    program = pa.TrivialAugment(resample="random").sample(torch.arange(150_000))
    geometric = ((program.op >= 10) & (program.op <= 11)).flatten() & (program.arg != 0).flatten()
    op, arg = program.op[geometric, 0], program.arg[geometric, 0]
    level = (arg.abs() / 0.033).round().long() - 1
    assert independent(op - 10, (arg > 0).long(), level, program.resample[geometric, 0])


def test_interpolation_is_bilinear_or_bicubic():
    codes = pa.RandAugment(n=2, m=4, resample="random").sample(MANY).resample
    assert codes.unique().tolist() == [1, 2]
    assert agrees_with((codes == 1).sum(), codes.numel(), 0.5)
    assert agrees_with((codes[:, 0] == codes[:, 1]).sum(), len(MANY), 0.5)
    assert pa.RandAugment(n=2, m=4).sample(MANY[:5]).resample is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": -1}, "n must be a whole number from 0 to 64, got -1"),
        ({"n": 2.0}, "n must be a whole number from 0 to 64, got 2.0"),
        ({"n": True}, "n must be a whole number from 0 to 64, got True"),
        ({"m": 11}, "m must be a number from 0 to 10, the top level of its semantics, got 11"),
        ({"m": math.nan}, "m must be a number from 0 to 10, the top level of its semantics, got nan"),
        ({"m": "9"}, "m must be a number from 0 to 10, .* got '9'"),
        ({"p": 1.1}, "p must be a number from 0 to 1, got 1.1"),
        ({"p": math.nan}, "p must be a number from 0 to 1, got nan"),
        ({"m_std": -1}, "m_std must be 0 or more, got -1"),
        ({"m_std": math.nan}, "m_std must be 0 or more, got nan"),
        ({"m_max": 0}, "m_max must be a positive number, got 0"),
        ({"m_max": math.inf}, "m_max must be a positive number, got inf"),
        ({"semantics": "tim"}, "there is no semantics named 'tim'; did you mean timm"),
        ({"semantics": None}, "semantics must be a name, got None"),
        ({"ops": "Rotate"}, "ops must be a list of op names, got 'Rotate'"),
        ({"ops": ()}, "ops must name at least one op"),
        ({"ops": ("Rotat",)}, "there is no op named 'Rotat'; did you mean Rotate"),
        ({"ops": ("SolarizeAdd",), "semantics": "torchvision"}, "semantics 'torchvision' does not define SolarizeAdd"),
        ({"op_weights": (1.0,)}, "op_weights must be 15 positive numbers, one per op"),
        ({"op_weights": (0.0,) * 15}, "op_weights must be 15 positive numbers, one per op"),
        ({"op_weights": (1.0,), "ops": ("Rotate",), "n": 2}, "without replacement by op_weights needs n of at most 1"),
        ({"resample": "nearest"}, "resample must be one of default, random, got 'nearest'"),
    ],
)
def test_rand_augment_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        pa.RandAugment(**fields)


# TrivialAugment.


def test_trivial_augment_draws_ops_levels_and_signs_uniformly():
    ids = torch.arange(120_000)
    program = pa.TrivialAugment().sample(ids)
    names = pa.TrivialAugment().ops
    assert len(names) == 14
    assert {"Invert", "SolarizeAdd"}.isdisjoint(names)
    counts = np.bincount(program.op.flatten(), minlength=len(pa.ops.TABLE))
    assert frequencies_agree(counts, [op.name in names for op in pa.ops.TABLE])
    angles = program.arg[program.op == 3].numpy()
    assert frequencies_agree(np.unique(np.abs(angles), return_counts=True)[1], [1] * 31)
    assert sorted(set(np.abs(angles))) == [4.5 * level for level in range(31)]
    moved = angles[angles != 0]
    assert agrees_with((moved > 0).sum(), moved.size, 0.5)
    bits = program.arg[program.op == 14]
    # round(level / 5) of the levels 0 to 30: the ends have 3 levels, the others 5.
    assert frequencies_agree(np.bincount(bits.long(), minlength=9), [0, 0, 3, 5, 5, 5, 5, 5, 3])


def test_trivial_augment_translates_by_whole_pixels():
    program = pa.TrivialAugment().sample(MANY, size=(48, 64))
    pixels = program.arg[program.op == 12] * 64
    assert torch.equal(pixels, pixels.round())
    assert pixels.abs().max() == 32


def test_trivial_augment_standard_space():
    program = pa.TrivialAugment("standard").sample(MANY)
    assert program.arg[program.op == 3].abs().max() == 30
    assert program.arg[program.op == 6].aminmax() == (pytest.approx(0.1), pytest.approx(1.9))


def test_trivial_augment_refuses():
    with pytest.raises(ValueError, match="space must be one of wide, standard, got 'narrow'"):
        pa.TrivialAugment("narrow")
    with pytest.raises(ValueError, match="resample must be one of default, random, got 'x'"):
        pa.TrivialAugment(resample="x")


TWICE = ("Rotate", "Color", "Rotate", "Identity")


@pytest.mark.parametrize(
    "policy",
    [
        pa.RandAugment(n=2, m=5, p=0.75, ops=TWICE),
        pa.TrivialAugment(ops=TWICE, n=2),
        pa.Mixture((0.75, 0.5), 0.5, ops=TWICE),
        pa.ParticlePolicy([[0.25, 0.5, 0.75, 1.0]], [1.0], ops=TWICE),
    ],
    ids=lambda policy: policy.kind,
)
def test_an_op_that_is_named_twice_counts_twice(policy):
    assert list(policy.inclusion) == ["Rotate", "Color", "Identity"]
    test_ops_are_applied_as_often_as_the_policy_says(policy)


@every_policy
def test_ops_are_applied_as_often_as_the_policy_says(policy):
    last = policy.at_or_last(None)
    drawn = last.sample(MANY, epoch=3, seed=1).op
    for name, share in policy.inclusion.items():
        if name != "Identity":
            counts = (drawn == lookup(name).index).sum(1).double()
            assert abs(float(counts.mean()) - share) < 5 * max(float(counts.std()), 0.01) / len(MANY) ** 0.5, name
    changing = float((drawn != lookup("Identity").index).sum(1).double().mean())
    assert policy.ops_per_image == pytest.approx(changing, abs=0.05)
