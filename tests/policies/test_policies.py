import copy
import dataclasses
import itertools
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import particleaugment as pa
from particleaugment.policies import Schedule
from particleaugment.policies.schedule import ScheduleStep
from particleaugment.semantics import SEMANTICS

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
MANY = torch.arange(40_000)


def particle_policy(r=4, n=15, seed=0, **fields):
    generator = torch.Generator().manual_seed(seed)
    particles = torch.rand(r, n, dtype=torch.float64, generator=generator)
    return pa.ParticlePolicy(particles, torch.rand(r, dtype=torch.float64, generator=generator), **fields)


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
    "schedule": schedule(),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


def frequencies_agree(counts, probabilities):
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    assert counts[probabilities == 0].sum() == 0
    kept = probabilities > 0
    return stats.chisquare(counts[kept], counts.sum() * probabilities[kept] / probabilities.sum()).pvalue > 1e-4


def agrees_with(successes, trials, probability):
    return stats.binomtest(int(successes), int(trials), probability).pvalue > 1e-4


# What holds for every policy.


@every_policy
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_program_depends_on_its_sample_alone(policy, data):
    """Any split, permutation or repetition of the ids, in batches of any size, gives each sample the same program."""
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 2**62) | st.integers(0, 30), min_size=1, max_size=24)))
    epoch, seed = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(0, 2**63 - 1))
    whole = policy.sample(ids, epoch, seed)
    order = torch.tensor(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=40)))
    assert policy.sample(ids[order], epoch, seed).equal(whole[order])
    batch = data.draw(st.integers(1, len(ids)))
    assert pa.Program.cat([policy.sample(part, epoch, seed) for part in ids.split(batch)]).equal(whole)


@every_policy
def test_programs_are_valid_and_of_fixed_width(policy):
    widths = set()
    for ids, epoch, size in ((MANY[:3000], 0, (32, 32)), (MANY[:1], 9, (1, 7)), (MANY[:0], 1, (224, 160))):
        program = policy.sample(ids, epoch, 3, size)
        checked = pa.Program(program.op, program.arg, program.resample)  # refuses what is not valid
        assert checked.equal(program)
        widths.add(program.op.shape[1])
    assert len(widths) == 1


@every_policy
def test_seed_epoch_and_id_change_the_program(policy):
    if isinstance(policy, pa.Identity):
        assert policy.sample(MANY[:9]).op.shape == (9, 0)
        return
    base = policy.sample(MANY[:200], 3, 5)
    assert policy.sample(MANY[:200], 3, 5).equal(base)
    assert policy.sample(MANY[:200], torch.tensor(3), torch.tensor(5)).equal(base)
    for other in (policy.sample(MANY[:200], 3, 6), policy.sample(MANY[:200], 2, 5), policy.sample(MANY[200:400], 3, 5)):
        assert not other.equal(base)


@every_policy
def test_json_round_trip(policy, tmp_path):
    path = tmp_path / "policy.json"
    policy.save(path)
    for loaded in (
        pa.load_policy(path),
        type(policy).load(path),
        pa.policy_from_dict(json.loads(json.dumps(policy.to_dict(), allow_nan=False))),
        pickle.loads(pickle.dumps(policy)),
        copy.deepcopy(policy),
    ):
        assert type(loaded) is type(policy)
        assert loaded == policy
        assert hash(loaded) == hash(policy)
        assert loaded.sample(MANY[:100], 2, 3).equal(policy.sample(MANY[:100], 2, 3))
        loaded.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    document = json.loads(path.read_text())
    assert (document["format"], document["version"], document["kind"]) == ("particleaugment-policy", 1, policy.kind)


@every_policy
def test_policies_are_immutable(policy):
    for name in [*policy.__dict__, "something_new"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, name, 1)


@every_policy
def test_repr_is_readable(policy):
    assert repr(policy).startswith(type(policy).__name__ + "(")
    assert "tensor" not in repr(policy)


def test_reprs():
    assert repr(pa.Identity()) == "Identity()"
    assert repr(pa.TrivialAugment()) == "TrivialAugment(space='wide', resample='default')"
    assert repr(pa.AutoAugment("svhn")) == "AutoAugment(name='svhn', semantics='torchvision-autoaugment')"
    assert "RandAugment(n=3, m=4.0, p=1.0, semantics='timm-increasing'" in repr(pa.RandAugment(n=3, m=4))
    assert repr(pa.ParticlePolicy(torch.full((2, 15), 0.5), torch.ones(2))) == (
        "ParticlePolicy(2 particles x 15 ops, m=3, semantics='timm-increasing', 7.00 ops per image)"
    )


