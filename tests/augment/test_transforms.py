import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import particleaugment as pa

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
MANY = torch.arange(40_000)
SIZES = [(1, 1), (2, 3), (3, 2), (8, 5), (32, 32), (17, 23)]
TRANSFORMS = {
    "crop": pa.PadCrop(4),
    "flip": pa.HorizontalFlip(),
    "erase": pa.RandomErasing(p=0.9),
    "normalize": pa.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
}


def random_images(count, size, channels=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (count, channels, *size), dtype=torch.uint8, generator=generator)


def agrees_with(successes, trials, probability):
    return stats.binomtest(int(successes), int(trials), probability).pvalue > 1e-4


# Against loops over images.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("pad", "fill"), [(0, 0), (1, 9), (4, 0), (7, 255)])
def test_pad_crop_against_a_loop(size, pad, fill):
    height, width = size
    images = random_images(30, size)
    draws = pa.PadCrop(pad, fill).sample(MANY[:30], 2, 3, size)
    output = pa.PadCrop(pad, fill)(images, MANY[:30], 2, 3)
    for image, (down, right), result in zip(images.numpy(), draws.tolist(), output.numpy()):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), constant_values=fill)
        assert np.array_equal(result, padded[:, down : down + height, right : right + width])


@pytest.mark.parametrize("size", SIZES)
def test_horizontal_flip_against_a_loop(size):
    images = random_images(40, size)
    draws = pa.HorizontalFlip(0.4).sample(MANY[:40], 2, 3, size)
    output = pa.HorizontalFlip(0.4)(images, MANY[:40], 2, 3)
    for image, flipped, result in zip(images.numpy(), draws.tolist(), output.numpy()):
        assert np.array_equal(result, image[:, :, ::-1] if flipped else image)
    assert 0 < draws.sum() < 40


@pytest.mark.parametrize("size", SIZES)
def test_random_erasing_against_a_loop(size):
    images = random_images(60, size)
    erase = pa.RandomErasing(p=0.8)
    draws = erase.sample(MANY[:60], 2, 3, size)
    output = erase(images, MANY[:60], 2, 3)
    for image, (top, left, height, width), result in zip(images.numpy(), draws.tolist(), output.numpy()):
        expected = image.copy()
        expected[:, top : top + height, left : left + width] = 0
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_normalize_against_a_loop(channels, dtype):
    images = random_images(5, (6, 7), channels)
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.247, 0.2435, 0.2616)[:channels]
    output = pa.Normalize(mean, std, dtype)(images, MANY[:5])
    assert output.dtype == dtype
    for image, result in zip(images.numpy().astype(np.float64), output):
        for c in range(channels):
            expected = (image[c] / 255 - mean[c]) / std[c]
            tolerance = 4 * torch.finfo(dtype).eps
            np.testing.assert_allclose(result[c].double().numpy(), expected, rtol=tolerance, atol=tolerance)


# Distributions.


def test_crops_are_uniform_and_independent():
    draws = pa.PadCrop(2).sample(MANY, 0, 0, (32, 32)).numpy()
    assert draws.min() == 0
    assert draws.max() == 4
    assert stats.chisquare(np.bincount(draws[:, 0] * 5 + draws[:, 1], minlength=25)).pvalue > 1e-4


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_flips_have_their_probability(p):
    assert agrees_with(pa.HorizontalFlip(p).sample(MANY, 0, 0, (8, 8)).sum(), len(MANY), p)


def test_flip_crop_and_erase_are_independent():
    flips = pa.HorizontalFlip().sample(MANY, 0, 0, (32, 32)).numpy().astype(float)
    crops = pa.PadCrop(4).sample(MANY, 0, 0, (32, 32)).numpy().astype(float)
    boxes = pa.RandomErasing().sample(MANY, 0, 0, (32, 32)).numpy()
    erased = (boxes[:, 2] > 0).astype(float)
    columns = np.stack([flips, crops[:, 0], crops[:, 1], erased])
    correlations = np.corrcoef(columns)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(len(MANY))


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_erasing_has_its_probability(p):
    # At 64 by 64 a rectangle fails to fit ten times in a row with a probability far below 1e-9.
    boxes = pa.RandomErasing(p).sample(MANY, 0, 0, (64, 64))
    assert agrees_with((boxes[:, 2] > 0).sum(), len(MANY), p)
    assert (boxes[boxes[:, 2] == 0] == 0).all()


