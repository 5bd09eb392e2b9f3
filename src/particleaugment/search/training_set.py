"""What loaders read in a search: the samples to train on, and the augmentation that checks which they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.utils.data import Dataset

from particleaugment.augment.image import sample_id
from particleaugment.augment.module import Augment
from particleaugment.augment.one_image import OneImage
from particleaugment.augment.transforms import Transform
from particleaugment.data.samples import Samples, to_uint8
from particleaugment.executors.steps import Steps
from particleaugment.executors.targets import TargetOptions
from particleaugment.policies.policy import Policy
from particleaugment.search.held_out import Division

__all__ = ["SearchAugment", "TrainingSet"]


class SearchAugment(Augment):
    """The augmentation of a search, in the loop or in workers: for samples that the epoch trains on, by their ids.

    Args:
        policy: The first policy.
        seed: Seed of all draws.
        division: Says which samples are held out.
        before: See :class:`particleaugment.Augment`, as for all that follow.
        after: Always-on transforms after the policy.
        executor: Who runs the ops.
        resample: Interpolation of the geometric ops.
        fill: Their fill colour.
        options: How masks, boxes and keypoints are read and moved.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int,
        division: Division,
        *,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        executor: str = "auto",
        resample: str = "bilinear",
        fill: tuple[int, int, int] = (128, 128, 128),
        **options: Unpack[TargetOptions],
    ):
        super().__init__(
            policy, seed, before=before, after=after, executor=executor, resample=resample, fill=fill, **options
        )
        self.division, self._measuring = division, False

    def with_steps(
        self, images: Tensor | OneImage, ids: Tensor | int | None = None, *, wanted: bool = True
    ) -> tuple[Any, Steps | None]:
        """Augment a batch of the search's samples, or one of them; every way in comes through here."""
        if self.training:
            self._check(ids)
        return super().with_steps(images, ids, wanted=wanted)

    def _check(self, ids: Tensor | int | None) -> None:
        if self._measuring:
            raise ValueError(
                "the train_set augments its images with this search, so a filter step would measure augmented images; "
                "create the search from the plain data set, and pass the transform to search.training_set"
            )
        if ids is None:
            raise ValueError(
                "a search needs sample ids; pass search.augment the ids that search.training_set() yields, and pass "
                "transforms of single images to search.training_set(transform=...)"
            )
        if self.epoch == 0:
            raise ValueError("no epoch has started; loop with: for epoch in search.epochs()")
        self.division.check_epoch(self.epoch)
        numbers = ids if isinstance(ids, Tensor) else torch.as_tensor(ids, device="cpu")
        if numbers.device.type == "cpu":  # reading another device would wait for it; the search looks there later
            self.division.check(numbers.reshape(-1), self.epoch)
        self._live.note_use()

    @property
    def used(self) -> bool:
        """Whether images were augmented in the present epoch, here or in workers."""
        return self._live.used_in == self.epoch

    @used.setter
    def used(self, used: bool) -> None:
        self._live.used_in = self.epoch if used else 0

    def require_use(self) -> None:
        """Refuse an epoch in which no image was augmented."""
        if not self.used:
            raise ValueError(
                f"no image was augmented in epoch {self.epoch}; call search.augment(images, ids) on each batch, or "
                "pass pa.ImageTransform(search) to search.training_set(transform=...)"
            )

    def apart(self) -> Augment:
        """Return a plain augmentation with the same transforms and the present policy, which checks no ids."""
        return Augment(
            self.policy,
            self.seed,
            before=self.before,
            after=self.after,
            executor=self.executor,
            resample=self.resample,
            fill=self.fill,
            **self.targets.options(),
        )

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Refuse to augment in this block, in which a filter step reads plain images."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False


class TrainingSet(Dataset[tuple[Any, Any, int]]):
    """The samples to train on, as (uint8 image, target, id); :class:`particleaugment.ParticleAugment` makes it.

    Its length always equals the train_set's, so anything that reads the length once stays correct: a
    ``DistributedSampler``, a sampler's weights, a per-step learning-rate schedule, a trainer's number of batches.
    While the filter holds samples out, other samples of the same class take turns in their places. The samples of an
    epoch follow the search, also in persistent and spawned workers.

    Args:
        samples: All training samples.
        division: Says which are held out.
        augment: The search's augmentation, which knows the epoch.
        transform: See :meth:`particleaugment.ParticleAugment.training_set`.
    """

    def __init__(
        self,
        samples: Samples,
        division: Division,
        augment: SearchAugment,
        transform: Callable[[Any], Any] | None = None,
    ):
        self.samples, self.division, self.augment, self.transform = samples, division, augment, transform
        self._places: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.division.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any, int]:
        """Return image, target and id of the sample that has a place in the present epoch."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside the training set, which has {len(self)} samples")
        number = int(self.ids[index])
        image, target = self.samples.item(number)
        if self.transform is None:
            return to_uint8(image), target, number
        with sample_id(number):
            return self.transform(image), target, number

    @property
    def ids(self) -> Tensor:
        """The id at each index, in the current epoch."""
        epoch = self.augment.epoch
        if self._places is None or self._places[0] != epoch:
            self._places = epoch, self.division.places_in(epoch)
        return self._places[1]

    @property
    def targets(self) -> Tensor:
        """The class of each sample, int64 ``[N]``, the same in every epoch: for samplers that balance classes."""
        return self.division.labels
