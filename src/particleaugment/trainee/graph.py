"""Training on a CUDA device: the whole step, from sample ids to updated weights, is one captured graph.

The data set is on the device as uint8. A replay takes the next ids of the epoch's order, draws and augments them in
the fused kernel, runs the network forward and backward and steps the optimizer; nothing waits for the host. The clone
of a filter step is trained by replaying the same graph, since snapshot and restore work in place.

Several ranks capture the step under DistributedDataParallel, NCCL's sums among it: see
:mod:`particleaugment.trainee.parallel`. Each size of batch is captured on every rank with the rank's own share of it.
Whether a capture is possible is tried on each rank alone first, so that one that cannot leaves no other waiting, and
ranks agree before and after it: either all replay, or all take their steps one by one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from particleaugment.trainee.batches import LoopTrainee, PlainImages, Share
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.parallel import WARM_UP, CapturableParallel
from particleaugment.trainee.pipelines import Pipelines
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["GraphTrainee"]

_EVALUATION_BATCH = 5120
_QUEUE = 64  # replays enqueued before the host waits, so that a stop takes effect soon
_BATCHES_PER_WORD = 16  # ranks agree on a stop after so many replays, since a word between them waits for the device
_TRIALS = 3


class GraphTrainee(LoopTrainee[int]):
    """Trains and measures a network on resident data; see the module's text.

    A study that wants more of a step, such as each sample's loss, overrides :meth:`step`.

    Args:
        learner: The network, on the device, in channels-last memory; its optimizer's learning rate must be a device
            tensor and the optimizer's state exist already.
        pipelines: Fused ones, so that steps can be captured.
        train: All training images, uint8 ``[N, C, H, W]``, and their labels, int64 ``[N]``, on the device.
        test: All test images and labels, likewise.
        batch_size: Samples per step, of all ranks together.
        forward: The network as steps of a whole batch call it, such as its compiled form; by default the model.
        say: Takes a sentence, once, on what could not be done and what is done instead.
    """

    def __init__(
        self,
        learner: Learner,
        pipelines: Pipelines,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        batch_size: int,
        *,
        forward: Callable[[Tensor], Tensor] | None = None,
        say: Callable[[str], None] = print,
    ):
        self.images, self.labels = train
        self.test, self.say = test, say
        self.device = self.images.device
        super().__init__(learner, pipelines, batch_size, self.device)
        self._order = torch.zeros(len(self.labels), dtype=torch.int64, device=self.device)
        self._position = torch.zeros((), dtype=torch.int64, device=self.device)
        self._shares: dict[int, tuple[Tensor, float]] = {}
        self._forward: Callable[[Tensor], Tensor] = self.model if forward is None else forward
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._captured_policy: tuple[int, ...] | None = None
        self._capture_failed = False
        self._apart = False
        self._warm = False
        self._stream: torch.cuda.Stream | None = None
        self._parallel: CapturableParallel | None = None
        if self.ranks.in_group:
            self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
            whole = len(self._share_of(batch_size)[0])
            self._parallel = CapturableParallel(self.model, self._forward, whole, self._stream)
        if self.ranks.world > 1:
            self._progress_every = _BATCHES_PER_WORD

    def step(
        self, ids: Tensor, forward: Callable[[Tensor], Tensor], weight: float = 1.0, size: int | None = None
    ) -> None:
        """Augment some samples, train on them and add their losses to ``_loss_sum``, without waiting for the device.

        This is what is captured: whatever it reads and writes must stay where it is from step to step.

        Args:
            ids: The samples.
            forward: The network as this step calls it.
            weight: Given where several ranks share the batch: the weight of the mean loss in the mean over ranks.
            size: Given likewise: samples in the whole batch.
        """
        inputs = self.pipelines.training(self.images, ids, ids)
        loss = self.learner.losses_through(forward, inputs, self.labels[ids]).mean()
        if weight != 1.0:
            loss = loss * weight
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        mean = loss.detach().double()
        if not self._apart:
            mean = self.ranks.mean_on_device(mean)
        self._loss_sum += mean * (len(ids) if size is None else size)

    def settle(self, samples: int) -> None:
        """Take two training steps and undo them, where there is a group; see :meth:`LoopTrainee.settle`."""
        if self._parallel is not None:
            self._repeat(min(self.batch_size, samples), 2)

    def close(self) -> None:
        """Let go of captured steps: a process group that is left while one holds its sums would never end."""
        if self._graphs:
            torch.cuda.synchronize(self.device)
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()

    # Where images come from.

    def _plain(self, ids: Tensor) -> PlainImages:
        ids = ids.to(self.device)
        return PlainImages(self.images, self.labels, ids, rows=ids)

    def _test(self, batches: Sequence[Tensor]) -> Iterator[PlainImages]:
        for numbers in batches:
            numbers = numbers.to(self.device)
            yield PlainImages(*self.test, numbers, rows=numbers)

    @property
    def _test_size(self) -> tuple[int, int]:
        images, labels = self.test
        return len(labels), images[0].numel()

    def _large_batch(self, values: int) -> int:
        return _EVALUATION_BATCH

    def _sum_of_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        # In float32, in one kernel: the recorded results of runs on a GPU were summed like this.
        return functional.cross_entropy(logits, labels, reduction="sum").double()

    # How a step is taken.

    def _begin(self, ids: Tensor, epoch_key: int, start: int) -> None:
        self._order[: len(ids)].copy_(ids)
        self._position.fill_(start * self.batch_size)
        if self.pipelines.training.table_addresses() != self._captured_policy:
            self._graphs.clear()  # the captured launches read tables that are no longer the policy's

    def _batches(self, shares: Sequence[Share]) -> Iterator[int]:
        return iter([share.size for share in shares])

    def _step(self, batch: int) -> None:
        self._step_function(batch)()
        if self.device.type == "cuda" and (self.batches_done + 1) % _QUEUE == 0:
            torch.cuda.current_stream().synchronize()

    def _share_of(self, size: int) -> tuple[Tensor, float]:
        """Return where this rank's samples are in a batch of a size, on the device, and the weight of their loss."""
        if size not in self._shares:
            places, weight = self.ranks.share_of_batch(torch.arange(size, device="cpu"))
            if len(places) == 1 and self.ranks.world > 1 and self.learner.may_refuse_one():
                places = places.repeat(2)  # the mean of both is what it was
            self._shares[size] = places.to(self.device), weight
        return self._shares[size]

    def _next_step(self, size: int) -> None:
        places, weight = self._share_of(size)
        ids = self._order[self._position + places]
        self._position += size
        if self._parallel is not None:
            self.step(ids, self._parallel, weight, size)
        else:
            # Another size would be compiled for again, which a single small batch per epoch does not repay.
            self.step(ids, self._forward if size == self.batch_size else self.model)

    def _step_function(self, size: int) -> Callable[[], object]:
        capturable = self.pipelines.training.table_addresses() is not None
        if size not in self._graphs and not self._capture_failed and capturable:
            self._try_to_capture(size)
        return self._graphs[size].replay if size in self._graphs else lambda: self._next_step(size)

    def _try_to_capture(self, size: int) -> None:
        """Capture the step of a size on all ranks; where one cannot, let all train step by step and say so."""
        stream = torch.cuda.current_stream() if self.device.type == "cuda" else None
        failure = self.ranks.first_failure(lambda: self._rehearse(size))
        if not failure:
            if self._parallel is not None:
                self._repeat(size, _TRIALS if self._warm else WARM_UP)
                self._warm = True
            failure = self.ranks.first_failure(lambda: self._capture(size))
        if not failure:
            return
        if stream is not None:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream in place
            torch.cuda.synchronize()
        self._capture_failed = True
        self.close()
        self._forward = self.model
        if self._parallel is not None:
            self._parallel.renew()
            self._repeat(size, 2)
        self.say(f"training with eager steps: this model cannot be captured in a CUDA graph ({failure})")

    def _rehearse(self, size: int) -> None:
        """Take steps on this rank alone, compiling on the way; the last must not wait for the device."""
        with self._parallel.apart() if self._parallel is not None else nullcontext():
            self._apart = True
            try:
                self._repeat(size, _TRIALS, nullcontext if self._waits_when_not_captured() else _waiting_refused)
            finally:
                self._apart = False

    def _waits_when_not_captured(self) -> bool:
        """Whether the network waits for the device except in a capture, as synchronised batch norm does."""
        return self.ranks.world > 1 and any(isinstance(module, nn.SyncBatchNorm) for module in self.model.modules())

    def _repeat(
        self, size: int, times: int, last: Callable[[], contextlib.AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Take steps on the first samples and leave no trace in the network; the last one within a context."""
        with self._undone(), self._on_side_stream():
            for number in range(times):
                self._position.zero_()
                with last() if number == times - 1 else nullcontext():
                    self._next_step(size)

    @contextlib.contextmanager
    def _on_side_stream(self) -> Iterator[None]:
        if self.device.type != "cuda":
            yield
            return
        stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                yield
        finally:  # what was started must end before the network is put back
            torch.cuda.current_stream().wait_stream(stream)

    def _capture(self, size: int) -> None:
        with self._undone():
            self._position.zero_()
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            # Replays follow each other on one stream and hand nothing over, so they may share their memory.
            pool = next((other.pool() for other in self._graphs.values()), None)
            # NCCL's watchdog, a thread of its own, asks for events at any time.
            mode = "global" if self._parallel is None else "thread_local"
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode=mode):
                self._next_step(size)
        self._graphs[size] = graph
        self._captured_policy = self.pipelines.training.table_addresses()

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        kept = [tensor.clone() for tensor in (self._position, self._loss_sum)]
        try:
            with Snapshot().of(self.model, self.optimizer):
                yield
        finally:
            for tensor, value in zip((self._position, self._loss_sum), kept):
                tensor.copy_(value)


@contextlib.contextmanager
def _waiting_refused() -> Iterator[None]:
    """Make it an error to wait for the device: in a capture that would leave torch's generator and memory unusable."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
