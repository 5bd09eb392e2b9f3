"""Which training images a run trains on and which it is judged on."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import one_sentence

from particleaugment.data import load_data, train_validation_split
from particleaugment.data.selection import select_training

seeds = st.integers(0, 2**63 - 1)
label_lists = st.lists(st.integers(0, 6), min_size=2, max_size=120)


@st.composite
def labels_and_size(draw):
    labels = torch.tensor(draw(label_lists))
    return labels, draw(st.integers(len(labels.unique()), len(labels)))


def counts_of(labels, indices):
    return (labels[indices][:, None] == labels.unique()).sum(0)


@settings(max_examples=200, deadline=None)
@given(labels_and_size(), seeds)
def test_a_subset_is_exact_and_stratified_and_has_every_class(case, seed):
    labels, size = case
    train, judge = select_training(labels, train_size=size, seed=seed)
    assert judge is None
    assert len(train) == size
    assert bool((train.diff() > 0).all())
    counts, shares = counts_of(labels, train), counts_of(labels, torch.arange(len(labels))) * size
    assert int(counts.min()) >= 1
    if bool((shares >= len(labels)).all()):  # in units of 1/len(labels): every class's share is a whole image or more
        assert int((counts * len(labels) - shares).abs().max()) < len(labels)
    else:
        assert bool((counts[shares < len(labels)] == 1).all())
    assert torch.equal(train, select_training(labels, train_size=size, seed=seed)[0])


def test_classes_with_small_shares_get_an_image_and_the_others_share_out_the_rest():
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 5 + [3])
    for seed in range(20):
        train, _ = select_training(labels, train_size=62, seed=seed)
        assert labels[train].bincount().tolist() == [40, 20, 1, 1]
    assert len({tuple(select_training(labels, train_size=62, seed=seed)[0][-2:].tolist()) for seed in range(20)}) > 2


@settings(max_examples=200, deadline=None)
@given(label_lists, st.data(), seeds)
def test_the_judge_is_taken_out_first(label_list, data, seed):
    labels = torch.tensor(label_list).repeat(2)
    validation = data.draw(st.integers(1, len(labels) - 1))
    rest, expected = train_validation_split(labels, validation, seed)
    size = data.draw(st.integers(len(labels[rest].unique()), len(rest)))
    train, judge = select_training(labels, validation=validation, train_size=size, seed=seed)
    assert torch.equal(judge, expected)
    assert len(train) == size
    assert bool(torch.isin(train, rest).all())


def test_a_subset_is_none_of_the_draws_that_a_filter_step_makes():
    labels = torch.arange(10_000) % 10
    train, judge = select_training(labels, train_size=1000, seed=0)
    _, held_out = train_validation_split(labels, 1000, seed=0)
    assert judge is None
    assert 50 < int(torch.isin(train, held_out).sum()) < 150


def test_fractions_are_of_what_validation_leaves():
    labels = torch.arange(100) % 5
    train, judge = select_training(labels, validation=0.2, train_size=0.5)
    assert (len(train), len(judge)) == (40, 20)
    everything, judge = select_training(labels, validation=0.2)
    assert (len(everything), len(judge)) == (80, 20)
    assert torch.equal(select_training(labels, train_size=100)[0], torch.arange(100))
    assert torch.equal(select_training(labels)[0], torch.arange(100))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_size": 0}, "train_size must be a number of images above 0, or a fraction from 0.0 to 1.0, got 0"),
        ({"train_size": 0.0}, "got 0.0; 1.0 is all of them"),
        ({"train_size": -5}, "got -5"),
        ({"train_size": -0.5}, "got -0.5"),
        ({"train_size": 1.5}, "got 1.5"),
        ({"train_size": float("nan")}, "got nan"),
        ({"train_size": True}, "train_size must be a number of images or a fraction, got True"),
        ({"train_size": "300"}, "train_size must be a number of images or a fraction, got '300'"),
        ({"train_size": 1438}, "train_size=1438 is more than the 1,437 training images; use at most that many"),
        (
            {"train_size": 1200, "validation": 300},
            "train_size=1200 is more than the 1,137 training images that validation=300 leaves",
        ),
        ({"train_size": 9}, "train_size=9 is too small: each of the 10 classes needs an image, so the smallest is 10"),
        ({"train_size": 1}, "the smallest is 10; for all images use train_size=1.0"),
        ({"train_size": 0.001}, "train_size=0.001, 1 of 1,437 training images, is too small"),
        ({"groups": "prefix"}, "groups are read from the names of image files, and 'digits' has none; set groups=none"),
        ({"groups": "folder"}, "groups must be one of none, prefix, class-prefix, got 'folder'"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)) as error:
        load_data("digits", **arguments)
    one_sentence(error)


def test_digits_in_part():
    whole, part = load_data("digits"), load_data("digits", train_size=300)
    assert (len(part.train_images), len(part.train_labels)) == (300, 300)
    assert torch.equal(part.test_images, whole.test_images)
    assert (part.mean, part.std) == (whole.mean, whole.std)
    shares = whole.train_labels.bincount() * 300 / 1437
    assert float((part.train_labels.bincount() - shares).abs().max()) < 1
    assert torch.equal(load_data("digits", train_size=300).train_images, part.train_images)
    assert not torch.equal(load_data("digits", train_size=300, seed=1).train_images, part.train_images)
    both = load_data("digits", train_size=300, validation=200)
    assert torch.equal(both.test_images, load_data("digits", validation=200).test_images)
    pixels = torch.cat([both.train_images, both.test_images]).flatten(1)
    assert len(both.train_images) == 300
    known = {image.numpy().tobytes() for image in whole.train_images}
    assert {image.numpy().tobytes() for image in pixels} <= known
