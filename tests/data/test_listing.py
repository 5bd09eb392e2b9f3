"""What is made of a folder: which sub-folders are parts of a split, and what a run says of it."""

import os

import pytest
from pictures import one_sentence, picture
from runs import command

from particleaugment.data.listing import find_images, list_folder
from particleaugment.data.streamed import open_folder


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def fill(root, folders, count=1, classes=("ant", "bee")):
    """Empty files, which are enough for a list."""
    touch(root, *(f"{folder}/{name}/{n}.png" for folder in folders for name in classes for n in range(count)))


@pytest.mark.parametrize("train", ["train", "Train", "TRAINING", "training"])
@pytest.mark.parametrize("test", ["val", "Val", "valid", "Validation", "test", "Testing"])
def test_parts_of_a_split_by_their_usual_names(train, test, tmp_path):
    fill(tmp_path, [train], count=3)
    fill(tmp_path, [test], count=2)
    found = find_images(tmp_path)
    assert (found.train.root, len(found.train)) == (str(tmp_path / train), 6)
    assert (found.test.root, len(found.test)) == (str(tmp_path / test), 4)
    assert found.train.classes == ("ant", "bee")
    assert f"4 test images (folder {test})" in found.describe()


def test_one_of_several_test_folders_is_used_and_said(tmp_path):
    folders = ["train", "Val", "Valid", "test", "val", "extra"]
    for used, unused in (("val", "Val, Valid, extra, test"), ("Val", "Valid, extra, test"), ("Valid", "extra, test")):
        fill(tmp_path, folders)
        text = find_images(tmp_path).describe()
        assert text == (
            f"2 training images, 2 test images (folder {used}), 2 classes: ant, bee; not used: folders {unused}"
        )
        os.rename(tmp_path / used, tmp_path / f".{used}")
        folders.remove(used)


def test_two_training_folders_are_refused(tmp_path):
    fill(tmp_path, ["train", "Training", "val"])
    with pytest.raises(ValueError, match="several folders of training images, train, Training; keep one of them"):
        list_folder(tmp_path)


@pytest.mark.parametrize("folders", [("val", "test"), ("Testing", "Valid"), ("val",)])
def test_parts_without_training_images_are_refused(folders, tmp_path):
    fill(tmp_path, folders)
    with pytest.raises(ValueError, match=r"named like the parts of a split, .*, but none is a train folder") as error:
        list_folder(tmp_path)
    one_sentence(error)


def test_parts_without_classes_are_refused(tmp_path):
    touch(tmp_path, "Train/1.png", "Train/2.png", "Val/1.png", "Val/2.png")
    with pytest.raises(ValueError, match="named like the parts of a split, Train, Val, but none"):
        list_folder(tmp_path)


def test_parts_by_unusual_names_are_refused(tmp_path):
    fill(tmp_path, ["fold 1", "fold 2"], count=4, classes=("ant", "bee", "cat"))
    touch(tmp_path, "fold 2/dog/1.png")
    with pytest.raises(
        ValueError, match="fold 1, fold 2, contain no images, but each contains the folders ant, bee, cat"
    ) as error:
        list_folder(tmp_path)
    one_sentence(error)
    touch(tmp_path, "fold 1/1.png")
    assert list_folder(tmp_path)[0].classes == ("fold 1", "fold 2"), "a class with images of its own"


def test_classes_may_hold_their_images_deeper(tmp_path):
    fill(tmp_path / "a", ["n01", "n02"], count=5, classes=["images"])
    fill(tmp_path / "b", ["cat"], count=5, classes=["persian", "siamese"])
    fill(tmp_path / "b", ["dog"], count=5, classes=["poodle", "terrier"])
    assert list_folder(tmp_path / "a")[0].classes == ("n01", "n02")
    assert list_folder(tmp_path / "b")[0].classes == ("cat", "dog")


def test_a_link_to_a_folder_beside_does_not_list_its_images_twice(tmp_path):
    touch(tmp_path, *(f"{name}/{n}.png" for name in ("ant/b/c", "bee") for n in range(8)))
    (tmp_path / "ant" / "a").symlink_to("b")
    (tmp_path / "ant" / "d").symlink_to("b/c")
    (tmp_path / "ant" / "e").symlink_to(".")
    train, test = list_folder(tmp_path)
    names = [part.name(index) for part in (train, test) for index in range(len(part))]
    files = {os.path.realpath(tmp_path / name) for name in names}
    assert len(names) == len(files) == 16, "or one image would be trained and tested on"
    assert {os.path.dirname(name) for name in names} == {"ant/a/c", "bee"}, "the first in order, on any file system"


def test_classes_that_are_not_tested_are_said(tmp_path):
    fill(tmp_path, ["train"], classes=("ant", "bee", "cat"))
    fill(tmp_path, ["val"], classes=["bee"])
    found = find_images(tmp_path)
    assert found.test.labels.tolist() == [1]
    assert found.describe() == (
        "3 training images, 1 test image (folder val), 3 classes: ant, bee, cat; no test images of ant, cat"
    )