def test_areas_and_aspects_are_those_asked_for():
    side = 4000  # large, so that whole pixels do not blur the shares
    erase = pa.RandomErasing(p=1.0, area=(0.05, 0.2), aspect=(0.5, 2.0))  # every such rectangle fits
    boxes = erase.sample(MANY, 0, 0, (side, side)).double().numpy()
    top, left, height, width = boxes.T
    areas, aspects = height * width / side**2, height / width
    assert stats.kstest(areas, stats.uniform(0.05, 0.15).cdf).pvalue > 1e-4
    assert stats.kstest(np.log(aspects), stats.uniform(math.log(0.5), math.log(4.0)).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(areas, aspects)[0, 1]) < 5 / math.sqrt(len(areas))
    assert stats.kstest(top / (side - height + 1), "uniform").pvalue > 1e-4
    assert stats.kstest(left / (side - width + 1), "uniform").pvalue > 1e-4


def test_every_place_is_equally_likely():
    erase = pa.RandomErasing(p=1.0, area=(0.25, 0.25), aspect=(1.0, 1.0))  # 2 by 2 of 4 by 5, up to rounding
    boxes = erase.sample(MANY, 0, 0, (4, 5))
    assert boxes[:, 2:].unique(dim=0).tolist() == [[2, 2]]
    counts = np.bincount(boxes[:, 0] * 4 + boxes[:, 1], minlength=12)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_the_paper_s_areas_and_aspects():
    boxes = pa.RandomErasing(p=1.0).sample(MANY, 0, 0, (1000, 1000)).double().numpy()
    areas, aspects = boxes[:, 2] * boxes[:, 3] / 1e6, boxes[:, 2] / boxes[:, 3]
    assert areas.min() == pytest.approx(0.02, rel=0.02)
    assert areas.max() == pytest.approx(1 / 3, rel=0.02)
    assert aspects.min() == pytest.approx(0.3, rel=0.02)
    assert aspects.max() == pytest.approx(1 / 0.3, rel=0.02)
    # A rectangle of area s and aspect a fits if sqrt(s a) and sqrt(s / a) are below 1; the rest is drawn again.
    rng = np.random.default_rng(0)
    s, a = rng.uniform(0.02, 1 / 3, 400_000), np.exp(rng.uniform(math.log(0.3), -math.log(0.3), 400_000))
    fits = (np.sqrt(s * a) < 0.9995) & (np.sqrt(s / a) < 0.9995)
    assert stats.ks_2samp(areas, s[fits]).pvalue > 1e-4
    assert stats.ks_2samp(aspects, a[fits]).pvalue > 1e-4


@pytest.mark.parametrize("size", [*SIZES, (4, 4), (1, 40), (40, 1), (64, 64)])
@pytest.mark.parametrize("area", [(0.02, 1 / 3), (0.9, 1.0), (1.0, 1.0)])
def test_erasing_stays_inside_and_never_covers_a_side(size, area):
    boxes = pa.RandomErasing(p=1.0, area=area).sample(MANY[:5000], 1, 2, size)
    top, left, height, width = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (top + height <= size[0]).all()
    assert (left + width <= size[1]).all()
    assert (height < size[0]).all()
    assert (width < size[1]).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 3)])
def test_tiny_images_are_never_blackened(size):
    images = random_images(300, size)
    output = pa.RandomErasing(p=1.0, area=(0.02, 1.0))(images, MANY[:300])
    assert (output.flatten(1) != 0).any(1).all()


# What holds for each.


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@PROPERTY
@given(data=st.data())
def test_a_result_depends_on_its_sample_alone(transform, data):
    count = data.draw(st.integers(1, 12))
    images = random_images(count, data.draw(st.sampled_from(SIZES)), seed=count)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count)))
    epoch, seed = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(0, 2**63 - 1))
    whole = transform(images, ids, epoch, seed)
    order = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20)))
    assert torch.equal(transform(images[order], ids[order], epoch, seed), whole[order])
    assert torch.equal(transform(images, ids, torch.tensor(epoch), torch.tensor(seed)), whole)
    last_first = images.to(memory_format=torch.channels_last)
    assert torch.equal(transform(last_first, ids, epoch, seed), whole)


