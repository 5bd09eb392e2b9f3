import os
import pickle
import zlib
from functools import partial
from pathlib import Path

import pytest
import torch
from pictures import as_tensor, one_sentence, picture
from PIL import Image
from torch.utils.data import DataLoader

from particleaugment.data import (
    FolderDataset,
    channel_statistics,
    folder_statistics,
    list_folder,
    load_folder,
)
from particleaugment.data.decode import CentreCrop, read_image
from particleaugment.data.folder import IMAGENET_STATISTICS
from particleaugment.data.streamed import open_folder


def make_class(folder, count, suffix=".png", first=0, **size):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        picture(zlib.crc32(folder.name.encode()) + number, **size).save(folder / f"{number}{suffix}")


@pytest.fixture
def animals(tmp_path):
    root = tmp_path / "animals"
    for name, count in (("dog", 10), ("ant", 5), ("cat", 15)):
        make_class(root / name, count)
    return root


def names(images):
    return [images.name(index) for index in range(len(images))]


# Which files count.


def test_classes_and_files_are_sorted(animals):
    train, test = list_folder(animals, test=6)
    assert train.classes == test.classes == ("ant", "cat", "dog")
    assert names(train) == sorted(names(train))
    assert sorted(names(train) + names(test)) == sorted(str(path.relative_to(animals)) for path in animals.glob("*/*"))
    for part in (train, test):
        assert [part.classes[label] for label in part.labels] == [Path(name).parts[0] for name in names(part)]
    assert test.labels.bincount().tolist() == [1, 3, 2]


def test_the_split_is_always_the_same(animals):
    first, second = list_folder(animals), list_folder(str(animals))
    assert names(first[1]) == names(second[1])
    assert len(first[1]) == 6
    assert names(list_folder(animals, test=0.5)[1]) != names(first[1])


def test_endings_in_any_case_and_deeper_folders_count_and_nothing_else_does(animals):
    picture().save(animals / "ant" / "A.JPG", "JPEG")
    picture().save(animals / "ant" / "b.WebP", "WEBP")
    make_class(animals / "ant" / "deep" / "er", 1, ".jpeg")
    make_class(animals / ".hidden", 1)
    make_class(animals / "ant" / ".thumbnails", 1)
    (animals / "ant" / "._0.png").write_bytes(b"not an image")
    (animals / "ant" / "notes.txt").write_text("not an image")
    (animals / "readme.txt").write_text("not a class")
    train, test = list_folder(animals)
    ants = {name for name in names(train) + names(test) if name.startswith("ant")}
    expected = {"A.JPG", "b.WebP", "deep/er/0.jpeg", *(f"{n}.png" for n in range(5))}
    assert ants == {f"ant/{name}" for name in expected}


def test_names_may_hold_any_character(tmp_path):
    for name in ("ein Hund ü", "ネコ", "a'b\"c"):
        make_class(tmp_path / name, 3)
    train, _ = list_folder(tmp_path, test=3)
    assert set(train.classes) == {"ein Hund ü", "ネコ", "a'b\"c"}
    assert all(os.path.exists(train.path(index)) for index in range(len(train)))


@pytest.mark.parametrize("name", ["val", "validation", "test"])
def test_folders_of_parts(tmp_path, name):
    for part, count in (("train", 3), (name, 2)):
        for class_name in ("b", "a"):
            make_class(tmp_path / part / class_name, count)
    make_class(tmp_path / "unlabelled", 2)
    train, test = list_folder(tmp_path)
    assert names(train) == ["a/0.png", "a/1.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png"]
    assert names(test) == ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    assert test.path(0) == str(tmp_path / name / "a" / "0.png")


def test_the_first_of_several_test_folders_is_taken(tmp_path):
    for part in ("test", "val", "train"):
        for class_name in ("a", "b"):
            make_class(tmp_path / part / class_name, 2)
    assert list_folder(tmp_path)[1].root == str(tmp_path / "val")


