"""What can be trained and measured, whatever it runs on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from particleaugment.policies.base import Policy
from particleaugment.policies.particles import ParticlePolicy

__all__ = ["Progress", "Trainee"]

Progress = Callable[[str, int, int], None]
"""Told the phase, the batches done and their number after every batch; may raise to stop the step."""


class Trainee(Protocol):
    """A network that can be trained on samples by id and measured under particles, whatever it runs on."""

    @property
    def model(self) -> nn.Module:
        """The network."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimizer."""
        ...

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Its GradScaler, or None."""
        ...

    @property
    def batches_done(self) -> int:
        """Batches of the present (or last) call of ``train``, those before ``start`` included."""
        ...

    @property
    def loss_sum(self) -> float:
        """Sum of the losses over those batches, the given start value included."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Put accumulated gradients aside while a clone trains."""
        ...

    def train(
        self,
        policy: Policy,
        ids: Tensor,
        epoch_key: int,
        *,
        progress: Progress,
        phase: str = "train",
        start: int = 0,
        loss_sum: float = 0.0,
    ) -> float:
        """Train on samples in the order given, under a policy, from batch ``start`` on; return the sum of losses."""
        ...

    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Return losses under each particle, float64 ``[r, N]``, and on the plain images, ``[N]``."""
        ...
