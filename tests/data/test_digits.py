import subprocess
import sys
import zlib

import pytest
import torch

from particleaugment.data import ImageData, channel_statistics, load_digits


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_digits()


def test_shapes_and_types(digits):
    assert digits.train_images.shape == (1437, 3, 32, 32)
    assert digits.test_images.shape == (360, 3, 32, 32)
    assert digits.train_images.dtype == digits.test_images.dtype == torch.uint8
    assert digits.train_labels.dtype == digits.test_labels.dtype == torch.int64
    assert digits.classes == tuple("0123456789")


def test_the_split_is_stratified(digits):
    train, test = digits.train_labels.bincount(), digits.test_labels.bincount()
    quota = (train + test) * 360 / 1797
    assert float((test - quota).abs().max()) < 1


def test_the_split_shares_all_images_out(digits):
    from sklearn import datasets

    corpus = datasets.load_digits()
    everything = torch.cat([digits.train_labels, digits.test_labels]).bincount()
    assert torch.equal(everything, torch.from_numpy(corpus.target).bincount())


def test_pixels_are_grey_and_use_the_whole_range(digits):
    images = digits.train_images
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    assert int(images.min()) == 0
    assert int(images.max()) == 255


def test_images_are_the_originals_enlarged(digits):
    from sklearn import datasets

    originals = torch.from_numpy(datasets.load_digits().images) * (255 / 16)
    # The mean of a 4x4 patch lies near the pixel it was grown from, and much nearer than to any other digit's.
    shrunk = torch.nn.functional.avg_pool2d(digits.train_images[:50, 0].double(), 4).flatten(1)
    nearest = torch.cdist(shrunk, originals.flatten(1)).argmin(dim=1)
    labels = torch.from_numpy(datasets.load_digits().target)
    assert bool((nearest.diff() > 0).all()), "scikit-learn's order is kept"
    assert torch.equal(labels[nearest], digits.train_labels[:50])


def test_the_bytes_stay_what_they_were(digits):
    assert zlib.crc32(digits.test_images.numpy().tobytes()) == 0xD147DA80
    assert zlib.crc32(digits.test_labels.numpy().tobytes()) == 0x0FBF90B0


def test_statistics_are_those_of_the_training_images(digits):
    scaled = digits.train_images.double() / 255
    for channel in range(3):
        assert digits.mean[channel] == pytest.approx(float(scaled[:, channel].mean()), abs=1e-12)
        assert digits.std[channel] == pytest.approx(float(scaled[:, channel].std(correction=0)), abs=1e-12)


def test_importing_the_data_package_does_not_import_scikit_learn():
    code = "import sys, particleaugment.data; print('sklearn' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def two_images() -> dict[str, object]:
    images, labels = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2), torch.tensor([0, 1])
    mean, std = channel_statistics(images)
    return {
        **{"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels},
        **{"classes": ("cat", "dog"), "mean": mean, "std": std},
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train_images", torch.zeros(2, 3, 2, 2), r"train_images must be .* uint8 .* got torch.float32 \[2, 3, 2, 2\]"),
        ("test_images", torch.zeros(2, 2, 2, 3, dtype=torch.uint8), "test_images must be .* permute to channels first"),
        ("test_images", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "must have the same channels, height and width"),
        ("train_labels", torch.tensor([0, 1, 1]), r"train_labels must be int64 \[2\]"),
        ("train_labels", torch.tensor([0.0, 1.0]), r"train_labels must be int64 \[2\]"),
        ("test_labels", torch.tensor([0, 2]), r"test_labels must be in 0\.\.1, got 0\.\.2"),
        ("mean", (0.5,), "one number for each of the 3 channels"),
        ("mean", (127.0, 127.0, 127.0), "units where pixel value 255 is 1"),
        ("std", (0.0, 0.1, 0.1), r"std in \(0, 1\]"),
    ],
)
def test_inconsistent_data_are_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        ImageData(**two_images() | {name: value})


def test_data_are_immutable():
    data = ImageData(**two_images())
    with pytest.raises(AttributeError):
        data.mean = (0.0, 0.0, 0.0)
