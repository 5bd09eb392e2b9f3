"""The probe: train a clone under the particles and measure, per particle and sample, how its loss fell.

``probe`` returns raw losses and knows nothing of weights; ``filter.relative_loss_difference`` turns them into δ. Model,
optimizer and everything else come back bit for bit as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from particleaugment.augment import Augment
from particleaugment.data.split import batch_sizes, disjoint_stratified_subsets, epoch_permutation
from particleaugment.executors import apply
from particleaugment.learner import Learner, NonFiniteLoss, Samples
from particleaugment.policies.base import Policy
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.ranks import Ranks
from particleaugment.snapshot import Snapshot

__all__ = [
    "EagerTrainee",
    "Learner",
    "Measurement",
    "NonFiniteLoss",
    "Samples",
    "Trainee",
    "check_clone_samples",
    "probe",
]

# Training epochs, clone epochs and measurements are keyed by disjoint ranges of the generator's 32-bit epoch.
CLONE_EPOCHS = 1 << 30
MEASUREMENTS = 1 << 31

_VALUES_PER_BATCH = 1024 * 3 * 32 * 32  # of a measurement: large batches, small enough for a CPU's memory

Progress = Callable[[str, int, int], None]
"""Told the phase, the batches done and their number after every batch; may raise to stop the step."""


class Measurement(NamedTuple):
    """Losses of the reference model and of its trained clone on the same images under the same draws.

    Attributes:
        ref: Reference model under each particle, float64 ``[r, N]``.
        upd: Clone under each particle, float64 ``[r, N]``.
        ref_clean: Reference model on the plain images, float64 ``[N]``.
        upd_clean: Clone on the plain images, float64 ``[N]``.
        seconds: Time spent training the clone and measuring.
    """

    ref: Tensor
    upd: Tensor
    ref_clean: Tensor
    upd_clean: Tensor
    seconds: dict[str, float]


class Trainee(Protocol):
    """A network that can be trained on samples by id and measured under particles, whatever it runs on."""

    @property
    def model(self) -> nn.Module:
        """The network."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimizer."""
        ...

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Its GradScaler, or None."""
        ...

    @property
    def batches_done(self) -> int:
        """Batches of the present (or last) call of ``train``, those before ``start`` included."""
        ...

    @property
    def loss_sum(self) -> float:
        """Sum of the losses over those batches, the given start value included."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Put accumulated gradients aside while a clone trains."""
        ...

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
        """Train on samples in the order given, under a policy, from batch ``start`` on; return the sum of losses."""
        ...

    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Return losses under each particle, float64 ``[r, N]``, and on the plain images, ``[N]``."""
        ...


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


def probe(
    policy: ParticlePolicy,
    trainee: Trainee,
    labels: Tensor,
    snapshot: Snapshot,
    *,
    clone_size: int | float,
    measure_size: int | float,
    split: tuple[Tensor, Tensor] | None = None,
    clone_epochs: int,
    seed: int,
    step: int,
    progress: Progress = lambda phase, done, total: None,
) -> Measurement:
    """Measure the particles of ``policy`` (the noised ones) on fresh, disjoint, stratified subsets.

    Args:
        policy: The particles and weights to probe.
        trainee: The network; restored bit for bit.
        labels: Class labels of the training samples, for stratification.
        snapshot: Memory for the clone's way back, reused from step to step.
        clone_size: Samples in D_tp, as a number or a fraction.
        measure_size: Samples in D_vp, as a number or a fraction.
        split: Where D_vp is held out, the samples that are trained on, which D_tp is drawn from, and D_vp itself.
        clone_epochs: Epochs of clone training, e_p.
        seed: The run's seed.
        step: Number of this filter step; part of every key.
        progress: Told after every batch; may raise to stop, and the network is restored all the same.
    """
    if split is None:
        train_ids, measure_ids = disjoint_stratified_subsets(labels, [clone_size, measure_size], seed, step)
    else:
        trained, measure_ids = split
        train_ids = trained[disjoint_stratified_subsets(labels[trained], [clone_size], seed, step)[0]]
    check_clone_samples(train_ids, clone_size)
    model = trainee.model
    modes = [(module, module.training) for module in model.modules()] if model.training else None
    key = MEASUREMENTS + step
    start = time.perf_counter()
    with snapshot.of(model, trainee.optimizer, trainee.scaler), trainee.aside():
        model.eval()
        ref, ref_clean = trainee.measure(policy, measure_ids, key, progress=progress, phase="measure before")
        measured = time.perf_counter()
        model.train()
        for module, training in modes or ():
            module.training = training
        try:
            _train_clone(policy, trainee, train_ids, clone_epochs, seed, step, progress)
        except NonFiniteLoss:
            # A diverged clone is a measurement like any other: its losses are not finite, and the filter skips it.
            nothing = torch.full_like(ref, torch.nan)
            return Measurement(ref, nothing, ref_clean, nothing[0], {"clone": time.perf_counter() - measured})
        cloned = time.perf_counter()
        model.eval()
        upd, upd_clean = trainee.measure(policy, measure_ids, key, progress=progress, phase="measure after")
    end = time.perf_counter()
    seconds = {"clone": cloned - measured, "measure": (measured - start) + (end - cloned)}
    return Measurement(ref, upd, ref_clean, upd_clean, seconds)


def check_clone_samples(train_ids: Tensor, clone_size: int | float) -> None:
    """Refuse to train a clone on a single sample, which is what a small fraction of few samples comes to."""
    if len(train_ids) == 1:
        raise ValueError(
            f"clone_size={clone_size} gives the clone a single sample, which batch norm cannot train on; set a number, "
            "such as clone_size=32, or a larger fraction"
        )


def _train_clone(
    policy: ParticlePolicy,
    trainee: Trainee,
    train_ids: Tensor,
    clone_epochs: int,
    seed: int,
    step: int,
    progress: Progress,
) -> None:
    for number in range(clone_epochs):
        epoch_key = CLONE_EPOCHS + step * clone_epochs + number
        order = train_ids[epoch_permutation(len(train_ids), seed, epoch_key)]

        def of_all_epochs(phase: str, done: int, total: int, number: int = number) -> None:
            progress(phase, number * total + done, clone_epochs * total)

        trainee.train(policy, order, epoch_key, progress=of_all_epochs, phase="train clone")