def test_skipped_files_are_counted_by_ending(tmp_path):
    fill(tmp_path, ["train", "val"])
    touch(tmp_path, "train/ant/1.tif", "train/bee/deep/2.TIF", "val/ant/3.heic", "val/ant/4.heic", "val/ant/5.HEIC")
    touch(tmp_path, "train/ant/notes", "train/ant/.DS_Store", "train/.cache/1.tif", "train/ant/.cache/1.tif")
    found = find_images(tmp_path)
    assert found.skipped == {".heic": 3, ".tif": 2, "no ending": 1}
    assert found.describe().endswith("; 6 files skipped (.heic 3, .tif 2, no ending 1)")


def test_long_lists_are_shortened(tmp_path):
    fill(tmp_path, ["train"], count=10, classes=[f"{n:03}" for n in range(110)])
    touch(tmp_path, *(f"train/000/1.{n}" for n in range(10, 20)))
    assert find_images(tmp_path).describe() == (
        "880 training images, 220 test images (held out, the same ones in every run), 110 classes: "
        "000, 001, 002, 003, 004, 005 and 104 more; "
        "10 files skipped (.10 1, .11 1, .12 1, .13 1, .14 1, .15 1 and 4 more)"
    )


@pytest.mark.parametrize("validation", [6, 0.2])
def test_images_held_out_for_choosing_are_said(validation, tmp_path):
    for folder in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / folder / name).mkdir(parents=True)
            for n in range(15):
                picture(n).save(tmp_path / folder / name / f"{n}.png")
    data = open_folder(tmp_path, 8, validation=validation)
    assert (len(data.train), len(data.test)) == (24, 6)
    assert find_images(tmp_path).describe(validation) == (
        f"24 training images, 6 test images (held out of the training images by validation={validation}, "
        "folder val not used), 2 classes: ant, bee"
    )
    with pytest.raises(ValueError, match="validation=30 does not fit the data: validation takes all 30"):
        find_images(tmp_path).describe(30)
    (tmp_path / "train" / "cow").mkdir()
    picture(0).save(tmp_path / "train" / "cow" / "0.png")
    with pytest.raises(ValueError, match=f"validation={validation} does not fit the data: class cow has a single"):
        find_images(tmp_path).describe(validation)


def test_names_that_cannot_be_shown_do_not_stop_a_run(tmp_path):
    names = ["a\nb", os.fsdecode(b"caf\xe9"), "ネコ"]
    fill(tmp_path, ["train", "val"], classes=names)
    assert find_images(tmp_path).describe().endswith("3 classes: a?b, caf?, ネコ")


# Runs.

SETTINGS = ["model=wrn-10-1", "image_size=8", "epochs=1", "policy=trivial", "device=cpu", "precision=fp32", "workers=0"]


def train(root, path, *assignments, quiet=False):
    settings = [part for setting in [f"data_dir={root}", *SETTINGS, *assignments] for part in ("--set", setting)]
    return command("train", "folder", *settings, "--out", path, *["--quiet"] * quiet)


@pytest.fixture
def pictures(tmp_path):
    root = tmp_path / "pictures"
    for folder, count in (("Train", 6), ("Valid", 2)):
        for name in ("<ant>", "bee"):
            (root / folder / name).mkdir(parents=True)
            for n in range(count):
                picture(n).save(root / folder / name / f"{n}.png")
    touch(root, "Train/bee/1.heic", "test/bee/1.png")
    return root


LINE = (
    "12 training images, 4 test images (folder Valid), 2 classes: <ant>, bee; not used: folder test; "
    "1 file skipped (.heic 1)"
)


@pytest.mark.parametrize("stream", ["auto", "true", "false"])
def test_a_run_and_its_report_say_what_was_found(stream, pictures, tmp_path):
    outcome = train(pictures, tmp_path / "run", f"stream={stream}")
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines()[0] == LINE
    page = (tmp_path / "run" / "report.html").read_text()
    assert LINE.replace("<", "&lt;").replace(">", "&gt;") in page
    os.rename(pictures, tmp_path / "elsewhere")
    assert command("report", tmp_path / "run").exit_code == 0
    assert "training images, " not in (tmp_path / "run" / "report.html").read_text()


def test_a_quiet_run_says_nothing(pictures, tmp_path):
    outcome = train(pictures, tmp_path / "run", quiet=True)
    assert (outcome.exit_code, outcome.output) == (0, "")


def test_broken_files_are_named_before_training_and_nothing_is_left(pictures, tmp_path):
    for name in ("Train/bee/1.png", "Valid/bee/0.png"):
        (pictures / name).write_bytes(b"broken")
    outcome = train(pictures, tmp_path / "run")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("particleaugment: 2 of 16 images cannot be used: ")
    assert outcome.stderr.count("\n") == 1
    assert all(str(pictures / name) in outcome.stderr for name in ("Train/bee/1.png", "Valid/bee/0.png"))
    assert not (tmp_path / "run").exists()
