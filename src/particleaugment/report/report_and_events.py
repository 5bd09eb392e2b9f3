"""What a run leaves beside its own files: TensorBoard's events while it trains, and its report at the end."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from particleaugment.policies import Policy
from particleaugment.report import page
from particleaugment.report.tensorboard import EventWriter
from particleaugment.training.run import RunFolder

__all__ = ["ReportAndEvents"]


class ReportAndEvents:
    """Writes a run's ``report.html`` and, where tensorboard is installed, its events.

    Args:
        run: The run.
    """

    def __init__(self, run: RunFolder):
        self._epochs = run.config.training.epochs
        self._events = EventWriter(run.path)

    def record(self, record: dict[str, Any], policy: Policy, examples: Tensor) -> None:
        """Write the events of a record: its numbers, how often each op is applied and, now and then, images."""
        self._events.log(record)
        if record["kind"] == "epoch":
            epoch = record["epoch"]
            shown = epoch == 1 or epoch % max(1, self._epochs // 10) == 0
            self._events.log_policy(epoch, policy, examples if shown else None)

    def finish(self, run: RunFolder, policy: Policy) -> None:
        """Write the report and close the events."""
        page.write_report(run)
        self._events.log_figure(self._epochs, policy)
        self._events.close()
