"""README's loop runs, and the tables of all pages say what the result files say."""

import subprocess
import sys
from pathlib import Path

import torch
from documents import python_snippets
from torch import nn
from torch.utils.data import DataLoader

from particleaugment.data import load_digits

ROOT = Path(__file__).parents[2]
SNIPPETS = python_snippets(ROOT / "README.md")


def readers_own():
    """What README's loop takes from its reader: data, a network and how it is trained."""
    data = load_digits()
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 10))
    return {
        "DataLoader": DataLoader,
        "train_set": (data.train_images, data.train_labels),
        "normalise": lambda images: images / 255,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": nn.CrossEntropyLoss(reduction="none"),
    }


def test_the_loop_runs_and_learns_a_policy():
    names = readers_own()
    shorter = SNIPPETS[1].replace("epochs=60", "epochs=3")
    exec(compile(shorter, "README.md", "exec"), names)
    search = names["search"]
    assert search.steps_taken == 2
    assert len(names["loader"].dataset) == len(names["train_set"][1])


def test_the_engine_augments():
    names = {}
    exec(compile(SNIPPETS[0], "README.md", "exec"), names)
    assert names["augmented"].shape == names["images"].shape
    assert not torch.equal(names["augmented"], names["images"])


def test_the_snippets_are_short():
    assert len(SNIPPETS) == 2
    engine, loop = ([line for line in code.splitlines() if line.strip()] for code in SNIPPETS)
    assert len(engine) <= 5
    assert len(loop) <= 9


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_tables_are_up_to_date():
    check = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python benchmarks/tables.py"
