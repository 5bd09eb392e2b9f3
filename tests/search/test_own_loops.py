"""The calls of a loop of one's own: in which order they belong, and what is said where one is left out."""

import pytest
import torch
from searching import difficulty_search, learning, search_of
from torch.utils.data import DataLoader
from toy import IMAGES, LABELS, cross_entropy, preprocess

import particleaugment as pa
from particleaugment.search.controls import FrozenDifficultyFilter


def end(search, model, optimizer=None):
    options = {} if optimizer is None else {"optimizer": optimizer, "batch_size": 8}
    return search.step(model, loss=cross_entropy, preprocess=preprocess, **options)


def augment_all(search):
    for images, _, ids in DataLoader(search.training_set(), batch_size=12):
        search.augment(images, ids)
        search.observe(ids, torch.ones(len(ids)))


def ids_by_epoch(search, model, stop_after=None):
    """Run the epochs that are left; return which samples each had, and the state after each."""
    found = {}
    for epoch in search.epochs():
        augment_all(search)
        end(search, model)
        found[epoch] = (search.training_set().ids.tolist(), search.state_dict())
        if epoch == stop_after:
            break
    return found


def test_a_loop_of_all_epochs():
    search, (model, _) = difficulty_search(epochs=5), learning()
    found = ids_by_epoch(search, model)
    assert list(found) == [1, 2, 3, 4, 5]
    assert search.steps_taken == 4, "none follows the last epoch"
    assert search.schedule().epochs == 5
    assert list(search.epochs()) == [], "training is over"


def test_a_resumed_loop_trains_on_the_samples_it_would_have_trained_on():
    search, (model, _) = difficulty_search(epochs=10), learning()
    straight = ids_by_epoch(search, model)
    for stopped_after in range(1, 10):
        resumed = difficulty_search(epochs=10)
        resumed.load_state_dict(straight[stopped_after][1])
        rest = ids_by_epoch(resumed, model)
        assert list(rest) == list(range(stopped_after + 1, 11))
        assert all(rest[epoch][0] == straight[epoch][0] for epoch in rest)
        assert resumed.state == search.state


def test_a_loop_that_broke_off_goes_on():
    search, (model, _) = difficulty_search(epochs=5), learning()
    assert list(ids_by_epoch(search, model, stop_after=2)) == [1, 2]
    for epoch in search.epochs():
        assert epoch == 3
        augment_all(search)
        break
    assert list(ids_by_epoch(search, model)) == [3, 4, 5], "an epoch that no step has ended is repeated"


def test_an_epoch_that_was_interrupted_is_repeated():
    search, (model, _) = difficulty_search(epochs=5), learning()
    ids_by_epoch(search, model, stop_after=1)
    for _ in search.epochs():
        augment_all(search)
        saved = search.state_dict()
        break
    resumed = difficulty_search(epochs=5)
    resumed.load_state_dict(saved)
    assert list(ids_by_epoch(resumed, model)) == [2, 3, 4, 5]


def test_steps_that_are_not_due_end_an_epoch():
    search, (model, optimizer) = search_of(every=2, epochs=4), learning()
    records = []
    for _ in search.epochs():
        augment_all(search)
        records.append(end(search, model, optimizer))
    assert [record and record.step for record in records] == [None, 1, None, None]


# What was left out.


def test_a_step_that_is_due_is_missed():
    search, _ = difficulty_search(epochs=5), learning()
    epochs = search.epochs()
    assert next(epochs) == 1
    augment_all(search)
    with pytest.raises(ValueError, match=r"epoch 1 ended without search.step\(model, ...\); call it after each epoch"):
        next(epochs)


def test_a_step_that_is_not_due_may_be_left_out():
    search, (model, optimizer) = search_of(every=2, epochs=4), learning()
    for epoch in search.epochs():
        augment_all(search)
        if search.due(epoch):
            end(search, model, optimizer)
    assert search.steps_taken == 1


def test_an_epoch_in_which_nothing_was_augmented():
    search, (model, _) = difficulty_search(epochs=2), learning()
    message = r"no image was augmented in epoch 1; call search.augment\(images, ids\) on each batch, or pass pa.ImageTr"
    epochs = search.epochs()
    next(epochs)
    with pytest.raises(ValueError, match=message):
        end(search, model)
    with pytest.raises(ValueError, match=message):
        next(epochs)
    epochs = search.epochs()
    next(epochs)
    augment_all(search)
    end(search, model)
    assert next(epochs) == 2
    with pytest.raises(ValueError, match="no image was augmented in epoch 2"):
        next(epochs)


def test_a_loop_without_epochs():
    search, (model, _) = difficulty_search(), learning()
    ids = search.training_set().ids[:4]
    for call in (lambda: search.augment(IMAGES[ids], ids), lambda: end(search, model)):
        with pytest.raises(ValueError, match=r"no epoch has started; .* for epoch in search.epochs\(\)"):
            call()
    with pytest.raises(ValueError, match="no epoch has started"):
        search.training_set(transform=pa.ImageTransform(search))[0]


