import time
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from particleaugment.core.random import Stream
from particleaugment.data import (
    disjoint_stratified_subsets,
    epoch_permutation,
    stratified_subset,
    train_validation_split,
)
from particleaugment.data.split import batch_sizes, held_out_split

seeds = st.integers(0, 2**63 - 1)
steps = st.integers(0, 2**32 - 2)
label_lists = st.lists(st.integers(-3, 6), min_size=1, max_size=120)


@st.composite
def labels_and_sizes(draw: Callable) -> tuple[torch.Tensor, list[int]]:
    labels = draw(label_lists)
    sizes, left = [], len(labels)
    for _ in range(draw(st.integers(1, 4))):
        if left:
            sizes.append(draw(st.one_of(st.integers(1, left), st.just(left))))
            left -= sizes[-1]
    return torch.tensor(labels), sizes


def class_counts(labels: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    classes = labels.unique()
    return (labels[indices][:, None] == classes).sum(0)


@settings(max_examples=300, deadline=None)
@given(labels_and_sizes(), seeds, steps)
def test_subsets_are_disjoint_exact_and_stratified(case, seed, step):
    labels, sizes = case
    subsets = disjoint_stratified_subsets(labels, sizes, seed, step)
    assert [len(subset) for subset in subsets] == sizes
    together = torch.cat(subsets)
    assert together.dtype == torch.int64
    assert len(together.unique()) == len(together)
    assert 0 <= int(together.min()) <= int(together.max()) < len(labels)
    per_class = class_counts(labels, torch.arange(len(labels)))
    for size, subset in zip(sizes, subsets):
        # |count - size * class / n| < 1, in whole numbers
        assert int((class_counts(labels, subset) * len(labels) - size * per_class).abs().max()) < len(labels)


@settings(max_examples=50, deadline=None)
@given(labels_and_sizes(), seeds, steps)
def test_a_subset_is_a_pure_function_of_its_key(case, seed, step):
    labels, sizes = case
    first = disjoint_stratified_subsets(labels, sizes, seed, step)
    again = disjoint_stratified_subsets(labels.clone(), list(sizes), seed, step)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    alone = stratified_subset(labels, sizes[0], seed, step)
    assert torch.equal(alone, stratified_subset(labels, sizes[0], seed, step))
    assert len(alone) == sizes[0]


def test_seeds_steps_and_streams_give_different_subsets():
    labels = torch.arange(1000) % 10
    draws = [
        stratified_subset(labels, 100, seed, step, stream)
        for seed, step, stream in [
            (0, 0, Stream.SPLIT),
            (0, 1, Stream.SPLIT),
            (1, 0, Stream.SPLIT),
            (0, 0, Stream.SHUFFLE),
        ]
    ]
    for i, first in enumerate(draws):
        for second in draws[:i]:
            assert int(torch.isin(first, second).sum()) < 40


def test_the_names_of_the_classes_do_not_matter():
    labels = torch.tensor([0, 1, 1, 2, 2, 2] * 20)
    plain = disjoint_stratified_subsets(labels, [30, 11], seed=4, step=2)
    renamed = disjoint_stratified_subsets(labels * 10**15 - 7, [30, 11], seed=4, step=2)
    assert all(torch.equal(a, b) for a, b in zip(plain, renamed))


UNEQUAL = torch.tensor([0] * 5 + [1] * 13 + [2] * 1 + [3] * 21 + [4] * 7)


@pytest.mark.parametrize("labels", [torch.arange(40) % 7, UNEQUAL], ids=["balanced", "unequal"])
@pytest.mark.parametrize("sizes", [[12, 5], [20, 20]], ids=str)
def test_every_sample_is_chosen_equally_often(labels, sizes):
    repeats, n = 600, len(labels)
    chosen = torch.zeros(len(sizes), n)
    for step in range(repeats):
        for row, subset in enumerate(disjoint_stratified_subsets(labels, sizes, seed=11, step=step)):
            chosen[row, subset] += 1
    for size, counts in zip(sizes, chosen):
        share = size / n
        # Each count is binomial; being stratified, they vary together less than independent ones, never more.
        score = float(((counts - repeats * share) ** 2 / (repeats * share * (1 - share))).sum())
        assert stats.chi2.sf(score, n) > 1e-4
        for label in labels.unique():
            of_class = counts[labels == label]
            deviation = float(of_class.sum()) - repeats * share * len(of_class)
            # A class total differs from its quota by less than one per step, with variance at most 1/4.
            assert abs(deviation) < 4.5 * (repeats / 4) ** 0.5


@pytest.mark.parametrize("subset", [0, 1])
def test_every_place_in_a_subset_is_equally_likely(subset):
    labels, repeats = UNEQUAL, 600
    place_of_class = torch.zeros(10, 5)
    for step in range(repeats):
        drawn = disjoint_stratified_subsets(labels, [10, 10], seed=3, step=step)[subset]
        place_of_class[torch.arange(10), labels[drawn]] += 1
    assert stats.chi2_contingency(place_of_class.numpy()).pvalue > 1e-4


def test_fractions_are_shares_of_the_whole_data():
    labels = torch.arange(50_000) % 10
    train, probe = disjoint_stratified_subsets(labels, [0.512, 512], seed=0, step=0)
    assert (len(train), len(probe)) == (25_600, 512)
    assert class_counts(labels, train).tolist() == [2560] * 10
    assert sorted(class_counts(labels, probe).tolist()) == [51] * 8 + [52] * 2
    assert len(stratified_subset(labels, 0.5, 0, 0, exclude=probe)) == 25_000


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 2_000), st.integers(2, 7))
def test_equal_fractions_always_fit(n, parts):
    if n < parts:
        n += parts
    subsets = disjoint_stratified_subsets(torch.zeros(n, dtype=torch.int64), [1 / parts] * parts, seed=0, step=0)
    assert [len(subset) for subset in subsets] == [n // parts] * parts


@pytest.mark.parametrize(("fraction", "expected"), [(0.29, 29), (0.57, 57), (0.999, 99), (0.01, 1)])
def test_fractions_round_down_but_not_by_float_noise(fraction, expected):
    assert len(stratified_subset(torch.zeros(100, dtype=torch.int64), fraction, seed=0, step=0)) == expected


@settings(max_examples=100, deadline=None)
@given(label_lists, st.data(), seeds, steps)
def test_excluded_samples_stay_out(label_list, data, seed, step):
    labels = torch.tensor(label_list)
    excluded = torch.tensor(sorted(data.draw(st.sets(st.integers(0, len(labels) - 1)))), dtype=torch.int64)
    rest = len(labels) - len(excluded)
    if rest:
        size = data.draw(st.integers(1, rest))
        subset = stratified_subset(labels, size, seed, step, exclude=excluded)
        assert len(subset.unique()) == size
        assert not bool(torch.isin(subset, excluded).any())


def test_excluding_nothing_changes_nothing():
    labels = torch.arange(100) % 3
    nothing = torch.zeros(0, dtype=torch.int64)
    assert torch.equal(stratified_subset(labels, 20, 0, 0, exclude=nothing), stratified_subset(labels, 20, 0, 0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.data(), seeds)
def test_training_and_validation_share_the_samples_out(label_list, data, seed):
    labels = torch.tensor(label_list).repeat(2)
    size = data.draw(st.integers(1, len(labels) - 1))
    train, validation = train_validation_split(labels, size, seed)
    assert len(validation) == size
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(len(labels)))
    assert bool((train.diff() > 0).all())
    assert bool((validation.diff() > 0).all())
    quota = class_counts(labels, torch.arange(len(labels))) * size
    assert int((class_counts(labels, validation) * len(labels) - quota).abs().max()) < len(labels)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=6, max_size=60), st.data(), seeds)
