"""What all trainees share: the loop over training batches, measurements and evaluation.

A trainee adds where its images come from and how it takes a step: :mod:`particleaugment.trainee.eager` (in memory, step
by step), :mod:`particleaugment.trainee.graph` (on the device, whole steps captured) and
:mod:`particleaugment.trainee.stream` (files that are decoded on the way).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from particleaugment.data.split import batch_sizes
from particleaugment.policies import Identity, ParticlePolicy, Policy
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.trainee.pipelines import MaskPipeline, Pipeline, Pipelines, are_masks
from particleaugment.trainee.protocol import Progress, silent
from particleaugment.trainee.ranks import Ranks
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["Batch", "LoopTrainee", "PlainImages", "Share"]

VALUES_PER_BATCH = 1024 * 3 * 32 * 32
"""Pixel values in a batch of a measurement: large batches, small enough for a CPU's memory."""

B = TypeVar("B")


class Share(NamedTuple):
    """What a rank computes of a training batch.

    Attributes:
        ids: Its samples.
        weight: Weight of their mean loss in the mean over ranks.
        size: Samples in the whole batch.
    """

    ids: Tensor
    weight: float
    size: int


class Batch(NamedTuple):
    """A training batch, augmented.

    Attributes:
        inputs: What :meth:`Learner.train_batch` takes.
        targets: Its targets.
        share: The samples.
    """

    inputs: Tensor
    targets: Tensor
    share: Share


class PlainImages(NamedTuple):
    """Plain uint8 images with their targets.

    Attributes:
        images: The images, on the network's device.
        targets: Their targets.
        ids: The samples that are asked for.
        rows: Where these are among ``images``; None where ``images`` has just these, in this order.
    """

    images: Tensor
    targets: Tensor
    ids: Tensor
    rows: Tensor | None = None


