"""What of an augmentation changes while workers of a data loader run, in memory that they share.

A worker holds a copy of the data set from the moment it was started. Whatever changes afterwards in the main process
never reaches it, except through shared memory: the epoch, the particles and their weights. The counters that stand in
for sample ids are there too, one per worker, so that workers that are restarted in each epoch continue where the last
ones stopped; and so is the last epoch in which an image was augmented, which a search asks for.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from particleaugment.policies.policy import Policy
from particleaugment.util.shared_memory import ordinary_tensors, sharing

__all__ = ["LiveState"]

MAX_WORKERS = 1023
_EPOCH, _VERSION, _GENERATION, _RANK, _USED, _COUNTERS = 0, 1, 2, 3, 4, 5


_counting = threading.Lock()


def _count_anew() -> None:
    """Let a forked process count: the thread that held the lock may not have come along."""
    global _counting
    _counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_anew)


class LiveState:
    """Epoch, counters and policy of an augmentation; every process that holds a copy sees the same.

    A particle policy of the same form reaches all of them. A policy of another kind cannot: running workers then raise
    instead of going on with the old one.

    >>> import particleaugment as pa
    >>> state = LiveState(pa.TrivialAugment())
    >>> state.epoch = 3
    >>> state.epoch, state.policy
    (3, TrivialAugment(space='wide', resample='default'))
    """

    _policy: Policy
    _generation: int
    _version: int
    _block: Tensor | None

    @ordinary_tensors()
    @sharing()
    def __init__(self, policy: Policy):
        self._numbers: Tensor = torch.zeros(
            _COUNTERS + 1 + MAX_WORKERS, dtype=torch.int64, device="cpu"
        ).share_memory_()
        self._look: NDArray[np.int64] = self._numbers.numpy()  # the same memory: reading it there takes no tensor
        self._note_rank()
        self._install(policy)

    @property
    def epoch(self) -> int:
        """The epoch, part of every draw's key."""
        return int(self._look[_EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._numbers[_EPOCH] = epoch
        self._note_rank()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        if self._look[_GENERATION] != self._generation:
            raise RuntimeError(
                "the policy was replaced by one of another type, which running workers cannot see; "
                "create a new DataLoader, or use persistent_workers=False"
            )
        if self._look[_VERSION] != self._version:
            self._refresh()
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        numbers = policy.numbers()
        if self._block is None or numbers is None or not _same_form(self._policy, policy, numbers):
            self._numbers[_GENERATION] += 1
            self._install(policy)
            return
        # An odd version says that the block is being written.
        self._numbers[_VERSION] += 1
        self._block.copy_(numbers)
        self._numbers[_VERSION] += 1
        self._policy, self._version = policy, int(self._numbers[_VERSION])

    @property
    def used_in(self) -> int:
        """The last epoch in which any process has augmented an image, as far as :meth:`note_use` was called."""
        return int(self._look[_USED])

    @used_in.setter
    def used_in(self, epoch: int) -> None:
        self._numbers[_USED] = epoch

    def note_use(self) -> None:
        """Note that images are augmented in the present epoch."""
        if self.used_in != self.epoch:
            self.used_in = self.epoch

    def next_ids(self, count: int) -> Tensor:
        """Return ids that no earlier call, no other worker and no other rank of ``torch.distributed`` has had."""
        start = self.next_id(count)
        return torch.arange(start, start + count, device="cpu")

    def next_id(self, count: int = 1) -> int:
        """Return the first of so many further ids; see :meth:`next_ids`."""
        self._note_rank()
        worker = get_worker_info()
        slot = 0 if worker is None else worker.id + 1
        with _counting:  # threads of a process share a counter
            start = int(self._look[_COUNTERS + slot]) + (slot << 40) + (int(self._look[_RANK]) << 50)
            self._look[_COUNTERS + slot] += count
        return start

    @property
    def counters(self) -> Tensor:
        """Ids given out so far by the main process and by each worker, as far as any is above 0."""
        counters: Tensor = self._numbers[_COUNTERS:]
        used = counters.nonzero()
        return counters[: int(used.max()) + 1 if len(used) else 1].clone()

    @counters.setter
    def counters(self, counters: Tensor) -> None:
        self._numbers[_COUNTERS:] = 0
        self._numbers[_COUNTERS : _COUNTERS + len(counters)] = counters

    def _note_rank(self) -> None:
        """Write the rank down where workers, which cannot ask for it, find it."""
        if get_worker_info() is None:
            self._look[_RANK] = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    @ordinary_tensors()
    @sharing()
    def _install(self, policy: Policy) -> None:
        self._policy = policy
        self._generation, self._version = int(self._numbers[_GENERATION]), int(self._numbers[_VERSION])
        numbers = policy.numbers()
        self._block = None if numbers is None else numbers.share_memory_()

    @ordinary_tensors()
    def _refresh(self) -> None:
        assert self._block is not None
        while True:
            before = int(self._numbers[_VERSION])
            block = self._block.clone()
            if before % 2 == 0 and int(self._numbers[_VERSION]) == before:
                break
        self._policy = self._policy.with_numbers(block)
        self._version = before

    def __deepcopy__(self, memo: dict[int, Any]) -> LiveState:
        copy = LiveState(self.policy)
        copy._numbers[_RANK] = self._numbers[_RANK]
        copy.epoch, copy.used_in, copy.counters = self.epoch, self.used_in, self.counters
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_look"}

    @ordinary_tensors()
    @sharing()
    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy by handle, as for a worker, is shared already; one by value, from a file, is to be shared anew.
        self.__dict__.update(state)
        for tensor in (self._numbers, self._block):
            if tensor is not None and not tensor.is_shared():
                tensor.share_memory_()
        self._look = self._numbers.numpy()


def _same_form(old: Policy, new: Policy, numbers: Tensor) -> bool:
    """Whether policies differ in their numbers alone, so that the new one can take the old one's place in the block."""
    block = old.numbers()
    same_kind = type(old) is type(new) and block is not None and block.shape == numbers.shape
    return same_kind and old.with_numbers(numbers) == new
