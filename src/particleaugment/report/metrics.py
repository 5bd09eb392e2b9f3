"""A run's records, gathered for plotting, and the alarms that they raise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from particleaugment.policies import Policy
from particleaugment.policies.mixture import Mixture
from particleaugment.report.summary import phase_seconds
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config

__all__ = ["RunHistory", "alarms", "history"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunHistory:
    """What happened in a run, epoch by epoch and filter step by filter step.

    Attributes:
        config: The run's configuration.
        epochs: Epoch records of ``metrics.jsonl``.
        steps: Filter records of ``metrics.jsonl``.
        policy: The run's policy: a schedule if it searched.
        ops: Op names of ``inclusion``.
        inclusion: Probability with which each op is applied in each epoch that has a record, weighted by particle
            weight, ``[epochs, n]``; empty for a policy without particles.
        seconds: Time per phase over the run.
    """

    config: Config
    epochs: Sequence[dict[str, Any]]
    steps: Sequence[dict[str, Any]]
    policy: Policy
    ops: tuple[str, ...]
    inclusion: Floats
    seconds: dict[str, float]

    @property
    def searched(self) -> bool:
        """Whether the run took filter steps."""
        return bool(self.steps)

    @property
    def policies(self) -> dict[int, Policy]:
        """The policies by epoch, whether evaluated or not, of long runs some hundreds; empty unless learned."""
        last = self.epochs[-1]["epoch"] if self.policy.learned else 0
        epochs = sorted({*range(1, last + 1, 1 + last // 500), last} - {0})
        return {epoch: self.policy.at(epoch) for epoch in epochs}

    @property
    def mixtures(self) -> dict[int, Mixture]:
        """Those of :attr:`policies` that are mixtures."""
        return {epoch: policy for epoch, policy in self.policies.items() if isinstance(policy, Mixture)}

    @property
    def ops_per_image(self) -> Floats:
        """Mean number of ops per image in each epoch, Identity not counted."""
        changing = [i for i, name in enumerate(self.ops) if name != "Identity"]
        return np.asarray(self.inclusion[:, changing].sum(1), dtype=np.float64)

    @property
    def num_particles(self) -> int:
        """Particles of the filter; 0 where it has none."""
        return int(getattr(self.config.filter, "num_particles", 0))

    @property
    def overhead_percent(self) -> float:
        """Time of the filter steps as a share of plain training and evaluation."""
        search = sum(self.seconds.get(phase, 0.0) for phase in ("clone", "measure", "filter"))
        plain = sum(self.seconds.get(phase, 0.0) for phase in ("train", "evaluate"))
        return 100.0 * search / plain if plain else 0.0


def history(config: Config, records: Sequence[dict[str, Any]], policy: Policy) -> RunHistory:
    """Gather a run's records and policies."""
    epochs = [record for record in records if record["kind"] == "epoch"]
    ops: tuple[str, ...] = ()
    rows: list[list[float]] = []
    if policy.learned:
        ops = policy.ops
        rows = [list(policy.at(record["epoch"]).inclusion.values()) for record in epochs]
    inclusion = np.asarray(rows, dtype=np.float64).reshape(len(rows), len(ops))
    steps = [record for record in records if record["kind"] == "filter"]
    return RunHistory(config, epochs, steps, policy, ops, inclusion, phase_seconds(list(records)))


def alarms(run: RunHistory) -> list[str]:
    """Return what deserves attention in a run, in sentences."""
    if not run.searched:
        return []
    skipped = [step for step in run.steps if step["skip_reason"] is not None]
    share = 100 * len(skipped) / len(run.steps)
    often = f"{len(skipped)} of {len(run.steps)} {{}} were skipped ({share:.0f} %)" if share > 25 else ""
    if run.mixtures:
        return _strength_alarms(run, often.format("filter steps"))
    return _particle_alarms(run, skipped, often.format("weight updates"))


def _strength_alarms(run: RunHistory, often: str) -> list[str]:
    found = [f"{often}: no loss was measured, and strength did not change."] if often else []
    steered = [step["strength"] for step in run.steps if step.get("difficulty") is not None]
    highest = getattr(run.config.filter, "strongest", math.inf)
    at_top = sum(strength >= highest for strength in steered)
    if 2 * at_top > len(steered):
        found.append(
            f"Strength was at its maximum, {highest:g} ops per image, after {at_top} of {len(steered)} steps, and "
            "training was still easier than wanted. A larger `slots` allows more ops per image."
        )
    return found


def _particle_alarms(run: RunHistory, skipped: Sequence[dict[str, Any]], often: str) -> list[str]:
    found = []
    if often:
        negative = sum((step.get("d0") or 1.0) <= 0 for step in skipped)
        sign = (
            f"; in {negative} of them the clone's loss on plain images rose instead of falling, so the measurement had "
            "the wrong sign"
        )
        found.append(f"{often}{sign if negative else ''}. In skipped steps the particles move by noise alone.")
    last = run.steps[-1]
    if last.get("effective_sample_size", math.inf) < 0.2 * run.num_particles:
        found.append(
            f"The filter is degenerate: the effective sample size ended at {last['effective_sample_size']:.1f} of "
            f"{run.num_particles} particles."
        )
    distinct = run.policy.distinct
    if distinct is not None and distinct <= max(2, run.num_particles // 10):
        found.append(f"The particles have collapsed to {distinct} distinct policies.")
    start, end = float(run.ops_per_image[0]), float(run.ops_per_image[-1])
    if isinstance(run.config.filter, PaperFilter) and end > max(2.0 * start, start + 1.0):
        found.append(
            f"The policy grew dense: {start:.2f} ops per image at the start, {end:.2f} at the end. The paper's noise, "
            "clipped at 0, pushes every probability up, and selection did not prevent it."
        )
    return found
