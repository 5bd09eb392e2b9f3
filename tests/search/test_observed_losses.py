"""The training losses that a loop observes: kept on each rank, saved by one of them, restored on any number."""

import pytest
import torch

from particleaugment.search.observed import ObservedLosses
from particleaugment.trainee.ranks import Ranks


def ranks_of(world):
    return [Ranks(rank, world) for rank in range(world)]


def observing(*losses):
    observed = ObservedLosses()
    for loss in losses:
        observed.add(torch.arange(1), torch.tensor([loss], dtype=torch.float64))
    return observed


def restored(shares, world):
    found = []
    for ranks in ranks_of(world):
        observed = ObservedLosses()
        observed.restore(shares, ranks)
        found.append(observed._share())
    return found


def test_what_a_rank_knows_is_its_own_share_until_shares_are_gathered(monkeypatch):
    first, second = ranks_of(2)
    one, other = observing(1.0, 2.0), observing(7.0)
    assert one.state(first) == ((3.0, 2), None)
    assert other.state(second) == (None, (7.0, 1))
    shares = [torch.tensor(each._share(), dtype=torch.float64) for each in (one, other)]
    monkeypatch.setattr(Ranks, "gather", lambda ranks, value: shares)
    one.gather(first)
    assert one.state(first) == ((3.0, 2), (7.0, 1))
    one.add(torch.arange(1), torch.tensor([1.0]))
    assert one.state(first) == ((4.0, 3), None), "what others have observed meanwhile is not known"
    one.clear()
    assert one.state(first) == ()


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_rank_takes_its_own_share(world):
    shares = [(0.1 * rank, rank) for rank in range(world)]
    assert restored(shares, world) == [(0.1 * rank if rank else 0.0, rank) for rank in range(world)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_another_number_of_ranks_leaves_the_mean_as_it_is(world):
    found = restored([(6.0, 3), (1.0, 1), (2.0, 4)], world)
    assert sum(total for total, _ in found) == pytest.approx(9.0)
    assert sum(count for _, count in found) == 8


def test_shares_that_nobody_gathered_are_stood_in_for():
    assert restored([(6.0, 3), None], 2) == [(6.0, 3), (6.0, 3)]
    assert restored([None, (6.0, 3)], 1) == [(12.0, 6)]


@pytest.mark.parametrize("nothing", [(), (0.0, 0), [None, None]])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_nothing_was_observed(nothing, world):
    assert restored(nothing, world) == [(0.0, 0)] * world
