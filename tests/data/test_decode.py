import zlib
from functools import partial

import numpy as np
import pytest
import torch
from pictures import as_tensor, one_sentence, picture, whole
from PIL import Image

from particleaugment.data.decode import CentreCrop, RandomResizedCrop, read_image

# What becomes of an image.


def test_an_image_of_the_final_size_is_unchanged(tmp_path):
    image = picture(width=32, height=32)
    image.save(tmp_path / "a.png")
    tensor = read_image(tmp_path / "a.png", 32, whole)
    assert tensor.dtype == torch.uint8
    assert tensor.is_contiguous()
    assert torch.equal(tensor, as_tensor(image))


def test_a_region_is_resized_as_pillow_does(tmp_path):
    image = picture(width=61, height=47)
    image.save(tmp_path / "a.png")
    box = (5, 7, 50, 33)
    expected = image.resize((24, 24), Image.Resampling.BILINEAR, box=box)
    assert torch.equal(read_image(tmp_path / "a.png", 24, lambda w, h: box), as_tensor(expected))


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA"])
def test_png_modes_become_rgb(tmp_path, mode):
    image = picture(mode=mode)
    image.save(tmp_path / "a.png")
    expected = image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    difference = (read_image(tmp_path / "a.png", 16, whole).int() - as_tensor(expected).int()).abs()
    assert int(difference.max()) <= 1


def test_a_transparent_palette_becomes_rgb_without_a_warning(tmp_path, recwarn):
    image = picture().quantize(16)
    image.info["transparency"] = bytes([0, 128] + [255] * 14)
    image.save(tmp_path / "a.png", transparency=image.info["transparency"])
    expected = picture().quantize(16).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    assert torch.equal(read_image(tmp_path / "a.png", 16, whole), as_tensor(expected))
    assert not recwarn.list


def test_of_sixteen_bits_the_upper_eight_are_kept(tmp_path):
    values = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) * 64 + 63
    Image.fromarray(values).save(tmp_path / "a.png")
    tensor = read_image(tmp_path / "a.png", 32, whole)
    assert torch.equal(tensor[0], torch.from_numpy((values >> 8).astype(np.uint8)))
    assert torch.equal(tensor[0], tensor[2])


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 100, "subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_modes_become_rgb(tmp_path, mode, options):
    image = picture(mode=mode)
    image.save(tmp_path / "a.jpg", **options)
    tensor = read_image(tmp_path / "a.jpg", 16, whole)
    expected = as_tensor(image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))
    assert (tensor.double() - expected.double()).abs().mean() < 8


@pytest.mark.parametrize(("suffix", "options"), [(".webp", {"lossless": True}), (".png", {})])
def test_of_an_animation_the_first_frame_is_taken(tmp_path, suffix, options):
    frames = [picture(seed) for seed in range(3)]
    frames[0].save(tmp_path / f"a{suffix}", save_all=True, append_images=frames[1:], duration=50, **options)
    expected = frames[0].resize((16, 16), Image.Resampling.BILINEAR)
    assert torch.equal(read_image(tmp_path / f"a{suffix}", 16, whole), as_tensor(expected))


def test_the_content_decides_not_the_ending(tmp_path):
    picture(width=16, height=16).save(tmp_path / "a.jpg", "PNG")
    assert torch.equal(read_image(tmp_path / "a.jpg", 16, whole), as_tensor(picture(width=16, height=16)))


def test_the_orientation_tag_is_left_alone(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "turned.jpg", exif=exif)
    picture().save(tmp_path / "plain.jpg")
    turned, plain = (read_image(tmp_path / f"{name}.jpg", 16, whole) for name in ("turned", "plain"))
    assert torch.equal(turned, plain)


