"""Hugging Face data sets, written here by the library itself: the same images as a folder, the same run."""

import io
import re
import sys

import numpy as np
import pytest
import torch
from pictures import one_sentence, picture
from runs import StopAfter, result
from safetensors.torch import load_file

from particleaugment.data import find_files, load_data
from particleaugment.data.hf import absolute_place
from particleaugment.data.streamed import open_folder
from particleaugment.recipes import get_recipe
from particleaugment.runs.train import resume, train
from particleaugment.training import loop
from particleaugment.training.build import build, resolve
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.config import ConfigError
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session

CLASSES = ("ant", "bee", "cow")
SPLITS = {"train": 12, "val": 4}


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'particleaugment[hf]'")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(found.config, "HF_HUB_OFFLINE", True)
    return found


def encoded(seed, ending):
    buffer = io.BytesIO()
    picture(seed, 40 + seed % 5, 36).save(buffer, "JPEG" if ending == "jpg" else "PNG")
    return buffer.getvalue()


def rows(split):
    """Images of all classes, in the order of a folder's listing: (class, number, bytes)."""
    return [
        (label, number, encoded(100 * label + number + (50 if split == "val" else 0), "jpg" if number % 2 else "png"))
        for label in range(3)
        for number in range(SPLITS[split])
    ]


def write_folder(root):
    for split in SPLITS:
        for label, number, content in rows(split):
            file = root / split / CLASSES[label] / f"{number:03d}.{'jpg' if number % 2 else 'png'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return root


def make_splits(datasets, **columns):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    made = {}
    for split in SPLITS:
        table = rows(split)
        values = {
            "image": [{"bytes": content, "path": None} for _, _, content in table],
            "label": [label for label, _, _ in table],
        }
        made[split] = datasets.Dataset.from_dict(values, features=features)
    return datasets.DatasetDict(made)


def saved(datasets, root, change=lambda splits: splits):
    change(make_splits(datasets)).save_to_disk(str(root))
    return root


def parquet(datasets, root):
    (root / "data").mkdir(parents=True)
    for split, table in make_splits(datasets).items():
        table.to_parquet(str(root / "data" / f"{split}-00000-of-00001.parquet"))
    return root


@pytest.mark.parametrize("write", [saved, parquet])
def test_the_same_pixels_as_a_folder(datasets, tmp_path, write):
    folder, place = write_folder(tmp_path / "folder"), write(datasets, tmp_path / "hf")
    ours, theirs = load_data(f"hf:{place}", image_size=16), load_data(f"folder:{folder}", image_size=16)
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert (ours.classes, ours.mean, ours.std) == (theirs.classes, theirs.mean, theirs.std)

    options = {"crop_scale": 0.3, "seed": 5}
    drawn = [open_folder(where, 16, found=find_files(name, where), **options).train
             for name, where in (("hf", str(place)), ("folder", folder))]  # fmt: skip
    for each in drawn:
        each.set_epoch(3)
    assert torch.equal(drawn[0].read([0, 7, 35]), drawn[1].read([0, 7, 35]))
    assert find_files("hf", str(place)).describe() == (
        "36 training images, 12 test images (split val), 3 classes: ant, bee, cow"
    )


SMALL = ["image_size=16", "model=wrn-10-1", "epochs=2", "batch_size=12", "measure_size=6", "crop=2",
         "precision=fp32", "workers=0"]  # fmt: skip


def config(*settings):
    return get_recipe("folder").override([*SMALL, *settings])


def test_streamed_in_memory_and_folder_give_the_same_run(datasets, tmp_path, no_report):
    folder, place = write_folder(tmp_path / "folder"), saved(datasets, tmp_path / "hf")
    runs = {
        "folder": [f"data=folder:{folder}"],
        "memory": [f"data=hf:{place}"],
        "streamed": [f"data=hf:{place}", "stream=true"],
        "workers": [f"data=hf:{place}", "stream=true", "workers=2"],
        "folder streamed": [f"data=folder:{folder}", "stream=true"],
    }
    results = {}
    for name, settings in runs.items():
        run = train(config(*settings), tmp_path / "runs" / name, quiet=True)
        _, policy, metrics = result(run.path)
        results[name] = load_file(run.model), policy, metrics  # the file also says what the data are called
    weights, policy, metrics = results["folder"]
    for name, (others, drawn, records) in results.items():
        assert records == metrics, name
        assert drawn == policy, name
        assert all(torch.equal(others[key], weights[key]) for key in weights), name


