"""The mean training loss of an epoch, from the losses that a loop hands over batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from particleaugment.trainee.ranks import Ranks

__all__ = ["ObservedLosses"]


class ObservedLosses:
    """Losses of an epoch, summed on their device without waiting for it.

    Args:
        total: Sum of the losses so far.
        count: How many they are.

    >>> observed = ObservedLosses()
    >>> observed.add(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> observed.mean(Ranks(), of=6, epoch=1)
    2.5
    """

    def __init__(self, total: float = 0.0, count: int = 0):
        self._total = torch.tensor(float(total), dtype=torch.float64, device="cpu")
        self._count = int(count)

    def clear(self) -> None:
        """Forget all losses, at the beginning of an epoch."""
        self._count = 0

    def add(self, ids: Tensor, losses: Tensor) -> None:
        """Add a batch's losses: one per sample, or their mean."""
        if losses.dim() == 2 and losses.shape[1] == 1:
            losses = losses.squeeze(1)
        if losses.shape not in ((), (len(ids),)):
            raise ValueError(
                f"search.observe takes one loss per sample, [{len(ids)}], or their mean, [], got "
                f"{tuple(losses.shape)}; average the other dimensions first"
            )
        losses = losses.expand(len(ids))
        wide = torch.float32 if losses.device.type == "mps" else torch.float64  # which has no float64
        if self._count == 0:
            self._total = torch.zeros((), dtype=wide, device=losses.device)
        self._total = self._total.to(losses.device, wide) + losses.detach().sum(dtype=wide)
        self._count += len(losses)

    def mean(self, ranks: Ranks, of: int, epoch: int) -> float:
        """Return the mean over all ranks, or raise a ValueError if it is of less than half of ``of`` samples.

        A loader that drops its last batch still has more than half of them.
        """
        total, count = ranks.sum(*self.state())
        if 2 * count < of:
            raise ValueError(
                f"the filter needs the training losses, and epoch {epoch} observed {int(count)} of {of} samples; call "
                "search.observe(ids, losses) for every training batch"
            )
        return total / count

    def state(self) -> tuple[float, int]:
        """Return sum and number of the losses; waits for the device."""
        return (float(self._total) if self._count else 0.0), self._count
