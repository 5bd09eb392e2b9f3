import itertools

import numpy as np
import pytest
import torch
from policy_cases import MANY, agrees_with, frequencies_agree
from scipy import stats

import particleaugment as pa

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


def test_weights_of_sub_policies(tmp_path):
    rows = [[("Invert", 1, 0)], [("Equalize", 1, 0)], [("AutoContrast", 1, 0)], [("Rotate", 1, 5)]]
    policy = pa.SubPolicies(rows, weights=(1, 0, 6, 3))
    op = policy.sample(torch.arange(100_000)).op.flatten()
    shares = [int((op == pa.ops.lookup(row[0][0]).index).sum()) / len(op) for row in rows]
    assert shares == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.006)
    assert shares[1] == 0
    policy.save(tmp_path / "policy.json")
    assert pa.load_policy(tmp_path / "policy.json") == policy
    assert "weights" not in pa.SubPolicies(rows).to_dict()
    assert policy.tables((32, 32)) is None, "the GPU kernel draws uniformly, so torch draws these"
    assert pa.SubPolicies(rows).tables((32, 32)) is not None


@pytest.mark.parametrize("weights", [(1,), (1, -1), (0, 0), (1, float("nan")), (1, float("inf")), "ab", (1, True), 3])
def test_bad_weights(weights):
    with pytest.raises(ValueError, match="weights must be"):
        pa.SubPolicies([[("Invert", 1, 0)], [("Equalize", 1, 0)]], weights=weights)
