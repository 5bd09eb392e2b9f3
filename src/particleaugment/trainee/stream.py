"""Training on image files that do not fit in memory: workers decode, the device augments and trains.

Batches are decoded by id in the epoch's order, random crops included, keyed as every other draw is; so the result does
not depend on the number of workers, and an epoch goes on from any batch. On a CUDA device batches arrive by pinned
copies, one ahead of the network, and the rest of the augmentation is one kernel launch, or two with colour jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from particleaugment.augment.pipeline import FusedPipeline, fusable
from particleaugment.augment.transforms import ColorJitter, Normalize, Transform
from particleaugment.core.program import resample_code
from particleaugment.data.reader import Reader
from particleaugment.data.split import batch_sizes
from particleaugment.data.streamed import FolderData
from particleaugment.executors import apply
from particleaugment.policies import Identity, ParticlePolicy, Policy
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.trainee.protocol import Progress
from particleaugment.trainee.ranks import Ranks
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["Pipelines", "StreamTrainee", "TorchPipeline", "make_pipelines"]

TRAIN, PLAIN, TEST = "train", "plain", "test"

# Pixel values per batch of an evaluation: large batches for a GPU, for a CPU the same as for data in memory.
_VALUES_PER_BATCH = {"cuda": 512 * 3 * 224 * 224, "cpu": 1024 * 3 * 32 * 32}


class Pipeline(Protocol):
    """Turns uint8 images on the device into the network's input."""

    def set_policy(self, policy: Policy) -> None:
        """Change the policy."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all draws."""
        ...

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        """Augment ``images``, or those of them that ``index`` names, under chosen particles if there are any."""
        ...


class TorchPipeline:
    """The transforms and the policy one after the other, on any device; pixels as :class:`FusedPipeline` makes them.

    Args:
        normalize: Normalisation, the last step.
        seed: Seed of all draws.
        before: Always-on transforms before the policy.
        after: Always-on transforms after it, Normalize left out.
        resample: Default resampling filter.
        fill: Fill colour.
    """

    def __init__(
        self,
        normalize: Normalize,
        seed: int,
        *,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        resample: str = "bilinear",
        fill: tuple[int, int, int] = (128, 128, 128),
    ):
        self.normalize, self.seed, self.before, self.after = normalize, seed, tuple(before), tuple(after)
        self.resample, self.fill = resample, fill
        self.policy: Policy = Identity()
        self.epoch = 0

    def set_policy(self, policy: Policy) -> None:
        """Change the policy."""
        self.policy = policy

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all draws."""
        self.epoch = epoch

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        """Return the network's input, in channels-last memory."""
        images = images if index is None else images[index]
        size = (images.shape[-2], images.shape[-1])
        for transform in self.before:
            images = transform(images, ids, self.epoch, self.seed)
        if particle is None:
            program = self.policy.sample(ids, self.epoch, self.seed, size)
        else:
            program = self.policy.sample_particle(particle, ids, self.epoch, self.seed, size)
        images = apply(images, program, resample=self.resample, fill=self.fill)
        for transform in self.after:
            images = transform(images, ids, self.epoch, self.seed)
        return self.normalize.run(images).contiguous(memory_format=torch.channels_last)


class _JitterFirst:
    """Colour jitter in a launch of its own, and all else in the fused one."""

    def __init__(self, jitter: ColorJitter, then: FusedPipeline):
        self.jitter, self.then = jitter, then

    def set_policy(self, policy: Policy) -> None:
        self.then.set_policy(policy)

    def set_epoch(self, epoch: int) -> None:
        self.then.set_epoch(epoch)

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        images = images if index is None else images[index]
        images = self.jitter(images, ids, self.then.epoch, self.then.seed)
        return self.then(images, ids, particle=particle)


class Pipelines(NamedTuple):
    """The three ways in which images become the network's input.

    Attributes:
        training: With always-on transforms and the policy.
        measuring: With the policy alone.
        plain: As they are.
    """

    training: Pipeline
    measuring: Pipeline
    plain: Pipeline


