"""What a session tells those who write more than the run's own files."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from particleaugment.policies import Policy
from particleaugment.training.run import RunFolder

__all__ = ["Extras"]


class Extras(Protocol):
    """Writes beside a run's files while it goes on; nothing in the run depends on it."""

    def record(self, record: dict[str, Any], policy: Policy, examples: Tensor) -> None:
        """Take a record that was written, with the policy of its epoch and a few training images."""
        ...

    def finish(self, run: RunFolder, policy: Policy) -> None:
        """Take the run when all is trained and only the weights, which mark a finished run, are not yet written."""
        ...
