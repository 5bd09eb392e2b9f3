import math

import pytest
import torch

import particleaugment as pa
from particleaugment.policies.auto import published

TIMM_OPS = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
TIMM = {"ops": TIMM_OPS, "p": 0.5, "resample": "random", "semantics": "timm"}
INCREASING = TIMM | {"semantics": "timm-increasing"}
TWEIGHTS = {
    "Rotate": 3, "ShearX": 2, "ShearY": 2, "TranslateX": 1, "TranslateY": 1, "Color": 0.25, "Sharpness": 0.25,
    "AutoContrast": 0.25, "Solarize": 0.05, "SolarizeAdd": 0.05, "Contrast": 0.05, "Brightness": 0.05, "Equalize": 0.05,
    "Posterize": 0.05, "Invert": 0.05,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rand", pa.RandAugment(n=2, m=10, **TIMM)),
        ("rand-m9-n3-mstd0.5-inc1-p0.5", pa.RandAugment(n=3, m=9, m_std=0.5, **INCREASING)),
        ("rand-m9-n3-mstd0.5-inc1", pa.RandAugment(n=3, m=9, m_std=0.5, **INCREASING)),
        ("rand-m9-mstd0.5-inc1", pa.RandAugment(n=2, m=9, m_std=0.5, **INCREASING)),
        ("rand-inc1-mstd0.5-m9", pa.RandAugment(n=2, m=9, m_std=0.5, **INCREASING)),
        ("rand-m9-n3-mstd0.5", pa.RandAugment(n=3, m=9, m_std=0.5, **TIMM)),
        # Without mmax timm cuts levels above 10 to 10.
        ("rand-m15-n2", pa.RandAugment(n=2, m=15, m_max=10, **TIMM)),
        ("rand-m9-n2-mmax20", pa.RandAugment(n=2, m=9, m_max=20, **TIMM)),
        ("rand-m15-n2-mmax20-inc1", pa.RandAugment(n=2, m=15, m_max=20, **INCREASING)),
        ("rand-m9-p0.3", pa.RandAugment(n=2, m=9, **(TIMM | {"p": 0.3}))),
        ("rand-m9-p1", pa.RandAugment(n=2, m=9, **(TIMM | {"p": 1.0}))),
        # A deviation above 100 means uniform levels.
        ("rand-mstd101-m8", pa.RandAugment(n=2, m=8, m_std=math.inf, **TIMM)),
        ("rand-m8-mstd100", pa.RandAugment(n=2, m=8, m_std=100, **TIMM)),
        ("rand-m8-mstdinf-inc1", pa.RandAugment(n=2, m=8, m_std=math.inf, **INCREASING)),
        (
            "rand-mstd1-tweights",
            pa.RandAugment(n=2, m=10, m_std=1, op_weights=tuple(TWEIGHTS[name] for name in TIMM_OPS), **INCREASING),
        ),
        ("original", pa.SubPolicies(published("imagenet"), "timm-original", resample="random")),
        ("original-mstd0.5", pa.SubPolicies(published("imagenet"), "timm-original", 0.5, "random")),
        ("originalr", pa.SubPolicies(published("imagenet"), "timm-research", resample="random")),
        ("v0", pa.SubPolicies(published("v0"), "timm", resample="random")),
        ("v0r-mstd0.25", pa.SubPolicies(published("v0"), "timm-research", 0.25, "random")),
        ("none", pa.Identity()),
        ("identity", pa.Identity()),
        ("trivial", pa.TrivialAugment()),
        ("trivial-wide", pa.TrivialAugment("wide")),
        ("trivialaugment", pa.TrivialAugment()),
        ("trivialaugment-n2", pa.TrivialAugment(n=2)),
        ("trivial-standard", pa.TrivialAugment("standard")),
        ("autoaugment-cifar10", pa.AutoAugment("cifar10")),
        ("autoaugment-imagenet", pa.AutoAugment("imagenet")),
        ("autoaugment-svhn", pa.AutoAugment("svhn")),
        ("randaugment-n3-m4", pa.RandAugment(n=3, m=4, p=1.0, semantics="timm-increasing", ops=pa.OPS)),
        ("randaugment-n1-m2.5-p0.25", pa.RandAugment(n=1, m=2.5, p=0.25)),
        ("randaugment", pa.RandAugment()),
    ],
)
def test_strings(text, expected):
    assert pa.parse(text) == expected
    assert pa.Augment(text).policy == expected


def test_a_level_above_ten_is_cut_to_ten():
    ids = torch.arange(500)
    high, ten = pa.parse("rand-m15-n2-p1"), pa.parse("rand-m10-n2-p1")
    assert high.sample(ids).equal(ten.sample(ids))
    more = pa.parse("rand-m15-n2-mmax20-p1").sample(ids)
    assert more.arg[more.op == 3].abs().unique().tolist() == [45]


