"""The model of scaling, and the tables of docs/ranks.md before and after there are figures."""

import doctest
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import common
import ranks_gpu
import ranks_model

from particleaugment.trainee.ranks import Ranks


def test_examples():
    for module in (ranks_model, ranks_gpu):
        failed, tried = doctest.testmod(module)
        assert failed == 0
        assert tried > 0


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks_model, "RESULTS", tmp_path)
    monkeypatch.setattr(ranks_model, "result", lambda name: common.result(name, tmp_path))
    return tmp_path


def test_tables_without_figures_say_so(results):
    assert ranks_model.steps_table() == ranks_model.scaling_table() == ranks_model.NOT_YET


def test_tables_with_figures(results):
    rows = []
    for name, seconds, size in (("wrn-28-10", 0.011, 145_916_776), ("resnet-50", 0.05, 102_228_128)):
        for group in (False, True):
            row = ranks_gpu.row_of(Ranks(group=group), name, True, 128, [seconds])
            more = {"trainee": "GraphTrainee", "said": [], "weights_equal": True, "policy_equal": True}
            rows.append(row | more | {"bytes_reduced": size})
    document = {"rows": rows, "group_of_one_slower_percent": ranks_gpu.compared(rows)}
    whole = {"command": "made up", "machine": {"gpu": "none"}, "results": document}
    (results / "ranks_gpu.json").write_text(json.dumps(whole))
    assert ranks_model.steps_table().count("captured |") == 4
    lines = [line for line in ranks_model.scaling_table().splitlines() if line.startswith(("| wrn", "| resnet"))]
    assert [line.split("|")[2].strip() for line in lines] == ["8", "64", "512"] * 2
    assert lines[0].endswith("| 11.0 | 100 % |"), "hidden behind the backward pass"
    slow = 0.011 + 2 * 511 / 512 * 145_916_776 / 40e9 + (14 + 126) * 5e-6 - 0.011 / 3
    assert f"| {1e3 * slow:.1f} | {100 * 0.011 / slow:.0f} % |" in lines[2]


def row(network="wrn-28-2", world=1, group=True, seconds=0.002, **changes):
    made = ranks_gpu.row_of(Ranks(world=world, group=group), network, True, 128, [seconds])
    return made | {"trainee": "GraphTrainee", "said": [], "weights_equal": True, "policy_equal": None} | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True]),
        ({"seconds": 0.0022}, [True, True, False]),
        ({"said": ["it could not be captured"]}, [False, True, True]),
        ({"policy_equal": False}, [True, False, True]),
        ({"weights_equal": False}, [True, False, True]),
    ],
)
def test_what_is_printed_passed_or_failed(changes, expected):
    rows = [row(group=False), row(**changes)]
    assert [passed for passed, _ in ranks_gpu.verdicts(rows)] == expected
    assert [passed for passed, _ in ranks_gpu.verdicts([])] == [False] * 3, "nothing was measured"


def test_a_launch_that_fails_or_hangs_is_told_and_ended(monkeypatch):
    rows, problem = ranks_gpu.measured(0, ["wrn-28-2"], seed=0)  # no GPU here, or it has one and passes
    assert bool(rows) != bool(problem)
    monkeypatch.setattr(ranks_gpu, "SECONDS", 0.2)
    assert ranks_gpu.measured(0, ["wrn-28-2"], seed=0) == ([], "0 ranks did not end within 0.2 s")
