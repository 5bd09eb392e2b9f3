"""Configurations: their files, and the settings given by hand."""

import json
import math
import re

import pytest
import torch
from runs import config_of

from particleaugment import PaperFilter
from particleaugment.recipes import get_recipe, recipe
from particleaugment.search.filters import FILTERS
from particleaugment.training.build import build, resolve
from particleaugment.training.config import SECTIONS, TOP, Config, ConfigError, kinds_of, settings_of
from particleaugment.training.override import override
from particleaugment.training.session import learning_rate
from particleaugment.training.settings import TrainingSettings


@pytest.mark.parametrize(
    "config",
    [
        Config(recipe="mine"),
        get_recipe("digits").with_filter("paper-authors"),
        get_recipe("digits").with_filter("paper"),
        config_of("velocity=" + ",".join(["0.01"] * 15), "fill=1,2,3", "clone_size=0.25", "flip=1", "unit_vectors=no"),
        config_of("ops=Rotate,Invert,Equalize", "policy=rand-m9-n3-inc1", "nesterov=false", "momentum=0"),
    ],
)
def test_a_configuration_survives_its_file(config):
    text = config.to_json()
    assert Config.from_json(text) == config
    assert Config.from_json(text).to_json() == text
    assert json.loads(text)["version"] == 2


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("epochs=7", "epochs", 7),
        (" learning-rate = 0.5", "learning_rate", 0.5),
        ("learning_rate=1", "learning_rate", 1.0),
        ("clone_size=30", "clone_size", 30),
        ("clone_size=0.5", "clone_size", 0.5),
        ("velocity=-0.001", "velocity", -0.001),
        ("nesterov=No", "nesterov", False),
        ("unit_vectors=true", "num_particles", 15),
        ("fill=(0, 1, 255)", "fill", (0, 1, 255)),
        ("ops=Rotate, Invert, Color", "ops", ("Rotate", "Invert", "Color")),
        ("policy=none", "policy", "none"),
    ],
)
def test_override(assignment, name, value):
    config = override(config_of("num_particles=15"), [assignment])
    found = settings_of(config)[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epoch=4", "there is no setting 'epoch'; did you mean epochs?"),
        ("Sigma=4", "did you mean sigma?"),
        ("zzz=4", "there is no setting 'zzz'; the settings are data, training, transforms, filter, data_dir"),
        ("recipe=other", "there is no setting 'recipe'; the settings are"),
        ("epochs", "'epochs' is not of the form key=value"),
        ("epochs=four", "epochs takes a whole number, got 'four'"),
        ("epochs=1.5", "epochs takes a whole number, got '1.5'"),
        ("epochs=-1", "epochs must be at least 0, got -1"),
        ("batch_size=-1", "batch_size must be at least 1"),
        ("sigma=much", "sigma takes a number, got 'much'"),
        ("nesterov=maybe", "nesterov takes true or false, got 'maybe'"),
        ("fill=1,2", "fill takes numbers or names separated by commas, got '1,2'"),
        ("fill=1,2,300", "fill must be three whole numbers from 0 to 255"),
        ("clone_size=half", "clone_size takes a whole number or a number, got 'half'"),
        ("clone_size=1.5", "clone_size must be a number of samples or a fraction"),
        ("seed=-1", "seed must not be negative"),
        ("flip=2", "flip must be in 0..1, got 2.0"),
        ("erase=nan", "erase must be in 0..1"),
        ("learning_rate=0", "learning_rate must be a positive number, got 0.0"),
        ("learning_rate=nan", "learning_rate must be a positive number"),
        ("weight_decay=-1", "weight_decay must be a non-negative number"),
        ("momentum=0", "nesterov needs a momentum above 0"),
        ("precision=fp8", "precision must be one of auto, bf16, tf32, fp32, got 'fp8'"),
        ("policy=nonne", "nonne"),
        ("num_particles=1", "num_particles must be at least 2"),
        ("nonzero=16", "nonzero must be in 1..15"),
        ("eta=0", "eta must be finite and above 0"),
        ("resampling=sistematic", "did you mean systematic"),
        ("ops=Rotat,Invert,Color", "did you mean Rotate"),
    ],
)
def test_override_errors(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_recipe("digits").override(["filter=paper", assignment])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested more than 32 deep"),
        ("[]", "not a configuration of version 2"),
        ("{}", "not a configuration of version 2"),
        ('{"version": 1, "recipe": "x"}', "not a configuration of version 2"),
        ('{"version": 2}', "recipe"),
        ('{"version": 2, "recipe": "x", "colour": 1}', "there is no setting 'colour'"),
        (
            '{"version": 2, "recipe": "x", "training": {"epoch": 1}}',
            "no setting 'training.epoch'; did you mean epochs?",
        ),
        ('{"version": 2, "recipe": "x", "training": {"epochs": "4"}}', "training.epochs takes a whole number, got '4'"),
        (
            '{"version": 2, "recipe": "x", "training": {"epochs": true}}',
            "training.epochs takes a whole number, got True",
        ),
        ('{"version": 2, "recipe": "x", "training": {"nesterov": 1}}', "training.nesterov takes true or false, got 1"),
        ('{"version": 2, "recipe": "x", "training": 4}', "training must be an object, got 4"),
        ('{"version": 2, "recipe": 5}', "recipe takes text, got 5"),
        ('{"version": 2, "recipe": "x", "transforms": {"fill": [1, "2", 3]}}', "transforms.fill takes numbers"),
        ('{"version": 2, "recipe": "x", "transforms": {"fill": [1, 2]}}', "fill must be three whole numbers"),
        ('{"version": 2, "recipe": "x", "filter": {"kind": "paper", "sigma": NaN}}', "sigma must be"),
        (
            '{"version": 2, "recipe": "x", "filter": {"kind": "difficulty", "eta": 1}}',
            "there is no setting 'filter.eta'",
        ),
        (
            '{"version": 2, "recipe": "x", "filter": {"kind": "gop"}}',
            f"whose kind is one of {', '.join(FILTERS)}, got 'gop'",
        ),
        ('{"version": 2, "recipe": "x", "filter": {}}', "whose kind is one of difficulty, paper"),
        ('{"version": 2, "recipe": "x", "data": {"name": "folder:/x"}}', "the name of the data set is 'folder'"),
    ],
)
def test_damaged_configuration_files(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Config.from_json(text)


@pytest.mark.parametrize("assignments", [["eta=0.5", "filter=paper"], ["filter=paper", "filter.eta=0.5"]])
def test_the_order_of_settings_plays_no_part(assignments):
    config = get_recipe("cifar100-wrn28-2").override(assignments)
    assert config.filter == PaperFilter(nonzero=2, m=2.0, eta=0.5, clone_size=25600)


def test_of_one_setting_given_twice_the_last_counts():
    config = get_recipe("digits").override(["filter=paper", "epochs=3", "filter=difficulty", "training.epochs=4"])
    assert (config.filter.kind, config.training.epochs) == ("difficulty", 4)
    config = get_recipe("folder").override(["data=folder", "data_dir=/a", "data_dir=/b"])
    assert config.data.data_dir == "/b"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "eta=0.5",
            "eta is a setting of the filter 'paper', but this run uses 'difficulty'; add filter=paper, or omit eta",
        ),
        ("filter.eta=0.5", "eta is a setting of the filter 'paper', but this run uses 'difficulty'"),
        ("filter.epochs=4", "there is no setting 'filter.epochs'; did you mean training.epochs?"),
        ("data.seed=4", "there is no setting 'data.seed'; did you mean seed?"),
        ("traning.epochs=4", "there is no section 'traning'; did you mean training?"),
        ("training=4", "training has several settings; set one of them, such as training.epochs"),
        ("training.epoch=4", "there is no setting 'training.epoch'; did you mean epochs?"),
        ("filter=papr", "there is no filter 'papr'; did you mean paper?"),
        ("filter=zzz", f"there is no filter 'zzz'; the filters are {', '.join(FILTERS)}"),
        ("filter.kind=paper", "there is no setting 'filter.kind'"),
        ("lr=0.1", "there is no setting 'lr'; did you mean learning_rate?"),
    ],
)
def test_settings_that_are_not_there(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_recipe("digits").override([assignment])


def test_a_speed_is_the_difficulty_filters_alone():
    with pytest.raises(ConfigError, match="speed is a setting of the filter 'difficulty', but this run uses 'paper'"):
        get_recipe("digits").override(["filter=paper", "speed=2"])


def test_no_name_stands_for_two_settings():
    """So that every setting may be given without its section."""
    for kind in FILTERS.values():
        config = Config(recipe="mine", filter=kind())
        names = [*TOP, *SECTIONS]
        for section in SECTIONS:
            names += [name for name in kinds_of(type(getattr(config, section))) if name != "name"]
        assert sorted(set(names)) == sorted(names)


def test_what_settings_change_together_is_checked_together():
    config = get_recipe("imagenet-resnet50").override(["data=digits", "crop_scale=0", "crop=2"])
    assert (config.data.name, config.transforms.crop) == ("digits", 2)
    small = get_recipe("digits").override(["ops=Rotate,Invert", "nonzero=1", "filter=paper"])
    assert (small.ops, small.filter.nonzero) == (("Rotate", "Invert"), 1)


def test_settings_from_python():
    config = recipe("digits", epochs=4, ops=["Rotate", "Invert", "Color"], data="folder:/pictures", fill=(1, 2, 3))
    assert (config.training.epochs, config.ops) == (4, ("Rotate", "Invert", "Color"))
    assert (config.data.name, config.data.data_dir, config.transforms.fill) == ("folder", "/pictures", (1, 2, 3))
    assert recipe("digits", training=TrainingSettings(epochs=7)).training == TrainingSettings(epochs=7)
    with pytest.raises(ConfigError, match="epochs takes a whole number, got '4'"):
        recipe("digits", epochs="4")
    with pytest.raises(ConfigError, match="training must be a TrainingSettings, got int"):
        recipe("digits", training=7)


def test_learning_rate():
    config = config_of("epochs=4", "learning_rate=0.2")
    expected = [0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1, 0.1 * (1 - math.sqrt(0.5))]
    assert [learning_rate(config, epoch) for epoch in (1, 2, 3, 4)] == pytest.approx(expected, rel=1e-12)
    assert learning_rate(config, 5) == pytest.approx(0.0, abs=1e-17)


def test_what_auto_means_is_resolved():
    resolved = resolve(config_of("precision=auto"))
    assert resolved.training.precision in ("bf16", "fp32")
    assert resolved.training.device in ("cpu", "cuda")
    assert resolve(config_of("precision=fp32", "device=cpu")) == config_of("precision=fp32", "device=cpu")


def test_a_directory_behind_a_colon_is_resolved_like_data_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name, place in (("images", tmp_path / "images"), ("~/images", "/home/me/images"), ("/images", "/images")):
        resolved = resolve(config_of(f"data=folder:{name}"))
        assert (resolved.data.name, resolved.data.data_dir) == ("folder", str(place))
        assert resolved == resolve(config_of("data=folder", f"data_dir={name}"))
        assert resolve(override(resolved, ["data=folder:/other"])).data.data_dir == "/other"
    with pytest.raises(ConfigError, match="'folder' has two directories, a and b; name one"):
        resolve(config_of("data=folder:a", "data_dir=b"))


def test_a_device_that_is_not_there_is_refused(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match="no CUDA device; set device=cpu"):
        build(config_of("device=cuda", "precision=fp32"), print)
