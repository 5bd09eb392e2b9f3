"""Training step by step, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from particleaugment.augment.batch import Augment
from particleaugment.data.samples import Samples
from particleaugment.data.split import batch_sizes
from particleaugment.executors import apply
from particleaugment.policies.base import Policy
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import Progress
from particleaugment.trainee.ranks import Ranks

__all__ = ["EagerTrainee"]

_VALUES_PER_BATCH = 1024 * 3 * 32 * 32  # of a measurement: large batches, small enough for a CPU's memory


@dataclass(slots=True)
class EagerTrainee:
    """Trains and measures step by step, on any device, through a :class:`Learner`.

    Attributes:
        learner: The network and how it takes a step.
        samples: Its training data.
        augment: The training augmentation, always-on transforms included; its policy and epoch are set here.
        batch_size: Samples per step.
        batches_done: Batches of the present or last call of ``train``.
        loss_sum: Sum of the losses over those.
    """

    learner: Learner
    samples: Samples
    augment: Augment
    batch_size: int
    batches_done: int = 0
    loss_sum: float = 0.0
    _measured: tuple[Tensor, Tensor, Tensor] | None = None

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

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Put accumulated gradients aside while a clone trains, and keep what it is measured on for both times."""
        pending, self.learner._pending = self.learner._pending, 0
        try:
            yield
        finally:
            self.learner._pending, self._measured = pending, None

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
        """Train on samples in the order given; see :class:`Trainee`."""
        self.augment.policy = policy
        self.augment.set_epoch(epoch_key)
        batches = ids.split(batch_sizes(len(ids), self.batch_size))
        self.batches_done, self.loss_sum = start, loss_sum
        for batch in batches[start:]:
            mine, weight = self.ranks.share_of_batch(batch)
            images, targets = self.samples.gather(mine)
            loss = self.learner.train_batch(self.augment(images.to(self.learner.device), mine), targets, weight)
            self.loss_sum += loss * len(batch)
            self.batches_done += 1
            progress(phase, self.batches_done, len(batches))
        self.learner.flush()
        self.ranks.equalise_buffers(self.model)
        return self.loss_sum

    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Measure in large batches; see :class:`Trainee`.

        Common random numbers: every particle and both models see the same samples, uniforms and signs, since draws are
        keyed by sample id and step alone. Crop, flip and erasing play no part here. Ranks share the samples out, and
        each holds all losses in the end.
        """
        # Forward passes of wrapped networks, and progress, may hold a word between ranks: all take as many turns, and a
        # rank that has nothing left computes something again.
        share, particles = len(self.ranks.share(ids)), len(policy.particles)
        mine = self.ranks.share(ids) if share else ids[:1]
        if self._measured is None or not torch.equal(self._measured[0], mine):
            self._measured = (mine, *self.samples.gather(mine))
        _, plain, targets = self._measured
        plain = plain.to(self.learner.device)
        count, largest = len(mine), self.ranks.largest_share(len(ids))
        height, width = plain.shape[-2:]
        batch = max(1, _VALUES_PER_BATCH // plain.shape[1:].numel())
        losses = torch.empty(particles * count, dtype=torch.float64, device="cpu")
        clean = torch.empty(count, dtype=torch.float64, device="cpu")
        chunks = _turns(particles * count, particles * largest, batch)
        for turn, chunk in enumerate(chunks):
            sample, particle = chunk % count, chunk // count
            program = policy.sample_particle(particle, mine[sample], epoch_key, self.augment.seed, (height, width))
            images = apply(
                plain[sample.to(plain.device)],
                program,
                executor=self.augment.executor,
                resample=self.augment.resample,
                fill=self.augment.fill,
            )
            losses[chunk] = self.learner.losses(images, targets[sample.to(targets.device)])
            progress(phase, turn + 1, len(chunks))
        for chunk in _turns(count, largest, batch):
            clean[chunk] = self.learner.losses(plain[chunk.to(plain.device)], targets[chunk.to(targets.device)])
        all_losses = torch.cat([losses.view(particles, count), clean[None]])[:, :share]
        whole = self.ranks.collect(all_losses, len(ids))
        return whole[:-1], whole[-1]

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Return mean loss and accuracy in percent on plain images, in the model's present mode."""
        loss_sum, right, learner = 0.0, 0, self.learner
        batch = max(1, _VALUES_PER_BATCH // images[0].numel())
        shares = (self.ranks.share(tensor).split(batch) for tensor in (images, labels))
        for picture, label in zip(*shares):
            label = label.to(learner.device)
            with learner.autocast():
                logits = self.model(learner.preprocess(picture.to(learner.device))).float()
            loss_sum += float(learner.loss(logits, label).double().sum())
            right += int((logits.argmax(1) == label).sum())
        loss_sum, all_right = self.ranks.sum(loss_sum, right)
        return loss_sum / len(labels), 100.0 * all_right / len(labels)


def _turns(count: int, largest: int, batch: int) -> list[Tensor]:
    """Return the numbers below ``count`` in batches: as many of them as ``largest`` numbers would make, none empty.

    >>> _turns(4, 5, 2)
    [tensor([0, 1]), tensor([2, 3]), tensor([0])]
    """
    numbers = torch.arange(count, device="cpu")
    batches = [numbers[first : first + batch] for first in range(0, largest, batch)]
    return [each if len(each) else numbers[:1] for each in batches]
