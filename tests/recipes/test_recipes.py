"""Every recipe says what it costs, holds the paper's settings and trains one real step on data of the right shape."""

import dataclasses

import pytest
import torch
from PIL import Image

from particleaugment import PaperFilter
from particleaugment.data import ImageData
from particleaugment.recipes import RECIPES, get_recipe, recipe
from particleaugment.search.filters import DEFAULT, FILTERS
from particleaugment.training import build as build_module
from particleaugment.training.build import build
from particleaugment.training.config import ConfigError
from particleaugment.training.moments import interval

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
    recipe = get_recipe(name)
    filter, training, transforms = recipe.paper, recipe.config.training, recipe.config.transforms
    found = (filter.nonzero, filter.m, training.epochs, training.learning_rate, filter.eta, filter.velocity)
    assert (*found, filter.start_value, filter.unit_vectors) == PAPER[name]
    every = interval(filter.every, training.epochs, steps_per_epoch=391)
    assert (filter.num_particles, filter.sigma, every, filter.clone_epochs, filter.warmup) == (50, 0.05, 1, 1, 1)
    assert (training.weight_decay, training.momentum, training.nesterov, filter.alpha) == (5e-4, 0.9, True, 0.8)
    if name.startswith("imagenet"):
        assert (transforms.crop, transforms.crop_scale, transforms.jitter, transforms.flip) == (0, 0.08, 0.4, 0.5)
        assert recipe.config.data.normalization == "imagenet"
    if name.startswith("cifar"):
        assert (filter.clone_size, filter.measure_size, training.batch_size) == (25600, 512, 128)
        assert (transforms.crop, transforms.flip, transforms.erase) == (4, 0.5, 0.5)


@pytest.mark.parametrize("name", RECIPES)
def test_docs_name_cost_and_result(name):
    text = RECIPES[name].__doc__
    assert "takes" in text.lower()
    assert name == "folder" or "%" in text or "results" in text


@pytest.mark.parametrize("name", RECIPES)
def test_one_real_step(name, monkeypatch, tmp_path):
    config = get_recipe(name).config
    size = config.data.image_size or 32
    classes = next((count for key, count in CLASSES.items() if name.startswith(key)), 10)
    batch = 2 if size > 64 or "shake" in name or "28-10" in name else 8
    data = generated(size, classes, batch)
    monkeypatch.setattr(build_module, "load_data", lambda *_, **__: data)
    config = recipe(name, batch_size=batch, precision="fp32", device="cpu", workers=0)
    if config.transforms.crop_scale:  # cut from files
        write_files(tmp_path, classes)
        config = config.with_data_in(str(tmp_path))
    parts = build(config, print)
    before = [parameter.detach().clone() for parameter in parts.model.parameters()]
    policy = config.filter.policy(config.filter.init(0, config.ops, config.training.epochs))
    parts.model.train()
    loss = parts.trainee.train(policy, torch.arange(batch), 1, progress=lambda *_: None)
    assert 0 < loss / batch < 20
    assert any(not torch.equal(old, new) for old, new in zip(before, parts.model.parameters()))
    assert parts.model(torch.zeros(1, 3, size, size)).shape == (1, classes)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_default_filter_unless_the_paper_is_asked_for(name):
    made = get_recipe(name)
    assert made.config == recipe(name) == made.override(["filter=difficulty"]) == recipe(name, filter="difficulty")
    assert (made.config.policy, made.config.filter) == ("learned", DEFAULT), "one setting for every data set"
    paper = recipe(name, filter="paper")
    assert paper == made.override(["filter=paper"]) == dataclasses.replace(made.config, filter=made.paper)


@pytest.mark.parametrize("name", RECIPES)
def test_a_filter_by_its_name_has_the_recipes_settings(name):
    made = get_recipe(name)
    assert set(made.filters) == set(FILTERS)
    for kind, filter in made.filters.items():
        assert type(filter) is FILTERS[kind]
        assert recipe(name, filter=kind).filter == filter == made.with_filter(kind).filter
        changed = {"measure_size": 7, "warmup": 3}
        assert recipe(name, filter=kind, **changed).filter == dataclasses.replace(filter, **changed)


def test_a_filter_object_is_taken_as_it_is():
    assert recipe("cifar10-wrn28-2", filter=PaperFilter(eta=0.5)).filter == PaperFilter(eta=0.5)
    assert recipe("cifar10-wrn28-2", filter=PaperFilter(), eta=0.5).filter == PaperFilter(eta=0.5)


def test_an_unknown_filter_is_named():
    with pytest.raises(ConfigError, match="there is no filter 'papr'; did you mean paper"):
        recipe("digits", filter="papr")
    with pytest.raises(ConfigError, match="filter must be a Filter, got int"):
        recipe("digits", filter=3)
