"""Every recipe says what it costs, holds the paper's settings and trains one real step on data of the right shape."""

import dataclasses

import pytest
import torch
from PIL import Image

from particleaugment.data import ImageData
from particleaugment.recipes import PRESETS, RECIPES, get_recipe
from particleaugment.training import build as build_module
from particleaugment.training.build import build
from particleaugment.training.config import ConfigError

PAPER = {  # l, m, epochs, learning rate, eta, velocity, start value, unit vectors
    "cifar10-wrn28-2": (3, 3.0, 250, 0.1, 1.0, 0.0, 0.25, False),
    "cifar10-wrn28-10": (4, 2.0, 250, 0.1, 1.0, 0.0, 0.25, False),
    "cifar10-shakeshake": (3, 3.0, 750, 0.03, 0.25, 0.0, 0.25, False),
    "cifar100-wrn28-2": (2, 2.0, 250, 0.1, 1.0, 0.0, 0.25, False),
    "cifar100-wrn28-10": (4, 6.0, 250, 0.1, 1.0, -0.001, 1.0, True),
    "imagenet-resnet50": (3, 3.0, 210, 0.05, 0.15, 0.0, 0.25, False),
}
CLASSES = {"cifar100": 100, "imagenet": 1000}


def generated(size, classes, count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % classes
    names = tuple(str(i) for i in range(classes))
    constants = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    return ImageData(
        train_images=images, train_labels=labels, test_images=images, test_labels=labels, classes=names, **constants
    )


def write_files(root, classes):
    """One JPEG for each class."""
    picture = Image.effect_noise((50, 40), 60).convert("RGB")
    for part in ("train", "val"):
        for number in range(classes):
            folder = root / part / f"{number:04d}"
            folder.mkdir(parents=True)
            picture.save(folder / "0.jpg")


@pytest.mark.parametrize("name", PAPER)
def test_settings_are_the_papers(name):
    config = get_recipe(name, "paper")
    found = (config.nonzero, config.m, config.epochs, config.learning_rate, config.eta, config.velocity)
    assert (*found, config.start_value, config.unit_vectors) == PAPER[name]
    every = config.filter(steps_per_epoch=391).every
    assert (config.num_particles, config.sigma, every, config.clone_epochs, config.warmup) == (50, 0.05, 1, 1, 1)
    assert (config.weight_decay, config.momentum, config.nesterov, config.alpha) == (5e-4, 0.9, True, 0.8)
    if name.startswith("imagenet"):
        assert (config.crop, config.crop_scale, config.jitter, config.flip) == (0, 0.08, 0.4, 0.5)
        assert config.normalization == "imagenet"
    if name.startswith("cifar"):
        assert (config.clone_size, config.measure_size, config.batch_size) == (25600, 512, 128)
        assert (config.crop, config.flip, config.erase) == (4, 0.5, 0.5)


@pytest.mark.parametrize("name", RECIPES)
def test_docs_name_cost_and_result(name):
    text = RECIPES[name].__doc__
    assert "Costs" in text
    assert name == "folder" or "%" in text or "results" in text


@pytest.mark.parametrize("name", RECIPES)
def test_one_real_step(name, monkeypatch, tmp_path):
    config = get_recipe(name)
    size = config.image_size or 32
    classes = next((count for key, count in CLASSES.items() if name.startswith(key)), 10)
    batch = 2 if size > 64 or "shake" in name or "28-10" in name else 8
    data = generated(size, classes, batch)
    monkeypatch.setattr(build_module, "load_data", lambda *_, **__: data)
    config = dataclasses.replace(config, batch_size=batch, precision="fp32", device="cpu", workers=0)
    if config.crop_scale:  # cut from files
        write_files(tmp_path, classes)
        config = dataclasses.replace(config, data_dir=str(tmp_path))
    parts = build(config, print)
    before = [parameter.detach().clone() for parameter in parts.model.parameters()]
    policy = config.filter().policy(config.filter().init(0, config.ops))
    parts.model.train()
    loss = parts.trainee.train(policy, torch.arange(batch), 1, progress=lambda *_: None)
    assert 0 < loss / batch < 20
    assert any(not torch.equal(old, new) for old, new in zip(before, parts.model.parameters()))
    assert parts.model(torch.zeros(1, 3, size, size)).shape == (1, classes)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_follow_the_gap_unless_the_paper_is_asked_for(name):
    default, paper = get_recipe(name), get_recipe(name, "paper")
    assert default == get_recipe(name, "improved")
    assert (default.policy, default.measure, default.measure_on, default.update) == (
        "particles", "loss", "heldout", "tilted",
    )  # fmt: skip
    assert (paper.policy, paper.measure, paper.measure_on, paper.update) == ("particles", "clone", "train", "paper")
    filters = {setting.partition("=")[0] for settings in PRESETS.values() for setting in settings}
    for field in dataclasses.fields(default):
        if field.name not in filters:
            assert getattr(default, field.name) == getattr(paper, field.name), field.name


def test_an_unknown_preset_is_named():
    with pytest.raises(ConfigError, match="there is no preset 'papr'; did you mean paper"):
        get_recipe("digits", "papr")
