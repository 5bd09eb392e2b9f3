"""The paper's table and its ablations: which arms they train, and what they say where nothing was run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import paper_ablations
import paper_table
from accuracy_tables import accuracies

from particleaugment.compare.arms import Base, parse_arms
from particleaugment.recipes import get_recipe
from particleaugment.search.paper import PaperFilter


def test_the_ablations_change_one_setting_each():
    base = Base.of(get_recipe("cifar10-wrn28-2"), ["epochs=60"])
    usual = get_recipe("cifar10-wrn28-2").paper
    changed = {}
    for arm in parse_arms(",".join(paper_ablations.ARMS)):
        filter = arm.config(base, seed=0).filter
        assert isinstance(filter, PaperFilter)
        changed[arm.name] = {key: value for key, value in vars(filter).items() if value != getattr(usual, key)}
    assert changed == {
        "paper": {},
        "r25": {"num_particles": 25},
        "r100": {"num_particles": 100},
        "r200": {"num_particles": 200},
        "eta0.01": {"eta": 0.01},
        "eta0.1": {"eta": 0.1},
        "eta4": {"eta": 4.0},
        "velocity": {"velocity": -0.001},
        "random-order": {"order": "random"},
        "paper-unskipped": {},
    }


def test_the_papers_table_has_its_six_rows_and_says_what_was_not_run():
    lines = paper_table.paper_table().splitlines()
    assert len(lines) == 2 + 6 + 2
    wrn = next(line for line in lines if line.startswith("| CIFAR-10, WRN-28-2 |"))
    assert accuracies("cifar10-250")["none"] in wrn
    imagenet = next(line for line in lines if line.startswith("| ImageNet"))
    assert "not run: needs days on an H200" in imagenet