def test_a_rescaled_schedule_round_trips(tmp_path):
    stretched = schedule().rescaled(16)
    stretched.save(tmp_path / "policy.json")
    loaded = pa.load_policy(tmp_path / "policy.json")
    assert loaded == stretched
    assert loaded.at(6) == schedule().at(3) != loaded.at(7) == schedule().at(4)


LEVELS = {name: SEMANTICS[name].top for name in SEMANTICS}


@st.composite
def rand_augments(draw):
    name = draw(st.sampled_from(sorted(LEVELS)))
    known = sorted(SEMANTICS[name].rules)
    ops = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=8)))
    weights = draw(st.none() | st.tuples(*[st.floats(1e-6, 1e6)] * len(ops)))
    return pa.RandAugment(
        n=draw(st.integers(0, len(ops))),
        m=draw(st.floats(0, LEVELS[name])),
        p=draw(st.floats(0, 1)),
        semantics=name,
        ops=ops,
        m_std=draw(st.floats(0, 1e6) | st.just(math.inf)),
        m_max=draw(st.none() | st.floats(1e-6, 1e3)),
        op_weights=weights,
        resample=draw(st.sampled_from(["default", "random"])),
    )


@st.composite
def sub_policies(draw):
    name = draw(st.sampled_from(sorted(LEVELS)))
    step = st.tuples(st.sampled_from(sorted(SEMANTICS[name].rules)), st.floats(0, 1), st.floats(0, LEVELS[name]))
    lists = draw(st.lists(st.lists(step, max_size=4), min_size=1, max_size=5))
    return pa.SubPolicies(lists, name, draw(st.floats(0, 10)), draw(st.sampled_from(["default", "random"])))


@st.composite
def particle_policies(draw):
    name = draw(st.sampled_from(sorted(LEVELS)))
    ops = tuple(draw(st.lists(st.sampled_from(sorted(SEMANTICS[name].rules)), min_size=1, max_size=6)))
    r = draw(st.integers(1, 5))
    rows = st.lists(st.floats(0, 1), min_size=len(ops), max_size=len(ops))
    particles = draw(st.lists(rows, min_size=r, max_size=r))
    weights = draw(st.lists(st.floats(0, 1e9), min_size=r, max_size=r).filter(lambda w: sum(w) > 1e-300))
    order, resample = draw(st.sampled_from(["fixed", "random"])), draw(st.sampled_from(["default", "random"]))
    return pa.ParticlePolicy(particles, weights, draw(st.floats(0, LEVELS[name])), name, order, ops, resample)


@PROPERTY
@given(rand_augments() | sub_policies() | particle_policies())
def test_any_policy_round_trips_and_draws_valid_programs(policy):
    loaded = pa.policy_from_dict(json.loads(json.dumps(policy.to_dict(), allow_nan=False)))
    assert loaded == policy
    program = policy.sample(MANY[:40], 1, 2, size=(20, 30))
    assert loaded.sample(MANY[:40], 1, 2, size=(20, 30)).equal(program)
    pa.Program(program.op, program.arg, program.resample)


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


def independent(*columns):
    """Whether whole-numbered columns are pairwise independent, by chi-square tests of their tables."""
    p_values = []
    for first, second in itertools.combinations([np.unique(column, return_inverse=True)[1] for column in columns], 2):
        table = np.zeros((first.max() + 1, second.max() + 1))
        np.add.at(table, (first, second), 1)
        p_values.append(stats.chi2_contingency(table).pvalue)
    return min(p_values) > 1e-5


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
    counts = np.bincount(program.op.flatten(), minlength=17)
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


