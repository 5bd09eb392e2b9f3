import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

import particleaugment as pa
from particleaugment.augment.transforms import Transform

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
COUNT = 26
IMAGES = torch.randint(0, 256, (COUNT, 3, 16, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(100, 100 + COUNT)


def full_augment(policy="rand-m9-n3-mstd0.5-inc1", seed=7, **settings):
    before, after = (pa.PadCrop(2), pa.HorizontalFlip()), (pa.RandomErasing(), pa.Normalize(MEAN, STD))
    return pa.Augment(policy, seed=seed, before=before, after=after, **settings)


def test_it_is_the_parts_in_order():
    augment = full_augment()
    augment.set_epoch(4)
    images = pa.PadCrop(2)(IMAGES, IDS, 4, 7)
    images = pa.HorizontalFlip()(images, IDS, 4, 7)
    program = pa.parse("rand-m9-n3-mstd0.5-inc1").sample(IDS, 4, 7, size=(16, 12))
    images = pa.apply(images, program, executor="pil")
    images = pa.RandomErasing()(images, IDS, 4, 7)
    images = pa.Normalize(MEAN, STD)(images, IDS)
    assert torch.equal(augment(IMAGES, IDS), images)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_with_ids_it_is_a_pure_function_of_seed_epoch_and_id(data):
    augment = full_augment()
    augment.set_epoch(data.draw(st.integers(0, 1000)))
    whole = augment(IMAGES, IDS)
    order = torch.tensor(data.draw(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=40)))
    assert torch.equal(augment(IMAGES[order], IDS[order]), whole[order])
    batch = data.draw(st.integers(1, COUNT))
    parts = [augment(images, ids) for images, ids in zip(IMAGES.split(batch), IDS.split(batch))]
    assert torch.equal(torch.cat(parts), whole)
    assert augment.counter == 0


def test_seed_epoch_and_id_matter():
    augment = full_augment()
    base = augment(IMAGES, IDS)
    assert torch.equal(augment(IMAGES, IDS), base)
    assert not torch.equal(augment(IMAGES, IDS + 1), base)
    assert not torch.equal(full_augment(seed=8)(IMAGES, IDS), base)
    augment.set_epoch(1)
    assert not torch.equal(augment(IMAGES, IDS), base)
    augment.set_epoch(0)
    assert torch.equal(augment(IMAGES, IDS), base)


@pytest.mark.parametrize("executor", ["native", "batch", "pil"])
def test_the_executor_does_not_matter(executor):
    settings = {"resample": "bicubic", "fill": (1, 2, 3)}
    policy = pa.RandAugment(n=3, m=7)
    expected = full_augment(policy, **settings)(IMAGES, IDS)
    assert torch.equal(full_augment(policy, executor=executor, **settings)(IMAGES, IDS), expected)


def test_resample_and_fill_reach_the_executor():
    policy = pa.RandAugment(n=1, m=10, ops=("Rotate",))
    outputs = [
        pa.Augment(policy, resample=resample, fill=fill)(IMAGES, IDS)
        for resample, fill in (("bilinear", (128,) * 3), ("nearest", (128,) * 3), ("bilinear", (0,) * 3))
    ]
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


# Without ids.


class Enlarge(Transform):
    """Pads at the right and below."""

    def sample(self, ids, epoch, seed, size):
        return ids

    def run(self, images, draws):
        return nn.functional.pad(images, (0, 20, 0, 9))


def test_programs_are_drawn_for_the_size_that_transforms_leave():
    for policy in (
        pa.RandAugment(n=1, m=9, semantics="autoaugment-original", ops=("Cutout", "TranslateX", "TranslateY")),
        pa.ParticlePolicy([[0.5, 0.5]], [1.0], m=20, semantics="torchvision", ops=("TranslateX", "TranslateY")),
    ):
        for executor in ("native", "batch"):
            augment = pa.Augment(policy, seed=2, before=(Enlarge(),), executor=executor)
            enlarged = Enlarge().run(IMAGES, IDS)
            expected = pa.apply(enlarged, policy.sample(IDS, 0, 2, (25, 32)), "pil")
            assert torch.equal(augment(IMAGES, IDS), expected)


def test_the_executor_of_gpus_can_be_asked_for_where_there_is_one(monkeypatch):
    with pytest.raises(ValueError, match="executor 'fused' cannot run on cpu"):
        pa.Augment("trivial", executor="fused")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    augment = pa.Augment("trivial", executor="fused")
    with pytest.raises(ValueError, match="executor 'fused' cannot run on cpu"):
        augment(IMAGES, IDS)


def test_without_ids_every_call_draws_afresh_and_goes_on_after_a_resume():
    augment = full_augment()
    first, second = augment(IMAGES), augment(IMAGES)
    assert not torch.equal(first, second)
    assert torch.equal(first, full_augment()(IMAGES, torch.arange(COUNT)))
    assert torch.equal(second, full_augment()(IMAGES, torch.arange(COUNT, 2 * COUNT)))

    stored = io.BytesIO()
    torch.save(augment.state_dict(), stored)
    third = augment(IMAGES)
    stored.seek(0)
    resumed = full_augment()
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    assert torch.equal(resumed(IMAGES), third)
    assert not torch.equal(third, second)


def test_the_state_holds_epoch_and_counter():
    augment = full_augment()
    augment.set_epoch(3)
    augment(IMAGES)
    other = full_augment()
    other.load_state_dict(augment.state_dict())
    assert (other.epoch, other.counter) == (3, COUNT)
    assert torch.equal(other(IMAGES, IDS), augment(IMAGES, IDS))


def test_as_part_of_a_model():
    model = nn.Sequential(full_augment(), nn.Flatten(), nn.Linear(3 * 16 * 12, 2))
    state = model.state_dict()
    model(IMAGES)
    assert model[0].counter == COUNT
    model.load_state_dict(state)
    assert model[0].counter == 0
    assert list(model[0].parameters()) == []


def test_single_images():
    augment = full_augment()
    whole = augment(IMAGES, IDS)
    one = augment(IMAGES[4], IDS[4])
    assert one.shape == (3, 16, 12)
    assert torch.equal(one, whole[4])
    assert torch.equal(augment(IMAGES[4], 104), whole[4])
    assert torch.equal(augment(IMAGES[4], torch.tensor([104])), whole[4])
    assert augment.counter == 0
    fresh = augment(IMAGES[0])
    assert (fresh.shape, augment.counter) == ((3, 16, 12), 1)


def test_eval_mode_normalises_and_no_more():
    augment = full_augment()
    augment.eval()
    assert torch.equal(augment(IMAGES, IDS), pa.Normalize(MEAN, STD).run(IMAGES))
    assert torch.equal(augment(IMAGES), pa.Normalize(MEAN, STD).run(IMAGES))
    assert torch.equal(augment(IMAGES[0]), pa.Normalize(MEAN, STD).run(IMAGES[:1])[0])
    assert augment.counter == 0
    plain = pa.Augment("trivial").eval()
    assert torch.equal(plain(IMAGES), IMAGES)
    assert not torch.equal(plain.train()(IMAGES), IMAGES)


def test_eval_mode_refuses_images_that_were_converted_before():
    for images in (IMAGES / 255, IMAGES[0] / 255):
        with pytest.raises(
            TypeError, match=r"Normalize takes uint8 images \(0 to 255\), got torch.float32; it converts"
        ):
            full_augment().eval()(images)
        assert torch.equal(pa.Augment("trivial").eval()(images), images)


def test_the_default_device_does_not_matter():
    augment = full_augment()
    expected = [augment(IMAGES, IDS), augment(IMAGES), augment(IMAGES[0], 3), augment.state_dict()["_extra_state"]]
    with torch.device("meta"):
        augment = full_augment()
        outputs = [augment(IMAGES, IDS), augment(IMAGES), augment(IMAGES[0], 3), augment.state_dict()["_extra_state"]]
        transform = pa.ImageTransform(pa.Augment("trivial"))
        assert transform(IMAGES[0], id=3).device == IMAGES.device
    assert [torch.equal(*pair) for pair in zip(outputs, expected)] == [True] * 4


def test_grey_images_and_layouts():
    augment = pa.Augment(pa.TrivialAugment(), before=(pa.PadCrop(2),), after=(pa.RandomErasing(),))
    assert augment(IMAGES[:, :1], IDS).shape == (COUNT, 1, 16, 12)
    expected = augment(IMAGES, IDS)
    assert torch.equal(augment(IMAGES.to(memory_format=torch.channels_last), IDS), expected)
    assert torch.equal(augment(IMAGES.transpose(2, 3).contiguous().transpose(2, 3), IDS), expected)


def test_empty_batches():
    augment = full_augment()
    assert augment(IMAGES[:0]).shape == (0, 3, 16, 12)
    assert augment(IMAGES[:0], IDS[:0]).shape == (0, 3, 16, 12)


# Data loaders.


class Augmented(Dataset):
    """Augments in the workers; with ids it passes the sample's index."""

    def __init__(self, augment, with_ids=True):
        self.augment, self.with_ids = augment, with_ids

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index, self.augment(IMAGES[index], index if self.with_ids else None)


def by_id(loader):
    return {int(index): image for indices, images in loader for index, image in zip(indices, images)}


def test_batch_size_order_and_number_of_workers_do_not_matter():
    augment = full_augment()
    augment.set_epoch(2)
    expected = augment(IMAGES, torch.arange(COUNT))
    for workers, batch_size, shuffle in ((0, 5, False), (1, 7, True), (2, 4, True), (2, 1, False)):
        loader = DataLoader(
            Augmented(augment),
            batch_size=batch_size,
            shuffle=shuffle,
            num_workers=workers,
            generator=torch.Generator().manual_seed(workers),
            multiprocessing_context="fork" if workers else None,
        )
        images = by_id(loader)
        assert sorted(images) == list(range(COUNT))
        assert all(torch.equal(images[i], expected[i]) for i in range(COUNT))


def test_without_ids_workers_do_not_repeat_each_other():
    policy = pa.RandAugment(n=2, m=5, m_std=2.0, ops=("Rotate", "ShearX", "Color"))
    augment = pa.Augment(policy)
    dataset = Augmented(augment, with_ids=False)
    loader = DataLoader(dataset, batch_size=1, num_workers=2, multiprocessing_context="fork")
    images = by_id(loader)
    # Samples 0 and 1 are the first of their workers: each draws from ids of its own.
    assert torch.equal(images[0], augment(IMAGES[0], 1 << 40))
    assert torch.equal(images[1], augment(IMAGES[1], 2 << 40))
    assert torch.equal(images[2], augment(IMAGES[2], (1 << 40) + 1))


# Bad input.


@pytest.mark.parametrize(
    ("images", "ids", "error", "message"),
    [
        (IMAGES.float(), IDS, TypeError, r"images must be uint8 \(0 to 255\), got torch.float32; augment before"),
        (IMAGES.float(), None, TypeError, r"images must be uint8 \(0 to 255\), got torch.float32"),
        (
            IMAGES[:, :2],
            IDS,
            ValueError,
            r"images must have 1 or 3 channels in dimension 1, got shape \(26, 2, 16, 12\)",
        ),
        (IMAGES[None], IDS[:1], ValueError, r"images must have shape \[batch, channels, height, width\], got \(1, 26"),
        (IMAGES[0, 0], None, ValueError, r"images must have shape \[batch, channels, height, width\], got \(16, 12\)"),
        (IMAGES.numpy(), IDS, TypeError, "expected a uint8 tensor of images, got ndarray"),
        (None, None, TypeError, "expected a uint8 tensor of images, got NoneType"),
        (IMAGES, IDS[:3], ValueError, r"there must be one id per image, got \(3,\) ids for 26 images"),
        (IMAGES, IDS.view(-1, 1), ValueError, r"there must be one id per image, got \(26, 1\) ids for 26 images"),
        (IMAGES, IDS.tolist(), TypeError, "sample ids must be an int64 tensor, got list"),
        (IMAGES, IDS.int(), TypeError, "sample ids must be an int64 tensor, got torch.int32"),
        (IMAGES, -IDS, ValueError, "sample ids must not be negative, got -125"),
        (IMAGES[0], -1, ValueError, "sample ids must not be negative, got -1"),
    ],
)
def test_bad_batches(images, ids, error, message):
    augment = full_augment()
    with pytest.raises(error, match=message):
        augment(images, ids)
    assert augment.counter == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: pa.Augment("rnd-m9"), ValueError, "'rnd-m9' is not a policy string; did you mean rand"),
        (lambda: pa.Augment(None), TypeError, "expected a policy or a policy string, got NoneType"),
        (lambda: pa.Augment(pa.RandAugment), TypeError, "expected a policy or a policy string, got"),
        (lambda: pa.Augment("none", before=pa.HorizontalFlip()), TypeError, "before must be a list of transforms"),
        (lambda: pa.Augment("trivial", executor="gpu"), ValueError, "there is no executor 'gpu'"),
        (lambda: pa.Augment("trivial", resample="cubic"), ValueError, "there is no resampling filter 'cubic'"),
        (lambda: pa.Augment("trivial").set_epoch(-1), ValueError, "the epoch must not be negative, got -1"),
        (lambda: pa.Augment("trivial", seed=-1), ValueError, r"seed must be in 0..2\^63-1, got -1"),
        (lambda: pa.Augment("trivial", seed=torch.tensor(1)), TypeError, "seed must be an int, got Tensor"),
        (lambda: setattr(pa.Augment("trivial"), "policy", "none"), TypeError, "expected a policy, got str; make"),
    ],
)
def test_bad_settings(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_repr_shows_the_settings():
    text = repr(pa.Augment("trivial", seed=3, before=(pa.PadCrop(4),)))
    assert "TrivialAugment(space='wide', resample='default'), seed=3, before=[PadCrop(pad=4, fill=0)]" in text
