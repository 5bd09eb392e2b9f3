import gzip
import os
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from runs import TINY_OPTIONS
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.data import channel_statistics, load_data, load_fashion_mnist, load_mnist
from particleaugment.data.idx import FASHION_MNIST, FILES, MNIST, read_idx

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = FILES
TRAIN, TEST = 80, 20
LAYOUTS = {layout.name: layout for layout in (MNIST, FASHION_MNIST)}


def arrays(seed=0, train=TRAIN, test=TEST):
    draw = np.random.default_rng(seed)
    return [
        part
        for count in (train, test)
        for part in (draw.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10)
    ]


def idx_bytes(array):
    """An idx file by the format's own description: two zero bytes, 8 for uint8, the dimensions, then their sizes."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
    return header + array.tobytes()


def write_file(folder, name, content, ending=""):
    (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)


def make_idx(folder, ending="", seed=0, **counts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(FILES, arrays(seed, **counts)):
        write_file(folder, name, idx_bytes(array), ending)
    return folder


@pytest.fixture(params=["", ".gz"], ids=["plain", "gzip"])
def ending(request):
    return request.param


@pytest.fixture
def folder(tmp_path, ending):
    return make_idx(tmp_path / "files", ending)


def refused(folder, match, layout=MNIST):
    with pytest.raises(ValueError, match=match) as error:
        read_idx(layout, folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_images_are_padded_and_labels_kept(folder, name):
    data = read_idx(LAYOUTS[name], folder)
    train, train_labels, test, test_labels = arrays()
    for images, labels, pixels, classes in (
        (data.train_images, data.train_labels, train, train_labels),
        (data.test_images, data.test_labels, test, test_labels),
    ):
        assert images.shape == (len(pixels), 3, 32, 32)
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        for channel in range(3):
            assert torch.equal(images[:, channel, 2:30, 2:30], torch.from_numpy(pixels))
        assert int(images.sum()) == 3 * int(pixels.sum(dtype=np.int64)), "the border is not black"
        assert labels.tolist() == classes.tolist()
    assert (data.mean, data.std) == channel_statistics(data.train_images)
    assert data.classes == LAYOUTS[name].classes


def test_class_names():
    assert MNIST.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert [FASHION_MNIST.classes[label] for label in (0, 1, 6, 9)] == ["T-shirt/top", "Trouser", "Shirt", "Ankle boot"]
    assert len(set(FASHION_MNIST.classes)) == 10


def test_data_do_not_share_memory_with_anything_read_only(folder):
    data = load_mnist(folder)
    data.train_images[0], data.test_labels[0] = 0, 0
    assert data.train_images[0].sum() == 0


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("mnist", "MNIST"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_folders_of_both_data_sets_are_told_apart(tmp_path, ending, name, below):
    """The files of both have the same names, so beside its own folder any other is left alone."""
    own = make_idx(tmp_path / below, ending, seed=1)
    other = "mnist" if name == "fashion-mnist" else "fashion-mnist"
    make_idx(tmp_path / other, seed=2)
    make_idx(tmp_path, seed=3)
    assert torch.equal(load_data(name, tmp_path).train_images, load_data(name, own).train_images)
    assert not torch.equal(load_data(name, tmp_path).train_images, load_data(other, tmp_path).train_images)


def test_files_may_be_mixed_and_plain_ones_come_first(tmp_path):
    make_idx(tmp_path)
    write_file(tmp_path, TRAIN_IMAGES, b"not read, since the plain file is there", ".gz")
    content = (tmp_path / TEST_LABELS).read_bytes()
    (tmp_path / TEST_LABELS).unlink()
    write_file(tmp_path, TEST_LABELS, content, ".gz")
    assert torch.equal(load_mnist(tmp_path).test_labels, load_mnist(make_idx(tmp_path / "plain")).test_labels)


def test_other_data_sets_files_are_not_taken(tmp_path):
    make_idx(tmp_path / "mnist")
    message = (
        rf"has neither {TRAIN_IMAGES}\.gz nor a folder fashion-mnist with it; 'particleaugment data fashion-mnist .*'"
    )
    refused(tmp_path, message, FASHION_MNIST)


@pytest.mark.parametrize("load", [load_mnist, load_fashion_mnist])
def test_a_missing_folder_says_how_to_get_it(tmp_path, load):
    name = load.__name__.removeprefix("load_").replace("_", "-")
    with pytest.raises(ValueError, match=f"there is no folder .*; 'particleaugment data {name} .*' downloads") as error:
        load(tmp_path / "nowhere")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, ending, name):
    (folder / f"{name}{ending}").unlink()
    refused(folder, rf"has neither {name} nor {name}\.gz; MNIST needs all four files")


def header(magic, *sizes):
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes)


IMAGES, LABELS = idx_bytes(arrays()[2]), idx_bytes(arrays()[3])
BODY = IMAGES[16:]
DAMAGED_IMAGES = {
    "last byte missing": (IMAGES[:-1], "truncated: its header declares 20 images, 15,696 bytes .*, but it has 15,695"),
    "half": (IMAGES[:8000], "truncated: .* but it has 8,000"),
    "header alone": (IMAGES[:16], "truncated: .* but it has 16;"),
    "part of the header": (IMAGES[:15], "truncated: its header alone needs 16 bytes, but it has 15 in all"),
    "empty": (b"", "truncated: its header alone needs 16 bytes, but it has 0 in all"),
    "a byte too many": (IMAGES + b"\0", "too long: its header declares 20 images, 15,696 bytes .*, but it has more"),
    "twice": (IMAGES * 2, "too long"),
    "labels": (LABELS + IMAGES, "starts with the number 2049, but idx files of images start with 2051"),
    "little-endian": (struct.pack("<4I", 2051, 20, 28, 28) + BODY, "starts with the number 50855936"),
    "text": (b"<!DOCTYPE html><html>" + BODY, "starts with the number 1008813135"),
    "rows": (header(2051, 20, 27, 28) + BODY, "has images of 27x28 pixels, but those of MNIST are 28x28"),
    "columns": (header(2051, 20, 28, 0) + BODY, "has images of 28x0 pixels"),
    "fewer in the header": (header(2051, 19, 28, 28) + BODY, "has 19 images, but t10k-labels-idx1.* has 20 labels"),
    "more in the header": (header(2051, 21, 28, 28) + BODY, "has 21 images, but t10k-labels-idx1.* has 20 labels"),
    "none": (header(2051, 0, 28, 28), "has no images"),
    "very many": (header(2051, 0xFFFFFFFF, 28, 28) + BODY, "declares 4,294,967,295 images: 12288.0 GiB of pixels"),
}  # fmt: skip
DAMAGED_LABELS = {
    "last byte missing": (LABELS[:-1], "truncated: its header declares 20 labels, 28 bytes in all, but it has 27"),
    "a byte too many": (LABELS + b"\0", "too long: its header declares 20 labels, 28 bytes in all, but it has more"),
    "images": (IMAGES, "starts with the number 2051, but idx files of labels start with 2049"),
    "out of range": (
        LABELS[:11] + b"\x0a" + LABELS[12:],
        r"has the label 10 for image 3, but labels must be in 0\.\.9",
    ),
    "far out of range": (LABELS[:-1] + b"\xff", "has the label 255 for image 19"),
    "one missing": (header(2049, 19) + LABELS[8:27], "has 20 images, but t10k-labels-idx1-ubyte.* has 19 labels"),
    "none": (header(2049, 0), "has no labels"),
}


@pytest.mark.parametrize("case", DAMAGED_IMAGES)
def test_damaged_images_are_refused(folder, ending, case):
    content, message = DAMAGED_IMAGES[case]
    write_file(folder, TEST_IMAGES, content, ending)
    refused(folder, message)


@pytest.mark.parametrize("case", DAMAGED_LABELS)
def test_damaged_labels_are_refused(folder, ending, case):
    content, message = DAMAGED_LABELS[case]
    write_file(folder, TEST_LABELS, content, ending)
    refused(folder, message)


@pytest.mark.parametrize(("count", "verdict"), [(TEST - 1, "too long"), (TEST + 1, "truncated")])
def test_headers_that_agree_and_are_both_wrong(folder, ending, count, verdict):
    write_file(folder, TEST_IMAGES, header(2051, count, 28, 28) + BODY, ending)
    write_file(folder, TEST_LABELS, header(2049, count) + LABELS[8:], ending)
    refused(folder, f"{TEST_IMAGES}.* is {verdict}: its header declares {count} images")


def test_black_training_images_are_refused(folder, ending):
    write_file(folder, TRAIN_IMAGES, idx_bytes(np.zeros((TRAIN, 28, 28), np.uint8)), ending)
    refused(folder, f"{TRAIN_IMAGES}.* has black pixels only")


@pytest.mark.parametrize("name", FILES)
def test_a_gzip_file_cut_anywhere_is_refused(tmp_path, name):
    path = make_idx(tmp_path, ".gz", train=30, test=10) / f"{name}.gz"
    whole = path.read_bytes()
    for size in np.unique(np.linspace(0, len(whole) - 1, 150).astype(int)):
        path.write_bytes(whole[:size])
        refused(tmp_path, rf"{name}\.gz is (not a complete gzip file \(|truncated: )")


@pytest.mark.parametrize("name", FILES)
def test_a_gzip_file_with_a_flipped_bit_is_refused_or_read_right(tmp_path, name):
    path = make_idx(tmp_path, ".gz", train=30, test=10) / f"{name}.gz"
    whole, right = path.read_bytes(), load_mnist(tmp_path)
    refusals = 0
    draw = np.random.default_rng(7)
    for place in np.unique(np.linspace(0, len(whole) - 1, 150).astype(int)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        try:
            data, message = load_mnist(tmp_path), ""
        except ValueError as error:
            data, message = right, str(error)
            refusals += 1
        assert not message or f"{name}.gz" in message
        assert "\n" not in message
        assert torch.equal(data.train_images, right.train_images)
        assert torch.equal(data.test_labels, right.test_labels)
    assert refusals > 15


def test_a_plain_file_that_is_called_gz_is_refused(tmp_path):
    make_idx(tmp_path, ".gz")
    (tmp_path / f"{TEST_IMAGES}.gz").write_bytes(IMAGES)
    refused(tmp_path, r"t10k-images-idx3-ubyte\.gz is not a complete gzip file \(Not a gzipped file")


@pytest.mark.parametrize("members", [False, True], ids=["one member", "many members"])
def test_a_gzip_bomb_is_not_unpacked(tmp_path, members):
    make_idx(tmp_path, ".gz")
    zeros = bytes(1 << 20)
    bomb = gzip.compress(IMAGES) + gzip.compress(zeros) * 64 if members else gzip.compress(IMAGES + zeros * 64)
    (tmp_path / f"{TEST_IMAGES}.gz").write_bytes(bomb)
    load_mnist(make_idx(tmp_path / "sound", ".gz"))  # what is imported and allocated once
    tracemalloc.start()
    refused(tmp_path, "too long: .* but it has more")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_an_unreadable_file_is_named(tmp_path):
    make_idx(tmp_path)
    (tmp_path / TEST_LABELS).chmod(0)
    if os.access(tmp_path / TEST_LABELS, os.R_OK):
        pytest.skip("this user may read everything")
    refused(tmp_path, f"{TEST_LABELS} cannot be read: Permission denied")


def test_a_training_run(tmp_path):
    make_idx(tmp_path / "data" / "mnist", ".gz")
    options = ["--set", "data=mnist", "--set", f"data_dir={tmp_path / 'data'}", "--set", "epochs=1"]
    run = str(tmp_path / "run")
    shown = CliRunner().invoke(app, ["train", "digits", "--out", run, *TINY_OPTIONS, *options])
    assert shown.exit_code == 0, shown.output
    assert "wrn-10-1 on mnist, 1 epochs" in shown.output
    verdict = CliRunner().invoke(app, ["verify", run])
    assert verdict.exit_code == 0, verdict.output
    assert "every file is valid" in verdict.output


def test_a_damaged_file_ends_a_run_before_it_starts(tmp_path):
    make_idx(tmp_path)
    write_file(tmp_path, TRAIN_IMAGES, b"")
    options = ["--set", "data=fashion-mnist", "--set", f"data_dir={tmp_path}"]
    shown = CliRunner().invoke(app, ["train", "digits", "--out", str(tmp_path / "run"), *options])
    assert shown.exit_code == 2
    assert f"{TRAIN_IMAGES} is truncated" in shown.output
    assert not (tmp_path / "run").exists()


def real(variable):
    value = os.environ.get(variable)
    return pytest.mark.skipif(not value, reason=f"{variable} names no folder with the real files"), value


MNIST_GIVEN, MNIST_FOLDER = real("PARTICLEAUGMENT_MNIST")
FASHION_GIVEN, FASHION_FOLDER = real("PARTICLEAUGMENT_FASHION_MNIST")


def check_real(data, mean, std):
    """The statistics are the published ones of images without a border."""
    assert data.train_images.shape == (60_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    found_mean, found_std = channel_statistics(data.train_images[:, :1, 2:30, 2:30])
    assert found_mean[0] == pytest.approx(mean, abs=5e-4)
    assert found_std[0] == pytest.approx(std, abs=5e-4)
    assert channel_statistics(data.train_images) == (data.mean, data.std)


@MNIST_GIVEN
def test_the_real_mnist():
    data = load_mnist(MNIST_FOLDER)
    check_real(data, 0.1307, 0.3081)
    assert data.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


@FASHION_GIVEN
def test_the_real_fashion_mnist():
    data = load_fashion_mnist(FASHION_FOLDER)
    check_real(data, 0.2860, 0.3530)
    assert (data.train_labels.bincount() == 6_000).all()
    assert (data.test_labels.bincount() == 1_000).all()
