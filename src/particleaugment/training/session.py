"""A session holds the parts of a run (data, network, policy) and does one phase of an epoch at a time."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from particleaugment.data import epoch_permutation
from particleaugment.data.identity import data_identity
from particleaugment.data.split import batch_count
from particleaugment.policies import Policy
from particleaugment.policies.policy import document
from particleaugment.search.search import ParticleAugment
from particleaugment.trainee.learner import NonFiniteLoss
from particleaugment.trainee.ranks import Ranks
from particleaugment.training.build import always_on, build
from particleaugment.training.checkpoint import (
    find_checkpoints,
    last_good,
    load_latest,
    load_optimizer,
    save_checkpoint,
)
from particleaugment.training.clock import timed
from particleaugment.training.data_checks import check_search, require_same_data, require_same_inputs
from particleaugment.training.display import Display, filter_note
from particleaugment.training.distributed import require_same
from particleaugment.training.extras import Extras
from particleaugment.training.model_file import weights_file, weights_metadata
from particleaugment.training.moments import falls_on, interval
from particleaugment.training.position import EVALUATE, FILTER, TRAIN, Position, learning_rate
from particleaugment.training.run import RunError, RunFolder
from particleaugment.training.shared import SharedParts
from particleaugment.util.atomic import write_atomically
from particleaugment.util.stop import Stop
from particleaugment.util.strict_json import clipped

__all__ = ["Position", "Session", "learning_rate"]


class Session:
    """The state of a run in memory; everything random in it is a function of (seed, epoch, sample id).

    Args:
        run: The run's folder.
        display: Where progress is shown.
        stop: Tells when the run is asked to stop.
        checkpoint_seconds: Least time between two checkpoints; one is always written when the run stops or ends.
        ranks: The processes that share the run; rank 0 alone touches its folder, and all call every method together.
        shared: Data and networks that this process keeps from run to run; see :class:`SharedParts`.
        extras: What is written beside the run's own files, such as its report.
    """

    def __init__(
        self,
        run: RunFolder,
        display: Display,
        stop: Stop,
        checkpoint_seconds: float = 5.0,
        ranks: Ranks | None = None,
        *,
        shared: SharedParts | None = None,
        extras: Extras | None = None,
    ):
        config = run.config
        self.run, self.config, self.display, self.stop = run, config, display, stop
        self.checkpoint_seconds, self.ranks = checkpoint_seconds, ranks or Ranks()
        self._fixed: Policy | None = None if config.searches else self.ranks.everywhere(self._read_policy)
        ops = config.ops if self._fixed is None else self._fixed.ops
        parts = build(config, display.say, display.quiet, ops, self.ranks, shared)
        self.data, self.samples, self.chosen = parts.data, parts.samples, parts.chosen
        self._examples = parts.data.examples()
        self.model, self.optimizer, self.trainee = parts.model, parts.optimizer, parts.trainee
        steps_per_epoch = batch_count(len(self.samples), config.training.batch_size)
        self.evaluate_every = interval(config.training.evaluate_every, config.training.epochs, steps_per_epoch)
        if self.ranks.world > 1:
            require_same_data(self.ranks, self.ranks.everywhere(lambda: self._data_identity))
        self.search: ParticleAugment | None = None
        self.ranks.everywhere(lambda: self._make_search(steps_per_epoch))
        self.position = Position()
        self.resumes = 0
        self._seconds: dict[str, float] = {}
        self._last_step: dict[str, Any] = {}
        self._last_checkpoint = time.monotonic()
        self._useless: list[Path] = []
        self._extras = extras

    def _read_policy(self) -> Policy:
        return self.config.fixed_policy(self.run.given_policy)

    def _make_search(self, steps_per_epoch: int) -> None:
        config = self.config
        if config.searches:
            before, after = always_on(config)
            epochs = config.training.epochs
            filter = config.filter.at_every(interval(config.filter.every, epochs, steps_per_epoch))
            check_search(
                filter,
                self.samples.labels,
                self.display.say,
                epochs=epochs,
                seed=config.seed,
                groups=self.data.train_groups,
            )
            self.search = ParticleAugment(
                self.samples,
                epochs=epochs,
                filter=filter,
                seed=config.seed,
                ops=config.ops,
                before=before,
                after=after,
                resample=config.transforms.resample,
                fill=config.transforms.fill,
                groups=self.data.train_groups,
                say=self.display.say,
            )

    def _training_ids(self, epoch: int) -> torch.Tensor:
        if self.search is None:
            return torch.arange(len(self.samples))
        return self.search.division.places_in(epoch)

    def _training_loss(self) -> float:
        """Return the mean loss of the epoch's samples, as training went."""
        return self.position.loss_sum / len(self.samples)

    # The phases of an epoch.

    def train_epoch(self) -> None:
        """Train the network for one epoch under the current policy."""
        if self.position.phase != TRAIN:
            return
        epoch = self.position.epoch
        self._set_learning_rate(learning_rate(self.config, epoch))
        self.model.train()
        ids = self._training_ids(epoch)
        order = ids[epoch_permutation(len(ids), self.config.seed, epoch)]
        with self._timed("train"):
            try:
                self.trainee.train(
                    self.policy_of(epoch),
                    order,
                    epoch,
                    progress=self._progress,
                    start=self.position.batch,
                    loss_sum=self.position.loss_sum,
                )
            except NonFiniteLoss as error:
                raise self.ranks.common(RunError(self._divergence(error))) from None
            finally:
                self._note_batches()
        self.position.phase = EVALUATE

    def evaluate(self) -> None:
        """Measure the network on the test set and write the epoch's record, if the epoch is one to be evaluated."""
        if self.position.phase != EVALUATE:
            return
        if not falls_on(self.position.epoch, self.evaluate_every, self.config.training.epochs):
            self.display.passed(self.position.epoch)
            self.position.phase = FILTER
            return
        with self._timed("evaluate"):
            self.model.eval()
            test_loss, accuracy = self.trainee.evaluate(progress=self._progress)
            if not math.isfinite(test_loss):
                raise self.ranks.common(RunError(self._divergence(f"the test loss is {test_loss}")))
        epoch = self.position.epoch
        record = {
            "kind": "epoch",
            "epoch": epoch,
            "train_loss": self._training_loss(),
            "test_loss": test_loss,
            "test_accuracy": accuracy,
            "learning_rate": learning_rate(self.config, epoch),
        }
        if self.search is not None:
            record["ops_per_image"] = self.search.policy.ops_per_image
        self._write(record)
        self.display.epoch(
            epoch,
            self.config.training.epochs,
            f"loss {record['train_loss']:.3f}  accuracy {accuracy:.2f} %  {self._filter_note()}",
            f"accuracy {accuracy:.2f} %",
        )
        self.position.phase = FILTER

    def filter_step(self) -> None:
        """Move the policy: one step of the particle filter, if the epoch is one that a step follows."""
        if self.search is None or not self.search.due(self.position.epoch):
            return
        # The clone trains at the learning rate that the network will use next.
        self._set_learning_rate(learning_rate(self.config, self.position.epoch + 1))
        record = self.search.step_with(
            self.trainee,
            epoch=self.position.epoch,
            progress=self._progress,
            training_loss=self._training_loss(),
        )
        if record is None:
            return
        fields = asdict(record)
        numbers = [torch.tensor(value) for value in fields.values() if isinstance(value, (float, tuple))]
        where = f"after filter step {record.step}"
        require_same(self.ranks, "the filter's state or measurements", where, [*self.search.state_tensors(), *numbers])
        self._seconds |= fields.pop("seconds")
        self._last_step = fields
        self._write({"kind": "filter", "epoch": self.position.epoch} | fields)

    def finish_epoch(self) -> None:
        """Move on to the next epoch, saving a checkpoint if the last one is old enough or the run is over."""
        where = f"after epoch {self.position.epoch}"
        require_same(self.ranks, "the network's parameters or statistics", where, self.model.state_dict().values())
        self.position = Position(epoch=self.position.epoch + 1, metrics_bytes=self.position.metrics_bytes)
        over = self.position.epoch > self.config.training.epochs
        old = time.monotonic() - self._last_checkpoint >= self.checkpoint_seconds
        if self.ranks.on_first(lambda: over or old):
            self.save()

    def finish(self) -> None:
        """Write the run's results: the weights last, since their presence marks a finished run."""
        self.write_policy()
        self.ranks.on_first(self._write_results)

    def _write_results(self) -> None:
        if self._extras is not None:
            self._extras.finish(self.run, self.current_policy())
        weights = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        write_atomically(self.run.model, weights_file(weights, weights_metadata(self.config, self.data)))

    # Saving and restoring.

    def save(self) -> None:
        """Write a checkpoint, unless the network has diverged."""
        kept = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.state_dict().values(), *(value for value in kept if isinstance(value, Tensor))]
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            message = self._divergence("the network contains non-finite numbers")
            raise self.ranks.common(RunError(message))
        self.ranks.on_first(self._write_checkpoint)

    def _write_checkpoint(self) -> None:
        state = {
            "config": self.config.to_json(),
            "position": asdict(self.position),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "search": None if self.search is None else self.search.state_dict(),
            "resumes": self.resumes,
            "metrics_sha256": self.run.metrics_digest(self.position.metrics_bytes),
            "data": self._data,
            "policy": self.run.policy_identity(),
        }
        save_checkpoint(self.run.path, state, self._useless)
        self._last_checkpoint = time.monotonic()

    def restore(self) -> bool:
        """Continue from the newest checkpoint that can be read; False if there is none yet."""
        state = self.ranks.on_first(self._read_checkpoint)
        if state is None:
            return False
        try:
            self._load(state)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            message = f"the checkpoint in {self.run.path} does not match the run: {clipped(error)}"
            raise self.ranks.common(RunError(message)) from None
        return True

    def _load(self, state: dict[str, Any]) -> None:
        self.position = Position(**state["position"])
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"] = group["lr"].to(next(self.model.parameters()).device)
        if self.search is not None:
            self.search.load_state_dict(state["search"])
        self.resumes = state["resumes"] + 1

    def close(self) -> None:
        """End the processes that decode images, if there are any."""
        self.trainee.close()

    @cached_property
    def _data_identity(self) -> str:
        return data_identity(self.data, self.config.seed)

    @cached_property
    def _data(self) -> dict[str, Any]:
        """The data as checkpoints name them."""
        return {"hash": self._data_identity, "samples": len(self.samples)}

    def _read_checkpoint(self) -> dict[str, Any] | None:
        classes = None if self.search is None else self.search.division.fingerprint
        data = {**self._data, "classes": classes}
        state, problems = load_latest(self.run.path, self.config, data)
        checkpoints = find_checkpoints(self.run.path)
        self._useless = checkpoints[len(checkpoints) - len(problems) :]
        for problem in problems:
            self.display.say(f"{problem}; using the previous one")
        if state is None:
            self.run.truncate_metrics(0)
            return None
        require_same_inputs(self.run, state, data)
        self.run.truncate_metrics(state["position"]["metrics_bytes"], state["metrics_sha256"])
        for record in self.run.read_metrics()[-1:]:
            before, now = record["seconds"].get("ranks", 1), self.ranks.world
            if before != now:
                self.display.say(f"ranks: {before} before, {now} now; the results will differ in the last digits")
        return state

    def write_policy(self) -> None:
        """Write ``policy.json``: the schedule learned so far, or the fixed policy."""
        policy = self.current_policy()
        self.ranks.on_first(lambda: write_atomically(self.run.policy, document(policy).encode()))

    def current_policy(self) -> Policy:
        """Return the schedule learned so far, or the fixed policy."""
        if self.search is not None:
            return self.search.schedule(self.config.training.epochs)
        assert self._fixed is not None
        return self._fixed

    def policy_of(self, epoch: int) -> Policy:
        """Return the policy that an epoch trains under."""
        if self.search is not None:
            return self.search.policy
        assert self._fixed is not None
        return self._fixed.at(epoch)

    # Helpers.

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # a captured graph reads this tensor
            else:
                group["lr"] = rate

    def _progress(self, phase: str, done: int, total: int) -> None:
        self.display.phase(phase, done, total)
        self.stop.check()

    def _note_batches(self) -> None:
        """Note how far training has come; a network that has diverged must not reach a checkpoint, stop or no stop."""
        self.position.batch = self.trainee.batches_done
        try:
            self.position.loss_sum = self.trainee.loss_sum
        except NonFiniteLoss as error:
            raise self.ranks.common(RunError(self._divergence(error))) from None

    def _write(self, record: dict[str, Any]) -> None:
        seconds: dict[str, Any] = {name: round(value, 4) for name, value in self._seconds.items()}
        seconds["resumes"] = self.resumes
        if self.ranks.world > 1:
            seconds["ranks"] = self.ranks.world
        self._seconds = {}
        self.ranks.on_first(lambda: self._append(record | {"seconds": seconds}))

    def _append(self, record: dict[str, Any]) -> None:
        self.position.metrics_bytes = self.run.append_metrics(record)
        if self._extras is not None:
            self._extras.record(record, self.policy_of(record["epoch"]), self._examples)

    def _timed(self, name: str) -> AbstractContextManager[None]:
        return timed(self._seconds, name)

    def _filter_note(self) -> str:
        if self.search is None:
            return ""
        strength = getattr(self.search.state, "strength", None)
        return filter_note(self.search.policy.ops_per_image, self.search.skipped_steps, strength, self._last_step)

    def _divergence(self, what: object) -> str:
        where = f"epoch {self.position.epoch}, batch {self.trainee.batches_done + 1}"
        return f"{what} in {where}: nothing is saved, and {last_good(self.run.path)}; try a lower learning_rate"
