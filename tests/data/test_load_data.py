import re

import pytest
import torch
from pictures import one_sentence
from test_cifar import SMALL, make_folder
from test_folder import make_class

from particleaugment.data import DATA_SETS, PUBLISHED, cifar, load_data
from particleaugment.data.download import ARCHIVES, FILE_SETS


def test_a_folder_by_name(tmp_path):
    for name in ("ant", "bee"):
        make_class(tmp_path / name, 10)
    data = load_data("folder", tmp_path, image_size=16)
    assert data.train_images.shape == (16, 3, 16, 16)
    assert torch.equal(load_data(f"folder:{tmp_path}", image_size=16).train_images, data.train_images)
    assert load_data("folder", tmp_path).train_images.shape[-1] == 64


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_load_data_reads_cifar(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cifar, name.upper(), SMALL[name])
    make_folder(tmp_path, SMALL[name])
    data = load_data(name, tmp_path)
    assert data.num_classes == SMALL[name].labels[-1]
    held_out = load_data(f"{name}:{tmp_path}", validation=0.5, seed=3)
    assert len(held_out.train_labels) == len(held_out.test_labels) == len(data.train_labels) // 2
    assert (held_out.mean, held_out.std) == (data.mean, data.std)


def test_a_directory_below_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ant", "bee"):
        make_class(tmp_path / "data" / name, 10)
    assert load_data("folder", "~/data", image_size=8).classes == ("ant", "bee")
    assert load_data("folder:~/data", image_size=8).classes == ("ant", "bee")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar"}, "there is no data set 'cifar'; did you mean cifar10"),
        ({"name": "zzz"}, f"the data sets are {', '.join(DATA_SETS)}"),
        ({"name": "cifar10"}, "needs its directory, data_dir=DIR; 'particleaugment data cifar10 DIR' downloads it"),
        ({"name": "cifar100:"}, "needs its directory, data_dir=DIR; 'particleaugment data cifar100 DIR' downloads it"),
        ({"name": "mnist"}, "needs its directory, data_dir=DIR; 'particleaugment data mnist DIR' downloads it"),
        ({"name": "mnist", "directory": "a", "image_size": 28}, "the images of 'mnist' are 32x32, not 28"),
        ({"name": "fashion"}, "did you mean fashion-mnist"),
        ({"name": "folder"}, "needs data_dir, a directory with one sub-folder of images per class"),
        ({"name": "folder:a", "directory": "b"}, "two directories, a and b"),
        ({"name": "digits", "directory": "b"}, "come with the package"),
        ({"name": "digits", "image_size": 64}, "are 32x32, not 64"),
        ({"name": "digits", "validation": -1}, "validation=-1 does not fit the data"),
        ({"name": "digits", "validation": 1.5}, "validation=1.5 does not fit the data"),
        ({"name": "digits", "validation": True}, "validation=True does not fit the data"),
        ({"name": "digits", "validation": 5000}, "validation=5000 does not fit the data"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_data(**arguments)
    one_sentence(error)


def test_a_data_set_of_anyones_own_is_not_offered_for_download_or_resized(tmp_path, monkeypatch):
    monkeypatch.setattr("particleaugment.data.PUBLISHED", {})
    with pytest.raises(ValueError, match=r"^the data set 'mnist' needs its directory, data_dir=DIR$"):
        load_data("mnist")
    with pytest.raises(ValueError, match=r"^the images of 'mnist' keep their size, and cannot become 32; omit"):
        load_data("mnist", tmp_path, image_size=32)


def test_what_is_published_can_be_downloaded():
    assert {*PUBLISHED} == {"digits", *ARCHIVES, *FILE_SETS}
    assert load_data("digits").num_classes == PUBLISHED["digits"]
    assert {name: archive.layout.labels[-1] for name, archive in ARCHIVES.items()}.items() <= PUBLISHED.items()
    assert {name: len(files.layout.classes) for name, files in FILE_SETS.items()}.items() <= PUBLISHED.items()


def test_a_validation_slice_stands_in_for_the_test_set():
    data, held_out = load_data("digits"), load_data("digits", validation=300)
    assert (len(held_out.train_labels), len(held_out.test_labels)) == (1137, 300)
    both = torch.cat([held_out.train_images, held_out.test_images]).flatten(1)
    assert torch.equal(both.unique(dim=0), data.train_images.flatten(1).unique(dim=0))
    quota = data.train_labels.bincount() * 300 / 1437
    assert float((held_out.test_labels.bincount() - quota).abs().max()) < 1
    again, other = load_data("digits", validation=300), load_data("digits", validation=300, seed=1)
    assert torch.equal(again.test_images, held_out.test_images)
    assert not torch.equal(other.test_images, held_out.test_images)
    assert load_data("digits", validation=0.0).test_labels.equal(data.test_labels)
