"""``ParticleAugment``: a policy that learns while a network trains, for anyone's training loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from particleaugment import filter as pf
from particleaugment.augment.batch import Augment
from particleaugment.augment.transforms import Transform
from particleaugment.data.groups import as_groups
from particleaugment.data.samples import Samples, classes_of
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.schedule import Schedule, ScheduleStep
from particleaugment.search.clone import Measurement, probe
from particleaugment.search.filtering import IMPROVED, FilterRecord, FilterSettings, filter_step
from particleaugment.search.severity import Severity, measure_severity
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import Progress, Trainee
from particleaugment.trainee.ranks import RankError, Ranks
from particleaugment.trainee.snapshot import Snapshot
from particleaugment.util.hints import nearest_name

__all__ = ["FilterRecord", "FilterSettings", "ParticleAugment", "filter_step"]


class ParticleAugment:
    """Learns an augmentation policy while a network trains, by the paper's particle filter.

    In a training loop: ``set_epoch`` before each epoch, ``augment`` on each uint8 batch, ``step`` after each epoch.

    Args:
        num_particles: Particles, r.
        nonzero: Ops with a non-zero start probability per particle, l.
        m: Level shared by all ops.
        seed: Seed of every draw.
        before: Always-on transforms before the policy, such as ``PadCrop(4), HorizontalFlip()``.
        after: Always-on transforms after it that keep uint8, such as ``RandomErasing()``.
        resample: Filter of the geometric ops.
        fill: Their fill colour.
        executor: See :func:`particleaugment.apply`.
        groups: Group of each sample of the data set (a patient, a scene), a number or a name, where samples that are
            held out must not share a group with those that are trained on.
        settings: Any other field of :class:`FilterSettings`, by name.

    >>> search = ParticleAugment(num_particles=4, nonzero=2, m=3, seed=0, clone_size=16, measure_size=8)
    >>> images, labels = torch.zeros(32, 3, 8, 8, dtype=torch.uint8), torch.arange(32) % 2
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> search.set_epoch(1)
    >>> x = search.augment(images[:4], ids=torch.arange(4))
    >>> record = search.step(model=model, optimizer=optimizer, dataset=(images, labels), batch_size=8,
    ...                      loss=nn.CrossEntropyLoss(reduction="none"), preprocess=lambda x: x / 255)
    >>> record.step, len(record.delta)
    (1, 4)
    """

    def __init__(
        self,
        num_particles: int = 50,
        nonzero: int = 3,
        m: float = 3.0,
        seed: int = 0,
        *,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        resample: str = "bilinear",
        fill: tuple[int, int, int] = (128, 128, 128),
        executor: str = "auto",
        groups: Tensor | Sequence[Any] | None = None,
        **settings: Any,
    ):
        unknown = set(settings) - set(FilterSettings.__dataclass_fields__)
        if unknown:
            name = sorted(unknown)[0]
            known = {*FilterSettings.__dataclass_fields__, *inspect.signature(ParticleAugment).parameters} - {
                "settings"
            }
            raise TypeError(f"ParticleAugment has no setting {name!r}{nearest_name(name, sorted(known))}")
        self.settings = FilterSettings(num_particles=num_particles, nonzero=nonzero, m=m, **settings)
        self.seed, self.groups = seed, as_groups(groups)
        self.state = self.settings.initial_state(seed)
        self.frozen = False
        self.steps_taken = 0
        self.skipped_steps = 0
        self._mean_gap = 0.0
        self._augment = Augment(
            self.policy, seed, before=before, after=after, executor=executor, resample=resample, fill=fill
        )
        self._history: list[tuple[int, pf.ParticleSet]] = [(1, self.state)]
        self._snapshot = Snapshot()
        self._samples: Samples | None = None
        self._split: tuple[Tensor, tuple[Tensor, Tensor] | None] | None = None
        self._first_epoch, self._asks_by_epoch = 0, False

    @classmethod
    def improved(cls, epochs: int, seed: int = 0, *, measure_size: int | float = 512, **settings: Any) -> Self:
        """Return a search that steers the policy's severity by the generalisation gap, as the recipes do.

        ``measure_size`` samples are held out for measuring: train on :meth:`training_ids` alone.

        Args:
            epochs: Length of the training run; augmentation is taken back over its last fifth.
            seed: Seed of every draw.
            measure_size: Samples held out, as a number or a fraction.
            settings: Any other argument of :class:`ParticleAugment`, to change it.

        >>> search = ParticleAugment.improved(epochs=60, measure_size=8)
        >>> len(search.training_ids(torch.arange(32) % 2))
        24
        """
        return cls(seed=seed, **dict(IMPROVED) | {"epochs": epochs, "measure_size": measure_size} | settings)

    @property
    def policy(self) -> ParticlePolicy:
        """Today's policy, as a value."""
        return self.settings.policy(self.state)

    @property
    def epoch(self) -> int:
        """The epoch that :meth:`augment` draws for."""
        return self._augment.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 1; call it before each epoch."""
        self.check_held_out()
        self._augment.set_epoch(epoch)

    def augment(self, images: Tensor, ids: Tensor | None = None) -> Tensor:
        """Augment a uint8 batch under today's policy; see :class:`Augment` on ``ids``."""
        return self._augment(images, ids)  # type: ignore[no-any-return]

    @property
    def augmentation(self) -> Augment:
        """What :meth:`augment` calls; its policy follows the search, also in workers of a data loader that run."""
        return self._augment

    def training_ids(self, labels: Tensor | Sequence[Any], epoch: int | None = None) -> Tensor:
        """Return the samples to train on: all, or with ``measure_on="heldout"`` those that are not held out.

        In the last fifth of training severities no longer need held-out samples, and all are to be trained on: a loop
        may ask in every epoch, or once and leave them out to the end. After :meth:`load_state_dict` a loop that asked
        once is answered as it was then, and one that asked in every epoch by the epoch.

        Args:
            labels: Targets of all samples, as :class:`particleaugment.data.samples.Samples` takes them.
            epoch: The epoch; by default the present one.
        """
        labels = classes_of(labels)
        split = self._split_of(labels)
        if epoch is None:
            self._asks_by_epoch |= self.epoch != self._first_epoch
            epoch = self.epoch if self._asks_by_epoch else 0
        if split is None or not self.settings.holds_out_in(epoch):
            return torch.arange(len(labels), device="cpu")
        return split[0]

    def check_held_out(self, labels: Tensor | None = None) -> None:
        """Refuse to go on where held-out samples may be trained on: there would be no gap, and nothing applied.

        Args:
            labels: Those of the data set that a step is given.
        """
        if not self.settings.holds_out:
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
        return not self.frozen and self.settings.due(epoch, epochs)

    def step(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
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

        A clone trains for a while on part of the data under the particles, at the optimizer's present learning rate (so
        call this after the scheduler has set the next epoch's), the particles are measured and reweighted, and then the
        model, optimizer, scaler and modes are as before, bit for bit.

        Where several processes train the network together, all of them must call this. They share the clone's batches
        and the measurements out, and end with the same policy.

        Args:
            model: The network that trains.
            optimizer: Its optimizer.
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
            progress: Told after every batch; may raise to stop, on all ranks at the same batch, and everything is
                restored all the same.
        """
        if ranks is None:
            _check_wrapper(model)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module  # its buckets, hooks and count of passes are the training's
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
        if differing := ranks.differing([self.state.particles, self.state.log_weights, *given]):
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
        )

    def step_with(
        self, trainee: Trainee, labels: Tensor, progress: Progress = lambda phase, done, total: None
    ) -> FilterRecord | None:
        """Take one filter step with a trainee that is kept from step to step; ``labels`` are its samples' classes."""
        if self.frozen:
            return None
        step = self.steps_taken + 1
        split = self._split_of(labels)

        def measure(noised: ParticlePolicy) -> Measurement | Severity:
            if self.settings.measure == "loss":
                assert split is not None  # the settings see to it
                gap = self.settings.holds_out_in(self.epoch)
                return measure_severity(
                    noised, trainee, labels, split, gap=gap, seed=self.seed, step=step, progress=progress
                )
            return probe(
                noised,
                trainee,
                labels,
                self._snapshot,
                clone_size=self.settings.clone_size,
                measure_size=self.settings.measure_size,
                split=split,
                clone_epochs=self.settings.clone_epochs,
                seed=self.seed,
                step=step,
                progress=progress,
            )

        done = min(1.0, self.epoch / self.settings.epochs) if self.settings.epochs else 0.0
        state, record = filter_step(
            self.state, self.settings, measure, seed=self.seed, step=step, done=done, mean_gap=self._mean_gap
        )
        self.state, self.steps_taken = state, step
        self._mean_gap = self._mean_gap if record.mean_gap is None else record.mean_gap
        self.skipped_steps += record.skip_reason is not None
        self._augment.policy = self.policy
        self._history.append((max(self.epoch + 1, self._history[-1][0] + 1), state))
        return record

    def schedule(self, epochs: int) -> Schedule:
        """Return every policy so far as a schedule of a run of ``epochs``, to save or to replay."""
        settings = self.settings
        policies = [(start, settings.policy(state)) for start, state in self._history]
        steps = tuple(ScheduleStep(start, policy.particles, policy.weights) for start, policy in policies)
        return Schedule(steps, epochs, None, settings.m, settings.semantics, settings.order, settings.ops)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue, as tensors and plain values."""
        return {
            "settings": {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self.settings).items()},
            "seed": self.seed,
            "frozen": self.frozen,
            "steps_taken": self.steps_taken,
            "skipped_steps": self.skipped_steps,
            "gap": self._mean_gap,
            "asks_by_epoch": self._asks_by_epoch,
            "augment": self._augment.get_extra_state(),
            "history_starts": torch.tensor([start for start, _ in self._history], device="cpu"),
            "history_particles": torch.stack([state.particles for _, state in self._history]),
            "history_log_weights": torch.stack([state.log_weights for _, state in self._history]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the settings and the seed must be the same."""
        mine = self.state_dict()
        for key in ("settings", "seed"):
            if state[key] != mine[key]:
                raise ValueError(
                    f"the saved search has other {key}: {state[key]!r} instead of {mine[key]!r}; "
                    "make ParticleAugment with those"
                )
        parts = zip(state["history_starts"].tolist(), state["history_particles"], state["history_log_weights"])
        self._history = [(start, pf.ParticleSet(particles, logs)) for start, particles, logs in parts]
        self.state = self._history[-1][1]
        self.frozen, self.steps_taken = bool(state["frozen"]), int(state["steps_taken"])
        self.skipped_steps, self._mean_gap = int(state["skipped_steps"]), float(state["gap"])
        self._augment.set_extra_state(state["augment"])
        self._first_epoch, self._asks_by_epoch = self.epoch, bool(state.get("asks_by_epoch", False))
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

    def _split_of(self, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what is trained on and what is held out of samples with these labels; drawn once."""
        labels = labels.to("cpu", torch.int64)
        if self._split is None or not torch.equal(self._split[0], labels):
            self._split = (labels, self.settings.split(labels, self.seed, self.groups))
        return self._split[1]

    def __repr__(self) -> str:
        return f"ParticleAugment({self.steps_taken} steps, {self.skipped_steps} skipped, {self.policy!r})"


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