def make_pipelines(
    device: torch.device,
    size: int,
    normalize: Normalize,
    seed: int,
    executor: str,
    *,
    before: Sequence[Transform],
    after: Sequence[Transform],
    resample: str,
    fill: tuple[int, int, int],
) -> Pipelines:
    """Return the pipelines of a run: fused ones where that is the executor and the transforms allow it."""
    jitter = next((transform for transform in before[:1] if isinstance(transform, ColorJitter)), None)
    rest = before if jitter is None else before[1:]
    if executor != "fused" or not fusable(rest, after):
        slow = replace(normalize, dtype=torch.float32)

        def step_by_step(before: Sequence[Transform] = (), after: Sequence[Transform] = ()) -> TorchPipeline:
            return TorchPipeline(slow, seed, before=before, after=after, resample=resample, fill=fill)

        return Pipelines(step_by_step(before, after), step_by_step(), step_by_step())

    def fused(before: Sequence[Transform] = (), after: Sequence[Transform] = ()) -> FusedPipeline:
        return FusedPipeline(
            Identity(), (size, size), device, seed, before=before, after=(*after, normalize),
            resample=resample_code(resample), fill=fill, dtype=normalize.dtype, channels_last=True,
        )  # fmt: skip

    training = fused(rest, after)
    return Pipelines(training if jitter is None else _JitterFirst(jitter, training), fused(), fused())


