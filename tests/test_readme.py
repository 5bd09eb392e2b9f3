"""README's loop runs, and the tables of all pages say what the result files say."""

import subprocess
import sys
from pathlib import Path

import torch
from documents import python_snippets
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from particleaugment.data import load_digits

ROOT = Path(__file__).parents[1]
SNIPPETS = python_snippets(ROOT / "README.md")


def readers_own():
    """What README's loop takes from its reader: data, a network and how it is trained."""
    data = load_digits()
    images, labels = data.train_images[:512], data.train_labels[:512]
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 10))
    return {
        "epochs": 2,
        "make_loader": lambda ids: DataLoader(
            TensorDataset(images[ids], labels[ids], ids), batch_size=128, shuffle=True
        ),
        "targets": labels,
        "normalise": lambda images: images / 255,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "dataset": (images, labels),
    }


def test_the_loop_runs_and_learns_a_policy():
    names = readers_own()
    exec(compile(SNIPPETS[0], "README.md", "exec"), names)
    assert names["search"].steps_taken == 2
    assert len(names["loader"].dataset) == 512 - 128


def test_the_loop_is_ten_lines_and_an_import():
    assert len(SNIPPETS) == 1
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) <= 11


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_tables_are_up_to_date():
    check = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python benchmarks/tables.py"
