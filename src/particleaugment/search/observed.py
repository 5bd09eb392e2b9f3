"""The mean training loss of an epoch, from the losses that a loop hands over batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from particleaugment.trainee.ranks import Ranks

__all__ = ["ObservedLosses"]

Share = tuple[float, int]
"""Sum and number of the losses of one rank."""


class ObservedLosses:
    """Losses of an epoch, summed on their device without waiting for it.

    >>> observed = ObservedLosses()
    >>> observed.add(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> observed.mean(Ranks(), of=6, epoch=1)
    2.5
    """

    def __init__(self) -> None:
        self._set(0.0, 0)

    def _set(self, total: float, count: int) -> None:
        self._total = torch.tensor(float(total), dtype=torch.float64, device="cpu")
        self._count = int(count)
        self._shares: tuple[Share, ...] = ()  # those of all ranks, while nothing was added since they were gathered
        self._augmented = 0

    def clear(self) -> None:
        """Forget all losses, at the beginning of an epoch."""
        self._set(0.0, 0)

    def expect(self, samples: int) -> None:
        """Note that so many samples were augmented: an epoch need not have all of the data set."""
        self._augmented += samples

    def add(self, ids: Tensor, losses: Tensor) -> None:
        """Add a batch's losses: one per sample, or their mean."""
        if not isinstance(losses, Tensor) or losses.is_complex():
            kind = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
            raise TypeError(f"search.observe takes a tensor of losses, got {kind}")
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
        self._shares = ()

    def mean(self, ranks: Ranks, of: int, epoch: int) -> float:
        """Return the mean over all ranks, or raise a ValueError if it is of less than half of the samples.

        These are ``of``, or as many as were augmented where that is known and less. A loader that drops its last batch
        still has more than half of them.
        """
        total, count, augmented = ranks.sum(*self._share(), self._augmented)
        of = min(of, int(augmented) or of)
        if 2 * count < of or not count:
            raise ValueError(
                f"the filter needs the training losses, but epoch {epoch} observed {int(count)} of {of} samples; call "
                "search.observe(ids, losses) for every training batch"
            )
        return total / count

    def gather(self, ranks: Ranks) -> None:
        """Let this rank know the shares of all, which must call this too."""
        shares = ranks.gather(torch.tensor(self._share(), dtype=torch.float64, device="cpu"))
        self._shares = tuple((total, int(count)) for total, count in (share.tolist() for share in shares))

    def state(self, ranks: Ranks) -> tuple[Share | None, ...]:
        """Return the share of each rank, None where it is not known; empty without any. Waits for the device.

        Args:
            ranks: This process's place among those that observe. Nothing is sent.
        """
        if len(self._shares) == ranks.world:
            return self._shares
        if self._count == 0:
            return ()
        own = self._share()
        return tuple(own if rank == ranks.rank else None for rank in range(ranks.world))

    def restore(self, shares: Sequence[Share | None], ranks: Ranks) -> None:
        """Continue from :meth:`state`, on every rank with its own share.

        Where that share is not known, the known ones stand in for it. Where there are more or fewer ranks now, rank 0
        takes all shares, which leaves the mean as it is.

        >>> observed = ObservedLosses()
        >>> observed.restore([(6.0, 3), (1.0, 1)], Ranks(rank=1, world=2))
        >>> observed.state(Ranks(rank=1, world=2))
        (None, (1.0, 1))
        >>> observed.restore([(6.0, 3), (1.0, 1)], Ranks())
        >>> observed.state(Ranks())
        ((7.0, 4),)
        """
        # A state of an earlier version has two numbers here, of a rank that is not known; these are left out.
        shares = [share if isinstance(share, Sequence) else None for share in shares]
        known = [share for share in shares if share is not None]
        own = shares[ranks.rank] if len(shares) == ranks.world else None
        if own is not None:
            self._set(*own)
        elif len(shares) == ranks.world or ranks.first:
            each = 1 if len(shares) == ranks.world else len(shares)
            self._set(
                each * sum(total for total, _ in known) / max(1, len(known)),
                each * sum(count for _, count in known) // max(1, len(known)),
            )
        else:
            self.clear()

    def _share(self) -> Share:
        return (float(self._total) if self._count else 0.0), self._count
