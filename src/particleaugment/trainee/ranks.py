"""Ranks: the processes that share a run's work, and the few things that they tell each other.

A run in one process is the case of one rank: every method below then hands back what it was given. Numbers are gathered
and combined in the order of ranks, so that every rank holds the same bits.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["RankError", "Ranks", "ReportedByFirst", "fingerprint"]

T = TypeVar("T")


class RankError(RuntimeError):
    """Another rank has failed, and this one stops with it."""


class ReportedByFirst(RankError):
    """All ranks know of an error, and rank 0 reports it."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among those that share a run.

    Attributes:
        rank: Its number, from 0.
        world: How many there are.
        device: Where tensors are put to travel: a GPU for NCCL, ``cpu`` for gloo.
        group: Whether there is a process group although this is the only rank, as under torchrun.

    >>> Ranks(rank=1, world=3).share(torch.arange(8)).tolist()
    [1, 4, 7]
    """

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    group: bool = False

    @classmethod
    def together(cls, device: torch.device | None = None) -> Self:
        """Return the place in torch.distributed's default group, or that of a process on its own if there is none.

        Args:
            device: This rank's own, where tensors travel that cannot from the CPU; by default the current GPU.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        by_cpu = "cpu:" in dist.get_backend_config()
        return cls(dist.get_rank(), dist.get_world_size(), "cpu" if by_cpu else str(device or "cuda"), group=True)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes files and shows progress."""
        return self.rank == 0

    @property
    def in_group(self) -> bool:
        """Whether the network trains under DistributedDataParallel; a group of one rank gives the bits of none."""
        return self.group or self.world > 1

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the sums over ranks: those of NCCL, and none at all."""
        if not self.in_group:
            return True
        return dist.is_initialized() and "cuda:nccl" in str(dist.get_backend_config())

    # Sharing out.

    def share(self, items: Tensor) -> Tensor:
        """Return every ``world``-th item from number ``rank`` on; the shares of all ranks hold each item once."""
        return items[self.rank :: self.world]

    def share_of_batch(self, ids: Tensor) -> tuple[Tensor, float]:
        """Return this rank's samples of a training batch and the weight of their mean loss.

        The mean over ranks of weight times mean loss is the mean over the whole batch, whatever the remainder. A rank
        for which the batch has nothing left computes its first sample with weight 0, since every rank must take part.

        >>> [Ranks(rank, 3).share_of_batch(torch.tensor([7, 8, 9, 10])) for rank in range(3)]
        [(tensor([ 7, 10]), 1.5), (tensor([8]), 0.75), (tensor([9]), 0.75)]
        >>> Ranks(2, 3).share_of_batch(torch.tensor([7, 8]))
        (tensor([7]), 0.0)
        """
        mine = self.share(ids)
        if len(mine) == 0:
            return ids[:1], 0.0
        return mine, len(mine) * self.world / len(ids)

    def largest_share(self, count: int) -> int:
        """Return the size of rank 0's share of ``count`` items, which no other exceeds."""
        return -(-count // self.world)

    def collect(self, shares: Tensor, count: int) -> Tensor:
        """Put the shares of all ranks together along the last dimension: the inverse of :meth:`share`."""
        if self.world == 1:
            return shares
        padded = shares.new_zeros(*shares.shape[:-1], self.largest_share(count))
        padded[..., : shares.shape[-1]] = shares
        whole = shares.new_empty(*shares.shape[:-1], count)
        for rank, part in enumerate(self.gather(padded)):
            place = whole[..., rank :: self.world]
            place.copy_(part[..., : place.shape[-1]])
        return whole

    # Telling each other.

    def gather(self, value: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, of one shape and on the CPU, in the order of ranks."""
        if self.world == 1:
            return [value]
        value = value.to(self.device).contiguous()
        parts = [torch.empty_like(value) for _ in range(self.world)]
        dist.all_gather(parts, value)
        return list(torch.stack(parts).cpu())

    def sum(self, *values: float) -> list[float]:
        """Return the sums over all ranks, added up in the order of ranks."""
        parts = self.gather(torch.tensor(values, dtype=torch.float64, device="cpu"))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total.tolist()  # type: ignore[no-any-return]

    def mean_on_device(self, value: Tensor) -> Tensor:
        """Return the mean over ranks of a number, without waiting for the device; the same bits on every rank."""
        if not self.in_group:
            return value
        parts = value.new_empty(self.world)
        dist.all_gather(list(parts.split(1)), value.reshape(1))
        return parts.sum() / self.world

    def largest(self, value: int) -> int:
        """Return the largest of all ranks' numbers."""
        return max(int(part) for part in self.gather(torch.tensor(value, device="cpu")))

    def gather_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks, in the order of ranks."""
        if self.world == 1:
            return [text]
        texts = [""] * self.world
        dist.all_gather_object(texts, text)
        return texts

    def on_first(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 and give its result to all; if it fails, it fails on all."""
        if self.world == 1:
            return work()
        reply: list[Any] = [None, None]
        error: Exception | None = None
        if self.first:
            try:
                reply[0] = work()
            except Exception as caught:
                error, reply[1] = caught, str(caught)
        dist.broadcast_object_list(reply, src=0)
        if error is not None:
            raise error
        if reply[1] is not None:
            raise ReportedByFirst(reply[1])
        return reply[0]  # type: ignore[no-any-return]

    def everywhere(self, work: Callable[[], T]) -> T:
        """Do something without a word between ranks on every rank; if it fails on one, it fails on all.

        Rank 0 raises its own error or, if it has none, a :class:`RankError` that names a rank that has and its host.
        """
        if self.world == 1:
            return work()
        error: Exception | None = None
        message = ""
        try:
            result = work()
        except Exception as caught:
            error = caught
            message = f"{str(caught) or type(caught).__name__} (rank {self.rank} on {socket.gethostname()})"
        failures = [text for text in self.gather_texts(message) if text]
        if failures:
            raise self.common(error or RankError(failures[0]))
        return result

    def first_failure(self, work: Callable[[], object]) -> str:
        """Do something on every rank and return, on all, what the first rank that failed says, or nothing.

        Where it fails on some ranks only, the others must come to its end without them.
        """
        try:
            work()
            message = ""
        except Exception as error:
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            message += f" (rank {self.rank})" if self.world > 1 else ""
        return next((text for text in self.gather_texts(message) if text), "")

    def common(self, error: Exception) -> Exception:
        """Return what to raise for an error that all ranks have found, so that it is reported once."""
        return error if self.first else ReportedByFirst(str(error))

    def differing(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the ranks on which tensors, compared by their hash, are not those of rank 0."""
        if self.world == 1:
            return []
        own = torch.tensor(list(bytes.fromhex(fingerprint(tensors))), dtype=torch.uint8, device="cpu")
        prints = self.gather(own)
        return [rank for rank, other in enumerate(prints) if not torch.equal(other, prints[0])]

    # Training together.

    def parallel(self, model: nn.Module) -> nn.Module:
        """Return the model wrapped for training (DDP): its backward pass leaves the mean of the ranks' gradients."""
        return nn.parallel.DistributedDataParallel(model) if self.in_group else model

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave the mean over ranks of the gradients, also where a parameter was used on some ranks only, or on none.

        For networks that DistributedDataParallel may hold already: unlike a second wrapper this asks nothing of which
        parameters a pass uses, and leaves no trace in the first.
        """
        if self.world == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        own = [parameter.grad is not None for parameter in trained]
        have = self.gather(torch.tensor(own, dtype=torch.uint8, device="cpu"))
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for parameter, used in zip(trained, torch.stack(have).amax(0).tolist()):
            if used:
                gradient = parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                kinds.setdefault((gradient.dtype, gradient.device), []).append(gradient)
        for gradients in kinds.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / self.world
            dist.all_reduce(flat)
            for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(mean.view_as(gradient))

    @contextmanager
    def common_buffers(self, model: nn.Module) -> Iterator[None]:
        """Run a block with rank 0's buffers on all ranks, and give each its own back."""
        own = [(buffer, buffer.clone()) for buffer in model.buffers()] if self.world > 1 else []
        self.equalise_buffers(model)
        try:
            yield
        finally:
            for buffer, kept in own:
                buffer.copy_(kept)

    def equalise_buffers(self, model: nn.Module) -> None:
        """Give rank 0's buffers, such as the running statistics of batch norm, to all ranks.

        DistributedDataParallel does the same before every training pass, so this is due after the last one.
        """
        if self.world > 1:
            for buffer in model.buffers():
                given = buffer.contiguous()  # of a view with gaps, gloo would send the memory behind its first element
                dist.broadcast(given, src=0)
                if given is not buffer:
                    buffer.copy_(given)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a hash of tensors' bits and places; most of it is computed where they lie.

    >>> a, b = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    >>> fingerprint([a, b]) == fingerprint([a.clone(), b.clone()]), fingerprint([a, b]) == fingerprint([b, a])
    (True, False)
    >>> fingerprint([a]) == fingerprint([b]), fingerprint([a]) == fingerprint([a + 1e-45])
    (False, False)
    """
    return hashlib.sha256(repr([_number(tensor.detach()) for tensor in tensors]).encode()).hexdigest()


def _number(tensor: Tensor) -> int:
    """Sum the values' bits, each times an odd number of its own, modulo 2^64."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.reshape(-1).view(whole).to(torch.int64)
    return int((bits * (2 * torch.arange(len(bits), device=bits.device) + 1)).sum())
