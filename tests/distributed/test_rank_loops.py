"""Other people's training loops on two real ranks: one search, whose work is shared out."""

import math
import subprocess
import sys
from pathlib import Path

import loops
import pytest
import torch
from launch import LIMIT, ranks_together

pytestmark = pytest.mark.filterwarnings("ignore")


LIGHTNING = str(Path(__file__).with_name("lightning_loops.py"))


def findings(loop, folder, pattern="{}.pt", script=loops.__file__, imports=()):
    code, _, errors = ranks_together(script, loop, folder, imports=imports)
    assert code == 0, errors
    return [torch.load(folder / pattern.format(rank)) for rank in range(2)]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return findings("own", tmp_path_factory.mktemp("own"))


def test_a_loop_of_ones_own_keeps_one_policy_and_its_network(own):
    first, second = own
    assert first["restored"] == second["restored"] == [True] * 3
    assert first["states"] == second["states"]
    assert len(set(first["states"])) == 3, "the policy moved at every step"
    assert first["networks"] == second["networks"]
    assert len(set(first["networks"])) == 3


@pytest.mark.parametrize("how", ["measured", "measured wrapped"])
def test_steps_find_what_one_process_finds(own, how):
    alone = loops.measured(world=1)
    for found in own:
        for name in ("clone", "held out", "statistics"):
            for here, there in zip(found[how][name], alone[name]):
                torch.testing.assert_close(torch.as_tensor(here), torch.as_tensor(there), rtol=1e-6, atol=1e-6)


def test_ranks_that_were_given_other_seeds_are_told(own):
    message = (
        "the search on rank 1 differs from that on rank 0 before filter step 1; create the search with the same seed"
    )
    for found in own:
        assert found["other seeds"].startswith(message)
        assert found["other batches"].startswith(message)
        assert found["other data"].startswith(message)
        assert found["shards"].startswith("filter steps do not support sharded models (FSDP, tensor")
    assert own[0]["alone"] != own[1]["alone"], "a process may search on its own"


def test_steps_leave_no_trace_in_the_wrapper_that_trains(own):
    (kept, first), (also_kept, second) = (found["another head"] for found in own)
    assert kept
    assert also_kept
    assert first == second


def test_a_share_of_one_image_does_not_stop_batch_norm(own):
    first, second = (found["shares of one"] for found in own)
    assert first == second
    assert all(math.isfinite(d0) for d0 in first)


def test_a_sampler_that_is_made_once_gives_each_rank_its_samples_in_every_epoch(own):
    (first, unseen, state), (second, _, other_state) = (found["held out"] for found in own)
    assert state == other_state
    for epoch in (1, 2, 3, 4, 5):
        together = set(first[epoch] + second[epoch])
        assert len(together) == (48 if epoch == 5 else 37)
        assert len(first[epoch]) == len(second[epoch]) == 24
        assert bool(together & set(unseen)) == (epoch == 5), "the last fifth alone trains on them"


def test_losses_that_ranks_observe_are_averaged_over_all(own):
    for told, expected in (found["observed"] for found in own):
        assert told == [pytest.approx(expected, rel=1e-12)]


def test_the_difficulty_filter_finds_on_two_ranks_what_it_finds_on_one(own):
    alone, _ = loops.steered()
    assert len({strength for *_, strength in alone}) > 2, "it is steered"
    (first, state), (second, other_state) = (found["steered"] for found in own)
    assert first == second
    assert state == other_state
    for here, there in zip(first, alone):
        assert here == pytest.approx(there, rel=1e-9)


def test_losses_of_all_ranks_survive_a_save_within_an_epoch(own):
    for found in own:
        assert found["steered, interrupted"] == found["steered"], "bit for bit"


def test_batch_norm_that_uses_the_batch_sees_the_same_batch_on_any_number_of_ranks(own):
    first, second = (found["own statistics"] for found in own)
    assert first == second
    assert first == pytest.approx(loops.own_statistics(0, 1), rel=1e-6)


def test_images_without_ids_are_drawn_apart(own):
    first, second = (found["without ids"] for found in own)
    assert len(set(first)) > 6
    assert first != second


def test_lightning_keeps_one_policy_on_all_ranks_and_resumes(tmp_path):
    pytest.importorskip("lightning", reason="needs lightning: pip install 'particleaugment[lightning]'")
    first, second = findings("launched", tmp_path, "straight-{}.pt", LIGHTNING, ["lightning"])
    for found in (first, second):
        assert (found["steps"], found["epochs"], found["pixels"]) == (3, 4, True)
    assert sorted(first["ids"] + second["ids"]) == list(range(48)), "ranks see each sample once"
    assert (first["state"], first["network"]) == (second["state"], second["network"])
    for rank in range(2):
        resumed = torch.load(tmp_path / f"resumed-{rank}.pt")
        assert (resumed["state"], resumed["network"]) == (first["state"], first["network"])
    saved = torch.load(tmp_path / "within.ckpt", weights_only=True)["callbacks"]
    shares = next(state["observed"] for state in saved.values() if "observed" in state)
    assert [count for _, count in shares] == [18, 18], "what both ranks have observed in three batches"


def test_processes_that_lightning_starts_itself(tmp_path):
    pytest.importorskip("lightning", reason="needs lightning: pip install 'particleaugment[lightning]'")
    command = [sys.executable, LIGHTNING, "spawned", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"straight-{rank}.pt") for rank in range(2))
    assert first["steps"] == second["steps"] == 3
    assert first["pixels"]
    assert second["pixels"]
    assert (first["own epoch"], second["own epoch"]) == (100, 101), "no memory that the other writes to"
    assert (first["state"], first["network"]) == (second["state"], second["network"])


def test_hugging_face_keeps_one_policy_on_all_ranks_and_resumes(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers: pip install 'particleaugment[transformers]'")
    first, second = findings("transformers", tmp_path, imports=["transformers.trainer"])
    assert first["world"] == 2
    for filter in ("paper", "difficulty"):
        kept = [found[filter, how] for found in (first, second) for how in ("straight", "resumed")]
        assert kept == [kept[0]] * 4, f"{filter}: resumed between epochs (paper) or within one (difficulty)"
        assert kept[0]["steps"] == 3
