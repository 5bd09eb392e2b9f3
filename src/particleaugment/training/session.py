"""A session holds the parts of a run (data, network, policy) and does one phase of an epoch at a time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor
from torch.nn import functional

from particleaugment.augment import Augment
from particleaugment.data import epoch_permutation, load_data
from particleaugment.data.split import disjoint_stratified_subsets
from particleaugment.models import build_model
from particleaugment.policies.base import Policy, document
from particleaugment.probe import Learner, NonFiniteLoss, Samples
from particleaugment.search import ParticleAugment
from particleaugment.snapshot import Snapshot
from particleaugment.training.checkpoint import find_checkpoints, load_latest, save_checkpoint, write_atomically
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.display import Display
from particleaugment.training.run import RunError, RunFolder
from particleaugment.training.stop import Stop
from particleaugment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing, Transform

__all__ = ["Position", "Session", "learning_rate", "resolve_precision"]

TRAIN, EVALUATE, FILTER = "train", "evaluate", "filter"
_EVALUATION_BATCH = 1000


@dataclass
class Position:
    """Where a run stands: the epoch (from 1), its phase, and within training the batches done and their loss.

    Attributes:
        epoch: The epoch being trained, counted from 1.
        phase: ``train``, ``evaluate`` or ``filter``.
        batch: Training batches done in this epoch.
        loss_sum: Sum over those batches of the samples' losses.
        metrics_bytes: Size of ``metrics.jsonl`` up to here.
    """

    epoch: int = 1
    phase: str = TRAIN
    batch: int = 0
    loss_sum: float = 0.0
    metrics_bytes: int = 0


def learning_rate(config: Config, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 1: cosine decay to 0, by epoch."""
    return 0.5 * config.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / config.epochs))


def resolve_precision(precision: str) -> str:
    """Return the precision that ``auto`` means on this machine."""
    if precision != "auto":
        return precision
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cuda.is_available() else "fp32"