def test_a_step_is_taken_once_per_epoch():
    search, (model, _) = difficulty_search(), learning()
    ids_by_epoch(search, model, stop_after=1)
    with pytest.raises(ValueError, match=r"search.step was already called in epoch 1; call it once, after each epoch"):
        end(search, model)
    assert search.steps_taken == 1


def test_epochs_that_a_trainer_counts_otherwise():
    search, (model, _) = difficulty_search(epochs=3), learning()
    with pytest.raises(
        ValueError, match=r"epoch 3 is out of order: the search is in epoch 0; to resume training, also load"
    ):
        search.begin_epoch(3)
    ids_by_epoch(search, model)
    with pytest.raises(ValueError, match="the search was created for 3 epochs, and this is epoch 4"):
        search.begin_epoch(4)
    with pytest.raises(ValueError, match="epoch 3 is out of order: the search is after epoch 3"):
        search.begin_epoch(3)


# Ids, and samples that are held out.


def test_augmenting_without_ids():
    search = difficulty_search()
    search.begin_epoch(1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'ids'"):
        search.augment(IMAGES)
    for call in (lambda: search.augment(IMAGES, None), lambda: pa.ImageTransform(search)(IMAGES[0])):
        with pytest.raises(
            ValueError, match=r"a search needs sample ids; pass search.augment the ids that search.training"
        ):
            call()


def test_augmenting_what_is_held_out():
    search = difficulty_search(epochs=5)
    search.begin_epoch(1)
    unseen = search.division.split[1]
    message = (
        rf"sample {unseen[0]} is held out for measuring and must not be trained on in epoch 1; create the training lo"
    )
    for call in (
        lambda: search.augment(IMAGES, torch.arange(48)),
        lambda: pa.ImageTransform(search)(IMAGES[0], id=int(unseen[0])),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    loader = DataLoader(pa.IndexedDataset((IMAGES, LABELS)), 8, num_workers=1, collate_fn=Augmenting(search))
    with pytest.raises(ValueError, match="is held out for measuring"):
        list(loader)
    search.augmentation.set_epoch(5)
    assert search.augment(IMAGES, torch.arange(48)).shape == IMAGES.shape, "in the last fifth all are trained on"


class Augmenting:
    """Makes a batch in a worker and augments it there."""

    def __init__(self, search):
        self.augment = search.augmentation

    def __call__(self, items):
        images, _, ids = zip(*items)
        return self.augment(torch.stack(images), torch.tensor(ids))


def made_up_ids(search):
    """The whole data set in batches, each with ids of samples that may be trained on."""
    allowed = search.training_set().ids
    return [(images, allowed[: len(images)]) for images in IMAGES.split(12)]


def test_held_out_images_under_made_up_ids():
    search, (model, _) = difficulty_search(epochs=5), learning()
    epochs = search.epochs()
    next(epochs)
    for images, ids in made_up_ids(search):
        search.augment(images, ids)
    message = r"images were augmented with the ids of \d+ other samples, and some of these images are held out for mea"
    with pytest.raises(ValueError, match=message):
        end(search, model)
    augment_all(search)
    assert end(search, model).step == 1, "an epoch without them is fine"
    for _ in range(4):
        next(epochs)
        augment_all(search)
        end(search, model)


def test_made_up_ids_are_fine_where_nothing_is_held_out():
    search, (model, _) = difficulty_search(epochs=5), learning()
    ids_by_epoch(search, model, stop_after=4)
    for _ in search.epochs():
        for images, ids in made_up_ids(search):
            search.augment(images, ids)
        assert end(search, model) is None


def test_an_image_that_the_data_set_has_twice():
    images = IMAGES.clone()
    search = difficulty_search(epochs=5)
    trained, unseen = search.division.split
    images[trained[0]] = images[unseen[0]]
    search, (model, _) = difficulty_search(epochs=5, data=(images, LABELS)), learning()
    assert list(ids_by_epoch(search, model)) == [1, 2, 3, 4, 5]


class Flipped(torch.utils.data.Dataset):
    """Images that are mirrored at random whenever they are read."""

    targets = LABELS.repeat(3)

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return 144

    def __getitem__(self, index):
        image = IMAGES[index % 48]
        mirrored = torch.rand((), generator=self.generator) < 0.5
        return image.flip(-1) if mirrored else image, int(self.targets[index])


def test_images_that_change_at_each_reading_are_told_by_their_ids_alone():
    search, (model, _) = difficulty_search(epochs=5, data=Flipped()), learning()
    assert list(ids_by_epoch(search, model)) == [1, 2, 3, 4, 5]


def test_copies_of_held_out_images_are_read_once_more_and_named():
    class Pictures(list):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

    data, said = Pictures([(image, int(label)) for image, label in zip(IMAGES, LABELS)] * 2), []
    data.targets = LABELS.repeat(2)
    search, (model, _) = difficulty_search(epochs=10, data=data, say=said.append), learning()
    held_out = (search.division.split[1] % 48).bincount()
    copied, images = int((held_out == 1).sum()), int((held_out > 0).sum())  # of a few both copies are held out
    reads = []
    for _ in search.epochs():
        augment_all(search)
        data.read = 0
        end(search, model)
        reads.append(data.read)
    assert said == [
        f"{copied} of {images} held-out images also occur among the training samples, so the filter measures on images "
        "that the network has trained on; remove the copies, or pass groups that keep them together"
    ]
    assert reads[0] > reads[1] == reads[2], "copies are known from then on"
    said.clear()
    groups = torch.arange(48).repeat(2)
    ids_by_epoch(difficulty_search(epochs=5, data=data, groups=groups, say=said.append), model)
    assert said == []


def test_images_at_any_place_of_a_buffer():
    records = torch.cat([LABELS[:, None].to(torch.uint8), IMAGES.flatten(1)], dim=1)
    images = records[:, 1:].view(48, 3, 8, 8)  # as CIFAR's files have them, a byte for the label before each
    search, (model, _) = difficulty_search(epochs=5, data=(images, LABELS)), learning()
    assert list(ids_by_epoch(search, model)) == [1, 2, 3, 4, 5]


def test_one_image_at_a_time():
    search, other = difficulty_search(epochs=5), difficulty_search(epochs=5)
    for each in (search, other):
        each.begin_epoch(1)
    ids = search.training_set().ids[:6]
    batch = search.augment(IMAGES[ids], ids)
    for number, augmented in zip(ids, batch):
        assert torch.equal(other.augment(IMAGES[number], number), augmented)
        assert torch.equal(other.augment(IMAGES[number], int(number)), augmented)
    other.observe(ids, torch.ones(6))
    assert end(other, learning()[0]).step == 1


def test_a_seed_that_is_none():
    for filter in (pa.DifficultyFilter(), FrozenDifficultyFilter()):
        with pytest.raises(ValueError, match=r"^seed must be in 0..2\^63-1, got -1"):
            pa.ParticleAugment((IMAGES, LABELS), epochs=3, filter=filter, seed=-1)


def test_training_beyond_the_last_epoch():
    search, (model, _) = difficulty_search(epochs=3), learning()
    ids_by_epoch(search, model)
    message = "the search was created for 3 epochs, and this is epoch 4; pass ParticleAugment the number of epochs"
    with pytest.raises(ValueError, match=message):
        augment_all(search)
    search.augmentation.set_epoch(4)
    with pytest.raises(ValueError, match=message):
        search.augmentation(IMAGES, torch.arange(48))


@pytest.mark.parametrize("number", [-1, 48])
def test_ids_that_no_sample_has(number):
    for search in (difficulty_search(), search_of()):
        search.begin_epoch(1)
        with pytest.raises(ValueError, match=rf"index in the train_set, from 0 to 47, got {number}|negative"):
            search.augment(IMAGES[:1], torch.tensor([number]))


def test_a_data_set_that_augments_by_the_search_itself_is_noticed():
    class Augmented(torch.utils.data.Dataset):
        transform = staticmethod(lambda image, id: image)
        targets = LABELS

        def __len__(self):
            return 48

        def __getitem__(self, index):
            return self.transform(IMAGES[index], id=index), int(LABELS[index])

    data = Augmented()
    search, (model, _) = pa.ParticleAugment(data, epochs=3, filter=pa.DifficultyFilter(measure_size=12)), learning()
    data.transform = pa.ImageTransform(search)
    for _ in search.epochs():
        list(search.training_set())
        search.observe(search.training_set().ids, torch.ones(48))
        with pytest.raises(
            ValueError, match=r"the train_set augments its images with this search, .* search.training_set"
        ):
            end(search, model)
        break
    assert search.steps_taken == 0
    data.transform = Augmented.transform
    assert end(search, model).step == 1


# What a saved search must agree with.


def test_a_search_on_other_data_cannot_be_loaded():
    saved = difficulty_search().state_dict()
    for data in ((IMAGES[:47], LABELS[:47]), (IMAGES, LABELS.flip(0))):
        with pytest.raises(ValueError, match="the saved search has a different train_set: number, classes or gro"):
            difficulty_search(data=data).load_state_dict(saved)
    with pytest.raises(ValueError, match="different train_set"):
        difficulty_search(groups=torch.arange(48) // 2).load_state_dict(saved)
    difficulty_search(data=[(image, int(label)) for image, label in zip(IMAGES, LABELS)]).load_state_dict(saved)
