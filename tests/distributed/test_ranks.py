"""Real ranks, connected by gloo: what they share out comes together as if one process had done it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import checks
import pytest
import torch
from checks import CHECKS
from launch import ranks_together

from particleaugment.recipes import get_recipe
from particleaugment.trainee.ranks import Ranks
from particleaugment.training.config import ConfigError


@pytest.fixture(scope="module", params=[(3,), pytest.param((2, 3, 4), marks=pytest.mark.slow)])
def findings(tmp_path_factory, request):
    """What checks.py found: in this process alone, and on several ranks."""
    folder = tmp_path_factory.mktemp("findings")
    found = {1: {check.__name__: check(Ranks()) for check in CHECKS}}
    for ranks in request.param:
        code, _, errors = ranks_together(checks.__file__, folder / f"{ranks}.pt", ranks=ranks)
        assert code == 0, errors
        found[ranks] = torch.load(folder / f"{ranks}.pt")
    return found


def of_each(findings, check):
    return [(ranks, found[check]) for ranks, found in findings.items()]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch", [7, 16, 64])
@pytest.mark.parametrize("count", [1, 6, 64, 83])
def test_batches_are_shared_out_without_loss(world, batch, count):
    ids, losses = torch.randperm(count), torch.rand(count, dtype=torch.float64)
    seen = []
    for part in ids.split(batch):
        shares = [Ranks(rank, world).share_of_batch(part) for rank in range(world)]
        seen += [mine for mine, weight in shares if weight]
        mean = sum(weight * losses[mine].mean() for mine, weight in shares) / world
        torch.testing.assert_close(mean, losses[part].mean(), rtol=1e-14, atol=0)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(count))


def test_every_sample_once_per_epoch_with_the_same_pixels(findings):
    expected = sorted(findings[1]["pixels"][0])
    assert [int(line.split()[0]) for line in sorted(expected, key=lambda line: int(line.split()[0]))] == list(range(83))
    for ranks, shares in of_each(findings, "pixels"):
        assert len(shares) == ranks
        assert max(map(len, shares)) - min(map(len, shares)) <= 6, "one at most per batch of 16"
        assert sorted(line for share in shares for line in share) == expected


def test_gradients_are_means_over_the_whole_batch(findings):
    for _, found in of_each(findings, "gradients"):
        for (loss, gradients), (expected_loss, expected) in zip(found, findings[1]["gradients"]):
            assert loss == pytest.approx(expected_loss, rel=1e-12)
            torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-10)
            assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-2


def test_measured_losses_do_not_depend_on_the_number_of_ranks(findings):
    (particles, clean), evaluation, *_ = findings[1]["measurement"]
    assert particles.shape == (5, 30)
    for ranks, (losses, (loss, accuracy), prints, turns) in of_each(findings, "measurement"):
        torch.testing.assert_close(losses, (particles, clean), rtol=0, atol=0)
        assert loss == pytest.approx(evaluation[0], rel=1e-12)
        assert accuracy == evaluation[1]
        assert len(prints) == ranks
        assert len(set(prints)) == len(set(turns)) == 1


def test_statistics_are_those_of_rank_0(findings):
    for ranks, (own, equalised) in of_each(findings, "statistics"):
        assert len(set(own)) == ranks, "each rank has seen other images"
        assert set(equalised) == {own[0]}


def test_a_share_of_one_image_does_not_stop_batch_norm(findings):
    for ranks, (losses, prints) in of_each(findings, "shares_of_one"):
        assert all(0 < loss < 100 for loss in losses)
        assert len(prints) == ranks
        assert len(set(prints)) == 1


def test_every_rank_computes_the_same_filter_step(findings):
    for ranks, (updates, restored, states, deltas) in of_each(findings, "filter_steps"):
        assert updates >= 1
        assert restored
        assert len(states) == len(deltas) == ranks
        assert len(set(states)) == len(set(deltas)) == 1
    assert len({found["filter_steps"][2][0] for found in findings.values()}) > 1, "batch norm sees smaller batches"


def test_an_error_on_one_rank_ends_all_and_is_reported_once(findings):
    assert findings[1]["errors"] == [["ValueError: no such data"] * 2]
    first, second, third = findings[3]["errors"]
    assert first[:3] == [
        "ValueError: no such data",
        "RankError: no such data (rank 1",
        "RankError: no such data (rank 2",
    ]
    assert all(text.startswith("silent: no such data") for text in (*second[:3], *third[:3]))
    assert first[3:] == ["ValueError: no such data", "fine", "fine"]
    assert second[3:] == third[3:] == ["silent: no such data", "fine", "fine"]


def test_a_signal_to_one_rank_stops_all_at_the_same_place(findings):
    for ranks, stops in of_each(findings, "stopping"):
        assert stops == ["3 checks, exit code 143"] * ranks


def test_a_loss_that_is_no_number_on_one_rank_is_refused_by_all(findings):
    for ranks, (said, prints) in of_each(findings, "no_number"):
        assert said == ["refused, trained"] * ranks
        assert len(set(prints)) == 1


def test_a_batch_that_cannot_be_shared_out(findings):
    assert findings[1]["too_small_a_batch"] == ["built"]
    for ranks in findings.keys() - {1}:
        assert findings[ranks]["too_small_a_batch"] == ["ConfigError"] + ["ReportedByFirst"] * (ranks - 1)


def test_synchronised_batch_norm_needs_gpus():
    config = get_recipe("digits").override(["filter=paper", "sync_batchnorm=true"])
    with pytest.raises(ConfigError, match="sync_batchnorm works only on GPUs, and this run is on the CPU"):
        replace(config, training=replace(config.training, device="cpu"))


def test_the_slurm_example_is_a_shell_script():
    script = Path(__file__).parents[2] / "examples" / "slurm.sh"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_a_single_bit_that_differs_is_noticed_by_all(findings):
    assert findings[1]["divergence"] == [["same", "same"]]
    for ranks in findings.keys() - {1}:
        message = f"the weights on rank {ranks - 1} differ from those on rank 0 here"
        kinds = ["RunError"] + ["ReportedByFirst"] * (ranks - 1)
        assert findings[ranks]["divergence"] == [["same", f"{kind} {message}"] for kind in kinds]


def test_the_first_step_of_a_resumed_run_adds_up_like_a_later_one(findings):
    for _, (at_once, later) in of_each(findings, "first_step"):
        assert at_once == later


def test_shake_shake_mixes_by_the_place_in_the_whole_batch(findings):
    for ranks, places in of_each(findings, "mixing"):
        assert places == [f"{rank} {ranks}" for rank in range(ranks)]