def test_classes_of_one_sample_are_left_to_training(label_list, data, seed):
    labels = torch.tensor([0, 0, *label_list])
    several = labels.bincount()[labels] > 1
    size = data.draw(st.integers(1, min(int(several.sum()), len(labels) - 1)))
    train, held_out = held_out_split(labels, size, seed)
    assert len(held_out) == size
    assert bool(several[held_out].all())
    assert torch.equal(torch.cat([train, held_out]).sort().values, torch.arange(len(labels)))
    if bool(several.all()):
        assert torch.equal(held_out, train_validation_split(labels, size, seed)[1])


def test_held_out_samples_stay_the_same():
    """Runs that were started with an earlier release go on with the samples that they held out."""
    _, held_out = held_out_split(torch.arange(100) % 7, 12, seed=3)
    assert held_out.tolist() == [13, 16, 35, 40, 52, 71, 75, 83, 92, 94, 95, 98]


def test_the_validation_split_is_independent_of_the_steps():
    labels = torch.arange(10_000) % 10
    _, validation = train_validation_split(labels, 1000, seed=0)
    for step in range(5):
        overlap = int(torch.isin(validation, stratified_subset(labels, 1000, seed=0, step=step)).sum())
        assert 50 < overlap < 150


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 500), seeds, st.integers(0, 2**32 - 1))
def test_an_epoch_visits_every_sample_once(n, seed, epoch):
    order = epoch_permutation(n, seed, epoch)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(n))
    assert torch.equal(order, epoch_permutation(n, seed, epoch))


