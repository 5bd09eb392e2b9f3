"""A network on a GPU that the studies of the filter's signal train, average, measure and put back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from signal_average import WeightAverage, estimate_batch_statistics
from torch import Tensor

from particleaugment import filter as pf
from particleaugment.augment.pipeline import FusedPipeline
from particleaugment.augment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing
from particleaugment.core.op_table import OPS
from particleaugment.data import ImageData, epoch_permutation
from particleaugment.models import build_model
from particleaugment.policies import ParticlePolicy
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.pipelines import make_pipelines
from particleaugment.trainee.snapshot import Snapshot
from particleaugment.training.network import cross_entropy

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
        pipelines, preprocess = make_pipelines(
            device, (32, 32), Normalize(data.mean, data.std, torch.bfloat16), 0, "fused",
            before=[PadCrop(4), HorizontalFlip()], after=[RandomErasing()], resample="bilinear", fill=(128, 128, 128),
        )  # fmt: skip
        learner = Learner(model, optimizer, cross_entropy, preprocess, lambda: torch.autocast("cuda", torch.bfloat16))
        train, test = (data.train_images, data.train_labels), (data.test_images, data.test_labels)
        super().__init__(learner, pipelines, train, test, BATCH, say=say)
        self.model_name, self.classes = model_name, data.num_classes
        self.sample_losses = torch.zeros(len(data.train_labels), device=device)
        self.average = WeightAverage(self.model.parameters())

    def step(self, ids: Tensor, forward: Callable[[Tensor], Tensor]) -> None:
        """Take a step and keep its losses."""
        inputs = self.pipelines.training(self.images, ids, ids)
        losses = self.learner.losses_through(forward, inputs, self.labels[ids])
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
        for pipeline in (self.pipelines.training, self.pipelines.measuring):
            assert isinstance(pipeline, FusedPipeline)
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
        pipeline = self.pipelines.plain if policy is None else self.pipelines.measuring
        if policy is not None:
            pipeline.set_policy(policy)
            pipeline.set_epoch(epoch_key)
        return pipeline(self.images, ids, ids).float(), self.labels[ids]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss."""
        return cross_entropy(logits.float(), targets)

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


def accuracy(trainee: StudyTrainee) -> float:
    """Return the accuracy on plain test images in percent."""
    trainee.model.eval()
    return trainee.evaluate()[1]


def held_out_losses(trainee: StudyTrainee, ids: Tensor) -> Tensor:
    """Return each sample's loss on plain images, float64, in the network's present state."""
    trainee.model.eval()
    return trainee.losses(ids).to(ids.device)
