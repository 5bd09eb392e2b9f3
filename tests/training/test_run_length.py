"""The number of epochs, where the recipe leaves it to the data."""

import numpy as np
import pytest
from PIL import Image
from runs import command

from particleaugment.recipes import get_recipe
from particleaugment.training.run import RunFolder
from particleaugment.training.run_length import with_epochs


@pytest.fixture
def pictures(tmp_path):
    """Two classes of 15 small pictures."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(15):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_a_folder_of_few_images_trains_for_many_epochs(pictures):
    settings = [f"data_dir={pictures}"]
    assert with_epochs(get_recipe("folder").override(settings)).training.epochs == 200
    assert with_epochs(get_recipe("folder").override([*settings, "epochs=7"])).training.epochs == 7


def test_embedded_digits_count_too():
    assert with_epochs(get_recipe("digits").override(["epochs=0", "train_size=1000"])).training.epochs == 60


def test_a_run_and_a_comparison_choose_alike(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("particleaugment.training.run_length.IMAGES", 50)
    monkeypatch.setattr("particleaugment.training.run_length.FEWEST", 1)
    options = [f"data_dir={pictures}", "model=wrn-10-1", "image_size=8", "crop=0", "batch_size=8"]
    words = [word for option in options for word in ("--set", option)]
    outcome = command("train", "folder", *words, "--set", "policy=none", "--out", tmp_path / "run")
    assert outcome.exit_code == 0, outcome.output
    assert "on folder, 2 epochs, policy none" in outcome.stdout
    assert RunFolder.open(tmp_path / "run").config.training.epochs == 2
    outcome = command("compare", "folder", *words, "--arms", "none", "--seeds", "0", "--out", tmp_path / "compared")
    assert outcome.exit_code == 0, outcome.output
    assert RunFolder.open(tmp_path / "compared" / "runs" / "none-0").config.training.epochs == 2


def test_a_folder_that_is_not_named(tmp_path):
    outcome = command("train", "folder", "--out", tmp_path / "run")
    assert outcome.exit_code == 2
    assert "the data set 'folder' needs data_dir" in outcome.stderr
