"""Training on a CUDA device: the whole step, from sample ids to updated weights, is one captured graph.

The data set lies on the device as uint8. A replay takes the next ids of the epoch's order, draws and augments them in
the fused kernel, runs the network forward and backward and steps the optimizer; nothing waits for the host. The clone
of a filter step is trained by replaying the same graph, since snapshot and restore work in place.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from particleaugment.augment.pipeline import FusedPipeline
from particleaugment.augment.transforms import Normalize, Transform
from particleaugment.data.split import batch_sizes
from particleaugment.policies import Identity, ParticlePolicy, Policy
from particleaugment.trainee.learner import NonFiniteLoss
from particleaugment.trainee.protocol import Progress
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["GraphTrainee"]

_EVALUATION_BATCH = 5120
_QUEUE = 64  # replays enqueued before the host waits, so that a stop takes effect soon


class GraphTrainee:
    """Trains and measures a network on resident data; see the module's text.

    Args:
        model: The network, on the device, in channels-last memory.
        optimizer: Its optimizer; its learning rate must be a device tensor and its state exist already.
        images: All training images, uint8 ``[N, C, H, W]`` on the device.
        labels: Their labels, int64 ``[N]`` on the device.
        normalize: Normalisation; its dtype is the network's input type.
        seed: Seed of all draws.
        batch_size: Samples per step.
        before: Always-on transforms before the policy.
        after: Always-on transforms after it, Normalize left out.
        resample: Code of the default resampling filter.
        fill: Fill colour.
        autocast: Makes the context of forward passes.
        forward: The network as steps of a whole batch call it, such as its compiled form; by default the model.
        say: Told, once, what could not be done and what is done instead.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        images: Tensor,
        labels: Tensor,
        normalize: Normalize,
        *,
        seed: int,
        batch_size: int,
        before: Sequence[Transform],
        after: Sequence[Transform],
        resample: int,
        fill: tuple[int, int, int],
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        forward: Callable[[Tensor], Tensor] | None = None,
        say: Callable[[str], None] = print,
    ):
        self.model, self.optimizer = model, optimizer
        self.scaler: torch.amp.GradScaler | None = None
        self.batches_done = 0
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.autocast, self.say = autocast, say
        device, height, width = images.device, images.shape[-2], images.shape[-1]
        options: dict[str, Any] = {
            "resample": resample, "fill": fill, "dtype": normalize.dtype, "channels_last": True,
        }  # fmt: skip
        self._training = FusedPipeline(
            Identity(), (height, width), device, seed, before=before, after=(*after, normalize), **options
        )
        self._measuring = FusedPipeline(Identity(), (height, width), device, seed, after=(normalize,), **options)
        self._plain = FusedPipeline(Identity(), (height, width), device, seed, after=(normalize,), **options)
        self._order = torch.zeros(len(labels), dtype=torch.int64, device=device)
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._offsets = torch.arange(batch_size + 1, device=device)  # a last batch may hold one sample more
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._forward: Callable[[Tensor], Tensor] = model if forward is None else forward
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._captured_policy: tuple[int, ...] | None = None
        self._capture_failed = False

    def aside(self) -> AbstractContextManager[None]:
        """Nothing is ever put aside here: every step is whole."""
        return nullcontext()

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
        """Train on samples in the order given; see :class:`particleaugment.trainee.protocol.Trainee`."""
        self._set_training_policy(policy)
        self._training.set_epoch(epoch_key)
        self._order[: len(ids)].copy_(ids)
        self._position.fill_(start * self.batch_size)
        self._loss_sum.fill_(loss_sum)
        self.batches_done = start
        sizes = batch_sizes(len(ids), self.batch_size)
        for number, size in enumerate(sizes[start:], start=start + 1):
            self._step_function(size)()
            self.batches_done = number
            if number % _QUEUE == 0:
                torch.cuda.current_stream().synchronize()
            progress(phase, number, len(sizes))
        return self.loss_sum

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of the samples trained on; waits for the device."""
        value = float(self._loss_sum)
        if value != value or value in (float("inf"), -float("inf")):
            raise NonFiniteLoss(f"the training loss is {value}")
        return value

    @torch.no_grad()
    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Return losses under each particle, float64 ``[r, N]``, and on the plain images, ``[N]``."""
        self._measuring.set_policy(policy)
        self._measuring.set_epoch(epoch_key)
        device, count, particles = self.images.device, len(ids), len(policy.particles)
        ids = ids.to(device)
        losses = torch.empty(particles * count, dtype=torch.float64, device=device)
        chunks = torch.arange(particles * count, device=device).split(_EVALUATION_BATCH)
        for number, chunk in enumerate(chunks):
            sample = ids[chunk % count]
            inputs = self._measuring(self.images, sample, index=sample, particle=chunk // count)
            losses[chunk] = self._losses(inputs, self.labels[sample], self.model).to(torch.float64)
            progress(phase, number + 1, len(chunks))
        clean = self._losses(self._plain(self.images, ids, index=ids), self.labels[ids], self.model)
        return losses.view(particles, count).cpu(), clean.to("cpu", torch.float64)

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Return mean loss and accuracy in percent on plain images."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=images.device)
        right = torch.zeros((), dtype=torch.int64, device=images.device)
        for index in torch.arange(len(labels), device=images.device).split(_EVALUATION_BATCH):
            with self.autocast():
                logits = self.model(self._plain(images, index, index=index)).float()
            loss_sum += functional.cross_entropy(logits, labels[index], reduction="sum").double()
            right += (logits.argmax(1) == labels[index]).sum()
        return float(loss_sum) / len(labels), 100.0 * int(right) / len(labels)

    def _set_training_policy(self, policy: Policy) -> None:
        self._training.set_policy(policy)
        if self._training.table_addresses() != self._captured_policy:
            self._graphs.clear()  # the captured launches read tables that are no longer the policy's

    def _losses(self, inputs: Tensor, labels: Tensor, forward: Callable[[Tensor], Tensor]) -> Tensor:
        with self.autocast():
            return functional.cross_entropy(forward(inputs).float(), labels, reduction="none")

    def _step(self, ids: Tensor, forward: Callable[[Tensor], Tensor]) -> None:
        inputs = self._training(self.images, ids, index=ids)
        loss = self._losses(inputs, self.labels[ids], forward).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._loss_sum += loss.detach().double() * len(ids)

    def _next_step(self, size: int) -> None:
        ids = self._order[self._position + self._offsets[:size]]
        self._position += size
        # Another size would be compiled for again, which a single small batch per epoch does not repay.
        self._step(ids, self._forward if size == self.batch_size else self.model)

    def _step_function(self, size: int) -> Callable[[], object]:
        if size not in self._graphs and not self._capture_failed and self._training.table_addresses() is not None:
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
        self._captured_policy = self._training.table_addresses()

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
