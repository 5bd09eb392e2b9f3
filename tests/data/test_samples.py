"""Data sets of every usual shape, with and without ids."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

import particleaugment as pa
from particleaugment.data.samples import Samples, classes_of

COUNT = 12
IMAGES = torch.randint(0, 256, (COUNT, 3, 6, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(COUNT) % 3
ARRAY = IMAGES.permute(0, 2, 3, 1).contiguous().numpy()
PICTURES = [Image.fromarray(pixels) for pixels in ARRAY]


class Pictures(Dataset):
    """Counts how often it is read; ``kind`` makes the items."""

    def __init__(self, kind, **attributes):
        self.kind, self.reads = kind, 0
        self.__dict__.update(attributes)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.reads += 1
        return self.kind(index)


DATA_SETS = {
    "tensors": (IMAGES, LABELS),
    "a list of labels": (IMAGES, LABELS.tolist()),
    "arrays, channels last": (ARRAY, LABELS.numpy()),
    "arrays, channels first": (IMAGES.numpy(), LABELS.numpy()),
    "TensorDataset": TensorDataset(IMAGES, LABELS),
    "TensorDataset with more": TensorDataset(IMAGES, LABELS, torch.arange(COUNT)),
    "items of tensors": Pictures(lambda i: (IMAGES[i], int(LABELS[i]))),
    "items of Pillow images": Pictures(lambda i: (PICTURES[i], int(LABELS[i]))),
    "items of arrays": Pictures(lambda i: [ARRAY[i], LABELS[i]]),
    "dicts": Pictures(lambda i: {"image": PICTURES[i], "label": int(LABELS[i])}),
    "other names": Pictures(lambda i: {"pixel_values": IMAGES[i], "labels": LABELS[i]}),
    "a list": [(PICTURES[i], int(LABELS[i])) for i in range(COUNT)],
    "a Subset": Subset(Pictures(lambda i: (PICTURES[i], int(LABELS[i])), targets=LABELS.tolist()), range(COUNT)),
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_kind_of_data_set(name):
    samples = Samples(DATA_SETS[name])
    chosen = torch.tensor([5, 0, 11])
    images, targets = samples.gather(chosen)
    assert len(samples) == COUNT
    assert torch.equal(images, IMAGES[chosen])
    assert torch.equal(targets, LABELS[chosen])
    assert torch.equal(samples.labels, LABELS)


@pytest.mark.parametrize("name", DATA_SETS)
def test_ids_for_every_kind_of_data_set(name):
    dataset = pa.IndexedDataset(DATA_SETS[name])
    assert len(dataset) == COUNT
    for images, labels, ids in DataLoader(dataset, batch_size=5, shuffle=True):
        assert torch.equal(images, IMAGES[ids])
        assert torch.equal(labels, LABELS[ids])
    assert torch.equal(dataset.targets, LABELS)
    assert torch.equal(Samples(dataset).gather(torch.tensor([3, 7]))[0], IMAGES[[3, 7]])
    with pytest.raises(IndexError, match=f"the data set has {COUNT} samples, got index {COUNT}"):
        dataset[COUNT]


def test_ids_are_those_of_the_wrapped_data_set():
    part, _ = random_split(pa.IndexedDataset((IMAGES, LABELS)), [8, 4], torch.Generator().manual_seed(0))
    ids = [part[i][2] for i in range(8)]
    assert ids == list(part.indices)
    assert torch.equal(Samples(part).labels, LABELS[ids])


def test_a_wrapped_pair_of_tensors_is_still_gathered_at_once():
    dataset = pa.IndexedDataset((IMAGES, LABELS))
    samples = Samples(dataset)
    assert samples.dataset is dataset
    assert samples.tensors is not None
    assert samples.tensors[0] is IMAGES


def test_known_labels_are_not_read():
    dataset = Pictures(lambda i: (PICTURES[i], int(LABELS[i])), labels=LABELS.numpy())
    assert torch.equal(Samples(Subset(dataset, [4, 2])).labels, LABELS[[4, 2]])
    assert torch.equal(pa.IndexedDataset(dataset).targets, LABELS)
    assert dataset.reads == 0


class Repeated(Dataset):
    """Hands on what it does not know itself, as many wrappers do."""

    def __init__(self, dataset, times):
        self.dataset, self.times = dataset, times

    def __len__(self):
        return int(len(self.dataset) * self.times)

    def __getitem__(self, index):
        return self.dataset[index % len(self.dataset)]

    def __getattr__(self, name):
        return getattr(self.dataset, name)


@pytest.mark.parametrize(
    "attributes",
    [
        {"targets": LABELS[:7].tolist()},
        {"targets": torch.cat([LABELS, LABELS])},
        {"labels": ["cat", "dog", "owl"]},
        {"labels": ["cat", "dog", "owl"] * (COUNT // 3)},
        {"labels": lambda: LABELS},
        {"targets": ["cat"] * COUNT, "labels": LABELS.tolist()},
        {"targets": [{"boxes": [], "label": 1}] * COUNT},
        {"targets": [torch.zeros(1), torch.zeros(2)] * (COUNT // 2)},
        {"targets": 3},
    ],
)
def test_attributes_that_are_not_one_class_per_sample_are_not_believed(attributes):
    dataset = Pictures(lambda i: (PICTURES[i], int(LABELS[i])), **attributes)
    assert torch.equal(Samples(dataset).labels, LABELS)
    assert torch.equal(Samples(Subset(dataset, [4, 2])).labels, LABELS[[4, 2]])
    assert dataset.reads == (0 if "labels" in attributes and "targets" in attributes else COUNT + 2)


@pytest.mark.parametrize("times", [0.5, 2])
def test_wrappers_that_hand_on_the_targets_of_another_length(times):
    dataset = Repeated(Pictures(lambda i: (PICTURES[i], int(LABELS[i])), targets=LABELS.tolist()), times)
    samples = Samples(dataset)
    assert torch.equal(samples.labels, LABELS.repeat(2)[: len(dataset)])


def test_grey_images():
    grey = IMAGES[:, 0].numpy()
    assert Samples((grey, LABELS)).gather(torch.tensor([1]))[0].shape == (1, 1, 6, 4)
    assert pa.IndexedDataset([(Image.fromarray(grey[0]), 0)])[0][0].shape == (1, 6, 4)


TWO = torch.arange(COUNT) % 2
SEVERAL = torch.nn.functional.one_hot(LABELS, 4) | torch.tensor([0, 0, 0, 1])
TARGETS = {
    "one column": (TWO.unsqueeze(1).float(), TWO),
    "probabilities of the second class": (TWO * 0.8 + 0.1, TWO),
    "a column of them": ((TWO * 0.8 + 0.1).unsqueeze(1), TWO),
    "several classes": (SEVERAL.float(), LABELS),
    "several classes as truth values": (SEVERAL.bool(), LABELS),
    "whole quantities": (LABELS.float(), torch.zeros_like(LABELS)),
    "quantities": (LABELS + 0.25, torch.zeros_like(LABELS)),
    "quantities below 0": (LABELS - 2.0, torch.zeros_like(LABELS)),
    "two quantities": (torch.stack([LABELS, LABELS + 10], 1).float(), torch.zeros_like(LABELS)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_classes_of_targets_of_every_shape(name):
    targets, classes = TARGETS[name]
    for given in (targets, targets.numpy(), targets.tolist(), list(targets)):
        assert torch.equal(classes_of(given), classes)
    for dataset in ((IMAGES, targets), Pictures(lambda i: (IMAGES[i], targets[i])), Pictures(None, targets=targets)):
        assert torch.equal(Samples(dataset).labels, classes)
    assert torch.equal(Samples((IMAGES, targets)).gather(torch.tensor([3]))[1], targets[3:4])


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (
            torch.zeros(COUNT, 2, 2),
            ValueError,
            r"targets must have shape \[samples\] or \[samples, classes\], got \(12, 2",
        ),
        (3, ValueError, r"must have shape \[samples\] or \[samples, classes\], got \(\)"),
        (["cat", "dog"], TypeError, "a target must be a class number or .*, got list; number the classes from 0"),
    ],
)
def test_targets_without_classes(targets, error, message):
    with pytest.raises(error, match=message):
        classes_of(targets)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        ([], ValueError, "the data set is empty"),
        ((IMAGES[:0], LABELS[:0]), ValueError, "the data set is empty"),
        ((ARRAY.astype(np.float32), LABELS), TypeError, r"images must be uint8 \[N, C, H, W\], got torch.float32"),
        ((ARRAY, LABELS[:3]), ValueError, "the data set has 12 images but 3 targets"),
        ((IMAGES, ["cat"] * COUNT), TypeError, "a target must be a class number or .*, got list; number the classes"),
        (
            Stream(),
            TypeError,
            r"must have len\(\) and items by index, or be \(images, targets\), got Stream",
        ),
        (None, TypeError, "got NoneType"),
    ],
)
def test_data_sets_that_cannot_be_used(dataset, error, message):
    for wrap in (Samples, pa.IndexedDataset):
        with pytest.raises(error, match=message):
            wrap(dataset)


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ((PICTURES[0], "cat"), TypeError, "a target must be a class number or soft class .*, got str; number the"),
        (PICTURES[0], TypeError, r"a data set must return \(image, target\) or a dict of both, got Image"),
        ({"picture": PICTURES[0], "label": 0}, ValueError, "must have an image .* got a dict with picture, label"),
        ((IMAGES[0, :2], 0), ValueError, r"must have shape \[1 or 3, height, width\], got \(2, 6, 4\)"),
    ],
)
def test_items_that_cannot_be_used(item, error, message):
    samples = Samples(Pictures(lambda i: item))
    with pytest.raises(error, match=message):
        samples.gather(torch.tensor([0, 1]))


def test_images_of_several_sizes():
    samples = Samples([(PICTURES[0], 0), (PICTURES[1].resize((9, 9)), 1)])
    with pytest.raises(ValueError, match=r"must have the same size, got \(3, 6, 4\) and \(3, 9, 9\); crop or resize"):
        samples.gather(torch.tensor([0, 1]))


class Files(Dataset):
    """A data set that counts how often it is read, and cannot tell its targets without."""

    def __init__(self, labels):
        self.numbers, self.reads = labels.tolist(), 0

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        self.reads += 1
        return torch.full((3, 4, 4), index, dtype=torch.uint8), self.numbers[index]


def test_a_data_set_is_read_once_for_its_labels():
    labels = torch.arange(40) % 4
    files = Files(labels)
    samples = Samples(files)
    for _ in range(2):
        assert torch.equal(samples.labels, labels)
    assert files.reads == 40
    image, target = samples.item(3)
    assert (int(image[0, 0, 0]), target) == (3, 3)
