"""The probe: train a clone under the particles and measure, per particle and sample, how its loss fell.

``probe`` returns raw losses and knows nothing of weights; ``filter.relative_loss_difference`` turns them into δ. Model,
optimizer and everything else come back bit for bit as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from particleaugment.data.split import disjoint_stratified_subsets, epoch_permutation
from particleaugment.executors import apply
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.snapshot import Snapshot

__all__ = ["Learner", "Measurement", "NonFiniteLoss", "Samples", "probe"]

# Training epochs, clone epochs and measurements are keyed by disjoint ranges of the generator's 32-bit epoch.
CLONE_EPOCHS = 1 << 30
MEASUREMENTS = 1 << 31

Augmentation = Callable[[Tensor, Tensor, int], Tensor]
"""(uint8 images, ids, epoch key) → augmented uint8 images, under the particles being probed."""

Progress = Callable[[str, int, int], None]
"""Told the phase, the batches done and their number after every batch; may raise to stop the step."""


class NonFiniteLoss(ArithmeticError):
    """The training loss is infinite or not a number; raised before the optimizer takes the step."""


class Samples:
    """Training samples by index: uint8 images, targets for the loss, and class labels for stratification.

    Args:
        dataset: ``(images, targets)`` with images uint8 ``[N, C, H, W]`` and targets ``[N]`` or soft ``[N, classes]``;
            or any object with ``len`` whose items are ``(uint8 image, target)``. Labels of such an object are taken
            from its ``targets`` or ``labels`` attribute if it has one, else by reading it through once.

    >>> samples = Samples((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])))
    >>> samples.gather(torch.tensor([2, 3]))[1]
    tensor([0, 1])
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if isinstance(dataset, torch.utils.data.TensorDataset):
            dataset = dataset.tensors
        self.tensors: tuple[Tensor, Tensor] | None = None
        if isinstance(dataset, (tuple, list)) and len(dataset) == 2 and isinstance(dataset[0], Tensor):
            images, targets = dataset[0], torch.as_tensor(dataset[1])
            if images.dtype != torch.uint8 or images.dim() != 4:
                raise TypeError(f"images must be uint8 [N, C, H, W], got {images.dtype} of shape {tuple(images.shape)}")
            if len(images) != len(targets):
                raise ValueError(f"the data set has {len(images)} images but {len(targets)} targets")
            self.tensors = (images, targets)
        self.labels = self._labels()

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and targets of some samples."""
        if self.tensors is not None:
            images, targets = self.tensors
            return images[indices.to(images.device)], targets[indices.to(targets.device)]
        items = [self.dataset[i] for i in indices.tolist()]
        pictures = [item[0] for item in items]
        if not isinstance(pictures[0], Tensor) or pictures[0].dtype != torch.uint8:
            kind = pictures[0].dtype if isinstance(pictures[0], Tensor) else type(pictures[0]).__name__
            raise TypeError(f"the data set must give uint8 image tensors, got {kind}; return the image unnormalised")
        return torch.stack(pictures), torch.stack([torch.as_tensor(item[1]) for item in items])

    def _labels(self) -> Tensor:
        if self.tensors is not None:
            targets = self.tensors[1]
        else:
            known = getattr(self.dataset, "targets", getattr(self.dataset, "labels", None))
            if known is None:
                known = [self.dataset[i][1] for i in range(len(self.dataset))]
            rows = [torch.as_tensor(target) for target in known]
            targets = torch.stack(rows)
        # Soft targets are stratified by their likeliest class.
        return (targets.argmax(1) if targets.dim() == 2 else targets).to("cpu", torch.int64)


@dataclass(slots=True)
class Learner:
    """How a network takes one step and how it is judged; the clone is trained by the same object as the network.

    Attributes:
        model: The network.
        optimizer: Its optimizer.
        loss: ``loss(logits, targets)`` returning one value per sample.
        preprocess: Turns augmented uint8 images into the network's input.
        autocast: Makes the context of the forward pass, for mixed precision.
        scaler: A GradScaler, where one is used.
        accumulate: Batches whose gradients are summed for one optimizer step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    preprocess: Callable[[Tensor], Tensor]
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: torch.amp.GradScaler | None = None
    accumulate: int = 1
    _pending: int = 0

    def train_batch(self, images: Tensor, targets: Tensor) -> Tensor:
        """Take a training step on augmented uint8 images and return the detached mean loss."""
        with self.autocast():
            loss = self._losses(images, targets).mean()
        if not bool(torch.isfinite(loss)):
            raise NonFiniteLoss(f"the training loss is {float(loss.detach())}")
        if self._pending == 0:
            self.optimizer.zero_grad(set_to_none=True)
        scaled = loss / self.accumulate
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]
        self._pending += 1
        if self._pending >= self.accumulate:
            self.flush()
        return loss.detach()

    def flush(self) -> None:
        """Take the optimizer step for gradients that are waiting, if any."""
        if self._pending == 0:
            return
        self._pending = 0
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @torch.no_grad()
    def losses(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, float64 on the CPU, in the model's present mode."""
        with self.autocast():
            return self._losses(images, targets).to("cpu", torch.float64)

    def _losses(self, images: Tensor, targets: Tensor) -> Tensor:
        device = next(self.model.parameters()).device
        logits = self.model(self.preprocess(images.to(device)))
        losses = self.loss(logits.float(), targets.to(device))
        if losses.dim() != 1 or len(losses) != len(images):
            raise ValueError(
                f"loss(logits, targets) must return one value per sample, [{len(images)}], got {tuple(losses.shape)}; "
                "use reduction='none'"
            )
        return losses


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


def probe(
    policy: ParticlePolicy,
    learner: Learner,
    samples: Samples,
    augment: Augmentation,
    snapshot: Snapshot,
    *,
    clone_size: int | float,
    measure_size: int | float,
    clone_epochs: int,
    batch_size: int,
    seed: int,
    step: int,
    resample: str = "bilinear",
    fill: tuple[int, int, int] = (128, 128, 128),
    progress: Progress = lambda phase, done, total: None,
) -> Measurement:
    """Measure the particles of ``policy`` (the noised ones) on fresh, disjoint, stratified subsets.

    Args:
        policy: The particles and weights to probe.
        learner: The network; restored bit for bit.
        samples: Where the subsets are drawn from.
        augment: The training augmentation under ``policy``, always-on transforms included; used to train the clone.
        snapshot: Memory for the clone's way back, reused from step to step.
        clone_size: Samples in D_tp, as a number or a fraction.
        measure_size: Samples in D_vp, as a number or a fraction.
        clone_epochs: Epochs of clone training, e_p.
        batch_size: Training batch of the clone.
        seed: The run's seed.
        step: Number of this filter step; part of every key.
        resample: Filter of the geometric ops at measurement.
        fill: Their fill colour.
        progress: Told after every batch; may raise to stop, and the network is restored all the same.
    """
    train_ids, measure_ids = disjoint_stratified_subsets(samples.labels, [clone_size, measure_size], seed, step)
    plain, targets = samples.gather(measure_ids)
    measure = _Measure(policy, learner, plain, targets, measure_ids, seed, step, resample, fill, progress)
    model = learner.model
    modes = [(module, module.training) for module in model.modules()] if model.training else None
    start = time.perf_counter()
    with snapshot.of(model, learner.optimizer, learner.scaler):
        pending, learner._pending = learner._pending, 0
        try:
            model.eval()
            ref, ref_clean = measure("measure before")
            measured = time.perf_counter()
            model.train()
            for module, training in modes or ():
                module.training = training
            try:
                _train_clone(learner, samples, augment, train_ids, clone_epochs, batch_size, seed, step, progress)
            except NonFiniteLoss:
                # A diverged clone is a measurement like any other: its losses are not finite, and the filter skips it.
                nothing = torch.full_like(ref, torch.nan)
                return Measurement(ref, nothing, ref_clean, nothing[0], {"clone": time.perf_counter() - measured})
            trained = time.perf_counter()
            model.eval()
            upd, upd_clean = measure("measure after")
        finally:
            learner._pending = pending
    end = time.perf_counter()
    seconds = {"clone": trained - measured, "measure": (measured - start) + (end - trained)}
    return Measurement(ref, upd, ref_clean, upd_clean, seconds)


def _train_clone(
    learner: Learner,
    samples: Samples,
    augment: Augmentation,
    train_ids: Tensor,
    clone_epochs: int,
    batch_size: int,
    seed: int,
    step: int,
    progress: Progress,
) -> None:
    batches_an_epoch = -(-len(train_ids) // batch_size)
    for number in range(clone_epochs):
        epoch_key = CLONE_EPOCHS + step * clone_epochs + number
        order = train_ids[epoch_permutation(len(train_ids), seed, epoch_key)]
        for b, ids in enumerate(order.split(batch_size)):
            images, targets = samples.gather(ids)
            learner.train_batch(augment(images, ids, epoch_key), targets)
            progress("train clone", number * batches_an_epoch + b + 1, clone_epochs * batches_an_epoch)
        learner.flush()


@dataclass(slots=True)
class _Measure:
    """Evaluates the model as it stands on D_vp, plain and under every particle, in large batches.

    Common random numbers: every particle and both models see the same samples, uniforms and signs, since draws are
    keyed by sample id and step alone. Crop, flip and erasing play no part here.
    """

    policy: ParticlePolicy
    learner: Learner
    plain: Tensor
    targets: Tensor
    ids: Tensor
    seed: int
    step: int
    resample: str
    fill: tuple[int, int, int]
    progress: Progress
    values_per_batch: int = 1024 * 3 * 32 * 32

    def __call__(self, phase: str) -> tuple[Tensor, Tensor]:
        count, particles = len(self.ids), len(self.policy.particles)
        height, width = self.plain.shape[-2:]
        batch = max(1, self.values_per_batch // self.plain[0].numel())
        pairs = torch.arange(particles * count)
        losses = torch.empty(particles * count, dtype=torch.float64)
        chunks = pairs.split(batch)
        for number, chunk in enumerate(chunks):
            sample, particle = chunk % count, chunk // count
            program = self.policy.sample_particle(
                particle, self.ids[sample], MEASUREMENTS + self.step, self.seed, (height, width)
            )
            images = apply(self.plain[sample], program, resample=self.resample, fill=self.fill)
            losses[chunk] = self.learner.losses(images, self.targets[sample])
            self.progress(phase, number + 1, len(chunks))
        clean = [
            self.learner.losses(images, targets)
            for images, targets in zip(self.plain.split(batch), self.targets.split(batch))
        ]
        return losses.view(particles, count), torch.cat(clean)
