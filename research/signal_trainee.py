"""A network on a GPU that the studies of the filter's signal train, average, measure and put back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from signal_average import WeightAverage, estimate_batch_statistics
from torch import Tensor
from torch.nn import functional

from particleaugment import filter as pf
from particleaugment.augment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing
from particleaugment.core.ops import OPS
from particleaugment.core.program import resample_code
from particleaugment.data import ImageData, epoch_permutation
from particleaugment.models import build_model
from particleaugment.policies import ParticlePolicy
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.trainee.snapshot import Snapshot

M = 3.0
SPARSE = 50  # particles of the paper's kind come first in every policy here, then one particle per op
SINGLE_PROBABILITY = 0.5
BATCH = 128
RATE = 0.1


def particles() -> Tensor:
    """Return the particles of both studies: sparse ones as the paper starts with, and one per op."""
    sparse = pf.sparse_init(num_particles=SPARSE, num_ops=len(OPS), nonzero=3, value=0.25, seed=0)
    return torch.cat([sparse.particles, SINGLE_PROBABILITY * torch.eye(len(OPS), dtype=torch.float64)])


def policy(rows: Sequence[int]) -> ParticlePolicy:
    """Return a policy that draws evenly from some of the particles."""
    table = particles()
    weights = torch.zeros(len(table), dtype=torch.float64)
    weights[list(rows)] = 1.0
    return ParticlePolicy(table, weights, m=M, semantics="timm-increasing")


def quiet(phase: str, done: int, total: int) -> None:
    """Show no progress."""


class StudyTrainee(GraphTrainee):
    """A captured training step that also keeps each sample's latest training loss, and averaged weights."""

    def __init__(self, data: ImageData, model_name: str, say: Callable[[str], None] = print):
        device = data.train_images.device
        model = build_model(model_name, data.num_classes, 0)
        model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(
            model.parameters(), lr=torch.tensor(RATE, device=device), momentum=0.9, weight_decay=5e-4, nesterov=True,
            fused=True,
        )  # fmt: skip
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        super().__init__(
            model, optimizer, data.train_images, data.train_labels, Normalize(data.mean, data.std, torch.bfloat16),
            seed=0, batch_size=BATCH, before=[PadCrop(4), HorizontalFlip()], after=[RandomErasing()],
            resample=resample_code("bilinear"), fill=(128, 128, 128),
            autocast=lambda: torch.autocast("cuda", torch.bfloat16), say=say,
        )  # fmt: skip
        self.model_name, self.classes = model_name, data.num_classes
        self.sample_losses = torch.zeros(len(data.train_labels), device=device)
        self.average = WeightAverage(self.model.parameters())

    def _step(self, ids: Tensor, forward: Callable[[Tensor], Tensor]) -> None:
        inputs = self._training(self.images, ids, index=ids)
        losses = self._losses(inputs, self.labels[ids], forward)
        self.optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.sample_losses.index_copy_(0, ids, losses.detach())
        self._loss_sum += losses.detach().double().sum()

    def start(self, seed: int) -> None:
        """Begin a new training run in place, so that the captured step stays."""
        fresh = build_model(self.model_name, self.classes, seed)
        self.model.load_state_dict(fresh.state_dict())
        for parameter in self.model.parameters():
            self.optimizer.state[parameter]["momentum_buffer"].zero_()
        self.average = WeightAverage(self.model.parameters())
        for pipeline in (self._training, self._measuring):
            pipeline.seed.fill_(seed)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate that the captured step reads."""
        self.optimizer.param_groups[0]["lr"].fill_(rate)

    def epoch(self, training: ParticlePolicy, ids: Tensor, seed: int, epoch: int) -> float:
        """Train one epoch, which the average follows, and return its mean loss."""
        self.model.train()
        order = ids[epoch_permutation(len(ids), seed, epoch)]
        return self.train(training, order, epoch, progress=self._follow) / len(ids)

    def _follow(self, phase: str, done: int, total: int) -> None:
        self.average.follow(self.model)

    def inputs(self, ids: Tensor, policy: ParticlePolicy | None, epoch_key: int) -> tuple[Tensor, Tensor]:
        """Return float32 network inputs, under a policy or plain, always-on transforms left out, and targets."""
        ids = ids.to(self.images.device)
        pipeline = self._plain if policy is None else self._measuring
        if policy is not None:
            pipeline.set_policy(policy)
            pipeline.set_epoch(epoch_key)
        return pipeline(self.images, ids, index=ids).float(), self.labels[ids]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss."""
        return functional.cross_entropy(logits.float(), targets, reduction="none")

    @contextlib.contextmanager
    def averaged_weights(self, batches: Sequence[Tensor]) -> Iterator[None]:
        """Put the averaged weights into the network, with batch statistics estimated anew, and take them out again."""
        inputs = [self.inputs(batch, None, 0)[0] for batch in batches]
        with self.average.inside(self.model), estimate_batch_statistics(self.model, inputs):
            yield

    def snapshot_of(self) -> contextlib.AbstractContextManager[None]:
        """Restore network and optimizer after the block."""
        return Snapshot().of(self.model, self.optimizer)


def cosine(epoch: int, epochs: int) -> float:
    """Return the learning rate of an epoch, counted from 1."""
    return 0.5 * RATE * (1 + math.cos(math.pi * (epoch - 1) / epochs))


def accuracy(trainee: StudyTrainee, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy on plain images in percent."""
    trainee.model.eval()
    return trainee.evaluate(images, labels)[1]


def held_out_losses(trainee: StudyTrainee, ids: Tensor) -> Tensor:
    """Return each sample's loss on plain images, float64, in the network's present state."""
    trainee.model.eval()
    losses = []
    with torch.no_grad():
        for part in ids.split(2048):
            with trainee.autocast():
                logits = trainee.model(trainee.inputs(part, None, 0)[0]).float()
            losses.append(functional.cross_entropy(logits, trainee.labels[part], reduction="none").double())
    return torch.cat(losses)
