"""Short versions of the long runs: ``benchmarks/soak.py`` and ``benchmarks/endurance.py``."""

import sys
from pathlib import Path

import pytest

from runs import TINY

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


def test_memory_files_and_threads_stay_flat(tiny, no_report, tmp_path):
    found = endure(tmp_path, epochs=25, settings=TINY[1:])
    assert found["flat"], found
    assert found["resident_kib"]["last"] > 50_000
    assert found["open_files"]["last"] > 2
    assert found["threads"]["last"] >= 1
