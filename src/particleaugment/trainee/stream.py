"""Training on image files that do not fit in memory: workers decode, the device augments and trains.

Batches are decoded by id in the epoch's order, random crops included, keyed as every other draw is; so the result does
not depend on the number of workers, and an epoch resumes at any batch. On a CUDA device batches arrive by pinned
copies, one ahead of the network, and the rest of the augmentation is one kernel launch, or two with colour jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from particleaugment.data.reader import Reader
from particleaugment.data.streamed import StreamedData
from particleaugment.trainee.batches import Batch, LoopTrainee, PlainImages, Share
from particleaugment.trainee.learner import Learner, NonFiniteLoss
from particleaugment.trainee.pipelines import Pipelines
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["StreamTrainee"]

TRAIN, PLAIN, TEST = "train", "plain", "test"

_VALUES_PER_GPU_BATCH = 512 * 3 * 224 * 224


class StreamTrainee(LoopTrainee[Batch]):
    """Trains and measures a network on images that are decoded on the way; see the module's text.

    Args:
        learner: The network and how it takes a step.
        pipelines: What follows decoding.
        data: The files.
        batch_size: Samples per step.
        workers: Processes that decode; 0 decodes in this one.
        compiled: Whether the network's training steps are compiled.
        say: Takes a sentence, once, on what could not be done and what is done instead.
    """

    def __init__(
        self,
        learner: Learner,
        pipelines: Pipelines,
        data: StreamedData,
        batch_size: int,
        workers: int,
        *,
        compiled: bool = False,
        say: Callable[[str], None] = print,
    ):
        super().__init__(learner, pipelines, batch_size)
        self.data, self.say, self.device = data, say, learner.device
        parts = {TRAIN: data.train, PLAIN: data.plain, TEST: data.test}
        self.reader = Reader(parts, workers, ahead=2 * batch_size, pin_memory=self.device.type == "cuda")
        self._compiled: Learner | None = None
        self._trusts_compiled = False
        if compiled:
            self._compiled = replace(learner, model=cast(nn.Module, torch.compile(learner.model)))

    def close(self) -> None:
        """End the workers."""
        self.reader.close()

    # Where images come from.

    def _begin(self, ids: Tensor, epoch_key: int, start: int) -> None:
        self.data.train.set_epoch(epoch_key)

    def _reading(self) -> AbstractContextManager[None]:
        return self.reader.guarded()

    def _batches(self, shares: Sequence[Share]) -> Iterator[Batch]:
        stream = self._stream(TRAIN, [share.ids.cpu() for share in shares])
        for (images, labels, ids), share in zip(stream, shares):
            yield Batch(self.pipelines.training(images, ids), labels, share)

    def _plain(self, ids: Tensor) -> PlainImages:
        pieces = list(self._stream(PLAIN, ids.split(self.batch_size)))
        images, labels, samples = (torch.cat(tensors) for tensors in zip(*pieces))
        return PlainImages(images, labels, samples)

    def _test(self, batches: Sequence[Tensor]) -> Iterator[PlainImages]:
        for images, labels, ids in self._stream(TEST, batches):
            yield PlainImages(images, labels, ids)

    @property
    def _test_size(self) -> tuple[int, int]:
        return len(self.data.test), 3 * self.data.test.size**2

    def _large_batch(self, values: int) -> int:
        on_gpu = self.device.type == "cuda"
        return max(1, _VALUES_PER_GPU_BATCH // values) if on_gpu else super()._large_batch(values)

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

    # How a step is taken.

    def _step(self, batch: Batch) -> None:
        # A partial batch would be compiled for again.
        if self._compiled is None or len(batch.targets) != self.batch_size:
            self._learn(self.learner, batch)
        elif self._trusts_compiled:
            self._learn(self._compiled, batch)
        else:
            self._try_compiled(batch)
            self._step(batch)

    def _try_compiled(self, batch: Batch) -> None:
        """Take a compiled step and undo it; train without if the network cannot be compiled."""
        assert self._compiled is not None
        try:
            with Snapshot().of(self.model, self.optimizer):
                self._compiled.train_batch(batch.inputs, batch.targets)
        except NonFiniteLoss:
            raise
        except Exception as error:
            self._compiled = None
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.say(f"training without compiling the network: it cannot be compiled ({first_line})")
        self._trusts_compiled = True


def _handed_over(batch: tuple[Tensor, Tensor, Tensor], arrived: torch.cuda.Event) -> tuple[Tensor, Tensor, Tensor]:
    """Make the present stream wait for a batch, and keep its memory until that stream is done with it."""
    present = torch.cuda.current_stream()
    present.wait_event(arrived)
    for tensor in batch:
        tensor.record_stream(present)
    return batch
