import pytest
import torch
from PIL import Image, ImageEnhance

import particleaugment as pa
from particleaugment.core.random import Stream

IDS = torch.arange(40)


def images(count=40, channels=3, side=12):
    return torch.randint(0, 256, (count, channels, side, side), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )


def pillow(image, program, index):
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    for name, factor in program.describe(index):
        picture = getattr(ImageEnhance, name)(picture).enhance(factor)
    return (
        torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(*picture.size[::-1], 3).permute(2, 0, 1)
    )


def test_pixels_are_pillows():
    jitter, batch = pa.ColorJitter(), images()
    draws = jitter.sample(IDS, 3, 5, (12, 12))
    program, result = jitter.program(draws), jitter.run(batch, draws)
    for index in range(len(batch)):
        assert torch.equal(result[index], pillow(batch[index], program, index))


def test_every_image_gets_all_three_ops_once_and_every_order_occurs():
    jitter = pa.ColorJitter()
    ids = torch.arange(3000)
    program = jitter.program(jitter.sample(ids, 0, 0, (12, 12)))
    assert (program.op.sort(1).values == program.op[:1].sort(1).values).all()
    orders, counts = program.op.unique(dim=0, return_counts=True)
    assert len(orders) == 6
    assert counts.min() > 400


def test_factors_fill_their_ranges():
    jitter = pa.ColorJitter((0.5, 1.5), (0.9, 1.0), (0.0, 10.0))
    factors = jitter.sample(torch.arange(4000), 0, 0, (12, 12))[:, :3]
    for column, (low, high) in enumerate(((0.5, 1.5), (0.9, 1.0), (0.0, 10.0))):
        values = factors[:, column]
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high >= values.max() > high - 0.01 * (high - low)
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=0.03 * (high - low))


def test_draws_are_a_function_of_their_key():
    jitter = pa.ColorJitter()
    whole = jitter.sample(IDS, 2, 7, (12, 12))
    assert torch.equal(whole[11:13], jitter.sample(IDS[11:13], 2, 7, (224, 224)))
    assert not torch.equal(whole, jitter.sample(IDS, 3, 7, (12, 12)))
    assert not torch.equal(whole, jitter.sample(IDS, 2, 8, (12, 12)))
    device_key = torch.tensor(2), torch.tensor(7)
    assert torch.equal(whole, jitter.sample(IDS, *device_key, (12, 12)))


def test_the_stream_has_a_number_of_its_own():
    assert Stream.JITTER == 17
    assert len(set(Stream)) == len(Stream.__members__)


def test_no_change_leaves_the_images_alone():
    jitter, batch = pa.ColorJitter((1, 1), (1, 1), (1, 1)), images()
    assert torch.equal(jitter(batch, IDS), batch)


def test_grey_images_stay_grey():
    batch = images(channels=1)
    result = pa.ColorJitter()(batch, IDS)
    assert result.shape == batch.shape
    assert not torch.equal(result, batch)


def test_it_works_as_an_always_on_transform():
    batch = images()
    augment = pa.Augment(pa.Identity(), seed=3, before=[pa.ColorJitter()])
    assert torch.equal(augment(batch, IDS), pa.ColorJitter()(batch, IDS, epoch=0, seed=3))


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("value", [(1.4, 0.6), (-0.1, 1.0), (0.5, 10.5), (1.0,), 0.4, "ab", (float("nan"), 1.0), None])
def test_bad_ranges_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        pa.ColorJitter(**{name: value})
