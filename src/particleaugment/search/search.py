"""``ParticleAugment``: a policy that learns while a network trains, for anyone's training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from particleaugment.augment.batch import Augment
from particleaugment.augment.transforms import Transform
from particleaugment.core.ops import OPS
from particleaugment.data.groups import as_groups
from particleaugment.data.samples import Samples, classes_of
from particleaugment.data.split import held_out_split
from particleaugment.executors.targets import TargetOptions
from particleaugment.policies.base import Policy, checked_ops
from particleaugment.search.filters import filter_settings
from particleaugment.search.gap import GapFilter
from particleaugment.search.history import packed, unpacked
from particleaugment.search.protocol import Filter, FilterRecord, FilterState, Subject
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import Progress, Trainee
from particleaugment.trainee.ranks import RankError, Ranks
from particleaugment.trainee.snapshot import Snapshot

__all__ = ["ParticleAugment"]


class ParticleAugment:
    """Learns an augmentation policy while a network trains.

    In a training loop: ``set_epoch`` before each epoch, ``augment`` on each uint8 batch, ``step`` after each epoch.
    Where the filter holds samples out, train on :meth:`training_ids` alone.

    Args:
        filter: The filter and its settings, such as :class:`particleaugment.PaperFilter`; by default
            :class:`particleaugment.GapFilter`.
        epochs: Length of the training run, which the default filter has to know.
        seed: Seed of every draw.
        ops: Names of the ops that the policy draws from.
        before: Always-on transforms before the policy, such as ``PadCrop(4), HorizontalFlip()``.
        after: Always-on transforms after it that keep uint8, such as ``RandomErasing()``.
        resample: Interpolation of the geometric ops.
        fill: Their fill colour.
        executor: See :func:`particleaugment.apply`.
        groups: Group of each sample of the data set (a patient, a scene), a number or a name, where samples that are
            held out must not share a group with those that are trained on.
        options: How masks, boxes and keypoints are read and moved, as in :class:`Augment`.

    >>> search = ParticleAugment(GapFilter(measure_size=8), epochs=60)
    >>> images, labels = torch.zeros(32, 3, 8, 8, dtype=torch.uint8), torch.arange(32) % 2
    >>> len(search.training_ids(labels))
    24
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    >>> search.set_epoch(1)
    >>> x = search.augment(images[:4], ids=torch.arange(4))
    >>> record = search.step(model=model, dataset=(images, labels), batch_size=8,
    ...                      loss=nn.CrossEntropyLoss(reduction="none"), preprocess=lambda x: x / 255)
    >>> record.step, len(record.effects)
    (1, 15)
    """

    def __init__(
        self,
        filter: Filter[Any] | None = None,
        *,
        epochs: int | None = None,
        seed: int = 0,
        ops: Sequence[str] = OPS,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        resample: str = "bilinear",
        fill: tuple[int, int, int] = (128, 128, 128),
        executor: str = "auto",
        groups: Tensor | Sequence[Any] | None = None,
        **options: Unpack[TargetOptions],
    ):
        if filter is not None and not isinstance(filter, Filter):
            raise TypeError(
                f"filter must be a filter, such as pa.GapFilter() or pa.PaperFilter(), got {type(filter).__name__}"
            )
        if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
            raise ValueError(f"epochs must be a whole number of at least 1, got {epochs!r}")
        self.filter: Filter[Any] = GapFilter() if filter is None else filter
        self.epochs, self.ops, self.seed, self.groups = epochs, checked_ops(ops), seed, as_groups(groups)
        self.filter.check(self.ops, epochs)
        self.state: FilterState = self.filter.init(seed, self.ops)
        self.frozen = False
        self._augment = Augment(
            self.policy, seed, before=before, after=after, executor=executor, resample=resample, fill=fill, **options
        )
        self._history: list[tuple[int, FilterState]] = [(1, self.state)]
        self._snapshot = Snapshot()
        self._samples: Samples | None = None
        self._split: tuple[Tensor, tuple[Tensor, Tensor] | None] | None = None
        self._first_epoch, self._asks_by_epoch = 0, False

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
        """Today's policy, as a value."""
        return self.filter.policy(self.state)

    @property
    def epoch(self) -> int:
        """The epoch that :meth:`augment` draws for."""
        return self._augment.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 1; call it before each epoch."""
        self.check_held_out()
        self._augment.set_epoch(epoch)

    def augment(self, images: Tensor, ids: Tensor | None = None, **targets: Any) -> Any:
        """Augment a uint8 batch under today's policy; see :class:`Augment` on ``ids``, masks, boxes and keypoints."""
        return self._augment(images, ids, **targets)

    @property
    def augmentation(self) -> Augment:
        """What :meth:`augment` calls; its policy follows the search, also in workers of a data loader that run."""
        return self._augment

    def training_ids(self, labels: Tensor | Sequence[Any], epoch: int | None = None) -> Tensor:
        """Return the samples to train on: all, or where the filter holds some out, the others.

        In the last fifth of training the gap filter needs no held-out samples any more, and all are to be trained on: a
        loop may ask in every epoch, or once and leave them out to the end. After :meth:`load_state_dict` a loop that
        asked once is answered as it was then, and one that asked in every epoch by the epoch.

        Args:
            labels: Targets of all samples, as :class:`particleaugment.data.samples.Samples` takes them.
            epoch: The epoch; by default the present one.
        """
        labels = classes_of(labels)
        split = self.split_of(labels)
        if epoch is None:
            self._asks_by_epoch |= self.epoch != self._first_epoch
            epoch = self.epoch if self._asks_by_epoch else 0
        if split is None or not self.filter.holds_out_in(epoch, self.epochs):
            return torch.arange(len(labels), device="cpu")
        return split[0]

    def check_held_out(self, labels: Tensor | None = None) -> None:
        """Refuse to go on where held-out samples may be trained on: there would be no gap, and nothing applied.

        Args:
            labels: Those of the data set that a step is given.
        """
        if not self.filter.held_out:
            return
        if self._split is None:
            raise ValueError(
                "this search measures on samples that are never trained on; make the training loader of "
                "search.training_ids(labels) before the first epoch"
            )
        if labels is not None and not torch.equal(self._split[0], labels):
            raise ValueError(
                f"a filter step was given a data set of {len(labels)} samples, whose labels are not the "
                f"{len(self._split[0])} that training_ids was given; pass the whole data set, held-out samples included"
            )

    def freeze(self) -> None:
        """Stop the filter: from now on :meth:`step` does nothing and the policy stays."""
        self.frozen = True

    def due(self, epoch: int, epochs: int | None = None) -> bool:
        """Whether the settings (``every``, ``warmup``) want a step after this epoch."""
        return not self.frozen and self.filter.due(epoch, epochs)

    def step(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        dataset: Any,
        loss: Callable[[Tensor, Tensor], Tensor],
        preprocess: Callable[[Tensor], Tensor],
        batch_size: int,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        scaler: torch.amp.GradScaler | None = None,
        accumulate: int = 1,
        max_grad_norm: float | None = None,
        ranks: Ranks | None = None,
        progress: Progress = lambda phase, done, total: None,
    ) -> FilterRecord | None:
        """Take one filter step after an epoch; returns what it did, or None if the search is frozen.

        Where the filter trains a clone, it does so at the optimizer's present learning rate, so call this after the
        scheduler has set the next epoch's. Model, optimizer, scaler and modes come back as they were, bit for bit.

        Where several processes train the network together, all of them must call this. They share the clone's batches
        and the measurements out, and end with the same policy.

        Args:
            model: The network that trains.
            optimizer: Its optimizer; needed where the filter trains a clone, as the paper's does.
            dataset: Training data: a data set of ``(image, target)`` or ``(images, targets)``; see
                :class:`particleaugment.data.samples.Samples`.
            loss: ``loss(logits, targets)`` returning one value per sample.
            preprocess: Turns augmented uint8 images into the network's input.
            batch_size: Batch of the clone's training, as that of one process's loader.
            autocast: Makes the context of forward passes, e.g. ``lambda: torch.autocast("cuda", torch.bfloat16)``.
            scaler: The GradScaler, where one is used.
            accumulate: Batches per optimizer step.
            max_grad_norm: Where the gradient is clipped in training, if it is.
            ranks: The processes that train the network together; by default those of ``torch.distributed``, if it is
                initialised, so ``Ranks()`` says that this one trains on its own.
            progress: Called after every batch; may raise to stop, on all ranks at the same batch, and everything is
                restored all the same.
        """
        if ranks is None:
            _check_wrapper(model)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module  # its buckets, hooks and count of passes are the training's
        if optimizer is None:
            if self.filter.trains_clone:
                raise ValueError(
                    f"the filter {self.filter.kind!r} trains a clone of the network; pass optimizer, the one that "
                    "trains it"
                )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # never takes a step
        learner = Learner(model, optimizer, loss, preprocess, autocast, scaler, accumulate, max_grad_norm)
        learner.averages = True
        learner.ranks = ranks = Ranks.together(learner.device) if ranks is None else ranks
        samples = self.samples_of(dataset)
        self.check_held_out(samples.labels)
        # What ranks do together depends on these: if they differ, ranks would wait for each other.
        given = (self.seed, self.steps_taken, self.frozen, self.epoch, batch_size, accumulate)
        alike = [samples.labels] if self.groups is None else [samples.labels, self.groups]
        self._require_same(ranks, "before", torch.tensor(given, device="cpu"), *alike)
        augment = self.training_augmentation()
        trainee = EagerTrainee(learner, samples, augment, batch_size * ranks.world)
        with ranks.common_buffers(model):
            record = self.step_with(trainee, samples.labels, progress)
        self._require_same(ranks, "after")
        return record

    def _require_same(self, ranks: Ranks, when: str, *given: Tensor) -> None:
        if differing := ranks.differing([*self.state_tensors(), *given]):
            raise RankError(
                f"the search on rank {', '.join(map(str, differing))} differs from that on rank 0 {when} filter step "
                f"{self.steps_taken + (when == 'before')}; ranks must make the search alike, from one seed, be at the "
                "same epoch, and be given the same data set and batch size"
            )

    def training_augmentation(self) -> Augment:
        """Return a training augmentation with this search's transforms and present policy, to be used on its own."""
        kept = self._augment
        return Augment(
            self.policy,
            self.seed,
            before=kept.before,
            after=kept.after,
            executor=kept.executor,
            resample=kept.resample,
            fill=kept.fill,
            **kept.targets.options(),
        )

    def step_with(
        self,
        trainee: Trainee,
        labels: Tensor,
        progress: Progress = lambda phase, done, total: None,
        training_loss: float | None = None,
    ) -> FilterRecord | None:
        """Take one filter step with a trainee that is kept from step to step.

        Args:
            trainee: The network.
            labels: Class labels of its samples.
            progress: Called after every batch; may raise to stop.
            training_loss: Mean loss of the epoch's samples under augmentation, if it is known.
        """
        if self.frozen:
            return None
        start = time.perf_counter()
        subject = Subject(
            trainee=trainee,
            labels=labels,
            split=self.split_of(labels),
            training_loss=training_loss,
            snapshot=self._snapshot,
            progress=progress,
        )
        self.state, record = self.filter.step(self.state, subject, epoch=self.epoch, epochs=self.epochs)
        self._augment.policy = self.policy
        self._history.append((max(self.epoch + 1, self._history[-1][0] + 1), self.state))
        others = time.perf_counter() - start - sum(record.seconds.values())
        return replace(record, seconds={**record.seconds, "filter": others})

    def state_tensors(self) -> list[Tensor]:
        """Return all that steps have changed, to be compared between processes."""
        values = self.state.to_dict().values()
        return [value if isinstance(value, Tensor) else _as_tensor(value) for value in values]

    def schedule(self, epochs: int) -> Policy:
        """Return every policy so far as a schedule of a run of ``epochs``, to save or to replay."""
        return self.filter.schedule(self._history, epochs)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue, as tensors and plain values."""
        return {
            "filter": filter_settings(self.filter),
            "ops": list(self.ops),
            "epochs": self.epochs,
            "seed": self.seed,
            "frozen": self.frozen,
            "asks_by_epoch": self._asks_by_epoch,
            "augment": self._augment.get_extra_state(),
            "history": packed(self._history),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the filter, its settings, ops, epochs and the seed must be the same."""
        mine = self.state_dict()
        for key in ("filter", "ops", "epochs", "seed"):
            if state[key] != mine[key]:
                raise ValueError(
                    f"the saved search has another {key}: {state[key]!r} instead of {mine[key]!r}; "
                    "make ParticleAugment with that"
                )
        self._history = unpacked(state["history"], self.filter.init(self.seed, self.ops))
        self.state = self._history[-1][1]
        self.frozen = bool(state["frozen"])
        self._augment.set_extra_state(state["augment"])
        self._first_epoch, self._asks_by_epoch = self.epoch, bool(state["asks_by_epoch"])
        self._augment.policy = self.policy

    def samples_of(self, dataset: Any) -> Samples:
        """Return a data set as :class:`Samples`, which the search keeps from step to step."""
        if isinstance(dataset, Samples):
            return dataset
        if self._samples is None or self._samples.dataset is not dataset:
            self._samples = Samples(dataset)
            if self._split is not None:
                self._samples.tell(self._split[0])
        return self._samples

    def split_of(self, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what is trained on and what is held out of samples with these labels; drawn once."""
        labels = labels.to("cpu", torch.int64)
        if self._split is None or not torch.equal(self._split[0], labels):
            self._split = (labels, self._draw_split(labels))
        return self._split[1]

    def _draw_split(self, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        size = self.filter.held_out
        if not size:
            return None
        try:
            trained, held_out = held_out_split(labels, size, self.seed, self.groups)
        except ValueError as error:
            raise ValueError(f"measure_size={size} does not suit {len(labels)} samples: {error}") from None
        if len(held_out) < 2:
            raise ValueError(
                f"measure_size={size} holds one of {len(labels)} samples out for measuring, which gives no standard "
                "error; set a number, such as measure_size=32, or a larger fraction"
            )
        return trained, held_out

    def __repr__(self) -> str:
        return f"ParticleAugment({self.steps_taken} steps, {self.skipped_steps} skipped, {self.policy!r})"


def _as_tensor(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64, device="cpu")


def _check_wrapper(model: nn.Module) -> None:
    """Refuse networks that ranks do not hold alike."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    sharded = any(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in model.modules())
    if sharded or any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            "filter steps are not for networks that ranks hold in shards (FSDP, tensor parallelism); search under "
            "DistributedDataParallel or on one device, and train with the schedule: pa.Augment(pa.Schedule.load(...))"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel) and model.process_group.size() != dist.get_world_size():
        raise ValueError(
            f"the network is trained by {model.process_group.size()} of {dist.get_world_size()} ranks, which cannot "
            "share a filter step's work on their own; pass ranks=Ranks() (from particleaugment.trainee.ranks), and "
            "each does all of it"
        )