class StreamTrainee:
    """Trains and measures a network on images that are decoded on the way; see the module's text.

    Args:
        learner: The network and how it takes a step; its ``preprocess`` leaves the pipelines' results alone.
        data: The files.
        pipelines: What follows decoding.
        batch_size: Samples per step.
        workers: Processes that decode; 0 decodes in this one.
        compiled: Whether the network's training steps are compiled.
        say: Told, once, what could not be done and what is done instead.
    """

    def __init__(
        self,
        learner: Learner,
        data: FolderData,
        pipelines: Pipelines,
        batch_size: int,
        workers: int,
        *,
        compiled: bool = False,
        say: Callable[[str], None] = print,
    ):
        self.learner, self.data, self.pipelines, self.batch_size, self.say = learner, data, pipelines, batch_size, say
        self.device = learner.device
        parts = {TRAIN: data.train, PLAIN: data.plain, TEST: data.test}
        self.reader = Reader(parts, workers, ahead=2 * batch_size, pin_memory=self.device.type == "cuda")
        self.batches_done = 0
        self.loss_sum = 0.0
        self._measured: tuple[Tensor, Tensor, Tensor] | None = None
        self._compiled: Learner | None = None
        self._trusts_compiled = False
        if compiled:
            self._compiled = replace(learner, model=cast(nn.Module, torch.compile(learner.model)))

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
        """There is none."""
        return None

    @property
    def ranks(self) -> Ranks:
        """The processes that share batches, measurements and evaluations."""
        return self.learner.ranks

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Keep the images that a clone is measured on for both times; every step is whole, so nothing is put aside."""
        try:
            yield
        finally:
            self._measured = None

    def close(self) -> None:
        """End the workers."""
        self.reader.close()

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
        self.pipelines.training.set_policy(policy)
        self.pipelines.training.set_epoch(epoch_key)
        self.data.train.set_epoch(epoch_key)
        batches = ids.cpu().split(batch_sizes(len(ids), self.batch_size))
        shares = [self.ranks.share_of_batch(batch) for batch in batches[start:]]
        self.batches_done = start
        self.loss_sum = loss_sum
        with self.reader.guarded():
            stream = self._stream(TRAIN, [mine for mine, _ in shares])
            for (images, labels, mine), (_, weight), batch in zip(stream, shares, batches[start:]):
                loss = self._step(self.pipelines.training(images, mine), labels, weight)
                self.loss_sum += loss * len(batch)
                self.batches_done += 1
                progress(phase, self.batches_done, len(batches))
        self.ranks.equalise_buffers(self.model)
        return self.loss_sum

    @torch.no_grad()
    def measure(
        self, policy: ParticlePolicy, ids: Tensor, epoch_key: int, *, progress: Progress, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Return losses under each particle, float64 ``[r, N]``, and on the plain images, ``[N]``.

        Ranks share the samples out, and each holds all losses in the end.
        """
        mine = self.ranks.share(ids.cpu())
        with self.reader.guarded():
            if self._measured is None or not torch.equal(self._measured[2].cpu(), mine):
                self._measured = self._gather(PLAIN, mine)
        plain, labels, samples = self._measured
        self.pipelines.measuring.set_policy(policy)
        self.pipelines.measuring.set_epoch(epoch_key)
        count, particles, batch = len(mine), len(policy.particles), self._large_batch
        losses = []
        # As many turns on every rank, since progress may hold a word between ranks.
        turns = -(-particles * self.ranks.largest_share(len(ids)) // batch)
        for turn in range(turns):
            chunk = torch.arange(particles * count, device=self.device)[turn * batch : (turn + 1) * batch]
            if len(chunk):
                index = chunk % count
                inputs = self.pipelines.measuring(plain, samples[index], index, particle=chunk // count)
                losses.append(self.learner.losses(inputs, labels[index]))
            progress(phase, turn + 1, turns)
        parts = zip(plain.split(batch), samples.split(batch), labels.split(batch))
        clean = [self.learner.losses(self.pipelines.plain(images, some), label) for images, some, label in parts]
        table = torch.cat([torch.cat(losses).view(particles, count), torch.cat(clean)[None]])
        whole = self.ranks.collect(table, len(ids))
        return whole[:-1], whole[-1]

    @torch.no_grad()
    def evaluate(self, count: int | None, progress: Progress) -> tuple[float, float]:
        """Return mean loss and accuracy in percent on the first ``count`` test images, or all, in the present mode."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        total = len(self.data.test) if count is None else min(count, len(self.data.test))
        batches = self.ranks.share(torch.arange(total)).split(self._large_batch)
        turns = -(-self.ranks.largest_share(total) // self._large_batch)
        with self.reader.guarded():
            for number, (images, labels, batch) in enumerate(self._stream(TEST, batches)):
                with self.learner.autocast():
                    logits = self.model(self.pipelines.plain(images, batch)).float()
                loss_sum += self.learner.loss(logits, labels).double().sum()
                right += (logits.argmax(1) == labels).sum()
                progress("evaluate", number + 1, turns)
            for number in range(len(batches), turns):  # a rank with a batch less has its word all the same
                progress("evaluate", number + 1, turns)
        summed_loss, summed_right = self.ranks.sum(float(loss_sum), int(right))
        return summed_loss / total, 100.0 * summed_right / total

    @property
    def _large_batch(self) -> int:
        return max(1, _VALUES_PER_BATCH[self.device.type] // (3 * self.data.train.size**2))

    def _step(self, inputs: Tensor, labels: Tensor, weight: float) -> float:
        # A partial batch would be compiled anew.
        if self._compiled is None or len(labels) != self.batch_size:
            return self.learner.train_batch(inputs, labels, weight)
        if not self._trusts_compiled:
            self._try_compiled(inputs, labels)
            return self._step(inputs, labels, weight)
        return self._compiled.train_batch(inputs, labels, weight)

    def _try_compiled(self, inputs: Tensor, labels: Tensor) -> None:
        """Take a compiled step and undo it; go on without if the network cannot be compiled."""
        assert self._compiled is not None
        try:
            with Snapshot().of(self.model, self.optimizer):
                self._compiled.train_batch(inputs, labels)
        except NonFiniteLoss:
            raise
        except Exception as error:
            self._compiled = None
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.say(f"training without compiling the network: it cannot be compiled ({first_line})")
        self._trusts_compiled = True

    def _gather(self, part: str, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pieces = list(self._stream(part, ids.split(self.batch_size)))
        images, labels, samples = (torch.cat(tensors) for tensors in zip(*pieces))
        return images, labels, samples

    def _stream(self, part: str, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Decode batches of ids and bring them to the device: images, labels and ids."""
        labels = (self.data.test if part == TEST else self.data.train).images.labels
        decoded = self.reader.batches(part, batches)
        if self.device.type != "cuda":
            for ids, pieces in decoded:
                yield torch.cat(pieces), labels[ids], ids
            return
        # The next batch is copied on a stream of its own while the network works on this one.
        copies = torch.cuda.Stream(self.device)
        waiting: tuple[tuple[Tensor, Tensor, Tensor], torch.cuda.Event] | None = None
        for ids, pieces in decoded:
            with torch.cuda.stream(copies):
                small = [tensor.to(self.device, non_blocking=True) for tensor in (labels[ids], ids)]
                moved = self._images_on_device(pieces), small[0], small[1]
                arrived = copies.record_event()
            if waiting is not None:
                yield _handed_over(*waiting)
            waiting = moved, arrived
        if waiting is not None:
            yield _handed_over(*waiting)

    def _images_on_device(self, pieces: Sequence[Tensor]) -> Tensor:
        count = sum(len(piece) for piece in pieces)
        images = torch.empty(count, *pieces[0].shape[1:], dtype=torch.uint8, device=self.device)
        for place, piece in zip(images.split([len(piece) for piece in pieces]), pieces):
            place.copy_(piece, non_blocking=True)
        return images


def _handed_over(batch: tuple[Tensor, Tensor, Tensor], arrived: torch.cuda.Event) -> tuple[Tensor, Tensor, Tensor]:
    """Make the present stream wait for a batch, and keep its memory until that stream is done with it."""
    present = torch.cuda.current_stream()
    present.wait_event(arrived)
    for tensor in batch:
        tensor.record_stream(present)
    return batch
