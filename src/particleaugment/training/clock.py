"""A run's time: what its phases have taken, and what an epoch should take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from particleaugment.data.split import batch_sizes
from particleaugment.training.config import Config
from particleaugment.training.moments import interval

__all__ = ["epoch_seconds", "timed"]


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time that a block takes to ``seconds[name]``, also if it raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def epoch_seconds(config: Config, trained: int, tested: int, per_train: float, per_forward: float) -> float:
    """Return what an epoch should take on average, its share of evaluations and filter steps included.

    Args:
        config: The run's configuration.
        trained: Training samples.
        tested: Test samples.
        per_train: Seconds to train on a sample.
        per_forward: Seconds of a sample's forward pass.
    """
    steps = len(batch_sizes(trained, config.batch_size))
    epoch = trained * per_train + tested * per_forward / interval(config.evaluate_every, config.epochs, steps)
    if not config.searches:
        return epoch
    work = config.filter().work(trained, len(config.ops))
    step = work.trained * per_train + work.forward * per_forward
    return epoch + step / interval(config.every, config.epochs, steps)