class LoopTrainee(ABC, Generic[B]):
    """Trains, measures and evaluates a network batch by batch; see :class:`particleaugment.trainee.protocol.Trainee`.

    Args:
        learner: The network, how it takes a step and how it is judged.
        pipelines: How images become its input.
        batch_size: Samples per step, of all ranks together.
        device: Where the sum of training losses is kept.
    """

    def __init__(self, learner: Learner, pipelines: Pipelines, batch_size: int, device: torch.device | str = "cpu"):
        self.learner, self.pipelines, self.batch_size = learner, pipelines, batch_size
        self.batches_done = 0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._progress_every = 1
        self._measured: tuple[Tensor, PlainImages] | None = None

    # What a trainee adds.

    @abstractmethod
    def _batches(self, shares: Sequence[Share]) -> Iterator[B]:
        """Make the training batches, one after the other."""

    @abstractmethod
    def _step(self, batch: B) -> None:
        """Take a training step and add the sum of its losses to ``_loss_sum``."""

    @abstractmethod
    def _plain(self, ids: Tensor) -> PlainImages:
        """Return plain training images."""

    @abstractmethod
    def _test(self, batches: Sequence[Tensor]) -> Iterator[PlainImages]:
        """Return batches of test images by number, one after the other."""

    @property
    @abstractmethod
    def _test_size(self) -> tuple[int, int]:
        """How many test images there are, and the pixel values of each."""

    def _large_batch(self, values: int) -> int:
        """Return how many images of so many pixel values are measured at a time."""
        return max(1, VALUES_PER_BATCH // values)

    def _begin(self, ids: Tensor, epoch_key: int, start: int) -> None:
        """Prepare for an epoch of training."""

    def _reading(self) -> AbstractContextManager[None]:
        """Surround whatever reads images."""
        return nullcontext()

    def close(self) -> None:
        """Nothing has to be let go of."""

    # The network.

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.learner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimizer."""
        return self.learner.optimizer

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Its GradScaler, if any."""
        return self.learner.scaler

    @property
    def ranks(self) -> Ranks:
        """The processes that share batches, measurements and evaluations."""
        return self.learner.ranks

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of the samples trained on; waits for the device."""
        value = float(self._loss_sum)
        if not math.isfinite(value):
            raise NonFiniteLoss(f"the training loss is {value}")
        return value

    # Training.

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
        batches = ids.split(batch_sizes(len(ids), self.batch_size))
        shares = [Share(*self.ranks.share_of_batch(batch), len(batch)) for batch in batches[start:]]
        self.pipelines.training.set_policy(policy)
        self.pipelines.training.set_epoch(epoch_key)
        self._loss_sum.fill_(loss_sum)
        self.batches_done = start
        self._begin(ids, epoch_key, start)
        with self._reading():
            for batch in self._batches(shares):
                self._step(batch)
                self.batches_done += 1
                if self.batches_done % self._progress_every == 0 or self.batches_done == len(batches):
                    progress(phase, self.batches_done, len(batches))
        self.learner.flush()
        self.ranks.equalise_buffers(self.model)
        return self.loss_sum

    def _learn(self, learner: Learner, batch: Batch) -> None:
        """Take a step that waits for its loss, and stop before the optimizer does if that is not finite."""
        loss = learner.train_batch(batch.inputs, batch.targets, batch.share.weight)
        self._loss_sum += loss * batch.share.size

    def settle(self, samples: int) -> None:
        """Take one training step and undo it, where several ranks train together.

        After its first step DistributedDataParallel puts the gradients into another order, in which sums over three or
        more ranks are rounded otherwise. A resumed run must add up like one that was never stopped, so no real step is
        the first.

        Args:
            samples: How many there are to train on.
        """
        if self.ranks.world > 1:
            with Snapshot().of(self.model, self.optimizer):
                self.train(Identity(), torch.arange(min(self.batch_size, samples), device="cpu"), 0, progress=silent)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Put accumulated gradients aside while a clone trains, and keep the images that it is measured on."""
        pending, self.learner._pending = self.learner._pending, 0
        try:
            yield
        finally:
            self.learner._pending, self._measured = pending, None

    # Measuring.

    def losses(self, ids: Tensor, *, progress: Progress = silent, phase: str = "measure") -> Tensor:
        """Return the loss of each plain image; see :class:`particleaugment.trainee.protocol.Trainee`."""
        if any(isinstance(module, _BatchNorm) and module.training for module in self.learner.model.modules()):
            # A loss depends on its batch then. Every rank computes all, and gives away those of its share.
            losses = self._losses(self._plain_of(ids.cpu()), len(ids), progress=progress, phase=phase, even=True)
            return self.ranks.collect(self.ranks.share(losses), len(ids))
        plain, share = self._share_of_plain(ids)
        losses = self._losses(plain, len(ids), progress=progress, phase=phase)
        return self.ranks.collect(losses[:share], len(ids))

    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Measure in large batches; see :class:`particleaugment.trainee.protocol.Trainee`.

        Common random numbers: every particle and both models see the same samples, uniforms and signs, since draws are
        keyed by sample id and step alone. Crop, flip and erasing play no part here. Ranks share the samples out, and
        each holds all losses in the end.
        """
        plain, share = self._share_of_plain(ids)
        particles = len(policy.particles)
        self.pipelines.measuring.set_policy(policy)
        self.pipelines.measuring.set_epoch(epoch_key)
        losses = self._losses(plain, len(ids), particles, progress=progress, phase=phase)
        table = torch.cat([losses.view(particles, -1), self._losses(plain, len(ids))[None]])
        whole = self.ranks.collect(table[:, :share], len(ids))
        return whole[:-1], whole[-1]

    def _share_of_plain(self, ids: Tensor) -> tuple[PlainImages, int]:
        """Return this rank's share of plain images, and how many count: one that has none computes one for nothing."""
        mine = self.ranks.share(ids.cpu())
        share = len(mine)
        return self._plain_of(mine if share else ids.cpu()[:1]), share

    def _plain_of(self, ids: Tensor) -> PlainImages:
        if self._measured is None or not torch.equal(self._measured[0], ids):
            with self._reading():
                self._measured = ids, self._plain(ids)
        return self._measured[1]

    @torch.no_grad()
    def _losses(
        self,
        plain: PlainImages,
        of_all: int,
        particles: int = 0,
        *,
        progress: Progress = silent,
        phase: str = "",
        even: bool = False,
    ) -> Tensor:
        """Return the losses of images in large batches, or in even ones: plain, or under one particle after the other.

        Forward passes of wrapped networks, and progress, may hold a word between ranks: all take as many turns as the
        one with the largest share of all samples, and a rank that has nothing left computes something again.
        """
        count, times = len(plain.ids), max(1, particles)
        batch = self._large_batch(plain.images.shape[1:].numel())
        largest, device = times * self.ranks.largest_share(of_all), plain.ids.device
        turns, losses = _turns(times * count, largest, batch, device), []
        if even:  # none of a single image, which batch norm may refuse
            pieces = max(1, min(-(-count // batch), count // 2))
            turns = list(torch.arange(count, device=device).tensor_split(pieces))
        pipeline = self.pipelines.measuring if particles else self.pipelines.plain
        for turn, chunk in enumerate(turns):
            inputs, targets = _inputs(pipeline, plain, chunk % count, chunk // count if particles else None)
            losses.append(self.learner.losses(inputs, targets))
            progress(phase, turn + 1, len(turns))
        return torch.cat(losses)[: times * count].to("cpu", torch.float64)

    # Evaluation.

    @torch.no_grad()
    def evaluate(self, count: int | None = None, progress: Progress = silent) -> tuple[float, float]:
        """Return mean loss and accuracy in percent on test images, in the model's present mode."""
        size, values = self._test_size
        total, large = size if count is None else min(count, size), self._large_batch(values)
        numbers = self.ranks.share(torch.arange(total, device="cpu"))
        turns = -(-self.ranks.largest_share(total) // large)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.learner.device)
        right = torch.zeros((), dtype=torch.int64, device=self.learner.device)
        done = 0
        with self._reading():
            for plain in self._test(numbers.split(large) if len(numbers) else ()):
                logits = self.learner.logits(self.pipelines.plain(plain.images, plain.ids, plain.rows))
                labels = _rows(plain.targets, plain.rows).to(logits.device)
                loss_sum += self._sum_of_losses(logits, labels)
                right += (logits.argmax(1) == labels).sum()
                done += 1
                progress("evaluate", done, turns)
            for turn in range(done, turns):  # a rank with a batch less has its word all the same
                progress("evaluate", turn + 1, turns)
        summed_loss, summed_right = self.ranks.sum(float(loss_sum), int(right))
        return summed_loss / total, 100.0 * summed_right / total

    def _sum_of_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.learner.loss(logits, labels).double().sum()


def _inputs(pipeline: Pipeline, plain: PlainImages, which: Tensor, particle: Tensor | None) -> tuple[Tensor, Tensor]:
    index = which if plain.rows is None else plain.rows[which]
    if are_masks(plain.targets, plain.images):
        follower, masks = cast(MaskPipeline, pipeline), plain.targets.to(plain.images.device)
        return follower.with_masks(plain.images, masks, plain.ids[which], index, particle=particle)
    return pipeline(plain.images, plain.ids[which], index, particle=particle), _rows(plain.targets, index)


def _rows(values: Tensor, rows: Tensor | None) -> Tensor:
    return values if rows is None else values[rows.to(values.device)]


def _turns(count: int, largest: int, batch: int, device: torch.device) -> list[Tensor]:
    """Return the numbers below ``count`` in batches: as many of them as ``largest`` numbers would make, none empty.

    >>> _turns(4, 5, 2, torch.device("cpu"))
    [tensor([0, 1]), tensor([2, 3]), tensor([0])]
    """
    numbers = torch.arange(count, device=device)
    batches = [numbers[first : first + batch] for first in range(0, largest, batch)]
    return [each if len(each) else numbers[:1] for each in batches]
