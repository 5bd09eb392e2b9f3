"""The proving ground on a real Ray cluster: a node dies, and the results are those of one machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nodes import cluster, two_nodes

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from proving_results import load_runs  # noqa: E402

__all__ = ["cluster", "two_nodes"]

LIMIT = 240
OPTIONS = ("--tasks", "digits-300", "--arms", "none,difficulty", "--seeds", "0", "--no-page",
           "--set", "epochs=20", "--set", "evaluate_every=1", "--set", "model=wrn-10-1")  # fmt: skip


def start(folder, *options):
    command = [sys.executable, str(ROOT / "benchmarks" / "proving_ground.py"), "--data", str(folder / "data")]
    command += ["--results", str(folder / "runs.json"), "--runs", str(folder / "runs"), *OPTIONS, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(folder):
    runs = load_runs(folder / "runs.json")
    return {run["arm"]: (run["curve"], run["accuracy"], run["loss"], run["settings"]) for run in runs}


@pytest.mark.slow
def test_a_node_dies_and_the_results_are_those_of_one_machine(two_nodes, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    local = start(here, "--jobs", "2")
    output, _ = local.communicate(timeout=LIMIT)
    assert local.returncode == 0, output

    process = start(there, "--on", two_nodes.address)
    metrics = [there / "runs" / f"digits-300-v1-{arm}-0" / "metrics.jsonl" for arm in ("none", "difficulty")]
    limit = time.monotonic() + LIMIT
    while not all(path.exists() and path.stat().st_size for path in metrics):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.02)
    two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, output
    assert "2 runs to train, 2 at a time" in output
    assert output.count("a worker was lost (its node died); another trains Job(") == 1, output
    assert results(there) == results(here)
    assert set(results(here)) == {"none", "difficulty"}
    assert not list((there / "runs").glob(".nodes*"))


def test_a_missing_cluster_is_one_sentence(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'particleaugment[ray]'")
    process = start(tmp_path, "--on", "127.0.0.1:1")
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert output.startswith("there is no Ray cluster at '127.0.0.1:1' (Connection refused); start one")
