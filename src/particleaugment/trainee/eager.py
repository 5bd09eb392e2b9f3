"""Training step by step on samples in memory, or on anyone's data set, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor

from particleaugment.augment.module import Augment
from particleaugment.data.samples import Samples
from particleaugment.trainee.batches import Batch, LoopTrainee, PlainImages, Share
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.pipelines import MaskPipeline, are_masks, step_pipelines

__all__ = ["EagerTrainee"]


class EagerTrainee(LoopTrainee[Batch]):
    """Trains and measures step by step, on any device, through a :class:`Learner`.

    Args:
        learner: The network and how it takes a step.
        samples: Its training data.
        augment: The training augmentation, always-on transforms included; its policy and epoch are set here.
        batch_size: Samples per step.
        test: Test images and labels, where the network is evaluated here.
    """

    def __init__(
        self,
        learner: Learner,
        samples: Samples,
        augment: Augment,
        batch_size: int,
        test: tuple[Tensor, Tensor] | None = None,
    ):
        super().__init__(learner, step_pipelines(augment), batch_size)
        self.samples, self.augment, self.test = samples, augment, test

    def _batches(self, shares: Sequence[Share]) -> Iterator[Batch]:
        for share in shares:
            images, targets = self.samples.gather(share.ids)
            images = images.to(self.learner.device)
            if are_masks(targets, images):
                follower = cast(MaskPipeline, self.pipelines.training)
                inputs, targets = follower.with_masks(images, targets.to(images.device), share.ids)
            else:
                inputs = self.pipelines.training(images, share.ids)
            yield Batch(inputs, targets, share)

    def _step(self, batch: Batch) -> None:
        self._learn(self.learner, batch)

    def _plain(self, ids: Tensor) -> PlainImages:
        images, targets = self.samples.gather(ids)
        return PlainImages(images.to(self.learner.device), targets, ids)

    def _test(self, batches: Sequence[Tensor]) -> Iterator[PlainImages]:
        images, labels = self._test_set
        for numbers in batches:
            chosen = numbers.to(images.device)
            yield PlainImages(images[chosen].to(self.learner.device), labels[chosen], numbers)

    @property
    def _test_size(self) -> tuple[int, int]:
        images, labels = self._test_set
        return len(labels), images[0].numel()

    @property
    def _test_set(self) -> tuple[Tensor, Tensor]:
        if self.test is None:
            raise ValueError("this trainee has no test images to evaluate the network on")
        return self.test