def test_a_stopped_run_resumes_to_the_same_result(datasets, tmp_path, no_report):
    place = saved(datasets, tmp_path / "hf")
    stream = config(f"data=hf:{place}", "stream=true")
    straight = train(stream, tmp_path / "straight", quiet=True)
    run = RunFolder.create(tmp_path / "stopped", resolve(stream))
    session = Session(run, Display(quiet=True), StopAfter(5), 0.0)
    assert not loop.train(session)
    assert find_checkpoints(run.path)
    moved = (tmp_path / "hf").rename(tmp_path / "moved")
    resume(run.path, data_dir=moved, quiet=True)
    assert result(run.path) == result(straight.path)


def test_a_part_of_the_data(datasets, tmp_path):
    folder, place = write_folder(tmp_path / "folder"), saved(datasets, tmp_path / "hf")
    settings = {"validation": 6, "train_size": 15, "seed": 2, "image_size": 8}
    ours, theirs = load_data("hf", str(place), **settings), load_data("folder", folder, **settings)
    assert torch.equal(ours.train_images, theirs.train_images)
    assert torch.equal(ours.test_images, theirs.test_images)


def test_without_a_test_split_the_same_images_are_held_out(datasets, tmp_path):
    write_folder(tmp_path / "folder")
    only = saved(datasets, tmp_path / "hf", lambda splits: splits["train"])
    ours, theirs = (
        load_data(f"hf:{only}", image_size=8),
        load_data("folder", tmp_path / "folder" / "train", image_size=8),
    )
    assert torch.equal(ours.test_images, theirs.test_images)
    assert len(ours.test_labels) == 7


def changed(**columns):
    def change(splits):
        for name, values in columns.items():
            splits = type(splits)({split: table.add_column(name, values(table)) for split, table in splits.items()})
        return splits

    return change


def labels_as(values):
    return lambda splits: type(splits)(
        {
            split: table.remove_columns("label").add_column("label", values(table["label"]))
            for split, table in splits.items()
        }
    )


def test_labels_may_be_names_or_plain_numbers(datasets, tmp_path):
    named = saved(datasets, tmp_path / "a", labels_as(lambda old: [CLASSES[label] for label in old]))
    assert load_data(f"hf:{named}", image_size=8).classes == CLASSES
    plain = saved(datasets, tmp_path / "b", labels_as(lambda old: [int(label) for label in old]))
    data = load_data(f"hf:{plain}", image_size=8)
    assert data.classes == ("0", "1", "2")
    assert torch.equal(data.train_labels, load_data(f"hf:{named}", image_size=8).train_labels)


