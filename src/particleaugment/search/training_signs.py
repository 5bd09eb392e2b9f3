"""Signs of how training goes, read off losses: the loss on new samples, the pace, and whether the network is sure."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["LEAST_LOSS", "averaged", "expected_loss", "lag", "loss_of_chance", "nothing_is_certain"]

KNOWING = 0.6
"""Share of the loss of chance below which a held-out loss shows that the network has learned much."""
DOUBT = 0.5
"""Share of the mean held-out loss above which even the easiest tenth of the samples are in doubt."""
FEWEST_IN_DOUBT = 10
"""Held-out samples from which their easiest tenth says something."""
FARTHEST = 2.5
"""Cap on a single held-out loss, as a multiple of their mean; chance is the cap where that is higher."""
LEARNED = 0.3
"""Share by which the training loss should have fallen below chance once that share of training is done."""
_GRACE = 0.03  # of training, before which nothing can be said about its pace
LEAST_LOSS = 1e-6


def averaged(loss: float, average: float, memory: float) -> float:
    """Return the average after one more held-out loss, in which a jump counts as a factor of 3 at most.

    >>> averaged(2.0, average=0.0, memory=10), averaged(2.0, average=1.0, memory=10), averaged(50.0, 1.0, memory=10)
    (2.0, 1.1, 1.2)

    Args:
        loss: The loss of the held-out samples.
        average: The average so far; 0 before the first.
        memory: Over how many losses it is averaged.
    """
    if average == 0:
        return max(loss, LEAST_LOSS)
    change = max(1 / 3, min(3.0, loss / average)) - 1
    return max(average * (1 + change / max(1.0, memory)), LEAST_LOSS)


def lag(training_loss: float, chance: float, done: float) -> float:
    """Return how far training is behind its time, from -1 to 0, or infinity where it is not.

    When a share of training is done, the training loss should have fallen from chance by that share, up to
    :data:`LEARNED`. Runs that are long enough for augmentation are always ahead of that.

    >>> lag(training_loss=2.0, chance=2.3, done=0.1), lag(training_loss=2.2, chance=2.3, done=0.1)
    (inf, -0.565...)
    """
    due = min(done, LEARNED)
    if done < _GRACE:
        return math.inf
    behind = (1 - training_loss / chance) / due - 1
    return max(-1.0, behind) if behind < 0 else math.inf


def loss_of_chance(labels: Tensor) -> float:
    """Return the cross-entropy of guessing among the classes evenly; infinity where there is one class.

    >>> loss_of_chance(Tensor([0, 1, 1, 0]))
    0.693...
    """
    classes = len(labels.unique())
    return math.log(classes) if classes > 1 else math.inf


def expected_loss(losses: Tensor, chance: float) -> float:
    """Return the loss to expect of new samples, from the losses of a few.

    The mean of a few losses is often far off. If a good network gets all of them right, the mean is far too low, so one
    imaginary sample at chance is added. If it gets one of them badly wrong, the mean is too high for as long as that
    sample is held out, so each loss is capped at 2.5 times the mean, or at chance if that is higher.

    >>> expected_loss(Tensor([0.0, 0.0, 0.0]), chance=2.0), expected_loss(Tensor([1.0, 2.0]), chance=math.inf)
    (0.5, 1.5)
    >>> expected_loss(Tensor([9.0] + [0.0] * 8), chance=2.0)
    0.45
    """
    if math.isinf(chance):
        return float(losses.mean())
    counted = losses.clamp(max=max(chance, FARTHEST * float(losses.mean())))
    return (float(counted.sum()) + chance) / (len(losses) + 1)


def nothing_is_certain(losses: Tensor, chance: float) -> bool:
    """Return whether no held-out sample is easy for a network that has learned much.

    A network in training is soon sure of its easiest samples, long before it has learned the hard ones. If it is not,
    it cannot tell some classes apart at all: probably, augmentation hides what tells them apart.

    >>> nothing_is_certain(Tensor([0.1] * 5 + [2.0] * 15), chance=4.0)
    False
    >>> nothing_is_certain(Tensor([1.1] * 20), chance=4.0), nothing_is_certain(Tensor([3.9] * 20), chance=4.0)
    (True, False)

    Args:
        losses: Loss of each held-out sample.
        chance: Loss of a network that has learned nothing; infinity if unknown, and then the answer is no.
    """
    if math.isinf(chance) or len(losses) < FEWEST_IN_DOUBT:
        return False
    mean = float(losses.mean())
    return mean < KNOWING * chance and float(losses.quantile(0.1)) > DOUBT * mean
