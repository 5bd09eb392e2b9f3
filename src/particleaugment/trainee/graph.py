"""Training on a CUDA device: the whole step, from sample ids to updated weights, is one captured graph.

The data set is on the device as uint8. A replay takes the next ids of the epoch's order, draws and augments them in
the fused kernel, runs the network forward and backward and steps the optimizer; nothing waits for the host. The clone
of a filter step is trained by replaying the same graph, since snapshot and restore work in place.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from particleaugment.trainee.batches import LoopTrainee, PlainImages, Share
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.pipelines import Pipelines
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["GraphTrainee"]

_EVALUATION_BATCH = 5120
_QUEUE = 64  # replays enqueued before the host waits, so that a stop takes effect soon


class GraphTrainee(LoopTrainee[int]):
    """Trains and measures a network on resident data; see the module's text.

    A study that wants more of a step, such as each sample's loss, overrides :meth:`step`.

    Args:
        learner: The network, on the device, in channels-last memory; its optimizer's learning rate must be a device
            tensor and the optimizer's state exist already.
        pipelines: Fused ones, so that steps can be captured.
        train: All training images, uint8 ``[N, C, H, W]``, and their labels, int64 ``[N]``, on the device.
        test: All test images and labels, likewise.
        batch_size: Samples per step.
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
        self._offsets = torch.arange(batch_size + 1, device=self.device)  # a last batch may hold one sample more
        self._forward: Callable[[Tensor], Tensor] = self.model if forward is None else forward
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._captured_policy: tuple[int, ...] | None = None
        self._capture_failed = False

    def step(self, ids: Tensor, forward: Callable[[Tensor], Tensor]) -> None:
        """Augment some samples, train on them and add their losses to ``_loss_sum``, without waiting for the device.

        This is what is captured: whatever it reads and writes must stay where it is from step to step.
        """
        inputs = self.pipelines.training(self.images, ids, ids)
        loss = self.learner.losses_through(forward, inputs, self.labels[ids]).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._loss_sum += loss.detach().double() * len(ids)

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

    def _next_step(self, size: int) -> None:
        ids = self._order[self._position + self._offsets[:size]]
        self._position += size
        # Another size would be compiled for again, which a single small batch per epoch does not repay.
        self.step(ids, self._forward if size == self.batch_size else self.model)

    def _step_function(self, size: int) -> Callable[[], object]:
        capturable = self.pipelines.training.table_addresses() is not None
        if size not in self._graphs and not self._capture_failed and capturable:
            stream = torch.cuda.current_stream()
            try:
                self._capture(size)
            except Exception as error:
                torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream in place
                self._capture_failed = True
                self._graphs.clear()
                self._forward = self.model
                torch.cuda.synchronize()
                first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                self.say(f"training step by step: this model cannot be captured in a CUDA graph ({first_line})")
        return self._graphs[size].replay if size in self._graphs else lambda: self._next_step(size)

    def _capture(self, size: int) -> None:
        """Warm up (compiling on the way) and capture, and leave no trace in the network."""
        with self._undone():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    for number in range(3):
                        self._position.zero_()
                        with _waiting_refused() if number == 2 else nullcontext():
                            self._next_step(size)
            finally:  # what was started must end before the network is put back
                torch.cuda.current_stream().wait_stream(stream)
            self._position.zero_()
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            # Replays follow each other on one stream and hand nothing over, so they may share their memory.
            pool = next((other.pool() for other in self._graphs.values()), None)
            with torch.cuda.graph(graph, pool=pool):
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
