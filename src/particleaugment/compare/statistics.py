"""The few statistics that a comparison needs, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

__all__ = ["PairedDifference", "mean", "paired_difference", "seeds_to_settle", "standard_deviation", "t_quantile"]

LEVEL = 0.95


def mean(values: Sequence[float]) -> float:
    """Return the mean.

    >>> mean([1.0, 2.0, 6.0])
    3.0
    """
    if not values:
        raise ValueError("the mean of no values is not defined")
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation (n - 1 in the denominator), or None for fewer than two values.

    >>> standard_deviation([1.0, 3.0])
    1.4142135623730951
    """
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution with a whole number of degrees of freedom.

    >>> round(t_quantile(0.975, 11), 4)
    2.201
    """
    if not 0 < probability < 1:
        raise ValueError(f"expected a probability between 0 and 1, got {probability}")
    if degrees < 1:
        raise ValueError(f"there must be at least one degree of freedom, got {degrees}")
    return float(stdtrit(degrees, probability))


@dataclass(frozen=True)
class PairedDifference:
    """How far one arm lies above another on the seeds that both have.

    Attributes:
        pairs: Seeds that both have.
        left_out: Seeds that only one of them has.
        mean: Mean difference.
        low: Lower end of the interval (95 % unless asked otherwise), or None if there is none (fewer than two pairs).
        high: Its upper end.
    """

    pairs: int
    left_out: int
    mean: float
    low: float | None = None
    high: float | None = None


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL
) -> PairedDifference | None:
    """Return the mean difference with its t-interval over paired seeds, or None where no seed is shared.

    Args:
        ours: Value by seed.
        theirs: Value by seed, to be subtracted.
        level: How often the interval is to hold the true difference.

    >>> paired_difference({0: 2.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 2.0})
    PairedDifference(pairs=2, left_out=1, mean=1.5, low=-4.853..., high=7.853...)
    """
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    left_out = len(ours.keys() ^ theirs.keys())
    differences = [ours[seed] - theirs[seed] for seed in shared]
    centre, deviation = mean(differences), standard_deviation(differences)
    if deviation is None:
        return PairedDifference(len(shared), left_out, centre)
    half = t_quantile((1 + level) / 2, len(shared) - 1) * deviation / math.sqrt(len(shared))
    return PairedDifference(len(shared), left_out, centre, centre - half, centre + half)


def seeds_to_settle(difference: PairedDifference, most: int = 50) -> int | None:
    """Return how many seeds give a 95 % interval without 0 if mean and deviation stay as they are.

    A rough figure, since a deviation over a few pairs is one.

    Args:
        difference: A difference with its 95 % interval.
        most: Return None where more are needed.

    >>> seeds_to_settle(PairedDifference(3, 0, 0.5, -0.25, 1.25))
    4
    """
    if difference.low is None or difference.high is None or difference.mean == 0:
        return None
    half = (difference.high - difference.low) / 2
    deviation = half * math.sqrt(difference.pairs) / t_quantile((1 + LEVEL) / 2, difference.pairs - 1)
    for seeds in range(2, most + 1):
        if t_quantile((1 + LEVEL) / 2, seeds - 1) * deviation / math.sqrt(seeds) < abs(difference.mean):
            return seeds
    return None
