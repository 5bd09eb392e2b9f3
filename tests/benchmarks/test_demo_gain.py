"""The benchmark of the demo trains what the demo trains, and goes on where it was."""

import json
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import demo_gain

    return demo_gain


def test_it_runs_the_command_of_make_demo(script):
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if "particleaugment compare" in line)
    words = shlex.split(line.strip().lstrip("@"))
    assert words[1:] == script.demo_command("0", "runs/demo")


def test_seeds_that_are_in_the_file_are_not_trained_again(script, tmp_path, monkeypatch):
    trained = []

    def measured(seed, work):
        trained.append(seed)
        accuracy = {"none": 95.0 + seed, "learned": 97.0 + seed + 0.5 * (seed == 2)}
        return {"seed": seed, "accuracy": accuracy, "difference": accuracy["learned"] - accuracy["none"]}

    monkeypatch.setattr(script, "measured", measured)

    def run(seeds):
        monkeypatch.setattr(sys, "argv", ["demo_gain.py", "--seeds", seeds, "--results", str(tmp_path)])
        script.main()
        return json.loads((tmp_path / "demo_gain.json").read_text())

    assert run("0")["results"]["interval"] is None
    found = run("0-2")
    assert trained == [0, 1, 2]
    assert found["machine"]["versions"]
    assert found["results"]["seeds"] == [0, 1, 2]
    assert found["results"]["mean_difference"] == pytest.approx(2.1667, abs=1e-4)
    assert found["results"]["interval"] == pytest.approx([1.4496, 2.8838], abs=1e-3)
    monkeypatch.setattr(script, "trained_settings", lambda: {"epochs": 7})
    run("1")
    assert trained == [0, 1, 2, 1], "other settings, other results"
