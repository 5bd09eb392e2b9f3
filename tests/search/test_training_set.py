"""The samples to train on: which they are in every epoch, whatever sampler, worker or rank asks for them."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler
from toy import IMAGES, LABELS

import particleaugment as pa
from particleaugment.data.split import held_out_split
from particleaugment.search.held_out import Division

EPOCHS = 10  # the difficulty filter holds samples out for eight of them


def search_of(filter=None, data=(IMAGES, LABELS)):
    return pa.ParticleAugment(data, epochs=EPOCHS, filter=filter or pa.DifficultyFilter(measure_size=12), seed=7)


def held_out(search):
    return set(search.division.split[1].tolist())


def epochs_of(search, read):
    """What is read in each epoch."""
    found = {}
    for epoch in range(1, EPOCHS + 1):
        search.augmentation.set_epoch(epoch)
        found[epoch] = read()
    return found


def check_epochs(search, found):
    """Others stand in for held-out samples in the first eight epochs, and each sample has its place in the last two."""
    out, stood_in = held_out(search), []
    for epoch, ids in found.items():
        assert len(ids) == 48
        assert LABELS[ids].bincount().tolist() == [16, 16, 16]
        if epoch <= 8:
            assert set(ids) == set(range(48)) - out
            times = torch.tensor(ids).bincount(minlength=48)
            assert times.max() == 2
            stood_in += (times == 2).nonzero()[:, 0].tolist()
        else:
            assert sorted(ids) == list(range(48))
    times = torch.tensor(stood_in).bincount(minlength=48)[[number not in out for number in range(48)]]
    assert times.max() - times.min() <= 1, "samples take turns in standing in"


def test_items_are_image_target_and_id():
    train = search_of().training_set()
    image, target, number = train[5]
    assert torch.equal(image, IMAGES[number])
    assert (image.dtype, int(target)) == (torch.uint8, int(LABELS[number]))
    assert isinstance(number, int)
    assert len(list(train)) == len(train) == 48
    everything = search_of(pa.PaperFilter(num_particles=4, clone_size=24, measure_size=12)).training_set()
    assert [number for _, _, number in everything] == list(range(48))


def test_samples_are_held_out_by_the_seed_as_many_of_each_class():
    search = search_of()
    trained, unseen = held_out_split(LABELS, 12, seed=7)
    assert torch.equal(search.training_set().ids.unique(), trained)
    assert held_out(search) == set(unseen.tolist())
    assert torch.equal(torch.cat([trained, unseen]).sort().values, torch.arange(48))
    assert LABELS[unseen].bincount().tolist() == [4, 4, 4]


def test_held_out_samples_join_when_the_filter_needs_them_no_more():
    search = search_of()
    train = search.training_set()
    check_epochs(search, epochs_of(search, lambda: [number for _, _, number in train]))
    classes = epochs_of(search, lambda: [int(target) for _, target, _ in train])
    assert all(read == train.targets.tolist() for read in classes.values()), "each place keeps its class"


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=8, max_size=60),
    size=st.floats(0.1, 0.8),
    seed=st.integers(0, 2**32),
    epoch=st.integers(1, EPOCHS),
)
def test_every_epoch_has_as_many_samples_of_each_class(labels, size, seed, epoch):
    labels = torch.tensor(labels)
    try:
        division = Division(pa.DifficultyFilter(measure_size=size), labels, epochs=EPOCHS, seed=seed)
    except ValueError:
        return  # too few to hold two out
    trained, unseen = division.split
    places = division.places_in(epoch)
    learned = torch.isin(labels, labels[trained])  # a class that is held out as a whole has nobody to stand in
    assert torch.equal(labels[places][learned], labels[learned])
    assert torch.equal(places[trained], trained)
    assert not division.wrong(places, epoch).any()
    if epoch <= 8:
        assert division.wrong(unseen, epoch).all()
    else:
        assert torch.equal(places, torch.arange(len(labels)))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_are_kept_alive_follow_the_epoch(context):
    search = search_of()
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": context}
    loader = DataLoader(search.training_set(), batch_size=9, shuffle=True, **options)
    check_epochs(search, epochs_of(search, lambda: torch.cat([ids for _, _, ids in loader]).tolist()))


def test_samplers_that_read_the_length_once_stay_right():
    search = search_of()
    train = search.training_set()
    ranks = [DistributedSampler(train, num_replicas=3, rank=rank, seed=1) for rank in range(3)]
    loaders = [DataLoader(train, batch_size=4, sampler=sampler) for sampler in ranks]
    steps = EPOCHS * sum(len(loader) for loader in loaders)

    def read():
        return [number for loader in loaders for _, _, ids in loader for number in ids.tolist()]

    found = epochs_of(search, read)
    check_epochs(search, found)
    assert steps == EPOCHS * 12, "a schedule by steps is as long as training"


@pytest.mark.parametrize("captured", [None, 48])
def test_a_random_sampler_of_ones_own(captured):
    search = search_of()
    train = search.training_set()
    sampler = BatchSampler(RandomSampler(train, num_samples=captured), 10, drop_last=False)
    loader = DataLoader(train, batch_sampler=sampler)
    check_epochs(search, epochs_of(search, lambda: torch.cat([ids for _, _, ids in loader]).tolist()))


def test_weights_are_by_place():
    search = search_of()
    train = search.training_set()
    sampler = WeightedRandomSampler((train.targets == 2).double(), num_samples=200)
    seen = epochs_of(search, lambda: torch.cat([labels for _, labels, _ in DataLoader(train, 50, sampler=sampler)]))
    assert all(set(labels.tolist()) == {2} for labels in seen.values())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_of_the_whole_data_set_is_one_of_the_training_set(workers):
    search = search_of()
    search.begin_epoch(1)
    train = search.training_set()
    for sampler in (range(48), DistributedSampler(range(48), 1, 0), WeightedRandomSampler(torch.ones(48), 200)):
        ids = torch.cat([ids for _, _, ids in DataLoader(train, batch_size=8, sampler=sampler, num_workers=workers)])
        assert not held_out(search) & set(ids.tolist())
    with pytest.raises(IndexError, match="index 48 is outside the training set, which has 48 samples"):
        train[48]


def test_it_can_be_copied_and_sent():
    search = search_of()
    search.begin_epoch(1)
    for other in (copy.deepcopy(search.training_set()), pickle.loads(pickle.dumps(search.training_set()))):
        assert [number for _, _, number in other] == search.training_set().ids.tolist()


# A transform of single images.


class Chain:
    """As ``Compose``: passes nothing on but the image."""

    def __init__(self, *functions):
        self.functions = functions

    def __call__(self, image):
        for function in self.functions:
            image = function(image)
        return image


def doubled(image):
    return image.float() * 2


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_chain_in_workers_draws_by_id(context):
    search = search_of(pa.PaperFilter(num_particles=4, clone_size=24, measure_size=12, start_value=0.9))
    train = search.training_set(transform=Chain(pa.ImageTransform(search), doubled))
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": context}
    loader = DataLoader(train, batch_size=12, shuffle=True, **options)
    for epoch in (1, 2):
        search.augmentation.set_epoch(epoch)
        for images, _, ids in loader:
            program = search.policy.sample(ids, epoch, 7, (8, 8))
            assert torch.equal(images, 2 * pa.apply(IMAGES[ids], program).float())


def test_the_transform_gets_what_the_data_set_has():
    pictures = [(image.permute(1, 2, 0).contiguous().numpy(), int(label)) for image, label in zip(IMAGES, LABELS)]
    seen = []
    train = search_of(data=pictures).training_set(transform=lambda image: seen.append(image))
    image, _, number = train[3]
    assert image is None
    assert seen[0] is pictures[number][0]


def test_without_a_search_ids_come_from_the_chain_as_well():
    search = search_of()
    search.begin_epoch(1)
    fixed = pa.ImageTransform("rand-m9-n3-p1", seed=4)
    train = search.training_set(transform=Chain(fixed))
    image, _, number = train[2]
    assert torch.equal(image, fixed(IMAGES[number], id=number))
    assert fixed.augment.counter == 0
