"""Short versions of the long runs: ``benchmarks/soak.py`` and ``benchmarks/endurance.py``."""

import sys
from pathlib import Path

import pytest
from runs import TINY, TINY_DIFFICULTY

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from endurance import endure
from soak import soak

SMALL = ["epochs=2", "validation=900", "batch_size=64", "clone_size=64", "measure_size=20", "num_particles=2"]


@pytest.mark.slow
def test_a_run_killed_three_times(tmp_path):
    found = soak(tmp_path, kills=3, seed=0, settings=SMALL)
    assert found["kills"] == 3
    assert sum(found["phase_hit"].values()) == 3
    assert found["runs_compared"] >= 1
    assert found["runs_differing"] == 0


@pytest.mark.parametrize(("filter", "settings"), [("paper", TINY[1:]), ("difficulty", TINY_DIFFICULTY[1:])])
def test_memory_files_and_threads_stay_flat(tiny, no_report, tmp_path, filter, settings):
    found = endure(tmp_path, 25, filter, [*settings, "every=1"])
    assert found["flat"], found
    sizes = found["sizes"]
    assert sizes["checkpoints"] == 2
    assert sizes["filter_steps"] == 24
    if filter == "difficulty":
        # What a step leaves behind: some numbers.
        assert sizes["last_checkpoint"] - sizes["first_checkpoint"] < 24 * 100
        assert sizes["policy"] < 24 * 250
    assert found["resident_kib"]["highest"] > 50_000
    assert found["open_files"]["highest"] > 2
    assert found["threads"]["highest"] >= 1
