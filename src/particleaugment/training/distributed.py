"""A run on several ranks, started by torchrun: joining in, stopping together, and noticing when ranks differ.

    torchrun --nproc-per-node 4 -m particleaugment train cifar10-wrn28-10

torchrun alone decides who takes part and starts the processes anew when one dies. How work is shared out is in
:mod:`particleaugment.trainee.ranks`. A process that was not started by torchrun is a world of one and opens no
connection; one that torchrun starts alone has a process group all the same, and gets the same bits.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from particleaugment.trainee.ranks import Ranks
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError
from particleaugment.util.stop import Stop, Stopped

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["StopTogether", "joined", "launched", "on_own_device", "require_same"]


_MEETING_SECONDS = 600
_LETTING_GO_SECONDS = 0.3


def launched() -> bool:
    """Whether torchrun has started this process, and would start it again after a failure."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the other ranks, as torchrun's environment says, and leave them at the end."""
    if not launched():
        yield Ranks()
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    launchers, rank, world = next(rendezvous("env://"))
    store = PrefixStore("particleaugment", launchers)
    store = PrefixStore(_agreed_name(store, rank, world), store)
    # Small numbers that the host needs travel over gloo; NCCL connects when the first tensor on a GPU does.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    try:
        yield Ranks(rank, world, group=True)
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            cause = str(error).partition(". ")[0]
            raise RunError(
                f"rank {rank} has lost contact with another rank ({cause}); the last checkpoint is kept"
            ) from error
        raise
    finally:
        dist.destroy_process_group()
        # gloo's threads let go of the last tensors a moment after the call that used them has returned. They need the
        # interpreter for it, and a process whose interpreter is ending by then aborts (pytorch#179291).
        time.sleep(_LETTING_GO_SECONDS)


def _agreed_name(store: Store, rank: int, world: int) -> str:
    """Return a name that exactly the processes now alive have agreed on, for their keys in the launcher's store.

    torchrun keeps its store when it starts workers anew, and a worker that reads the address of one that is dead cannot
    connect (pytorch#135712); its count of restarts is no help, since every node keeps its own. So each rank says
    hello with a number of its own, rank 0 offers a name together with the hellos it has seen, and the name holds once
    every rank has found its own hello in the offer and said so.
    """
    own, offered = uuid.uuid4().hex, ""
    store.set(f"hello/{rank}", own)
    deadline = time.monotonic() + _MEETING_SECONDS
    while time.monotonic() < deadline:
        if rank == 0 and store.check([f"hello/{other}" for other in range(world)]):
            hellos = ",".join(store.get(f"hello/{other}").decode() for other in range(world))
            if hellos != offered:
                offered = hellos
                store.set("offer", f"{uuid.uuid4().hex},{hellos}")
        if store.check(["offer"]):
            name, *hellos_seen = store.get("offer").decode().split(",")
            if len(hellos_seen) == world and hellos_seen[rank] == own:
                store.set(f"{name}/{rank}", own)
                if store.check([f"{name}/{other}" for other in range(world)]):
                    return name
        time.sleep(0.02)
    raise RunError(f"the other {world - 1} ranks did not connect within {_MEETING_SECONDS} seconds")


def on_own_device(ranks: Ranks, device: str) -> Ranks:
    """Make this rank's GPU the one that ``cuda`` means, and let numbers travel between GPUs."""
    if device != "cuda" or not launched() or not torch.cuda.is_available():
        return ranks
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"there are {os.environ['LOCAL_WORLD_SIZE']} ranks on this machine but only {count} GPUs; start torchrun "
            f"with --nproc-per-node {count}, or set device=cpu"
        )
    torch.cuda.set_device(local)
    return replace(ranks, device=f"cuda:{local}")


class StopTogether(Stop):
    """A stop asked of any rank is a stop of all, at the same batch; each check is a word between ranks."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        # Apart from the rank's own signal: the launcher sends each rank one, and the second would end it at once.
        self.agreed = 0

    def check(self) -> None:
        """Raise Stopped on every rank if a stop was asked of one."""
        self.agreed = self.ranks.largest(self.asked)
        if self.agreed:
            raise Stopped

    @property
    def exit_code(self) -> int:
        """The conventional exit code of the signal that stopped the run, the same on every rank."""
        return 128 + self.agreed if self.agreed else super().exit_code


def require_same(ranks: Ranks, what: str, where: str, tensors: Iterable[Tensor]) -> None:
    """Compare tensors across ranks by their hash and raise on every rank if they differ on one."""
    others = ranks.differing(tensors)
    if others:
        error = RunError(
            f"{what} on rank {', '.join(map(str, others))} differ from those on rank 0 {where}: nothing is saved; "
            "ranks must run the same versions on the same kind of machine, and if they do, one of them computes "
            "wrong numbers; continue from the last checkpoint with 'resume'"
        )
        raise ranks.common(error)