@pytest.mark.parametrize("name", ["crop", "flip", "erase"])
def test_seed_epoch_and_id_matter(name):
    transform, images = TRANSFORMS[name], random_images(64, (16, 16))
    base = transform(images, MANY[:64], 3, 5)
    for other in (
        transform(images, MANY[:64], 4, 5),
        transform(images, MANY[:64], 3, 6),
        transform(images, MANY[64:128], 3, 5),
    ):
        assert not torch.equal(other, base)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_empty_batches_and_untouched_inputs(transform):
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    assert transform(empty, MANY[:0]).shape == (0, 3, 8, 8)
    images = random_images(20, (8, 8))
    before = images.clone()
    transform(images, MANY[:20])
    assert torch.equal(images, before)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_one_id_per_image(transform):
    with pytest.raises(ValueError, match=r"there must be one id per image, got \(3,\) ids for 4 images"):
        transform(random_images(4, (8, 8)), MANY[:3])
    with pytest.raises(ValueError, match=r"there must be one id per image, got \(4, 1\) ids for 4 images"):
        transform(random_images(4, (8, 8)), MANY[:4].unsqueeze(1))


@pytest.mark.parametrize("name", ["crop", "flip", "erase"])
def test_negative_ids(name):
    with pytest.raises(ValueError, match="sample ids must not be negative, got -1"):
        TRANSFORMS[name](random_images(1, (8, 8)), torch.tensor([-1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pa.PadCrop(-1), "pad must be a whole number from 0 to 4096, got -1"),
        (lambda: pa.PadCrop(2.5), "pad must be a whole number from 0 to 4096, got 2.5"),
        (lambda: pa.PadCrop(4, fill=256), "fill must be a whole number from 0 to 255, got 256"),
        (lambda: pa.HorizontalFlip(1.5), "p must be a number from 0 to 1, got 1.5"),
        (lambda: pa.HorizontalFlip(math.nan), "p must be a number from 0 to 1, got nan"),
        (lambda: pa.RandomErasing(p=-0.1), "p must be a number from 0 to 1, got -0.1"),
        (lambda: pa.RandomErasing(area=(0.5, 0.2)), r"area must be two fractions of the image in rising order"),
        (lambda: pa.RandomErasing(area=(0.0, 0.2)), r"area must be two fractions of the image in rising order"),
        (lambda: pa.RandomErasing(area=(0.1, 1.2)), r"area must be two fractions of the image in rising order"),
        (lambda: pa.RandomErasing(aspect=(2.0, 1.0)), "aspect must be two positive ratios in rising order"),
        (lambda: pa.RandomErasing(aspect=(1.0, math.inf)), "aspect must be two positive ratios in rising order"),
        (lambda: pa.RandomErasing(area=0.2), "area must be two fractions of the image in rising order, got 0.2"),
        (lambda: pa.RandomErasing(aspect=(1, 2, 3)), r"aspect must be two positive ratios .*, got \(1, 2, 3\)"),
        (lambda: pa.Normalize(0.5, 0.25), "mean must be 1 or 3 finite numbers, one per channel, got 0.5"),
        (lambda: pa.Normalize((0.5,), ("a",)), r"std must be 1 or 3 finite numbers, one per channel, got \('a',\)"),
        (lambda: pa.Normalize((0.5,), (0.5,), torch.uint8), "dtype must be a floating type .* got torch.uint8"),
        (lambda: pa.Normalize((0.5,), (0.5,), "float16"), "dtype must be a floating type .* got 'float16'"),
        (lambda: pa.Normalize((0.5,) * 2, (0.5,) * 2), "mean must be 1 or 3 finite numbers, one per channel"),
        (lambda: pa.Normalize((0.5,), (math.nan,)), "std must be 1 or 3 finite numbers, one per channel"),
        (lambda: pa.Normalize((0.5,), (0.0,)), "mean and std must have the same length and std must be positive"),
        (lambda: pa.Normalize((0.5,), (0.5,) * 3), "mean and std must have the same length and std must be positive"),
        (
            lambda: pa.Normalize((0.5,), (0.5,)).run(random_images(1, (2, 2))),
            "Normalize has 1 channels but the images have 3",
        ),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
