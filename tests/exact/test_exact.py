import numpy as np
import pytest
from cases import (
    EXECUTORS,
    GEOMETRIC,
    KINDS,
    NAMES,
    SIZES,
    Tally,
    chains,
    names_for,
    pool,
    singles,
    special_arguments,
)

import particleaugment as pa

SINGLES = dict(zip(SIZES, (600, 600, 600, 600, 160, 30)))
CHAINS = dict(zip(SIZES, (8000, 8000, 10000, 14000, 800, 24)))
ALONE = [
    (name, code, size)
    for size in SIZES
    for name in names_for(*size)
    for code in (range(3) if name in GEOMETRIC else (1,))
]


def test_every_op_is_covered_and_the_plan_is_large():
    assert {name for name, _, _ in ALONE} == set(NAMES)
    assert sum(SINGLES[size] for _, _, size in ALONE) + sum(CHAINS.values()) >= 100_000


@pytest.mark.parametrize(("name", "code", "size"), ALONE, ids=lambda value: str(value).replace(", ", "x"))
def test_one_op_gives_pillows_pixels(tally, name, code, size):
    tally.check(singles(name, code, *size, SINGLES[size]), *EXECUTORS)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_chains_give_pillows_pixels(tally, size, part):
    count = CHAINS[size] // 4
    shared = -(-count // 8)
    tally.check(chains(*size, slots=part + 1, count=shared, seed=1), *EXECUTORS)
    tally.check(chains(*size, slots=part + 1, count=count - shared, seed=2), "native")


def test_a_single_wrong_pixel_fails():
    case = chains(5, 4, slots=2, count=6)
    expected = case.expected()
    wrong = expected.copy()
    wrong[4, 1, 2, 3] ^= 1
    counted = Tally()
    assert counted.compare("native", case, expected, expected) == ""
    message = counted.compare("native", case, wrong, expected)
    assert "native differs from Pillow on 1 of 6 images of shape (3, 5, 4)" in message
    assert "at channel, row, column (1, 2, 3) of image 4" in message
    assert (counted.executors["native"], counted.differing) == (12, 1)


def test_a_difference_fails_the_check(monkeypatch):
    monkeypatch.setattr(pa, "apply", lambda images, *_, **__: images)
    with pytest.raises(AssertionError, match=r"native differs .*\nbatch differs"):
        Tally().check(chains(5, 4, slots=2, count=6), "native", "batch")


def test_the_images_are_of_every_kind():
    values = {kind: [len(np.unique(image)) for image in pool(kind, 32, 32, 40)] for kind in KINDS}
    assert set(values["two-valued"]) == {2}
    assert max(values["constant"]) <= 3
    assert min(values["random"]) > 200
    assert np.abs(np.diff(pool("smooth", 32, 32, 40).astype(int))).max() < 60
    assert min(values["digit"]) > 10
    assert np.mean(values["photo"]) > 50


@pytest.mark.parametrize("name", NAMES)
def test_the_arguments_reach_the_ends_of_their_range(name):
    op = pa.ops.lookup(name)
    special = special_arguments(name, 32, 32)
    assert (min(special), max(special)) == (op.low, op.high)
