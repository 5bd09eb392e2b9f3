"""Images one by one, as ``ImageTransform`` augments them in a loader's worker: the same pixels as Pillow's."""

import numpy as np
import pytest
import torch
from cases import SIZES, Case, as_kind, as_planes, chains, pool, run_one_by_one

import particleaugment as pa
from particleaugment.executors import native

FEW = dict(zip(SIZES, (60, 60, 80, 120, 24, 8)))
MANY = dict(zip(SIZES, (600, 600, 900, 1600, 240, 40)))
POLICIES = ("trivial", "rand-m9-n3-inc1", "rand-m6-n2-mstd1-inc1", "rand-m7-n3-tweights", "original", "v0")


def check(tally, counts: dict[tuple[int, int], int], size: tuple[int, int], kind: str, channels: int) -> None:
    for slots in (1, 2, 3):
        case = chains(*size, slots=slots, count=counts[size], seed=7, channels=channels)
        expected = case.expected()
        ways = [False] if native.unavailable_reason() else [True, False]
        tally.images += len(case)
        for compiled in ways:
            output = run_one_by_one(case, kind, compiled)
            name = f"one by one, {'compiled' if compiled else 'Pillow'}"
            assert not (failure := tally.compare(name, case, output, expected)), failure


@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_one_by_one(tally, size, kind):
    check(tally, FEW, size, kind, channels=3)


@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
def test_grey_images_one_by_one(tally, kind):
    check(tally, FEW, (17, 23), kind, channels=1)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_one_by_one_on_many_images(tally, size, kind, channels):
    check(tally, MANY, size, kind, channels)


def drawn_case(policy: pa.Policy, size: tuple[int, int], count: int, seed: int, epoch: int) -> Case:
    """What a policy draws for samples 0 to ``count`` - 1, as a case for the oracle."""
    program = policy.sample(torch.arange(count), epoch, seed, size)
    names = [[pa.ops.by_index(op).name for op in row] for row in program.op.tolist()]
    codes = program.resample_or_unset().numpy()
    images = np.stack([pool("photo", *size, 8)[i % 8] for i in range(count)])
    return Case(images, names, program.arg.numpy(), np.where(codes < 0, 0, codes))


def check_transform(tally, text: str, size: tuple[int, int], count: int) -> None:
    policy = pa.parse(text)
    case = drawn_case(policy, size, count, seed=11, epoch=7)
    transform = pa.ImageTransform(policy, seed=11, resample="nearest")
    transform.set_epoch(7)
    output = [as_planes(transform(as_kind(pixels, "pillow"), id=i)) for i, pixels in enumerate(case.images)]
    tally.images += len(case)
    failure = tally.compare("ImageTransform", case, np.stack(output), case.expected())
    assert not failure, failure


@pytest.mark.parametrize("text", POLICIES)
def test_the_transform_draws_and_runs_what_pillow_would(tally, text):
    check_transform(tally, text, (32, 32), 60)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), (64, 48), (224, 224)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("text", POLICIES)
def test_the_transform_on_many_images(tally, text, size):
    check_transform(tally, text, size, 1500 if size[0] < 100 else 150)


def test_the_plan_is_large():
    per_kind = sum(3 * count for count in MANY.values())
    assert 3 * 2 * per_kind + len(POLICIES) * (2 * 1500 + 150) >= 20_000
