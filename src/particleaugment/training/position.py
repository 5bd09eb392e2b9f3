"""Where a run stands, and the learning rate there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from particleaugment.training.config import Config

__all__ = ["EVALUATE", "FILTER", "TRAIN", "Position", "learning_rate"]

TRAIN, EVALUATE, FILTER = "train", "evaluate", "filter"


@dataclass
class Position:
    """Where a run stands: the epoch (from 1), its phase, and within training the batches done and their loss.

    Attributes:
        epoch: The epoch being trained, counted from 1.
        phase: ``train``, ``evaluate`` or ``filter``.
        batch: Training batches done in this epoch.
        loss_sum: Sum over those batches of the samples' losses.
        metrics_bytes: Size of ``metrics.jsonl`` up to here.
    """

    epoch: int = 1
    phase: str = TRAIN
    batch: int = 0
    loss_sum: float = 0.0
    metrics_bytes: int = 0


def learning_rate(config: Config, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 1: cosine decay to 0, by epoch."""
    return 0.5 * config.training.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / config.training.epochs))
