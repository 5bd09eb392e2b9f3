"""What can be trained and measured, whatever it runs on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.policy import Policy

__all__ = ["Progress", "Trainee", "silent"]

Progress = Callable[[str, int, int], None]
"""Called with the phase, the batches done and their number, after every batch or, where a word between ranks would hold
up the device, after several; may raise to stop the step."""


def silent(phase: str, done: int, total: int) -> None:
    """Show no progress."""


class Trainee(Protocol):
    """A network that can be trained on samples by id, measured and evaluated, whatever it runs on."""

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
        """Sum of the losses over those batches, the given start value included.

        Raises NonFiniteLoss if it is infinite or not a number.
        """
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
        """Train on samples in the order given, under a policy, from batch ``start`` on; return the sum of losses.

        Divided by the number of samples that is the mean training loss under augmentation, at no cost of its own.
        """
        ...

    def losses(self, ids: Tensor, *, progress: Progress = silent, phase: str = "measure") -> Tensor:
        """Return the loss of each plain training image, float64 ``[N]`` on the CPU: one forward pass per image."""
        ...

    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Return losses under each particle, float64 ``[r, N]``, and on the plain images, ``[N]``."""
        ...

    def evaluate(self, count: int | None = None, progress: Progress = silent) -> tuple[float, float]:
        """Return mean loss and accuracy in percent on the first ``count`` test images, or on all."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Put accumulated gradients aside while a clone trains."""
        ...

    def close(self) -> None:
        """Let go of what outlives a step: processes that decode images, and steps captured with sums over ranks."""
        ...
