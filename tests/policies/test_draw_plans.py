"""Single draws: compiled, or in plain Python, the same bits as the policies' tensor arithmetic."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import particleaugment as pa
from particleaugment.core.op_table import AUTOAUGMENT_OPS, NO_UP_OPS
from particleaugment.executors import native
from particleaugment.policies.mixture import Mixture

GENERATOR = torch.Generator().manual_seed(0)
PARTICLES, WEIGHTS = torch.rand(20, 15, generator=GENERATOR), torch.rand(20, generator=GENERATOR)
IDS = torch.cat([torch.arange(400), torch.randint(0, 2**62, (400,), generator=GENERATOR)])
SEED, EPOCH = 123_456_789_012, 7
TEXTS = (
    ("none", "trivial", "trivial-n2", "trivial-standard", "rand-m7-n2-inc1", "rand-m9-n3-mstd0.5-inc1")
    + ("rand-m9-mstd101", "rand-m15-mmax20-mstd1", "rand-m6-n3-tweights", "randaugment-n2-m5-p0.3", "original")
    + ("originalr", "v0-mstd0.5", "v0r", "autoaugment-cifar10", "autoaugment-svhn", "randaugment-n0-m4")
)  # fmt: skip
OTHERS = {
    "particles": pa.ParticlePolicy(PARTICLES, WEIGHTS, m=3),
    "particles in random order": pa.ParticlePolicy(PARTICLES, WEIGHTS, m=3, order="random", resample="random"),
    "some particles without weight": pa.ParticlePolicy(PARTICLES[:3], torch.tensor([0.0, 1.0, 0.0]), m=3),
    "shuffled Cutout": pa.ParticlePolicy(
        PARTICLES, WEIGHTS, m=5, semantics="autoaugment-original", ops=AUTOAUGMENT_OPS, order="random"
    ),
    "Cutout": pa.RandAugment(n=3, m=6, semantics="autoaugment-original", ops=AUTOAUGMENT_OPS),
    "Fast AutoAugment": pa.RandAugment(n=3, m=0.6, semantics="fast-autoaugment", ops=AUTOAUGMENT_OPS, m_std=0.3),
    "no up": pa.RandAugment(n=3, m=6, ops=NO_UP_OPS, m_std=2.0),
    "mixture": Mixture(slots=(1.0, 0.4), level=0.5, resample="random"),
    "weighted rows": pa.SubPolicies(
        [[("Rotate", 0.7, 2), ("Invert", 0.1, 0)], [("Equalize", 1.0, 0)]], weights=(1.0, 3.0), m_std=1.0
    ),
}
POLICIES = {**{text: pa.parse(text) for text in TEXTS}, **OTHERS}
SIZES = ((32, 32), (224, 224))


def differing(plan, expected, numbers, size):
    """Samples whose single draw is not the one that is expected."""
    wrong = []
    for i in numbers:
        found = plan.draw(int(IDS[i]), EPOCH, SEED, size, code=-1).program()
        if not found.equal(expected[i : i + 1]):
            wrong.append(i)
    return wrong


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", POLICIES)
def test_single_draws_are_the_batch_s(name, size):
    policy = POLICIES[name]
    expected = policy.sample(IDS, EPOCH, SEED, size)
    assert differing(policy.plan(), expected, range(0, 800, 8), size) == []


@pytest.mark.skipif(bool(native.unavailable_reason()), reason="Numba is not installed")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", POLICIES)
def test_compiled_batches_are_the_tensors_(name, size):
    expected, found = (
        POLICIES[name].sample(IDS, EPOCH, SEED, size),
        POLICIES[name].plan().sample(IDS, EPOCH, SEED, size),
    )
    assert found.equal(expected)
    assert (found.resample is None, found.patch is None) == (expected.resample is None, expected.patch is None)


def test_of_images_that_are_not_square():
    size = (17, 40)
    for name in ("trivial", "Cutout", "autoaugment-cifar10", "rand-m9-mstd101"):
        expected = POLICIES[name].sample(IDS, EPOCH, SEED, size)
        assert differing(POLICIES[name].plan(), expected, range(0, 800, 40), size) == []
    with pytest.raises(ValueError, match="Rotate90"):
        POLICIES["no up"].plan().draw(0, 0, 0, size, 1)


def test_every_policy_has_a_plan():
    assert all(policy.plan() is not None for policy in POLICIES.values())
    assert pa.parse("trivial").plan().built_in


def test_in_plain_python_the_draws_are_the_same():
    program = (
        "import sys; sys.modules['numba'] = None; sys.path.insert(0, sys.argv[1])\n"
        "import test_draw_plans as plans\n"
        "from particleaugment.policies import _draw_kernels\n"
        "assert not _draw_kernels.COMPILED\n"
        "for name, policy in plans.POLICIES.items():\n"
        "    expected = policy.sample(plans.IDS, plans.EPOCH, plans.SEED, (32, 32))\n"
        "    wrong = plans.differing(policy.plan(), expected, range(0, 800, 16), (32, 32))\n"
        "    assert not wrong, (name, wrong)\n"
        "print('equal')\n"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "equal\n", done.stderr