@pytest.mark.parametrize("width", [401, 640, 1003, 2048])
@pytest.mark.parametrize("size", [16, 50])
def test_reduced_decoding_changes_little_and_moves_nothing(tmp_path, width, size):
    height = width * 3 // 4 + 1
    image = picture(3, width, height)
    image.save(tmp_path / "a.jpg", quality=95)
    decoded = Image.open(tmp_path / "a.jpg")
    for box in ((0, 0, width, height), (33, 21, width - 7, height - 9), (width // 2, height // 2, width, height)):
        expected = as_tensor(decoded.resize((size, size), Image.Resampling.BILINEAR, box=box)).double()
        actual = read_image(tmp_path / "a.jpg", size, lambda w, h: box).double()  # noqa: B023
        assert (actual - expected).abs().mean() < 1.0
        moved = (actual[..., 1:] - expected[..., :-1]).abs().mean()
        assert (actual - expected).abs().mean() < 0.5 * moved


def test_jpegs_are_decoded_at_lower_resolution_where_it_suffices(tmp_path, monkeypatch):
    picture(3, 1000, 800).save(tmp_path / "a.jpg")
    sizes = []
    original = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda image, *a, **k: sizes.append(image.size) or original(image, *a, **k)
    )
    for size in (1000, 401, 400, 201, 200, 100, 10):
        read_image(tmp_path / "a.jpg", size, whole)
    assert [width for width, _ in sizes] == [1000, 1000, 500, 500, 250, 125, 125]


# What cannot be read.


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_truncated_files_are_named(tmp_path, suffix, share):
    path = tmp_path / f"broken{suffix}"
    picture(width=300, height=300).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=rf"broken\{suffix} (cannot be read|is not a readable)") as error:
        read_image(path, 16, whole)
    one_sentence(error)


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a....", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"\xff\xd8\xff" * 20, b"<svg/>"]
)
def test_what_is_no_image_is_named(tmp_path, content):
    (tmp_path / "fake.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"fake\.png (cannot be read|is not a readable)"):
        read_image(tmp_path / "fake.png", 16, whole)


def test_a_file_that_went_away_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.png cannot be read: No such file"):
        read_image(tmp_path / "gone.png", 16, whole)


def test_huge_images_are_named(tmp_path, monkeypatch):
    picture().save(tmp_path / "huge.png")
    with pytest.raises(ValueError, match=r"huge\.png is too large: 48 x 40 pixels are more than 1,000"):
        read_image(tmp_path / "huge.png", 16, whole, max_pixels=1000)
    assert read_image(tmp_path / "huge.png", 16, whole, max_pixels=48 * 40).shape == (3, 16, 16)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(ValueError, match=r"huge\.png is too large: .*1920 pixels") as error:
        read_image(tmp_path / "huge.png", 16, whole)
    one_sentence(error)


def test_a_small_file_of_a_huge_image_is_refused_before_it_is_decoded(tmp_path):
    header = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    chunks = [(13).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")]
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + b"\0\0\0\0IDAT")
    with pytest.raises(ValueError, match=r"bomb\.png is too large"):
        read_image(tmp_path / "bomb.png", 16, whole)


# Crops.


def customary_box(draws, width, height, aspect=(3 / 4, 4 / 3)):
    """The algorithm as it is usually written, fed with our draws."""
    for k in range(10):
        target = width * height * draws[k]
        w, h = round((target * draws[10 + k]) ** 0.5), round((target / draws[10 + k]) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            i, j = int(draws[21] * (height - h + 1)), int(draws[20] * (width - w + 1))
            return j, i, j + w, i + h
    ratio = width / height
    if ratio < min(aspect):
        w, h = width, round(width / min(aspect))
    elif ratio > max(aspect):
        w, h = round(height * max(aspect)), height
    else:
        w, h = width, height
    i, j = (height - h) // 2, (width - w) // 2
    return j, i, j + w, i + h


@pytest.mark.parametrize("shape", [(500, 375), (375, 500), (1, 1), (2, 3), (1000, 10), (10, 1000), (100, 20), (7, 64)])
def test_random_parts_are_the_customary_ones(shape):
    crop = RandomResizedCrop()
    for draws in crop.sample(torch.arange(500), epoch=1, seed=2).tolist():
        left, top, right, bottom = box = crop.box(draws, *shape)
        assert box == customary_box(draws, *shape)
        assert 0 <= left < right <= shape[0]
        assert 0 <= top < bottom <= shape[1]


def test_random_parts_have_the_right_distribution():
    crop = RandomResizedCrop()
    boxes = torch.tensor([crop.box(row, 4000, 4000) for row in crop.sample(torch.arange(4000), 0, 0).tolist()])
    wide, tall = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = wide * tall / 4000**2, wide / tall
    assert 0.079 < area.min() < 0.09
    assert 0.95 < area.max() <= 1
    # Wide and large parts often do not fit and are drawn again, so the mean lies a little under the middle.
    assert 0.45 < float(area.double().mean()) < 0.54
    assert float(aspect.log().mean()) == pytest.approx(0, abs=0.02)
    assert 0.749 < aspect.min() < 0.77
    assert 1.31 < aspect.max() < 1.335
    room = 4000 - wide
    assert float((boxes[:, 0] / room)[room > 100].mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("shape", [(500, 375), (375, 500), (301, 300), (64, 64), (10, 700)])
@pytest.mark.parametrize("size", [32, 224])
def test_the_centre_is_that_of_the_customary_two_steps(tmp_path, shape, size):
    image = picture(5, *shape)
    image.save(tmp_path / "a.png")
    shorter = round(size * 256 / 224)
    width, height = shape
    new = (shorter, int(shorter * height / width)) if width <= height else (int(shorter * width / height), shorter)
    left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
    expected = image.resize(new, Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    actual = read_image(tmp_path / "a.png", size, partial(CentreCrop().box, size=size))
    difference = (actual.int() - as_tensor(expected).int()).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).double().mean()) < 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop(area=(0.0, 1.0)), "area must be two fractions"),
        (lambda: RandomResizedCrop(area=(0.5, 0.1)), "area must be two fractions"),
        (lambda: RandomResizedCrop(aspect=(0.0, 1.0)), "aspect must be two positive"),
        (lambda: CentreCrop(0.5), "margin must be 1 or more"),
    ],
)
def test_bad_crops_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