def test_train_alone_is_split(tmp_path):
    for class_name in ("a", "b"):
        make_class(tmp_path / "train" / class_name, 10)
    train, test = list_folder(tmp_path)
    assert (len(train), len(test)) == (16, 4)


def test_a_class_may_be_called_train(tmp_path):
    for class_name in ("bus", "train", "tram"):
        make_class(tmp_path / class_name, 5)
    assert list_folder(tmp_path)[0].classes == ("bus", "train", "tram")


def test_test_images_keep_the_labels_of_training(tmp_path):
    for class_name in ("a", "b", "c"):
        make_class(tmp_path / "train" / class_name, 2)
    make_class(tmp_path / "val" / "c", 2)
    assert list_folder(tmp_path)[1].labels.tolist() == [2, 2]


def test_links_are_followed_but_not_in_circles(animals, tmp_path):
    (animals / "ant" / "back").symlink_to(animals / "ant", target_is_directory=True)
    make_class(tmp_path / "elsewhere", 5)
    (animals / "bee").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    train, test = list_folder(animals)
    assert train.classes == ("ant", "bee", "cat", "dog")
    assert len(train) + len(test) == 35


def test_a_missing_folder(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        list_folder(tmp_path / "nowhere")


def test_no_classes(tmp_path):
    with pytest.raises(ValueError, match="contains no class folders; put the images of each class"):
        list_folder(tmp_path)
    picture().save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="contains images but no class folders"):
        list_folder(tmp_path)


def test_one_class(tmp_path):
    make_class(tmp_path / "only", 5)
    with pytest.raises(ValueError, match="a single class, 'only'; classification needs at least two") as error:
        list_folder(tmp_path)
    one_sentence(error)


def test_an_empty_class_folder(animals):
    (animals / "bee").mkdir()
    (animals / "bee" / "readme.txt").write_text("none yet")
    with pytest.raises(ValueError, match=r"the class folder .*bee contains no JPEG, PNG or WebP image"):
        list_folder(animals)


def test_no_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=r"the class folders in .* contain no JPEG, PNG or WebP image"):
        list_folder(tmp_path)


def test_a_class_of_one_image_cannot_be_split(animals):
    make_class(animals / "bee", 1)
    with pytest.raises(ValueError, match="bee contains a single image, but training and testing need one each"):
        list_folder(animals)


def test_too_few_images_for_the_split(tmp_path):
    for name in ("a", "b"):
        make_class(tmp_path / name, 2)
    with pytest.raises(ValueError, match=r"cannot be split: a fraction of 0\.2 of 4 samples is less than one sample"):
        list_folder(tmp_path)


def test_a_test_class_that_training_lacks(tmp_path):
    for part, classes in (("train", "ab"), ("val", "abc")):
        for class_name in classes:
            make_class(tmp_path / part / class_name, 1)
    with pytest.raises(ValueError, match="val contains the class 'c', which no training image has"):
        list_folder(tmp_path)


# The data set.


@pytest.fixture
def images(animals):
    return list_folder(animals, test=6)[0]


def test_items_are_image_label_and_id(images):
    data = FolderDataset(images, 24, train=False)
    image, label, number = data[7]
    assert image.shape == (3, 24, 24)
    assert image.dtype == torch.uint8
    assert (label, number) == (int(images.labels[7]), 7)
    assert len(data) == 24
    assert torch.equal(data[-1][0], data[23][0])
    for index in (24, -25):
        with pytest.raises(IndexError, match=f"there is no image {index}; the data set has 24"):
            data[index]


def test_training_images_are_a_function_of_seed_epoch_and_id(images):
    data, other = FolderDataset(images, 24, train=True, seed=1), FolderDataset(images, 24, train=True, seed=2)
    first = data[3][0]
    assert torch.equal(first, data.__getitems__([9, 3, 5])[1][0])
    assert not torch.equal(first, other[3][0])
    data.set_epoch(1)
    assert not torch.equal(first, data[3][0])
    data.set_epoch(0)
    assert torch.equal(first, data[3][0])


