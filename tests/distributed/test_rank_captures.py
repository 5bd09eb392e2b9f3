"""Whole steps on several ranks over gloo: shares, sums and agreement; the captures themselves are in tests/gpu."""

import captured
import pytest
import torch
from captured import CHECKS
from launch import SETTINGS, end, ending, ranks_together, result, train

from particleaugment.recipes import get_recipe
from particleaugment.runs.train import train as train_alone
from particleaugment.trainee.ranks import Ranks

SMALL = ("epochs=2", "train_size=200", "clone_size=40", "measure_size=20", "device=cpu", "precision=fp32")
SAID = "training with eager steps: this model cannot be captured in a CUDA graph"


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """What captured.py found: without a group, in a group of one, and on three ranks."""
    folder = tmp_path_factory.mktemp("findings")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {"none": {check.__name__: check(Ranks()) for check in CHECKS}}
    torch.set_num_threads(threads)
    for ranks in (1, 3):
        code, _, errors = ranks_together(captured.__file__, folder / f"{ranks}.pt", ranks=ranks)
        assert code == 0, errors
        found[ranks] = torch.load(folder / f"{ranks}.pt")
    return found


def test_whole_steps_on_ranks_train_as_steps_one_by_one(findings):
    for found in findings.values():
        exact, expected, with_norm, expected_with_norm = found["whole_and_one_by_one"]
        for (losses, _, state, prints), (other_losses, _, other_state, other_prints), tolerance in (
            (exact, expected, 1e-12),
            (with_norm, expected_with_norm, 1e-5),
        ):
            assert len(set(prints)) == len(set(other_prints)) == 1
            assert losses == pytest.approx(other_losses, rel=tolerance)
            torch.testing.assert_close(state, other_state, rtol=tolerance, atol=tolerance / 10)


def test_a_group_of_one_has_the_bits_of_none(findings):
    for alone, group in zip(findings["none"]["whole_and_one_by_one"], findings[1]["whole_and_one_by_one"]):
        assert group[:2] == alone[:2]
        torch.testing.assert_close(group[2], alone[2], rtol=0, atol=0)


def test_the_gradient_of_whole_steps_is_the_mean_over_the_batch(findings):
    (losses, _, state, _), *_ = findings[3]["whole_and_one_by_one"]
    (expected_losses, _, expected, _), *_ = findings["none"]["whole_and_one_by_one"]
    assert losses == pytest.approx(expected_losses, rel=1e-10)
    torch.testing.assert_close(state, expected, rtol=1e-9, atol=1e-11)


def test_ranks_with_one_image_or_none_take_part(findings):
    expected = findings["none"]["small_shares"][1]
    for found in findings.values():
        for *losses, state in found["small_shares"]:
            assert losses == pytest.approx(expected[:3], rel=1e-10)
            torch.testing.assert_close(state, expected[3], rtol=1e-9, atol=1e-11)


def test_ranks_have_a_word_after_several_batches_and_after_the_last(findings):
    assert findings["none"]["whole_and_one_by_one"][0][1] == [1, 2, 3, 4, 5, 6]
    assert findings[1]["whole_and_one_by_one"][0][1] == [1, 2, 3, 4, 5, 6]
    assert findings[3]["whole_and_one_by_one"][0][1] == [6]


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_capture_together_or_not_at_all(findings, world):
    in_rehearsal, in_capture, everywhere = findings[world]["agreement"][0]
    last = f" (rank {world - 1})" if world > 1 else ""
    for rank in range(world):
        tried, said, _ = in_rehearsal[rank]
        assert tried == "('rehearse 16',)"
        assert said == f"['{SAID} (no room to rehearse{last})']"
        tried, said, _ = in_capture[rank]
        assert tried == "('rehearse 16', 'capture 16')"
        if world == 1:
            assert "(no room to capture)" in said
        tried, said, _ = everywhere[rank]
        assert tried == "('rehearse 16', 'capture 16')"
        assert said.startswith(f"['{SAID} (")
        assert said.count(SAID) == 1


@pytest.mark.parametrize("world", [1, 3])
def test_steps_that_could_not_be_captured_train_like_others(findings, world):
    tries, expected = findings[world]["agreement"]
    assert {found[2] for ranks in tries for found in ranks} == {expected}


def test_gloo_is_not_captured(findings):
    assert findings["none"]["choices"][2:] == (True, False)
    for world, words in ((1, "on 1 rank,"), (3, "on 3 ranks,")):
        kind, chosen, capturable, in_group = findings[world]["choices"]
        assert (kind, capturable, in_group) == ("EagerTrainee", False, True)
        assert f"step by step, DistributedDataParallel {words}" in chosen


@pytest.mark.slow
def test_a_run_under_torchrun_with_one_rank_is_the_run_without(tmp_path):
    process = train(tmp_path / "torchrun", *SMALL, ranks=1)
    with ending(process):
        code, output, errors = end(process)
    assert code == 0, errors
    assert "DistributedDataParallel on 1 rank," in output
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = ["filter=paper", *SETTINGS, *SMALL]
    train_alone(get_recipe("digits").override(settings), tmp_path / "alone", quiet=True)
    torch.set_num_threads(threads)
    assert result(tmp_path / "torchrun") == result(tmp_path / "alone")
