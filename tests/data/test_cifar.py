import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from particleaugment.data import channel_statistics
from particleaugment.data.cifar import CIFAR10, CIFAR100, load_cifar10, load_cifar100, read_cifar

SMALL = {
    "cifar10": replace(CIFAR10, train_rows=20, test_rows=10),
    "cifar100": replace(CIFAR100, train_rows=200, test_rows=100),
}


def make_rows(layout, count, seed):
    rows = np.random.default_rng(seed).integers(0, 256, (count, layout.row_bytes), dtype=np.uint8)
    for column, values in enumerate(layout.labels):
        rows[:, column] = np.arange(count) % values
    return rows


def make_folder(parent, layout):
    folder = parent / layout.folder
    folder.mkdir(parents=True)
    for seed, (name, size) in enumerate(layout.sizes().items()):
        make_rows(layout, size // layout.row_bytes, seed).tofile(folder / name)
    names = [f"class {number}" for number in range(layout.labels[-1])]
    (folder / layout.class_names).write_text("\n".join(names) + "\n\n")
    return folder


@pytest.fixture(params=SMALL)
def layout(request):
    return SMALL[request.param]


@pytest.fixture
def folder(tmp_path, layout):
    return make_folder(tmp_path, layout)


def test_images_and_labels_are_those_of_the_rows(layout, folder):
    data = read_cifar(layout, folder)
    rows = np.concatenate([make_rows(layout, layout.train_rows, seed) for seed in range(len(layout.train))])
    assert torch.equal(data.train_labels, torch.from_numpy(rows[:, len(layout.labels) - 1].astype(np.int64)))
    pixels = rows[:, len(layout.labels) :]
    assert data.train_images.shape == (len(rows), 3, 32, 32)
    # The fifth pixel of the third line of the green channel of image 7, by the format's own description.
    assert int(data.train_images[7, 1, 2, 4]) == pixels[7, 1024 + 2 * 32 + 4]
    assert torch.equal(data.train_images.flatten(1), torch.from_numpy(pixels))
    assert data.test_images.shape == (layout.test_rows, 3, 32, 32)
    assert data.num_classes == layout.labels[-1]
    assert data.classes[3] == "class 3"
    assert (data.mean, data.std) == (layout.mean, layout.std)


def test_the_folder_or_its_parent_may_be_named(layout, folder):
    direct, through_parent = read_cifar(layout, folder), read_cifar(layout, str(folder.parent))
    assert torch.equal(direct.train_images, through_parent.train_images)


def test_data_do_not_share_memory_with_anything_read_only(layout, folder):
    data = read_cifar(layout, folder)
    data.train_images[0] = 0
    data.test_images[0] = 0
    assert data.train_images.is_contiguous()


def test_sizes_are_the_published_ones():
    assert CIFAR10.sizes() == {name: 30_730_000 for name in (*CIFAR10.train, CIFAR10.test)}
    assert CIFAR100.sizes() == {"train.bin": 153_700_000, "test.bin": 30_740_000}


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("load", [load_cifar10, load_cifar100])
def test_a_missing_folder_says_how_to_get_it(tmp_path, load):
    name = load.__name__.removeprefix("load_")
    with pytest.raises(ValueError, match=f"there is no folder .*'particleaugment data {name} .*downloads") as error:
        load(tmp_path / "nowhere")
    one_sentence(error)


def test_an_empty_folder_says_what_it_lacks(tmp_path):
    with pytest.raises(ValueError, match="contains neither cifar-10-batches-bin nor test_batch"):
        load_cifar10(tmp_path)


def test_the_pickled_version_is_named(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(ValueError, match="pickled python version"):
        load_cifar10(tmp_path)


def test_a_missing_file_is_named(layout, folder):
    (folder / layout.test).unlink()
    with pytest.raises(ValueError, match=rf"{layout.test} is missing; unpack the whole archive"):
        read_cifar(layout, folder)


@pytest.mark.parametrize(("change", "verdict"), [(-1, "truncated"), (-1000, "truncated"), (1, "too long")])
def test_sizes_are_exact(layout, folder, change, verdict):
    path = folder / layout.train[0]
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size + change)
    with pytest.raises(ValueError, match=rf"{layout.train[0]} is {verdict}: it has {size + change:,} bytes and must"):
        read_cifar(layout, folder)


def test_labels_out_of_range_are_named_with_their_row(layout, folder):
    for column, values in enumerate(layout.labels):
        rows = make_rows(layout, layout.test_rows, 1)
        rows[4, column] = values
        rows.tofile(folder / layout.test)
        with pytest.raises(ValueError, match=rf"has the label {values} in row 4, but .* 0\.\.{values - 1}"):
            read_cifar(layout, folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must name 10+ different classes"),
        (b"one\ntwo\n", "must name 10+ different classes"),
        (b"same\n" * 10, "must name 10+ different classes"),
        (b"\x80\x04\x95", "is not a text file"),
    ],
)
def test_class_names_are_checked(layout, folder, content, message):
    (folder / layout.class_names).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_cifar(layout, folder)


def test_missing_class_names_are_named(layout, folder):
    (folder / layout.class_names).unlink()
    with pytest.raises(ValueError, match=rf"{layout.class_names} is missing"):
        read_cifar(layout, folder)


def real(variable):
    value = os.environ.get(variable)
    return pytest.mark.skipif(not value, reason=f"{variable} names no folder with the real files"), value


CIFAR10_GIVEN, CIFAR10_FOLDER = real("PARTICLEAUGMENT_CIFAR10")
CIFAR100_GIVEN, CIFAR100_FOLDER = real("PARTICLEAUGMENT_CIFAR100")


def check_real(data, classes):
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert (data.train_labels.bincount() == 50_000 // classes).all()
    assert (data.test_labels.bincount() == 10_000 // classes).all()
    mean, std = channel_statistics(data.train_images)
    assert mean == pytest.approx(data.mean, abs=6e-9)
    assert std == pytest.approx(data.std, abs=6e-9)


@CIFAR10_GIVEN
def test_the_real_cifar10():
    data = load_cifar10(CIFAR10_FOLDER)
    check_real(data, 10)
    assert data.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.test_labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert data.classes[0] == "airplane"


@CIFAR100_GIVEN
def test_the_real_cifar100():
    data = load_cifar100(CIFAR100_FOLDER)
    check_real(data, 100)
    assert data.classes[:2] == ("apple", "aquarium_fish")