def test_evaluation_images_do_not_depend_on_the_epoch(images):
    data = FolderDataset(images, 24, train=False)
    first = data[3][0]
    data.set_epoch(5)
    assert torch.equal(first, data[3][0])


@pytest.mark.parametrize("epoch", [-1, 1.5, True, None, 1 << 32])
def test_bad_epochs_are_named(images, epoch):
    with pytest.raises(ValueError, match="epoch must be a whole number"):
        FolderDataset(images, 24, train=True).set_epoch(epoch)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, 5000])
def test_bad_sizes_are_named(images, size):
    with pytest.raises(ValueError, match="size must be a whole number"):
        FolderDataset(images, size, train=True)


def test_a_pickled_copy_gives_the_same_images(images):
    data = FolderDataset(images, 24, train=True, seed=4)
    data.set_epoch(3)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.epoch == 3
    assert torch.equal(copy[5][0], data[5][0])


def epoch_of(loader):
    batches = list(loader)
    ids = torch.cat([ids for _, _, ids in batches])
    order = ids.argsort()
    return torch.cat([pictures for pictures, _, _ in batches])[order], torch.cat([b[1] for b in batches])[order]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_epoch_reaches_workers_that_stay_alive(images, context):
    data = FolderDataset(images, 24, train=True, seed=1)
    expected = []
    for epoch in range(3):
        data.set_epoch(epoch)
        expected.append(torch.stack([data[index][0] for index in range(len(data))]))
    assert not torch.equal(expected[0], expected[1])
    loader = data.loader(5, workers=2, multiprocessing_context=context, shuffle=True)
    assert loader.persistent_workers
    for epoch in range(3):
        data.set_epoch(epoch)
        pictures, labels = epoch_of(loader)
        assert torch.equal(pictures, expected[epoch])
        assert torch.equal(labels, images.labels)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("train", [True, False])
def test_any_loader_gives_the_same_batches(images, workers, train):
    data = FolderDataset(images, 24, train=train)
    plain = DataLoader(data, batch_size=7, num_workers=workers)
    for ours, theirs in zip(data.loader(7, workers), plain, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other)
    unbatched = list(DataLoader(data, batch_size=None))
    assert torch.equal(unbatched[4][0], data[4][0])


def test_a_batch_may_be_written_to(images):
    (pictures, _, _), *_ = data = list(FolderDataset(images, 24, train=False).loader(7, 1))
    pictures.zero_()
    assert data[1][0].any()


def test_an_unreadable_image_is_named_by_the_loader(images):
    Path(images.path(3)).write_bytes(b"broken")
    message = ""
    try:
        list(DataLoader(FolderDataset(images, 24, train=True), sampler=[3], num_workers=1))
    except ValueError as error:
        message = str(error)
        error.__traceback__ = None  # it holds the loader in a cycle, whose collection takes seconds
    assert f"{images.path(3)} is not a readable JPEG, PNG or WebP image" in message


# In memory.


def test_a_small_folder_in_memory(animals):
    data = load_folder(animals, 32)
    train, test = list_folder(animals)
    assert data.train_images.shape == (24, 3, 32, 32)
    assert torch.equal(data.test_labels, test.labels)
    assert data.classes == ("ant", "cat", "dog")
    assert (data.mean, data.std) == channel_statistics(data.train_images)
    original = Image.open(train.path(5))
    left = round((38 - 32) / 2) * original.width / 38
    box = (left, 0, left + 32 * original.width / 38, original.height)
    expected = as_tensor(original.resize((32, 32), Image.Resampling.BILINEAR, box=box))
    assert torch.equal(data.train_images[5], expected)


def test_imagenets_statistics_on_request(animals):
    data = load_folder(animals, 16, normalization="imagenet")
    assert (data.mean, data.std) == IMAGENET_STATISTICS
    with pytest.raises(ValueError, match="normalization must be 'data' or 'imagenet'"):
        load_folder(animals, 16, normalization="cifar")


