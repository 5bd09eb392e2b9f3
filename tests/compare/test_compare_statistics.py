"""The statistics of comparisons, beside scipy's."""

import math
import statistics as reference

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from particleaugment.compare.statistics import (
    PairedDifference,
    mean,
    paired_difference,
    standard_deviation,
    t_quantile,
)

accuracies = st.floats(0, 100, allow_nan=False).map(lambda value: round(value, 3))
by_seed = st.dictionaries(st.integers(0, 30), accuracies, max_size=20)


@pytest.mark.parametrize(
    ("probability", "degrees", "published"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.95, 11, 1.796), (0.025, 9, -2.262)],
)
def test_quantiles_are_those_of_the_printed_tables(probability, degrees, published):
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_quantile_refuses_what_has_none(probability, degrees):
    with pytest.raises(ValueError, match=r"expected|at least one"):
        t_quantile(probability, degrees)


@given(st.lists(accuracies, min_size=2, max_size=40))
def test_mean_and_deviation(values):
    assert mean(values) == pytest.approx(reference.fmean(values))
    assert standard_deviation(values) == pytest.approx(reference.stdev(values), abs=1e-9)


def test_of_nothing_and_of_one():
    with pytest.raises(ValueError, match="no values"):
        mean([])
    assert standard_deviation([3.0]) is None
    assert paired_difference({0: 1.0}, {1: 2.0}) is None
    assert paired_difference({0: 1.5, 1: 9.0}, {0: 1.0}) == PairedDifference(1, 1, 0.5, None, None)


@given(st.lists(st.tuples(accuracies, accuracies), min_size=2, max_size=30))
def test_interval_is_scipys(pairs):
    ours, theirs = [dict(enumerate(values)) for values in zip(*pairs)]
    found = paired_difference(ours, theirs)
    differences = [a - b for a, b in pairs]
    assume(reference.stdev(differences) > 1e-6)
    expected = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval(0.95)
    assert found.low == pytest.approx(expected.low, rel=1e-6, abs=1e-6)
    assert found.high == pytest.approx(expected.high, rel=1e-6, abs=1e-6)


@given(by_seed, by_seed)
def test_only_shared_seeds_count(ours, theirs):
    found = paired_difference(ours, theirs)
    shared = set(ours) & set(theirs)
    if not shared:
        assert found is None
        return
    assert found.pairs == len(shared)
    assert found.left_out == len(set(ours) | set(theirs)) - len(shared)
    only_shared = paired_difference({s: ours[s] for s in shared}, {s: theirs[s] for s in shared})
    assert (found.mean, found.low, found.high) == (only_shared.mean, only_shared.low, only_shared.high)
    back = paired_difference(theirs, ours)
    assert back.mean == pytest.approx(-found.mean, abs=1e-9)
    if len(shared) > 1:
        assert found.low <= found.mean <= found.high
        assert back.low == pytest.approx(-found.high, abs=1e-9)


def test_interval_covers_as_often_as_it_says():
    draws = stats.norm.rvs(loc=0.1, scale=0.11, size=(4000, 12), random_state=7)
    covered = 0
    for row in draws:
        found = paired_difference(dict(enumerate(row)), dict.fromkeys(range(12), 0.0))
        covered += found.low <= 0.1 <= found.high
    assert abs(covered / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)