def test_columns_and_splits_are_chosen(datasets, tmp_path):
    def rename(splits):
        splits = splits.rename_columns({"image": "photo", "label": "kind"})
        splits = changed(colour=lambda table: [0, 1] * (len(table) // 2))(splits)
        colour = datasets.ClassLabel(names=["red", "blue"])
        splits = type(splits)({split: table.cast_column("colour", colour) for split, table in splits.items()})
        return type(splits)({"fit": splits["train"], "judge": splits["val"]})

    place = saved(datasets, tmp_path / "hf", rename)
    data = load_data(f"hf:{place},label=colour,train=fit,test=judge", image_size=8)
    assert (data.classes, len(data.test_labels)) == (("red", "blue"), 12)
    with pytest.raises(ValueError, match=r"has the splits fit, judge but none called train; name one") as error:
        load_data(f"hf:{place}")
    one_sentence(error)
    with pytest.raises(
        ValueError, match=r"has several label columns, kind, colour; choose one, as in data=hf:"
    ) as error:
        load_data(f"hf:{place},train=fit")
    one_sentence(error)


@pytest.mark.parametrize(
    ("change", "choice", "message"),
    [
        (lambda splits: splits.remove_columns("image"), "", "has no image column; its columns are label: name one"),
        (lambda splits: splits.remove_columns("label"), "", "has no label column; its columns are image: name one"),
        (lambda splits: splits, ",test=other", "has no split 'other'; it has train, val"),
        (lambda splits: splits, ",label=kind", "has no label column 'kind'; its columns are image, label"),
        (lambda splits: splits, ",image=label", "has no image column 'label'; its columns are image, label"),
        (lambda splits: splits, ",lable=x", "'lable=x' is not an option of the data set"),
        (labels_as(lambda old: [0.5] * len(old)), "", "contains float64, which cannot be classes"),
        (labels_as(lambda old: [-1] * len(old)), "", "contains -1, which is not a class: labels must be 0 or more"),
        (labels_as(lambda old: [0] * len(old)), "", "contains a single class; classification needs at least two"),
        (changed(box=lambda table: [[1, 2]] * len(table)), ",label=box", "which cannot be classes"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_sentence(datasets, tmp_path, change, choice, message):
    place = saved(datasets, tmp_path / "hf", change)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_data(f"hf:{place}{choice}", image_size=8)
    one_sentence(error)


def test_a_split_without_labels_is_refused_by_name(datasets, tmp_path):
    def hide(splits):
        table = splits["val"].remove_columns("label").add_column("label", [-1] * len(splits["val"]))
        splits["val"] = table.cast(splits["train"].features)
        return splits

    place = saved(datasets, tmp_path / "hf", hide)
    with pytest.raises(ValueError, match=r"split val, contains -1, which is not a class: labels must be from 0 to 2"):
        load_data(f"hf:{place}", image_size=8)


def test_damaged_images_are_named(datasets, tmp_path):
    def damage(splits):
        table = splits["train"].cast_column("image", datasets.Image(decode=False)).to_list()
        table[4]["image"] = {"bytes": b"no image", "path": None}
        table[5]["image"] = None
        splits["train"] = datasets.Dataset.from_list(table, features=splits["val"].features)
        return splits

    place = saved(datasets, tmp_path / "hf", damage)
    with pytest.raises(ValueError, match=r"train\[4\] is not a readable JPEG") as error:
        load_data(f"hf:{place}", image_size=8)
    assert "train[5]" in str(error.value) or "2 of " in str(error.value)


def test_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    assert absolute_place("pets,label=breed") == f"{tmp_path}/pets,label=breed"
    assert absolute_place("owner/pets") == "owner/pets"
    with pytest.raises(ConfigError, match="groups are read from file names"):
        config("data=hf:pets", "groups=prefix")
    with pytest.raises(ValueError, match=r"needs a name on the Hugging Face Hub or a path, as in data=hf:NAME"):
        load_data("hf")
    with pytest.raises(ConfigError, match=r"needs a name on the Hugging Face Hub or a path"):
        build(config("data=hf", "stream=true"), say=lambda text: None)


def test_a_path_that_is_not_there(datasets, tmp_path):
    with pytest.raises(ValueError, match=r"there is no data set at .*gone; check the path") as error:
        load_data(f"hf:{tmp_path}/gone")
    one_sentence(error)
    with pytest.raises(ValueError, match=r"the data set nobody/nothing cannot be loaded: ") as error:
        load_data("hf:nobody/nothing")
    one_sentence(error)


def test_without_the_package_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ValueError, match=r"^data=hf:a needs the package datasets, which is not installed: pip"
    ) as error:
        load_data("hf:a")
    one_sentence(error)


def test_the_test_compares_different_images():
    assert len({content for split in SPLITS for _, _, content in rows(split)}) == 48
    assert np.asarray(picture(1)).std() > 10
