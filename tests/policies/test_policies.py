import copy
import dataclasses
import json
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import MANY, POLICIES, PROPERTY, every_policy, particle_policy, schedule

import particleaugment as pa
from particleaugment.core.semantics import SEMANTICS
from particleaugment.policies.policy import from_dict

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
def test_the_default_dtype_does_not_matter(policy, another_default_dtype):
    expected = policy.sample(MANY[:500], 3, 5, (17, 40))
    with another_default_dtype():
        drawn = copy.deepcopy(policy).sample(MANY[:500], 3, 5, (17, 40))
    assert drawn.equal(expected)
    assert drawn.arg.dtype == torch.float64


@every_policy
def test_the_default_device_does_not_matter(policy):
    expected = policy.sample(MANY[:500], 3, 5, (17, 40))
    with torch.device("meta"):
        assert from_dict(policy.to_dict()).sample(MANY[:500], 3, 5, (17, 40)).equal(expected)


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


def test_a_schedule_of_a_semantics_can_be_saved(tmp_path):
    made = dataclasses.replace(schedule(), semantics=SEMANTICS["timm"])
    made.save(tmp_path / "policy.json")
    assert pa.load_policy(tmp_path / "policy.json") == made == dataclasses.replace(schedule(), semantics="timm")


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
    size = (20, 20) if "Rotate90" in policy.ops else (20, 30)
    program = policy.sample(MANY[:40], 1, 2, size=size)
    assert loaded.sample(MANY[:40], 1, 2, size=size).equal(program)
    pa.Program(program.op, program.arg, program.resample, program.patch)


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
        ("", "is not a valid policy file: not valid JSON"),
        ("{", "is not a valid policy file: not valid JSON"),
        ("[" * 100_000, "is not a valid policy file: it is nested more than 32 deep"),
        ('{"format": NaN}', "is not a valid policy file: format must be a finite number, got nan"),
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
    with pytest.raises(ValueError, match=r"binary.json is not a valid policy file: byte 0 is not UTF-8"):
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
        ({}, "there is no policy of kind None; the kinds are autoaugment, identity, mixture, "),
        ({"kind": "randaugmen"}, "there is no policy of kind 'randaugmen'; did you mean randaugment"),
        ({"kind": ["x"]}, r"there is no policy of kind \['x'\]"),
        ({"kind": "randaugment", "n": 2}, "the policy of kind 'randaugment' lacks the field 'm'"),
        ({"kind": "trivialaugment", "space": "x", "resample": "default"}, "is not valid: space must be one of wide"),
        (
            {"kind": "sub-policies", "semantics": "timm", "sub_policies": 3},
            "is not valid: sub_policies must be a non-empty",
        ),
        (pa.RandAugment().to_dict() | {"m": "x"}, "is not valid: m must be a number from 0 to 10"),
        (pa.RandAugment().to_dict() | {"ops": 5}, "is not valid: ops must be a list of op names, got 5"),
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