# AutoAugment and lists of sub-policies.


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        (
            "cifar10",
            {
                0: (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
                1: (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
                5: (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
                13: (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
                24: (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
            },
        ),
        (
            "imagenet",
            {
                0: (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
                3: (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
                12: (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
                18: (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
                24: (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
            },
        ),
        (
            "svhn",
            {
                0: (("ShearX", 0.9, 4), ("Invert", 0.2, 0)),
                12: (("Equalize", 0.9, 0), ("TranslateY", 0.6, 6)),
                15: (("Invert", 0.8, 0), ("TranslateY", 0.0, 2)),
                20: (("Solarize", 0.7, 2), ("TranslateY", 0.6, 7)),
                24: (("ShearX", 0.7, 2), ("Invert", 0.1, 0)),
            },
        ),
    ],
)
def test_autoaugment_lists(name, entries):
    policies = pa.AutoAugment(name).sub_policies.sub_policies
    assert len(policies) == 25
    assert {len(policy) for policy in policies} == {2}
    assert {index: policies[index] for index in entries} == entries
    assert pa.AutoAugment(name).sample(MANY[:50], 1, 2).equal(pa.AutoAugment(name).sub_policies.sample(MANY[:50], 1, 2))


def test_autoaugment_probabilities_over_the_whole_list():
    """Each op is as frequent as the 25 lines, drawn evenly, make it."""
    policy = pa.AutoAugment("cifar10")
    program = policy.sample(MANY)
    for slot in (0, 1):
        expected = np.zeros(16)
        for line in policy.sub_policies.sub_policies:
            name, probability, _ = line[slot]
            expected[pa.ops.lookup(name).index] += probability / 25
            expected[0] += (1 - probability) / 25
        assert frequencies_agree(np.bincount(program.op[:, slot], minlength=16), expected)


def test_autoaugment_refuses_what_was_not_published():
    with pytest.raises(ValueError, match="AutoAugment published no policy named 'cifar'; did you mean cifar10"):
        pa.AutoAugment("cifar")
    with pytest.raises(ValueError, match="no policy named 'v0'; the policies are cifar10, imagenet, svhn"):
        pa.AutoAugment("v0")


def test_sub_policies_are_drawn_evenly_and_gated():
    policy = pa.SubPolicies(
        [[("Rotate", 0.7, 2), ("Invert", 0.1, 0)], [("Equalize", 1.0, 0)], [("Color", 0.5, 5), ("Rotate", 0.5, 10)]],
        semantics="timm",
    )
    program = policy.sample(torch.arange(90_000))
    pairs = program.op[:, 0] * 16 + program.op[:, 1]
    expected = np.zeros(256)
    for first, second in itertools.product(((3, 0.7), (0, 0.3)), ((15, 0.1), (0, 0.9))):
        expected[first[0] * 16 + second[0]] += first[1] * second[1]
    expected[2 * 16] += 1
    for first, second in itertools.product(((6, 0.5), (0, 0.5)), ((3, 0.5), (0, 0.5))):
        expected[first[0] * 16 + second[0]] += first[1] * second[1]
    assert frequencies_agree(np.bincount(pairs, minlength=256), expected)
    assert set(program.arg[program.op == 3].abs().tolist()) == {6, 30}
    assert program.arg[program.op == 6].unique().tolist() == [1.0]


def test_sub_policies_with_noise():
    policy = pa.SubPolicies([[("Rotate", 1.0, 5)]], semantics="timm", m_std=1.0, resample="random")
    program = policy.sample(MANY)
    assert stats.kstest(program.arg.abs().flatten().numpy() / 3, stats.norm(5, 1).cdf).pvalue > 1e-4
    assert agrees_with((program.resample == 1).sum(), len(MANY), 0.5)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([], "sub_policies must be a non-empty list of lists of"),
        ("Rotate", "sub_policies must be a non-empty list of lists of"),
        (None, "sub_policies must be a non-empty list of lists of"),
        (
            [[("Rotate", 0.5, 5)], [("Rotate", 0.5)]],
            r"sub-policy 1: expected \(op, probability, level\), got \('Rotate', 0.5\)",
        ),
        ([[("Rotat", 0.5, 5)]], "sub-policy 0: there is no op named 'Rotat'; did you mean Rotate"),
        ([[("Rotate", 1.5, 5)]], "sub-policy 0: the probability of Rotate must be a number from 0 to 1, got 1.5"),
        ([[("Rotate", 0.5, 11)]], "sub-policy 0: the level of Rotate must be a number from 0 to 10, .* got 11"),
        ([[("Rotate", 0.5, None)]], "sub-policy 0: the level of Rotate must be a number from 0 to 10, .* got None"),
        ([5], "sub-policy 0: 'int' object is not iterable"),
    ],
)
def test_sub_policies_refuse(lists, message):
    with pytest.raises(ValueError, match=message):
        pa.SubPolicies(lists)


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


# Bad input to sampling, and bad files.


@every_policy
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([2, -3]), ValueError, "sample ids must not be negative, got -3; use each sample's index"),
        (torch.tensor([1.0]), TypeError, "sample ids must be an int64 tensor, got torch.float32"),
        ([1, 2], TypeError, "sample ids must be an int64 tensor, got list"),
        (torch.tensor([[1]]), ValueError, r"sample ids must have one dimension, got shape \(1, 1\)"),
    ],
)
def test_bad_ids(policy, ids, error, message):
    with pytest.raises(error, match=message):
        policy.sample(ids)


@pytest.mark.parametrize("size", [32, (32,), (0, 32), ("a", "b"), None])
@pytest.mark.parametrize("name", ["rand", "trivial", "auto-cifar10", "particles"])
def test_bad_size(name, size):
    with pytest.raises(ValueError, match=r"size must be (\(height, width\)|two positive numbers), got "):
        POLICIES[name].sample(MANY[:2], size=size)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a sound policy file: not valid JSON"),
        ("{", "is not a sound policy file: not valid JSON"),
        ("[" * 100_000, "is not a sound policy file: it is nested more than 32 deep"),
        ('{"format": NaN}', "is not a sound policy file: format must be a finite number, got nan"),
        ("[]", "is not a policy file: its field 'format' must be 'particleaugment-policy'"),
        ('{"format": "other"}', "is not a policy file: its field 'format' must be"),
        ('{"format": "particleaugment-policy", "version": 2}', "has version 2; this release reads version 1"),
        ('{"format": "particleaugment-policy"}', "has version None; this release reads version 1"),
    ],
)
def test_malformed_files(tmp_path, text, message):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"policy.json.* {message}"):
        pa.load_policy(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"there is no policy file .*none.json"):
        pa.load_policy(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"the policy file .* cannot be read: Is a directory"):
        pa.load_policy(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary.json is not a sound policy file: byte 0 is not UTF-8"):
        pa.load_policy(tmp_path / "binary.json")


def test_a_file_of_another_kind(tmp_path):
    pa.TrivialAugment().save(tmp_path / "p.json")
    with pytest.raises(
        ValueError, match=r"p.json holds a policy of kind 'trivialaugment', not 'randaugment'; use load_policy"
    ):
        pa.RandAugment.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a policy is a JSON object, got list"),
        ({}, "there is no policy of kind None; the kinds are autoaugment, identity, particles, "),
        ({"kind": "randaugmen"}, "there is no policy of kind 'randaugmen'; did you mean randaugment"),
        ({"kind": ["x"]}, r"there is no policy of kind \['x'\]"),
        ({"kind": "randaugment", "n": 2}, "the policy of kind 'randaugment' lacks the field 'op_weights'"),
        ({"kind": "trivialaugment", "space": "x", "resample": "default"}, "is not valid: space must be one of wide"),
        (
            {"kind": "sub-policies", "semantics": "timm", "sub_policies": 3},
            "is not valid: sub_policies must be a non-empty",
        ),
        (pa.RandAugment().to_dict() | {"m": "x"}, "is not valid: m must be a number from 0 to 10"),
        (pa.RandAugment().to_dict() | {"ops": 5}, "is not valid: ops must be a list, got 5"),
        (pa.RandAugment().to_dict() | {"m_std": 10**400}, "is not valid: int too large to convert to float"),
        (pa.RandAugment().to_dict() | {"m_max": 10**400}, "is not valid: int too large to convert to float"),
        (
            particle_policy().to_dict() | {"weights": {"a": 1}},
            r"is not valid: weights must be numbers in 1 dimension\(s\)",
        ),
        (
            particle_policy().to_dict() | {"particles": [[0.5], [0.5, 0.5]]},
            "is not valid: particles must be numbers in 2",
        ),
    ],
)
def test_malformed_data(data, message):
    with pytest.raises(ValueError, match=message):
        pa.policy_from_dict(data)


@PROPERTY
@given(
    st.sampled_from(sorted(POLICIES)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    st.data(),
)
def test_a_field_replaced_by_anything_is_refused_in_one_sentence_or_valid(name, value, data):
    document = POLICIES[name].to_dict()
    field = data.draw(st.sampled_from(sorted(document)))
    try:
        pa.policy_from_dict(document | {field: value}).sample(MANY[:3])
        message = ""
    except ValueError as error:
        message = str(error)
    assert message == "" or message.startswith(("the policy of kind ", "there is no policy of kind "))
