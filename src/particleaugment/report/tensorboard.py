"""TensorBoard events beside a run's metrics, where tensorboard is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from particleaugment.executors import apply
from particleaugment.policies import Policy
from particleaugment.report.event_file import EventFile
from particleaugment.report.loggers import own_numbers, policy_figure

__all__ = ["EventWriter"]

_OF_EPOCH = ("train_loss", "test_loss", "test_accuracy", "learning_rate", "ops_per_image")


class EventWriter:
    """Writes scalars of every record, each op's inclusion and, now and then, augmented images.

    Nothing is written where tensorboard is not installed.
    """

    def __init__(self, folder: Path):
        self._folder = folder / "tensorboard"
        self._installed = importlib.util.find_spec("tensorboard") is not None
        self._opened: EventFile | None = None

    @property
    def _writer(self) -> EventFile | None:
        """The event file, opened when there is something to write."""
        if self._opened is None and self._installed:
            self._opened = EventFile(self._folder)
        return self._opened

    def log(self, record: dict[str, Any]) -> None:
        """Write a record of ``metrics.jsonl``."""
        if self._writer is None:
            return
        kind, epoch = record["kind"], record["epoch"]
        if kind == "filter":
            numbers = own_numbers(record) | {"skipped": float(record["skip_reason"] is not None)}
        else:
            numbers = {name: record[name] for name in _OF_EPOCH if record.get(name) is not None}
        for name, value in numbers.items():
            self._writer.add_scalar(f"{kind}/{name}", value, epoch)
        for phase, value in record["seconds"].items():
            self._writer.add_scalar(f"seconds/{phase}", value, epoch)

    def log_policy(self, epoch: int, policy: Policy, images: Tensor | None) -> None:
        """Write how often each op is applied, and some images under the policy if images are given."""
        if self._writer is None:
            return
        for name, share in (policy.inclusion if policy.learned else {}).items():
            self._writer.add_scalar(f"policy/{name}", share, epoch)
        if images is None:
            return
        images = images[:16].cpu()
        size = (images.shape[-2], images.shape[-1])
        program = policy.sample(torch.arange(len(images)), epoch, 0, size)
        self._writer.add_images("policy/augmented", apply(images, program), epoch)

    def log_figure(self, epochs: int, policy: Policy) -> None:
        """Write the figure of a learned policy, epoch by epoch; see :func:`policy_figure`."""
        if self._writer is not None and policy.learned:
            name, figure = policy_figure(policy, epochs)
            self._writer.add_figure(name, figure, epochs)

    def close(self) -> None:
        """Flush and close the event file."""
        if self._opened is not None:
            self._opened.close()
