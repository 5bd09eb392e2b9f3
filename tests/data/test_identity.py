"""Which changes of a run's data are noticed: any in memory; of streamed files names, sizes, and a sample's contents."""

import os
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image

from particleaugment.data import identity, load_folder
from particleaugment.data.identity import data_identity
from particleaugment.data.reader import ReadError
from particleaugment.data.streamed import open_folder


@pytest.fixture
def pictures(tmp_path):
    """Twelve images of each of two classes, all files of the same size."""
    for name, shade in (("lime", 0), ("plum", 100)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(12):
            image = Image.new("RGB", (16, 16), (shade + number, 255 - number, shade))
            image.save(tmp_path / "pictures" / name / f"{number:02}.png", compress_level=0)
    sizes = {file.stat().st_size for file in (tmp_path / "pictures").rglob("*.png")}
    assert len(sizes) == 1
    return tmp_path / "pictures"


def streamed(folder, seed=0):
    return data_identity(open_folder(folder, 16, normalization="imagenet", quiet=True), seed)


def swap(one, other):
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


CHANGES = {
    "pixels swapped between classes": lambda folder: swap(folder / "lime/03.png", folder / "plum/07.png"),
    "pixels swapped within a class": lambda folder: swap(folder / "lime/03.png", folder / "lime/07.png"),
    "one byte": lambda folder: (folder / "lime/11.png").write_bytes((folder / "lime/11.png").read_bytes() + b"x"),
    "a name": lambda folder: (folder / "lime/00.png").rename(folder / "lime/zz.png"),
    "a file more": lambda folder: shutil.copy(folder / "lime/00.png", folder / "lime/zz.png"),
    "a file less": lambda folder: (folder / "lime/00.png").unlink(),
    "a class": lambda folder: (folder / "lime").rename(folder / "zest"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_noticed_of_files(pictures, what):
    before = streamed(pictures)
    assert streamed(pictures) == before
    CHANGES[what](pictures)
    assert streamed(pictures) != before


def test_data_may_be_moved_copied_and_touched(pictures, tmp_path):
    before = streamed(pictures)
    for file in pictures.rglob("*.png"):
        os.utime(file, (0, 0))
    moved = pictures.rename(tmp_path / "elsewhere")
    copied = shutil.copytree(moved, tmp_path / "copy")
    (tmp_path / "link").symlink_to(copied)
    assert {streamed(folder) for folder in (moved, copied, tmp_path / "link")} == {before}


def test_sizes_of_all_files_and_contents_of_a_sample(pictures, monkeypatch):
    monkeypatch.setattr(identity, "SAMPLED_FILES", 5)
    before = {seed: streamed(pictures, seed) for seed in range(8)}
    images = open_folder(pictures, 16, normalization="imagenet", quiet=True).train.images
    file = pictures / images.name(3)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    noticed = [streamed(pictures, seed) != before[seed] for seed in before]
    assert any(noticed), "a sample of 5 of about 20"
    assert not all(noticed), "and the seed draws it"
    file.write_bytes(content + b"x")
    assert all(streamed(pictures, seed) != before[seed] for seed in before), "another size is always noticed"


def test_a_file_that_is_gone_or_a_pipe(pictures):
    data = open_folder(pictures, 16, normalization="imagenet", quiet=True)
    (pictures / "plum/05.png").unlink()
    with pytest.raises(ReadError, match=r"the image \S+/plum/05.png cannot be read: No such file"):
        data_identity(data, 0)
    os.mkfifo(pictures / "plum/05.png")
    with pytest.raises(ReadError, match=r"05.png cannot be read: it is a pipe or a device"):
        data_identity(data, 0)


def test_the_last_of_many_images_in_memory_counts(pictures):
    data = load_folder(pictures, 16, quiet=True)
    images = torch.zeros(4200, *data.train_images.shape[1:], dtype=torch.uint8)
    many = replace(data, train_images=images, train_labels=torch.arange(4200) % len(data.classes))
    for number in (0, 1000, 4095, 4096, 4199):
        changed = images.clone()
        changed[number, 0, 1, 1] = 1
        assert data_identity(replace(many, train_images=changed), 0) != data_identity(many, 0)


def test_every_pixel_in_memory_counts(pictures):
    data = load_folder(pictures, 16, quiet=True)
    before = data_identity(data, 0)
    assert data_identity(data, 1) == before
    places = torch.Generator().manual_seed(0)
    for name in ("train_images", "test_images"):
        for _ in range(50):
            pixels = getattr(data, name).clone()
            place = int(torch.randint(pixels.numel(), (1,), generator=places))
            pixels.view(-1)[place] ^= 1 << int(torch.randint(8, (1,), generator=places))
            assert data_identity(replace(data, **{name: pixels}), 0) != before
    swapped = data.train_images[[1, 0, *range(2, len(data.train_images))]]
    assert data_identity(replace(data, train_images=swapped), 0) != before
    assert data_identity(replace(data, train_groups=torch.arange(len(swapped))), 0) != before
    assert data_identity(replace(data, train_images=data.train_images.clone()), 0) == before