def test_timm_noise_stays_within_0_and_10():
    program = pa.parse("rand-m9-mstd3-n2-p1").sample(torch.arange(5000))
    assert program.arg[program.op == 3].abs().max() == 30
    assert program.resample.unique().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "count", "entries"),
    [
        (
            "v0",
            25,
            {
                0: (("Equalize", 0.8, 0), ("ShearY", 0.8, 4)),
                6: (("Equalize", 0.4, 0), ("SolarizeAdd", 0.8, 3)),
                15: (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9)),
                16: (("ShearX", 0.0, 0), ("Solarize", 0.8, 4)),
                22: (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
                24: (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
            },
        ),
        (
            "original",
            25,
            {0: (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)), 17: (("Sharpness", 0.4, 7), ("Invert", 0.6, 0))},
        ),
    ],
)
def test_the_lists_behind_timms_names(text, count, entries):
    policies = pa.parse(text).sub_policies
    assert len(policies) == count
    assert {index: policies[index] for index in entries} == entries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("augmix-m5-w4-d2", "'augmix-m5-w4-d2' needs timm itself: augmix mixes or blurs images"),
        ("3a", "'3a' needs timm itself: 3a mixes or blurs images"),
        ("rand-m9-t3a", "in 'rand-m9-t3a' the op set 't3a' blurs images; only 'tweights' can be expressed here"),
        ("rand-m9-t3aw", "in 'rand-m9-t3aw' the op set 't3aw' blurs images"),
        ("rand-m9-inc0", "in 'rand-m9-inc0' omit inc0: versions of timm differ"),
        ("rand-m9-w0", "in 'rand-m9-w0' the section 'w0' is not one of m, n, p, mstd, mmax, inc and a number"),
        ("rand-m9-nx", "in 'rand-m9-nx' the section 'nx' is not one of m, n, p, mstd, mmax, inc and a number"),
        ("rand-m", "the section 'm' is not one of"),
        ("rand-", "the section '' is not one of"),
        ("rand-m-9", "the section 'm' is not one of"),
        ("rand-M9", "the section 'M9' is not one of"),
        ("rand-m9-m8", "in 'rand-m9-m8' the option 'm' is given twice"),
        ("rand-m9.5", "in 'rand-m9.5' the option 'm' must be a whole number, got 9.5"),
        ("rand-n2.5", "in 'rand-n2.5' the option 'n' must be a whole number, got 2.5"),
        ("rand-minf", "in 'rand-minf' the option 'm' must be a whole number, got inf"),
        ("rand-n1e999", "in 'rand-n1e999' the option 'n' must be a whole number, got inf"),
        ("randaugment-ninf", "in 'randaugment-ninf' the option 'n' must be a whole number, got inf"),
        ("rand-p1.5", "p must be a number from 0 to 1, got 1.5"),
        ("rand-n65", "n must be a whole number from 0 to 64, got 65"),
        ("rand-n16-tweights", "without replacement by op_weights needs n of at most 15, got 16"),
        ("rand-m9-mmax8.5", "in 'rand-m9-mmax8.5' the option 'mmax' must be a whole number, got 8.5"),
        ("rand-mmax0", "in 'rand-mmax0' the option 'mmax' must be positive"),
        ("original-m9", "in 'original-m9' the section 'm9' is not one of mstd and a number"),
        ("randaugment-m11", "m must be a number from 0 to 10, the top level of its semantics, got 11"),
        ("randaugment-inc1", "the section 'inc1' is not one of m, n, p and a number"),
        ("autoaugment-cifar100", "is not a policy string; did you mean autoaugment-cifar10"),
        ("autoaugment-v0", "AutoAugment published no policy named 'v0'"),
        ("orignal", "'orignal' is not a policy string; did you mean original"),
        ("RAND-m9", "'RAND-m9' is not a policy string; did you mean rand"),
        ("", "'' is not a policy string; examples: rand-m9-n3-mstd0.5-inc1, original, "),
        ("trivial-narrow", "'trivial-narrow' is not a policy string; did you mean trivial"),
        ("none-m9", "'none-m9' is not a policy string"),
        (" rand-m9", "' rand-m9' is not a policy string"),
        ("%§&", "is not a policy string; examples: "),
    ],
)
def test_strings_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        pa.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, 9, b"rand-m9", ["rand"]])
def test_only_strings_are_parsed(text):
    with pytest.raises(TypeError, match=f"expected a policy string, got {type(text).__name__}"):
        pa.parse(text)
