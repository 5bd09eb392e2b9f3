"""A run on several ranks, started by torchrun: joining in, stopping together, and noticing when ranks differ.

    torchrun --nproc-per-node 4 -m particleaugment train cifar10-wrn28-10

torchrun alone decides who takes part and starts the processes anew when one dies. How work is shared out is in
:mod:`particleaugment.ranks`; a process that was not started by torchrun is a world of one and opens no connection.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from particleaugment.ranks import RankError, Ranks
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError
from particleaugment.training.stop import Stop, Stopped

__all__ = ["StopTogether", "fingerprint", "joined", "launched", "require_same", "use_own_device"]


def launched() -> bool:
    """Whether torchrun has started this process, and would start it again after a failure."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the other ranks, as torchrun's environment says, and leave them at the end."""
    if not launched() or os.environ.get("WORLD_SIZE") == "1":
        yield Ranks()
        return
    # Small numbers that the host needs travel over gloo; NCCL connects when the first tensor on a GPU does.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if not isinstance(error, RankError) and _is_of_connection(error):
            raise RunError(
                f"rank {dist.get_rank()} has lost the others, one of which has ended: {_first_line(error)}; "
                "what the last checkpoint holds is kept"
            ) from None
        raise
    finally:
        dist.destroy_process_group()


def use_own_device(device: str) -> None:
    """Make this rank's GPU the one that ``cuda`` means."""
    if device != "cuda" or not launched():
        return
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"there are {os.environ['LOCAL_WORLD_SIZE']} ranks on this machine but only {count} GPUs; start torchrun "
            f"with --nproc-per-node {count}, or set device=cpu"
        )
    torch.cuda.set_device(local)


class StopTogether(Stop):
    """A stop asked of any rank is a stop of all, at the same batch; each check is a word between ranks."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        # Apart from the rank's own signal: the launcher sends each rank one, and the second would end it at once.
        self.agreed = 0

    def check(self) -> None:
        """Raise Stopped on every rank if a stop was asked of one."""
        self.agreed = self.ranks.largest(self.signal_number)
        if self.agreed:
            raise Stopped

    @property
    def exit_code(self) -> int:
        """The conventional exit code of the signal that stopped the run, the same on every rank."""
        return 128 + self.agreed if self.agreed else super().exit_code


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a hash of tensors' bits and places; most of it is computed where they lie.

    >>> a, b = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    >>> fingerprint([a, b]) == fingerprint([a.clone(), b.clone()]), fingerprint([a, b]) == fingerprint([b, a])
    (True, False)
    >>> fingerprint([a]) == fingerprint([b]), fingerprint([a]) == fingerprint([a + 1e-45])
    (False, False)
    """
    return hashlib.sha256(repr([_number(tensor.detach()) for tensor in tensors]).encode()).hexdigest()


def require_same(ranks: Ranks, what: str, where: str, tensors: Iterable[Tensor]) -> None:
    """Compare tensors across ranks by their hash and raise on every rank if they differ on one."""
    prints = ranks.gather_texts(fingerprint(tensors) if ranks.world > 1 else "")
    others = [str(rank) for rank, text in enumerate(prints) if text != prints[0]]
    if others:
        error = RunError(
            f"{what} on rank {', '.join(others)} differ from those on rank 0 {where}: this is not saved; ranks must "
            "run the same versions on the same kind of machine, and if they do, one of them computes wrongly; continue "
            "from the last checkpoint with 'resume'"
        )
        raise ranks.common(error)


def _number(tensor: Tensor) -> int:
    """Sum the values' bits, each times an odd number of its own, modulo 2^64."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.reshape(-1).view(whole).to(torch.int64)
    return int((bits * (2 * torch.arange(len(bits), device=bits.device) + 1)).sum())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _is_of_connection(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)
