"""Ranks on one GPU: a group of one over NCCL, with whole steps captured, and two ranks over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
WORK = Path(__file__).parent / "rank_work.py"
SETTINGS = ("device=cuda", "epochs=3")  # 1437 digits in batches of 64: the last one is not whole
SECONDS = 150


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def torchrun(ranks, *arguments):
    return run("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments)


def result(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), records


@pytest.mark.parametrize("filter", ["paper", "difficulty"])
def test_a_group_of_one_over_nccl_gives_the_bits_of_none(filter, tmp_path):
    settings = [part for setting in (*SETTINGS, f"filter={filter}") for part in ("--set", setting)]
    command = ["-m", "particleaugment", "train", "digits", "--deterministic", *settings, "--out"]
    alone = run(*command, tmp_path / "alone")
    group = torchrun(1, *command, tmp_path / "group")
    for output in (alone, group):
        assert "whole steps in a CUDA graph" in output
        assert "cannot be captured" not in output
    assert "DistributedDataParallel on 1 rank, deterministic" in group
    assert "DistributedDataParallel" not in alone
    weights, policy, records = result(tmp_path / "group")
    assert [record["kind"] for record in records] == ["epoch", "filter", "epoch", "filter", "epoch"]
    assert (weights, policy, records) == result(tmp_path / "alone")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What rank_work.py finds in a group of one over NCCL, and without a group."""
    folder = tmp_path_factory.mktemp("found")
    torchrun(1, WORK, "nccl", "cuda", folder / "nccl.pt")
    run(WORK, "alone", "cuda", folder / "alone.pt")
    return {name: torch.load(folder / f"{name}.pt") for name in ("nccl", "alone")}


def test_every_size_of_batch_is_captured_with_its_sums(found):
    *nccl, weights = found["nccl"]["captured"]
    *alone, expected = found["alone"]["captured"]
    assert nccl == alone == [[], "GraphTrainee", [7, 64], 0, [64]]
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_a_network_that_cannot_be_captured_trains_step_by_step_in_a_group(found):
    said, losses, weights, graphs = found["nccl"]["fallback"]
    assert len(said) == 1
    assert said[0].startswith("training with eager steps: this model cannot be captured in a CUDA graph (")
    assert graphs == 0
    assert losses == pytest.approx(found["alone"]["fallback"][1], rel=1e-6)
    torch.testing.assert_close(weights, found["alone"]["fallback"][2], rtol=1e-6, atol=1e-7)


def test_synchronised_batch_norm_runs_over_nccl_and_in_a_graph(found):
    expected, eager, captured = found["nccl"]["norm_in_a_graph"]
    torch.testing.assert_close(eager, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(captured, eager, rtol=1e-5, atol=1e-6)


def test_a_captured_run_with_synchronised_batch_norm(found):
    norms, loss, weights = found["nccl"]["synchronised"]
    none, expected_loss, expected = found["alone"]["synchronised"]
    assert norms > 0
    assert none == 0
    assert loss == expected_loss
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """What rank_work.py finds on two ranks over gloo: on this GPU, and on the CPU."""
    folder = tmp_path_factory.mktemp("pairs")
    for device in ("cuda", "cpu"):
        torchrun(2, WORK, "gloo", device, folder / f"{device}.pt")
    return {device: torch.load(folder / f"{device}.pt") for device in ("cuda", "cpu")}


@pytest.mark.parametrize("filter", ["paper", "difficulty"])
def test_two_ranks_on_one_gpu_train_as_two_on_the_cpu(pairs, filter):
    gpu, cpu = (pairs[device]["filter_steps"][filter] for device in ("cuda", "cpu"))
    assert gpu["trainee"] == cpu["trainee"] == "EagerTrainee", "gloo's sums cannot be captured"
    for found in (gpu, cpu):
        assert len(found["prints"]) == 2
        assert len(set(found["prints"])) == 1
    assert gpu["loss"] == pytest.approx(cpu["loss"], rel=1e-4)
    means = {name for name in cpu["weights"] if name.endswith("running_mean")}  # near 0, of sums that round otherwise
    for name, weights in cpu["weights"].items():
        torch.testing.assert_close(gpu["weights"][name], weights, rtol=1e-4, atol=1e-4 if name in means else 1e-5)


@pytest.mark.parametrize("filter", ["paper", "difficulty"])
def test_two_ranks_on_one_gpu_learn_the_policy_of_two_on_the_cpu(pairs, filter):
    gpu, cpu = (pairs[device]["filter_steps"][filter] for device in ("cuda", "cpu"))
    assert gpu["decisions"] == cpu["decisions"]
    assert gpu["ops_per_image"] == pytest.approx(cpu["ops_per_image"], rel=1e-2, abs=1e-3)
    torch.testing.assert_close(gpu["state"], cpu["state"], rtol=1e-2, atol=1e-3)


def test_two_ranks_with_synchronised_batch_norm_train_as_one_process(pairs, found):
    norms, loss, weights = pairs["cuda"]["synchronised"]
    _, expected_loss, expected = found["alone"]["synchronised"]
    assert norms > 0
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