class Session:
    """The state of a run in memory; everything random in it is a function of (seed, epoch, sample id).

    Args:
        run: The run's folder.
        display: Where progress is shown.
        stop: Tells when the run is asked to stop.
        checkpoint_seconds: Least time between two checkpoints; one is always written when the run stops or ends.
    """

    def __init__(self, run: RunFolder, display: Display, stop: Stop, checkpoint_seconds: float = 5.0):
        config = run.config
        self.run, self.config, self.display, self.stop = run, config, display, stop
        self.checkpoint_seconds = checkpoint_seconds
        self.data = load_data(config.data)
        self.samples = Samples((self.data.train_images, self.data.train_labels))
        model = build_model(config.model, self.data.num_classes, config.seed)
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
        )
        normalize = Normalize(self.data.mean, self.data.std)
        self.learner = Learner(
            self.model,
            self.optimizer,
            _cross_entropy,
            lambda images: normalize.run(images).contiguous(memory_format=torch.channels_last),
            _autocast(config.precision),
        )
        before: list[Transform] = [PadCrop(config.crop)] if config.crop else []
        before += [HorizontalFlip(config.flip)] if config.flip else []
        after: list[Transform] = [RandomErasing(config.erase)] if config.erase else []
        self.search: ParticleAugment | None = None
        self._fixed: Augment | None = None
        if config.searches:
            settings = {name: getattr(config, name) for name in config.filter_settings().__dataclass_fields__}
            self.search = ParticleAugment(
                **settings, seed=config.seed, before=before, after=after, resample=config.resample, fill=config.fill
            )
            self._check_subsets()
        else:
            self._fixed = Augment(
                config.fixed_policy(),
                config.seed,
                before=before,
                after=after,
                resample=config.resample,
                fill=config.fill,
            )
        self.position = Position()
        self.resumes = 0
        self._seconds: dict[str, float] = {}
        self._last_checkpoint = time.monotonic()

    def _check_subsets(self) -> None:
        sizes = [self.config.clone_size, self.config.measure_size]
        try:
            disjoint_stratified_subsets(self.samples.labels, sizes, self.config.seed, 1)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"clone_size and measure_size do not suit the data: {error}") from None

    # The phases of an epoch.

    def train_epoch(self) -> None:
        """Train the network for one epoch under the current policy."""
        if self.position.phase != TRAIN:
            return
        epoch = self.position.epoch
        self._set_epoch(epoch)
        self._set_learning_rate(learning_rate(self.config, epoch))
        self.model.train()
        batches = epoch_permutation(len(self.samples), self.config.seed, epoch).split(self.config.batch_size)
        with self._timed("train"):
            for ids in batches[self.position.batch :]:
                images, labels = self.samples.gather(ids)
                try:
                    loss = self.learner.train_batch(self._augment(images, ids), labels)
                except NonFiniteLoss as error:
                    raise RunError(self._divergence(error)) from None
                self.position.loss_sum += float(loss) * len(ids)
                self.position.batch += 1
                self._progress("train", self.position.batch, len(batches))
        self.position.phase = EVALUATE

    def evaluate(self) -> None:
        """Measure the network on the test set and write the epoch's record."""
        if self.position.phase != EVALUATE:
            return
        with self._timed("evaluate"):
            test_loss, accuracy = self._test()
        epoch = self.position.epoch
        record = {
            "kind": "epoch",
            "epoch": epoch,
            "train_loss": self.position.loss_sum / len(self.samples),
            "test_loss": test_loss,
            "test_accuracy": accuracy,
            "learning_rate": learning_rate(self.config, epoch),
        }
        if self.search is not None:
            record["ops_per_image"] = self.search.policy.ops_per_image
        self._write(record)
        self.display.epoch(
            epoch,
            self.config.epochs,
            f"loss {record['train_loss']:.3f}  accuracy {accuracy:.2f} %  {self._filter_note()}",
        )
        self.position.phase = FILTER

    def filter_step(self) -> None:
        """Move the policy: one step of the particle filter, on a clone that is thrown away."""
        if self.search is None:
            return
        # The clone trains at the learning rate that the network will use next.
        self._set_learning_rate(learning_rate(self.config, self.position.epoch + 1))
        self._set_epoch(self.position.epoch)
        record = self.search.step_with(self.learner, self.samples, self.config.batch_size, self._progress)
        if record is None:
            return
        fields = asdict(record)
        self._seconds |= fields.pop("seconds")
        self._write({"kind": "filter", "epoch": self.position.epoch} | fields)

    def finish_epoch(self) -> None:
        """Move on to the next epoch, saving a checkpoint if the last one is old enough or the run is over."""
        self.position = Position(epoch=self.position.epoch + 1, metrics_bytes=self.position.metrics_bytes)
        over = self.position.epoch > self.config.epochs
        if over or time.monotonic() - self._last_checkpoint >= self.checkpoint_seconds:
            self.save()

    def finish(self) -> None:
        """Write the run's results: the weights last, since their presence marks a finished run."""
        from particleaugment.report.page import write_report

        self.write_policy()
        write_report(self.run)
        weights = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        metadata = {"format": "pt", "model": self.config.model, "data": self.config.data, "seed": str(self.config.seed)}
        write_atomically(self.run.model, _weights_file(weights, metadata))

    # Saving and restoring.

    def save(self) -> None:
        """Write a checkpoint."""
        state = {
            "config": self.config.to_json(),
            "position": asdict(self.position),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "search": None if self.search is None else self.search.state_dict(),
            "resumes": self.resumes,
        }
        save_checkpoint(self.run.path, state)
        self._last_checkpoint = time.monotonic()

    def restore(self) -> bool:
        """Continue from the newest checkpoint that can be read; False if there is none yet."""
        state, problems = load_latest(self.run.path)
        for problem in problems:
            self.display.say(f"{problem}; using the one before it")
        if state is None:
            self.run.truncate_metrics(0)
            return False
        if state["config"] != self.config.to_json():
            raise RunError(
                f"the checkpoint in {self.run.path} belongs to another configuration than its config.json; "
                "restore the config.json that the run was started with"
            )
        self.position = Position(**state["position"])
        self.run.truncate_metrics(self.position.metrics_bytes)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.search is not None:
            self.search.load_state_dict(state["search"])
        self.resumes = state["resumes"] + 1
        return True

    def write_policy(self) -> None:
        """Write ``policy.json``: the schedule learned so far, or the fixed policy."""
        policy = self.current_policy()
        write_atomically(self.run.policy, document(policy).encode())

    def current_policy(self) -> Policy:
        """Return the schedule learned so far, or the fixed policy."""
        if self.search is not None:
            return self.search.schedule(self.config.epochs)
        assert self._fixed is not None
        return self._fixed.policy

    def estimate_seconds(self) -> float:
        """Time a few batches, in place and undone, and return what the rest of the run should take."""
        config = self.config
        ids = torch.arange(min(config.batch_size, len(self.samples)))
        images, labels = self.samples.gather(ids)
        with Snapshot().of(self.model, self.optimizer):
            self.model.train()
            self._set_learning_rate(0.0)
            try:
                train = _fastest(lambda: self.learner.train_batch(self._augment(images, ids), labels))
            except NonFiniteLoss as error:
                raise RunError(self._divergence(error)) from None
            self.model.eval()
            forward = _fastest(lambda: self.learner.losses(images, labels))
        per_train, per_forward = train / len(ids), forward / len(ids)
        epoch = len(self.samples) * per_train + len(self.data.test_labels) * per_forward
        if self.search is not None:
            total = len(self.samples)
            clone, measured = (
                size if isinstance(size, int) else int(size * total)
                for size in (config.clone_size, config.measure_size)
            )
            step = config.clone_epochs * clone * per_train
            step += 2 * (config.num_particles + 1) * measured * per_forward
            epoch += step / config.every
        return epoch * (config.epochs - self.position.epoch + 1)

    # Helpers.

    def _augment(self, images: Tensor, ids: Tensor) -> Tensor:
        if self.search is not None:
            return self.search.augment(images, ids)
        assert self._fixed is not None
        return self._fixed(images, ids)  # type: ignore[no-any-return]

    def _set_epoch(self, epoch: int) -> None:
        if self.search is not None:
            self.search.set_epoch(epoch)
        elif self._fixed is not None:
            self._fixed.set_epoch(epoch)

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _test(self) -> tuple[float, float]:
        self.model.eval()
        images, labels = self.data.test_images, self.data.test_labels
        loss_sum, right = 0.0, 0
        with torch.no_grad():
            for picture, label in zip(images.split(_EVALUATION_BATCH), labels.split(_EVALUATION_BATCH)):
                with self.learner.autocast():
                    logits = self.model(self.learner.preprocess(picture)).float()
                loss_sum += float(_cross_entropy(logits, label).double().sum())
                right += int((logits.argmax(1) == label).sum())
        self.stop.check()
        return loss_sum / len(labels), 100.0 * right / len(labels)

    def _progress(self, phase: str, done: int, total: int) -> None:
        self.display.phase(phase, done, total)
        self.stop.check()

    def _write(self, record: dict[str, Any]) -> None:
        seconds: dict[str, Any] = {name: round(value, 4) for name, value in self._seconds.items()}
        seconds["resumes"] = self.resumes
        self._seconds = {}
        self.position.metrics_bytes = self.run.append_metrics(record | {"seconds": seconds})

    def _timed(self, name: str) -> AbstractContextManager[None]:
        return _Timer(self._seconds, name)

    def _filter_note(self) -> str:
        if self.search is None:
            return ""
        return f"{self.search.policy.ops_per_image:.2f} ops/image  {self.search.skipped_steps} steps skipped"

    def _divergence(self, error: NonFiniteLoss) -> str:
        kept = find_checkpoints(self.run.path)
        advice = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        where = f"epoch {self.position.epoch}, batch {self.position.batch + 1}"
        return f"{error} in {where}: the update was not made, and {advice}; try a lower learning_rate"


class _Timer(AbstractContextManager[None]):
    def __init__(self, seconds: dict[str, float], name: str):
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + time.perf_counter() - self.start


def _weights_file(weights: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file; the library puts metadata in random order, so that part is written anew."""
    content = to_safetensors(weights, metadata)
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start]) | {"__metadata__": metadata}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets, reduction="none")


def _autocast(precision: str) -> Callable[[], AbstractContextManager[Any]]:
    if precision == "bf16":
        return lambda: torch.autocast("cpu", torch.bfloat16)
    return nullcontext


def _fastest(work: Callable[[], object], repeats: int = 3) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
