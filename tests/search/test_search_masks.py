"""A search where targets are masks: they move with the images wherever the filter trains or measures."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import particleaugment as pa
from particleaugment.data.samples import Samples, classes_of
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import silent

COUNT, SIZE = 24, (12, 16)
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (COUNT, 3, *SIZE), dtype=torch.uint8, generator=GENERATOR)
MASKS = (IMAGES.float().mean(1) > 128).long()
IDS = torch.arange(COUNT)
OPS = ("Rotate", "TranslateX", "Color")


class Seen:
    """A loss per image that remembers the targets it was given."""

    def __init__(self):
        self.targets = []

    def __call__(self, logits, masks):
        self.targets.append(masks.clone())
        return nn.functional.cross_entropy(logits, masks, ignore_index=255, reduction="none").mean((1, 2))


def parts(**settings):
    torch.manual_seed(0)
    model, seen = nn.Conv2d(3, 2, 3, padding=1), Seen()
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.01), seen, lambda images: images / 255)
    augment = pa.Augment(pa.Identity(), seed=4, before=(pa.PadCrop(2), pa.HorizontalFlip()), **settings)
    return EagerTrainee(learner, Samples((IMAGES, MASKS)), augment, 8), learner, seen


def test_masks_have_no_class():
    assert classes_of(MASKS).tolist() == [0] * COUNT
    assert Samples(TensorDataset(IMAGES, MASKS)).labels.tolist() == [0] * COUNT

    class Segmented:
        reads = 0

        def __len__(self):
            return COUNT

        def __getitem__(self, i):
            self.reads += 1
            return IMAGES[i], MASKS[i].numpy()

    dataset = Segmented()
    samples = Samples(dataset)
    assert samples.labels.tolist() == [0] * COUNT
    assert dataset.reads == 1
    assert torch.equal(samples.gather(torch.tensor([3, 5]))[1], MASKS[[3, 5]])
    with pytest.raises(ValueError, match=r"targets must have shape \[samples\] or \[samples, classes\], got \(24, 12"):
        classes_of(MASKS.float())


def test_training_moves_masks_with_their_images():
    trainee, _, seen = parts()
    policy = pa.RandAugment(n=2, m=6, ops=OPS)
    trainee.train(policy, IDS, 3, progress=silent)
    augment = pa.Augment(policy, seed=4, before=(pa.PadCrop(2), pa.HorizontalFlip()))
    augment.set_epoch(3)
    assert torch.equal(torch.cat(seen.targets), augment(IMAGES, IDS, masks=MASKS).masks)


def test_measuring_moves_masks_under_every_particle():
    trainee, learner, seen = parts(mask_fill=0)
    policy = pa.ParticlePolicy(torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.8, 0.5]]), torch.ones(2), m=6, ops=OPS)
    table, plain = trainee.measure(policy, IDS, 5, progress=silent, phase="measure")
    seen.targets.clear()
    for i in range(2):
        program = policy.sample_particle(torch.full((COUNT,), i), IDS, 5, 4, SIZE)
        moved = pa.apply(IMAGES, program, masks=MASKS, mask_fill=0)
        assert torch.equal(table[i], learner.losses(moved.images, moved.masks).double())
        assert not torch.equal(moved.masks, MASKS)
    assert torch.equal(plain, learner.losses(IMAGES, MASKS).double())
    assert torch.equal(trainee.losses(IDS), plain)


@pytest.mark.parametrize(
    "filter", [pa.DifficultyFilter(measure_size=8), pa.PaperFilter(num_particles=4, clone_size=8, measure_size=8)]
)
def test_a_search_with_masks(filter):
    torch.manual_seed(0)
    model, loss = nn.Conv2d(3, 2, 3, padding=1), Seen()
    search = pa.ParticleAugment((IMAGES, MASKS), epochs=4, filter=filter, seed=1, ops=OPS, mask_fill=1)
    optimizer, preprocess = torch.optim.SGD(model.parameters(), lr=0.01), lambda images: images / 255
    images, masks, ids = next(iter(DataLoader(search.training_set(), batch_size=COUNT)))
    assert torch.equal(masks, MASKS[ids])
    search.begin_epoch(1)
    images, masks, *_ = search.augment(images, ids, masks=masks)
    assert (masks.shape, images.shape) == ((len(ids), *SIZE), (len(ids), 3, *SIZE))
    assert masks.max() == 1
    search.observe(ids, torch.ones(len(ids)))
    record = search.step(model, loss=loss, preprocess=preprocess, optimizer=optimizer, batch_size=8)
    assert record.step == 1
    assert all(targets.max() <= 1 for targets in loss.targets)


def test_a_loss_per_pixel_is_refused():
    _, learner, _ = parts()
    learner.loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(
        ValueError, match=r"\[24\], got \(24, 12, 16\); average it over pixels: .flatten\(1\).mean\(1\)"
    ):
        learner.losses(IMAGES, MASKS)