@given(st.integers(0, 500), st.integers(1, 70))
def test_batches_hold_every_sample_and_none_is_left_alone(count, size):
    sizes = batch_sizes(count, size)
    assert sum(sizes) == count
    assert all(each == size for each in sizes[:-1])
    if count > 1 and size > 1:
        assert min(sizes) > 1
    if count % size != 1 or size == 1:
        assert sizes == [len(batch) for batch in torch.arange(count).split(size) if count]


def test_epochs_are_ordered_differently_and_evenly():
    orders = torch.stack([epoch_permutation(8, seed=1, epoch=epoch) for epoch in range(800)])
    table = torch.stack([(orders == sample).sum(0) for sample in range(8)]).double()
    score = float(((table - 100) ** 2 / 100).sum())
    assert stats.chi2.sf(score, 49) > 1e-4


LABELS = torch.arange(20) % 4


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([15, 6], r"15 \+ 6 samples do not fit into 20"),
        ([0.75, 0.5], r"15 \+ 10 samples do not fit into 20"),
        ([0], "at least 1 sample, got 0"),
        ([5, -1], "at least 1 sample, got -1"),
        ([0.0], "strictly between 0 and 1, got 0.0"),
        ([1.0], "strictly between 0 and 1, got 1.0; for a number of samples pass an int"),
        ([-0.5], "strictly between 0 and 1, got -0.5"),
        ([float("nan")], "strictly between 0 and 1, got nan"),
        ([0.01], "a fraction of 0.01 of 20 samples is less than one sample"),
    ],
)
def test_impossible_sizes_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        disjoint_stratified_subsets(LABELS, sizes, seed=0, step=0)


def test_other_impossible_requests_are_named():
    with pytest.raises(TypeError, match="must be an int or a float, got str"):
        stratified_subset(LABELS, "5", seed=0, step=0)
    with pytest.raises(TypeError, match="must be an int or a float, got bool"):
        stratified_subset(LABELS, True, seed=0, step=0)
    with pytest.raises(ValueError, match="15 samples do not fit into 10"):
        stratified_subset(LABELS, 15, seed=0, step=0, exclude=torch.arange(10))
    with pytest.raises(ValueError, match=r"exclude must contain indices in 0\.\.19, got 0\.\.20"):
        stratified_subset(LABELS, 5, seed=0, step=0, exclude=torch.tensor([0, 20]))
    with pytest.raises(TypeError, match=r"exclude must be a 1-D int64 tensor of sample indices, got torch\.bool"):
        stratified_subset(LABELS, 5, seed=0, step=0, exclude=LABELS == 1)
    with pytest.raises(ValueError, match="class 7 has a single sample"):
        train_validation_split(torch.tensor([0, 0, 0, 7]), 2, seed=0)
    with pytest.raises(ValueError, match="class owl has a single sample, but training and validation need one each"):
        train_validation_split(torch.tensor([0, 0, 0, 1]), 2, seed=0, names=("cat", "owl"))
    with pytest.raises(ValueError, match="4 samples do not fit into 3"):
        held_out_split(torch.tensor([0, 0, 0, 7, 8]), 4, seed=0)
    with pytest.raises(ValueError, match="every class has a single sample, so none can be held out; if the targets"):
        held_out_split(torch.arange(9), 4, seed=0)
    with pytest.raises(ValueError, match="takes all 20 samples"):
        train_validation_split(LABELS, 20, seed=0)
    with pytest.raises(ValueError, match="n must not be negative"):
        epoch_permutation(-1, seed=0, epoch=0)


@pytest.mark.parametrize("labels", [LABELS.int(), LABELS.reshape(4, 5), LABELS.tolist()], ids=["int32", "2-D", "list"])
def test_labels_of_another_kind_are_refused(labels):
    for call in (
        lambda: stratified_subset(labels, 2, 0, 0),
        lambda: disjoint_stratified_subsets(labels, [2], 0, 0),
        lambda: train_validation_split(labels, 2, 0),
    ):
        with pytest.raises(TypeError, match="labels must be a 1-D int64 tensor, got"):
            call()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("classes", [10, 100])
def test_subsets_of_a_cifar_sized_set_are_cheap(classes, one_thread):
    labels = torch.arange(50_000) * 7919 % 1013 % classes

    def seconds() -> float:
        start = time.perf_counter()
        disjoint_stratified_subsets(labels, [25_600, 512], seed=0, step=0)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.1  # 0.01 s on an idle core
