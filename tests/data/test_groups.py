"""Splits that keep groups whole."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pictures import one_sentence, picture

from particleaugment.data import ImageData, list_folder, load_data, load_folder, train_validation_split
from particleaugment.data.groups import as_groups, groups_of_names, smallest_cover, whole_groups
from particleaugment.data.listing import find_images
from particleaugment.data.selection import select_training
from particleaugment.data.split import held_out_split
from particleaugment.data.streamed import open_folder

seeds = st.integers(0, 2**63 - 1)


@st.composite
def tracks(draw):
    """Samples in groups of their class alone, as tracks of traffic signs are; every class has two groups or more."""
    sizes = draw(st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=7), min_size=2, max_size=5))
    labels = [label for label, of_class in enumerate(sizes) for size in of_class for _ in range(size)]
    lengths = [size for of_class in sizes for size in of_class]
    groups = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    order = torch.tensor(draw(st.permutations(range(len(labels)))))
    return torch.tensor(labels)[order], groups[order]


@st.composite
def patients(draw):
    """Samples in groups that span classes."""
    count = draw(st.integers(4, 80))
    labels = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    return torch.tensor(labels), as_groups(groups)


def sizes_of(groups):
    return groups.bincount()[groups.unique()]


def assert_whole(groups, *parts):
    """No group is in two parts, and all samples of a group are in its part or in none."""
    found = [set(groups[part].tolist()) for part in parts]
    assert sum(map(len, found)) == len(set.union(*found))
    for part, names in zip(parts, found):
        assert len(part) == sum(int((groups == name).sum()) for name in names)


@settings(max_examples=200, deadline=None)
@given(tracks(), st.data(), seeds)
def test_tracks_are_split_near_to_the_sizes_asked_for(case, data, seed):
    labels, groups = case
    size = data.draw(st.integers(1, len(labels) - 1))
    train, held_out = train_validation_split(labels, size, seed, groups=groups)
    assert torch.equal(torch.cat([train, held_out]).sort().values, torch.arange(len(labels)))
    assert_whole(groups, train, held_out)
    for label in labels.unique().tolist():
        of_class = sizes_of(groups[labels == label])
        kept, taken = (int((labels[part] == label).sum()) for part in (train, held_out))
        assert kept > 0
        assert taken > 0
        target = size * int(of_class.sum()) / len(labels)
        # Each side keeps at least one group, however far off that is.
        one_is_taken = target < taken == int(of_class.min())
        one_is_left = target > taken and kept in of_class.tolist()
        assert abs(taken - target) < int(of_class.max()) or one_is_taken or one_is_left
    again = held_out_split(labels, size, seed, groups)
    assert torch.equal(again[0], train)
    assert torch.equal(again[1], held_out)


def can_be_held_out(labels, groups):
    """Whether some group holds no class that has no other group."""
    lonely = {label for label in labels.tolist() if len(groups[labels == label].unique()) == 1}
    return any(lonely.isdisjoint(labels[groups == group].tolist()) for group in groups.tolist())


@settings(max_examples=200, deadline=None)
@given(patients(), st.data(), seeds)
def test_groups_across_classes_are_never_split(case, data, seed):
    labels, groups = case
    size = data.draw(st.integers(1, len(labels) - 1))
    if not can_be_held_out(labels, groups):
        with pytest.raises(ValueError, match="no group can be held out, because each is the only group of some class"):
            train_validation_split(labels, size, seed, groups=groups)
        return
    train, held_out = train_validation_split(labels, size, seed, groups=groups)
    assert_whole(groups, train, held_out)
    assert set(labels[train].tolist()) == set(labels.tolist()), "every class is trained on"


@settings(max_examples=200, deadline=None)
@given(st.one_of(tracks(), patients()), st.data(), seeds)
def test_judge_and_subset_are_whole_groups_apart_from_each_other(case, data, seed):
    labels, groups = case
    assume(can_be_held_out(labels, groups))
    validation = data.draw(st.integers(1, len(labels) - 1))
    rest, expected = train_validation_split(labels, validation, seed, groups=groups)
    size = data.draw(st.integers(smallest_cover(labels[rest], groups[rest]), len(rest)))
    train, judge = select_training(labels, validation=validation, train_size=size, seed=seed, groups=groups)
    assert_whole(groups, train, judge)
    assert torch.equal(judge, expected)
    assert bool(torch.isin(train, rest).all())
    assert set(labels[train].tolist()) == set(labels.tolist())


@settings(max_examples=100, deadline=None)
@given(tracks(), st.data(), seeds)
def test_a_subset_of_tracks_is_near_to_its_size(case, data, seed):
    labels, groups = case
    least = sum(int(sizes_of(groups[labels == label]).min()) for label in labels.unique())
    assert smallest_cover(labels, groups) == least
    size = data.draw(st.integers(least, len(labels)))
    train, _ = select_training(labels, train_size=size, seed=seed, groups=groups)
    for label in labels.unique().tolist():
        of_class = sizes_of(groups[labels == label])
        taken, target = int((labels[train] == label).sum()), size * int(of_class.sum()) / len(labels)
        assert abs(taken - target) < int(of_class.max()) or target < taken == int(of_class.min())
    if least > len(labels.unique()):
        with pytest.raises(ValueError, match=f"too small for whole groups of every class; {least} images are enough"):
            select_training(labels, train_size=least - 1, groups=groups)
    everything, _ = select_training(labels, train_size=len(labels), seed=seed, groups=groups)
    assert len(everything) == len(labels)


def test_rounding_of_equal_classes_does_not_add_up():
    labels, groups = torch.arange(5000) // 100, torch.arange(5000) // 20
    train, held_out = train_validation_split(labels, 1500, seed=0, groups=groups)  # of each class a group and a half
    assert (len(train), len(held_out)) == (3500, 1500)
    assert set(labels[held_out].bincount().tolist()) == {20, 40}
    subset, _ = select_training(labels, train_size=2500, seed=1, groups=groups)
    assert len(subset) == 2500


def test_groups_of_one_sample_are_split_as_exactly_as_samples():
    labels, groups = torch.arange(1000) % 4, torch.arange(1000)
    train, held_out = train_validation_split(labels, 100, seed=3, groups=groups)
    assert (len(train), labels[held_out].bincount().tolist()) == (900, [25] * 4)


def test_another_seed_takes_other_groups():
    labels, groups = torch.arange(400) % 2, torch.arange(400) // 10
    taken = [set(groups[whole_groups(labels, groups, 100, seed, 0, leave=True)].tolist()) for seed in range(8)]
    assert all(len(found) == 10 for found in taken)
    assert set.union(*taken) > taken[0]
    frequency = torch.zeros(40)
    for seed in range(400):
        frequency[groups[whole_groups(labels, groups, 100, seed, 1, leave=True)].unique()] += 1
    assert 60 < float(frequency.min()) <= float(frequency.max()) < 140, "each group a quarter of the time"


def test_a_class_with_a_single_group_stays_in_training():
    labels = torch.tensor([0] * 6 + [1] * 20)
    groups = torch.tensor([0] * 6 + [1 + n // 5 for n in range(20)])
    for seed in range(10):
        train, held_out = train_validation_split(labels, 10, seed, groups=groups)
        assert labels[held_out].unique().tolist() == [1]
        assert len(train) + len(held_out) == 26


def test_groups_that_cannot_be_held_out():
    with pytest.raises(ValueError, match="no group can be held out, because each is the only group of some class"):
        train_validation_split(torch.arange(20) % 2, 5, 0, groups=torch.zeros(20, dtype=torch.int64))
    with pytest.raises(ValueError, match="one entry for each of the 20 samples, got 19"):
        train_validation_split(torch.arange(20) % 2, 5, 0, groups=torch.arange(19))
    with pytest.raises(ValueError, match="takes all 20 samples"):
        train_validation_split(torch.arange(20) % 2, 20, 0, groups=torch.arange(20))


def test_groups_by_number_or_name():
    assert as_groups(None) is None
    assert as_groups(torch.tensor([7, -1, 7])).tolist() == [1, 0, 1]
    for wrong in ([0.5, 1.0], [[1], [2]], torch.zeros(2), [None, 1]):
        with pytest.raises(TypeError, match="groups must be one whole number or name per sample"):
            as_groups(wrong)


# File names.


@pytest.mark.parametrize("name", ["stop/1.png", "my_signs/1.png", "stop/_1.png", "stop/00001-2.png"])
def test_names_without_a_group_are_named(name):
    with pytest.raises(ValueError, match="has no group in its name") as error:
        groups_of_names(["stop/1_1.png", f"/data/{name}"], torch.tensor([0, 0]), "class-prefix")
    assert str(error.value).startswith(f"/data/{name} has no group in its name: groups=class-prefix reads the part")
    one_sentence(error)


def make_folder(root, folders=("train", "val")):
    """Signs of three classes, in tracks of 4 to 6 pictures that are numbered from 0 on in every class."""
    for folder in folders:
        for label, name in enumerate(("stop", "turn", "yield")):
            (root / folder / name).mkdir(parents=True)
            for track in range(5):
                for number in range(4 + (track + label) % 3):
                    picture(1000 * label + 100 * track + number).save(
                        root / folder / name / f"{track:03}_{number:02}.png"
                    )
    return root


@pytest.fixture(scope="module")
def signs(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("signs"))


def tracks_of(images, grouping):
    names = [images.name(index).split("/") for index in range(len(images))]
    return {(folder if grouping == "class-prefix" else "") + name.partition("_")[0] for folder, name in names}


@pytest.mark.parametrize("grouping", ["prefix", "class-prefix"])
@pytest.mark.parametrize("data_seed", [0, 5])
def test_files_in_memory_and_streamed_are_the_same_whole_tracks(signs, grouping, data_seed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"validation": 0.2, "train_size": 0.5, "groups": grouping}
    streamed = open_folder(signs, 8, **settings, data_seed=data_seed, seed=1)
    other_run = open_folder(signs, 8, **settings, data_seed=data_seed, seed=2)
    assert torch.equal(streamed.train.images.names, other_run.train.images.names)
    in_memory = load_data("folder", signs, image_size=8, **settings, seed=data_seed)
    assert isinstance(in_memory, ImageData)
    pixels = torch.stack([streamed.plain[index][0] for index in range(len(streamed.plain))])
    assert torch.equal(in_memory.train_images, pixels)
    assert torch.equal(in_memory.train_labels, streamed.train.images.labels)
    assert torch.equal(in_memory.train_groups, streamed.train_groups)
    judged = torch.stack([streamed.test[index][0] for index in range(len(streamed.test))])
    assert torch.equal(in_memory.test_images, judged)

    trained, tested = (tracks_of(part.images, grouping) for part in (streamed.train, streamed.test))
    assert trained.isdisjoint(tested)
    whole = load_folder(signs, 8, groups=grouping)
    assert in_memory.train_labels.unique().tolist() == in_memory.test_labels.unique().tolist() == [0, 1, 2]
    described = find_images(signs, groups=grouping).describe(0.2, 0.5, data_seed)
    left = len(whole.train_labels) - len(in_memory.test_labels)
    assert described.startswith(
        f"{len(in_memory.train_labels)} training images in {len(trained)} groups (train_size=0.5 of {left}), "
        f"{len(in_memory.test_labels)} test images (held out of the training images by validation=0.2"
    )


@pytest.mark.parametrize("grouping", ["prefix", "class-prefix"])
def test_the_test_set_of_a_folder_without_one_is_of_whole_tracks(tmp_path, grouping):
    root = make_folder(tmp_path, ("train",))
    train, test = list_folder(root, groups=grouping)
    assert tracks_of(train, grouping).isdisjoint(tracks_of(test, grouping))
    assert test.labels.unique().tolist() == [0, 1, 2]
    assert 10 <= len(test) <= 20
    (root / "train" / "stop" / "last.png").touch()
    with pytest.raises(ValueError, match=r"train/stop/last\.png has no group in its name") as error:
        list_folder(root, groups=grouping)
    one_sentence(error)
    assert len(list_folder(root)[0]) > 50


def test_a_class_of_one_track_has_no_test_images(tmp_path):
    root = make_folder(tmp_path, ("train",))
    (root / "train" / "lone").mkdir()
    for number in range(3):
        picture(number).save(root / "train" / "lone" / f"000_{number}.png")
    assert find_images(root, groups="class-prefix").describe().endswith("; no test images of lone")
