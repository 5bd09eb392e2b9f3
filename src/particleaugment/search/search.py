"""``ParticleAugment``: a policy that learns while a network trains, for anyone's training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from particleaugment.augment.module import Augment, checked_epoch
from particleaugment.augment.transforms import Transform
from particleaugment.core.op_table import OPS
from particleaugment.core.random import checked_seed
from particleaugment.data.listing import ImageList
from particleaugment.data.samples import Samples
from particleaugment.executors.targets import TargetOptions
from particleaugment.policies.policy import Policy, checked_ops
from particleaugment.search.agreement import require_same_as_saved, require_same_on_ranks, state_tensors
from particleaugment.search.clone import training_of_clone
from particleaugment.search.filter_base import Filter, FilterRecord, FilterState, Subject
from particleaugment.search.filters import DEFAULT, filter_settings
from particleaugment.search.held_out import Division
from particleaugment.search.held_out_check import HeldOutCheck
from particleaugment.search.history import packed, unpacked
from particleaugment.search.idle_ops import log, ops_in_use
from particleaugment.search.observed import ObservedLosses
from particleaugment.search.training_set import SearchAugment, TrainingSet
from particleaugment.search.wrapped import unwrapped
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import Progress, Trainee, silent
from particleaugment.trainee.ranks import Ranks
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["ParticleAugment"]


class ParticleAugment:
    """Learns an augmentation policy while a network trains.

    Train on :meth:`training_set` in a loop ``for epoch in search.epochs()``. Call :meth:`augment` on each uint8 batch,
    :meth:`observe` with its losses, and :meth:`step` after each epoch.

    Args:
        train_set: All training data: a map-style data set of ``(image, target)``, or ``(images, targets)``; see
            :class:`particleaugment.data.samples.Samples`. A sample's id is its index.
        epochs: Length of the training run.
        filter: The filter and its settings, such as :class:`particleaugment.PaperFilter`; by default
            :class:`particleaugment.DifficultyFilter`.
        seed: Seed of every draw.
        ops: Names of the ops that the policy draws from. The default leaves out Color if all images are grey.
        before: Always-on transforms before the policy, such as ``PadCrop(4), HorizontalFlip()``.
        after: Always-on transforms after it that keep uint8, such as ``RandomErasing()``.
        resample: Interpolation of the geometric ops.
        fill: Their fill colour.
        executor: See :func:`particleaugment.apply`.
        groups: Group of each sample (a patient, a scene), as a number or a name. Held-out samples then share no group
            with training samples.
        say: Called with a line that names left-out ops, or copies of held-out images; by default the logger
            ``particleaugment``.
        options: How masks, boxes and keypoints are read and moved, as in :class:`Augment`.

    >>> from torch.utils.data import DataLoader
    >>> images, labels = torch.zeros(32, 3, 8, 8, dtype=torch.uint8), torch.arange(32) % 2
    >>> search = ParticleAugment((images, labels), epochs=2)
    >>> loader = DataLoader(search.training_set(), batch_size=8, shuffle=True)
    >>> model, loss = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), nn.CrossEntropyLoss(reduction="none")
    >>> for epoch in search.epochs():
    ...     for images, labels, ids in loader:
    ...         losses = loss(model(search.augment(images, ids) / 255), labels)
    ...         search.observe(ids, losses)
    ...     record = search.step(model, loss=loss, preprocess=lambda images: images / 255)
    >>> len(loader.dataset), search.steps_taken, search.schedule()
    (32, 1, MixtureSchedule(2 steps over 2 epochs, Mixture(...)))
    """

    def __init__(
        self,
        train_set: Any,
        *,
        epochs: int,
        filter: Filter[Any] | None = None,
        seed: int = 0,
        ops: Sequence[str] = OPS,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        resample: str = "bilinear",
        fill: tuple[int, int, int] = (128, 128, 128),
        executor: str = "auto",
        groups: Tensor | Sequence[Any] | None = None,
        say: Callable[[str], None] = log,
        **options: Unpack[TargetOptions],
    ):
        if filter is not None and not isinstance(filter, Filter):
            kind = type(filter).__name__
            raise TypeError(f"filter must be a filter, such as pa.DifficultyFilter() or pa.PaperFilter(), got {kind}")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"epochs must be a whole number of at least 1, got {epochs!r}")
        self.filter: Filter[Any] = DEFAULT if filter is None else filter
        self.num_epochs, self.ops, self.seed = epochs, checked_ops(ops), checked_seed(seed)
        self.filter.check(self.ops, epochs)
        self.samples = train_set if isinstance(train_set, (Samples, ImageList)) else Samples(train_set)
        self.division = Division(self.filter, self.samples.labels, epochs=epochs, seed=seed, groups=groups)
        asked, self.ops = self.ops, ops_in_use(self.filter, self.ops, self.samples, epochs)
        if self.ops != asked:
            say("Color changes nothing on grey images and is left out")
        self.state: FilterState = self.filter.init(seed, self.ops, epochs)
        self.frozen = False
        how: Any = {"before": before, "after": after, "executor": executor, "resample": resample, "fill": fill}
        self._augment = SearchAugment(self.policy, seed, self.division, **how, **options)
        self._history: list[tuple[int, FilterState]] = [(1, self.state)]
        self._snapshot = Snapshot()
        self._ended = False
        self._observed, self._say = ObservedLosses(), say
        self._check_of_held_out: HeldOutCheck | None = None

    @property
    def steps_taken(self) -> int:
        """Filter steps taken."""
        return self.state.steps

    @property
    def skipped_steps(self) -> int:
        """Steps whose measurement could not be used."""
        return self.state.skipped

    @property
    def policy(self) -> Policy:
        """The current policy."""
        return self.filter.policy(self.state)

    @property
    def epoch(self) -> int:
        """The epoch that :meth:`augment` draws for; 0 before the first."""
        return self._augment.epoch

    @property
    def epoch_ended(self) -> bool:
        """Whether :meth:`step` was called after the current epoch."""
        return self._ended

    @property
    def augmentation(self) -> Augment:
        """The augmentation behind :meth:`augment`; its policy follows the search, also in running loader workers."""
        return self._augment

    # The training loop.

    def training_set(self, transform: Callable[[Any], Any] | None = None) -> TrainingSet:
        """Return the samples to train on, as a map-style data set of ``(uint8 image, target, id)``.

        While the filter holds samples out, other samples of the same class replace them, so its length always equals
        the train_set's.

        Args:
            transform: A chain that contains ``pa.ImageTransform(search)``, to augment images one by one in the
                loader's workers. It gets the image as ``train_set`` returns it, and its result replaces the uint8
                image. Do not call :meth:`augment` then.
        """
        return TrainingSet(self._samples_by_index(), self.division, self._augment, transform)

    def epochs(self) -> Iterator[int]:
        """Iterate over the epochs, counted from 1; after :meth:`load_state_dict`, over the remaining ones.

        An epoch ends with :meth:`step`; an epoch interrupted before that is repeated. Raises a ValueError if a call
        that the next epoch depends on is missing.
        """
        first = self.epoch if self.epoch and not self._ended else self.epoch + 1
        for epoch in range(first, self.num_epochs + 1):
            self.begin_epoch(epoch)
            yield epoch
            self._check_use()

    def begin_epoch(self, epoch: int, *, resumed: bool = False) -> None:
        """Begin an epoch, as :meth:`epochs` does; for trainers with their own loop.

        Args:
            epoch: The epoch, counted from 1.
            resumed: Whether an interrupted epoch continues with its remaining batches, so that earlier observed losses
                count too. Otherwise the epoch is repeated.
        """
        epoch = checked_epoch(epoch)
        self.division.check_epoch(epoch)
        if epoch == 0:
            raise ValueError("epochs are counted from 1, got epoch 0")
        if epoch != self.epoch + 1 and (epoch != self.epoch or self._ended):
            raise ValueError(
                f"epoch {epoch} is out of order: the search is {'after' if self._ended else 'in'} epoch {self.epoch}; "
                "to resume training, also load the search's state"
            )
        if epoch > self.epoch > 0:
            self._check_use()
            if self.due(self.epoch) and not self._ended:
                raise ValueError(f"epoch {self.epoch} ended without search.step(model, ...); call it after each epoch")
        if epoch != self.epoch or not resumed:
            self._observed.clear()
        self._augment.set_epoch(epoch)
        self._ended = False

    def augment(self, images: Tensor, ids: Tensor | int, **targets: Any) -> Any:
        """Augment a uint8 batch with the current policy; with targets, return an :class:`particleaugment.Augmented`.

        Args:
            images: Images ``[B, C, H, W]``, or one ``[C, H, W]``, on any device.
            ids: The samples, as :meth:`training_set` yields them.
            targets: ``masks``, ``boxes``, ``keypoints`` and ``labels``, which move with their images; see
                :class:`particleaugment.Augment`.
        """
        if self._ended and self.epoch == self.num_epochs:
            self.division.check_epoch(self.epoch + 1)
        augmented = self._augment(images, ids, **targets)
        if self._check_of_held_out is None:
            self._check_of_held_out = HeldOutCheck(self._samples_by_index(), self.division, self._say)
        numbers = ids if isinstance(ids, Tensor) else torch.tensor(ids, device="cpu")
        self._check_of_held_out.look(images, numbers, self.epoch)
        self._observed.expect(numbers.numel())
        return augmented

    def observe(self, ids: Tensor, losses: Tensor) -> None:
        """Record the losses of a training batch; required if the filter has ``needs_training_loss``.

        They are detached and summed on their device, without synchronising with it.

        Args:
            ids: The samples, as passed to :meth:`augment`.
            losses: Their losses under augmentation, one per sample, or their mean. Do not divide them by the number
                of batches over which gradients are accumulated.
        """
        self._observed.add(ids, losses)

    def gather_losses(self, ranks: Ranks | None = None) -> None:
        """Share the observed losses among all ranks, so that one rank can save them for all.

        Call it on all ranks before :meth:`state_dict` if you save within an epoch and resume there.

        Args:
            ranks: As in :meth:`step`.
        """
        self._observed.gather(Ranks.together() if ranks is None else ranks)

    def step(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        preprocess: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        batch_size: int | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        scaler: torch.amp.GradScaler | None = None,
        accumulate: int = 1,
        max_grad_norm: float | None = None,
        ranks: Ranks | None = None,
        progress: Progress = silent,
    ) -> FilterRecord | None:
        """End an epoch, with a filter step if one is due; return the step's record, or None.

        Model, optimizer, scaler and modes are restored bit for bit. If several processes train the network together,
        all of them must call this: they share the work and end with the same policy.

        Args:
            model: The network in training.
            loss: ``loss(logits, targets)`` returning one value per sample.
            preprocess: Turns augmented uint8 images into the network's input.
            optimizer: The network's optimizer, if the filter trains a clone, as the paper's does. The clone trains at
                its current learning rate, so call this after the scheduler has set the next epoch's.
            batch_size: Batch size for the clone's training, per process.
            autocast: Returns the context of forward passes, e.g. ``lambda: torch.autocast("cuda", torch.bfloat16)``.
            scaler: GradScaler for the clone's training, if you use one.
            accumulate: Batches per optimizer step of the clone.
            max_grad_norm: Norm to clip the clone's gradients to, if any.
            ranks: The processes that train the network together; by default all of ``torch.distributed`` if it is
                initialised. ``Ranks()`` means that this process trains on its own.
            progress: Called after every batch. It may raise to stop, on all ranks at the same batch; everything is
                still restored.
        """
        if self.epoch == 0:
            raise ValueError("no epoch has started; loop with: for epoch in search.epochs()")
        if self._ended:
            raise ValueError(f"search.step was already called in epoch {self.epoch}; call it once, after each epoch")
        self._check_use()
        self.filter.check_loss(loss)
        model = unwrapped(model, shared=ranks is None)
        optimizer, batch_size = training_of_clone(self.filter, model, optimizer, batch_size)
        learner = Learner(model, optimizer, loss, preprocess, autocast, scaler, accumulate, max_grad_norm)
        learner.averages = True
        learner.ranks = ranks = Ranks.together(learner.device) if ranks is None else ranks
        # What ranks do together depends on these: if they differ, ranks would wait for each other.
        data = int(self.division.fingerprint[:15], 16)
        given = (self.seed, self.steps_taken, self.frozen, self.epoch, batch_size, accumulate, data)
        require_same_on_ranks(ranks, self.state, "before", torch.tensor(given, device="cpu"))
        if not self.due(self.epoch):
            self._ended = True
            return None
        training_loss = None
        if self.filter.needs_training_loss:
            training_loss = self._observed.mean(ranks, len(self.division.labels), self.epoch)
        trainee = EagerTrainee(
            learner, self._samples_by_index(), self.training_augmentation(), batch_size * ranks.world
        )
        with ranks.common_buffers(model), self._augment.measuring():
            record = self.step_with(trainee, epoch=self.epoch, progress=progress, training_loss=training_loss)
        require_same_on_ranks(ranks, self.state, "after")
        return record

    def freeze(self) -> None:
        """Stop the filter: from now on :meth:`step` only ends epochs, and the policy is fixed."""
        self.frozen = True

    def schedule(self, epochs: int | None = None) -> Policy:
        """Return every policy so far as a schedule of the run, or of one of ``epochs``, to save or to replay."""
        return self.filter.schedule(self._history, self.num_epochs if epochs is None else epochs)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue, as tensors and plain values."""
        return {
            "filter": filter_settings(self.filter),
            "ops": list(self.ops),
            "epochs": self.num_epochs,
            "seed": self.seed,
            "data": self.division.fingerprint,
            "frozen": self.frozen,
            "epoch": self.epoch,
            "ended": self._ended,
            "used": self._augment.used,
            "observed": self._observed.state(Ranks.together()),
            "history": packed(self._history),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the data set, filter, ops, epochs and seed must be the same."""
        require_same_as_saved(self.state_dict(), state)
        self._history = unpacked(state["history"], self.filter.init(self.seed, self.ops, self.num_epochs))
        self.state = self._history[-1][1]
        self.frozen = bool(state["frozen"])
        self._ended = bool(state["ended"])
        self._augment.set_epoch(int(state["epoch"]))
        self._augment.used = bool(state["used"])
        self._observed.restore(state["observed"], Ranks.together())
        self._augment.policy = self.policy

    # For trainers and sessions, which bring their own loop.

    def due(self, epoch: int) -> bool:
        """Whether a filter step follows an epoch, counted from 1."""
        return not self.frozen and self.filter.due(epoch, self.num_epochs)

    def step_with(
        self, trainee: Trainee, *, epoch: int, progress: Progress = silent, training_loss: float | None = None
    ) -> FilterRecord | None:
        """Take one filter step with a trainee that is kept from step to step.

        Args:
            trainee: The network.
            epoch: The epoch that has just been trained.
            progress: Called after every batch; may raise to stop.
            training_loss: Mean training loss of the epoch under augmentation, if known.
        """
        if self.frozen:
            return None
        start = time.perf_counter()
        subject = Subject(
            trainee=trainee,
            labels=self.division.labels,
            split=self.division.split,
            training_loss=training_loss,
            snapshot=self._snapshot,
            progress=progress,
        )
        self.state, record = self.filter.step(self.state, subject, epoch=epoch, epochs=self.num_epochs)
        self._augment.policy = self.policy
        self._augment.set_epoch(epoch)
        self._ended = True
        self._history.append((max(epoch + 1, self._history[-1][0] + 1), self.state))
        others = time.perf_counter() - start - sum(record.seconds.values())
        return replace(record, seconds={**record.seconds, "filter": others})

    def training_augmentation(self) -> Augment:
        """Return an independent training augmentation with this search's transforms and current policy."""
        return self._augment.apart()

    def state_tensors(self) -> list[Tensor]:
        """Return everything that steps have changed, for comparison between processes."""
        return state_tensors(self.state)

    def _check_use(self) -> None:
        """Refuse an epoch in which nothing was augmented, or samples that are held out."""
        self._augment.require_use()
        if self._check_of_held_out is not None:
            self._check_of_held_out.refuse(self.epoch)

    def _samples_by_index(self) -> Samples:
        if not isinstance(self.samples, Samples):
            raise TypeError(f"images of {self.samples} are not read here; create the search from a data set")
        return self.samples

    def __repr__(self) -> str:
        return f"ParticleAugment({self.steps_taken} steps, {self.skipped_steps} skipped, {self.policy!r})"