def test_a_single_unreadable_file_is_named(animals):
    (animals / "dog" / "1.png").write_bytes(b"broken")
    with pytest.raises(
        ValueError, match=r"^\S*dog/1\.png is not a readable JPEG, PNG or WebP image; repair it or remove it$"
    ):
        load_folder(animals)


def test_all_unreadable_files_of_both_parts_are_named_at_once(animals):
    train, test = list_folder(animals)
    broken = [train.path(0), train.path(7), test.path(0), test.path(1)]
    for path in broken:
        Path(path).write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"^4 of 30 images cannot be used: ") as error:
        load_folder(animals)
    assert all(f"{path} is not a readable" in str(error.value) for path in broken)
    assert str(error.value).endswith("; repair or remove them")
    one_sentence(error)


def test_of_many_unreadable_files_ten_are_named(animals):
    for path in animals.glob("*/*.png"):
        path.write_bytes(b"broken")
    train, _ = list_folder(animals)
    with pytest.raises(ValueError, match=r"^30 of 30 images cannot be used: .* and 20 more; repair") as error:
        load_folder(animals)
    named = [train.path(index) for index in range(len(train)) if f"{train.path(index)} is no" in str(error.value)]
    assert named == [train.path(index) for index in range(10)]


def test_a_folder_that_does_not_fit_is_told_before_it_is_decoded(animals):
    (animals / "dog" / "0.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"the 30 images in .* take 1\.4 GiB of memory at 4096x4096, and 1\.0 GiB"):
        load_folder(animals, 4096, max_bytes=1 << 30)


def test_statistics_of_a_sample_are_computed_once(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = folder_statistics(images, 16)
    everything = torch.stack(
        [
            read_image(images.path(index), 16, partial(CentreCrop(margin=1.0).box, size=16))
            for index in range(len(images))
        ]
    )
    assert first == channel_statistics(everything)
    (cached,) = (tmp_path / "cache" / "particleaugment").iterdir()
    monkeypatch.setattr("particleaugment.data.folder.read_image", None)
    assert folder_statistics(images, 16) == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for damage in ("", "{}", '{"mean": [1, 2, 3], "std": [1, 1, 1]}', '{"mean": 1, "std": null}', "[1]"):
        cached.write_text(damage)
        assert folder_statistics(images, 16) == first
    assert folder_statistics(images, 16, sample=10) != first
    assert folder_statistics(images, 12) != first


def test_a_changed_file_is_not_taken_from_the_cache(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = folder_statistics(images, 16)
    picture(999, width=90).save(images.path(0))
    assert folder_statistics(images, 16) != first


def test_statistics_without_a_cache_folder(images, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert folder_statistics(images, 16) == folder_statistics(images, 16)


@pytest.mark.parametrize("stream", [False, True])
def test_a_channel_may_be_the_same_everywhere(stream, tmp_path, monkeypatch):
    """As in images of which a microscope records green alone; without it, the folder could not be trained on at all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for index in range(8):
        folder = tmp_path / "cells" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        _, green, _ = picture(index).split()
        Image.merge("RGB", [Image.new("L", green.size), green, Image.new("L", green.size)]).save(
            folder / f"{index}.png"
        )
    data = open_folder(tmp_path / "cells", 16, quiet=True) if stream else load_folder(tmp_path / "cells", 16)
    assert (data.mean[0], data.std[0], data.std[2]) == (0.0, 1.0, 1.0)
    assert 0 < data.std[1] < 1


@pytest.mark.parametrize("stream", [False, True])
def test_images_of_one_colour_are_refused(stream, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for index in range(8):
        folder = tmp_path / "dark" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / f"{index}.png")
    with pytest.raises(ValueError, match="all pixels of the training images are of one colour") as error:
        open_folder(tmp_path / "dark", 16, quiet=True) if stream else load_folder(tmp_path / "dark", 16)
    one_sentence(error)
