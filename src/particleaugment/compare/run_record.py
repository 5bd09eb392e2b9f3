"""What a comparison keeps of each run: enough for every table and plot, without the run's own folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from particleaugment.report.summary import filter_health, phase_seconds
from particleaugment.training.run import RunFolder

__all__ = ["RunRecord"]

PLAIN_PHASES = ("train", "evaluate")
"""The phases that a run without a search has too."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The figures of one run, so far.

    Attributes:
        arm: Name of its arm.
        seed: Its seed.
        epochs: Epochs that it has when finished.
        finished: Whether it is.
        accuracy: Accuracy after each evaluated epoch, in percent.
        train_loss: Training loss of each of them, under augmentation.
        ops_per_image: Ops per image in each of them, where a filter moves them.
        seconds: Time per phase.
        filter: How the filter fared, where there is one.
        at_once: How many runs shared the machine with it, itself included, at most.
        problem: The last line of a run that failed.
        evaluated: The evaluated epochs; empty where every epoch is.
    """

    arm: str
    seed: int
    epochs: int
    finished: bool = False
    accuracy: tuple[float, ...] = ()
    train_loss: tuple[float, ...] = ()
    ops_per_image: tuple[float, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    filter: dict[str, Any] = field(default_factory=dict)
    at_once: int = 1
    problem: str | None = None
    evaluated: tuple[int, ...] = ()

    @property
    def evaluated_epochs(self) -> tuple[int, ...]:
        """The epochs that the figures are of."""
        return self.evaluated or tuple(range(1, len(self.accuracy) + 1))

    @property
    def epochs_done(self) -> int:
        """The last epoch that there are figures of; 0 if there is none."""
        return self.evaluated_epochs[-1] if self.accuracy else 0

    @property
    def last(self) -> float:
        """Accuracy of the last epoch: the result."""
        return self.accuracy[-1]

    @property
    def best(self) -> float:
        """Accuracy of the best epoch, chosen by that accuracy itself: not a result."""
        return max(self.accuracy)

    @property
    def total_seconds(self) -> float:
        """Time of all phases."""
        return sum(self.seconds.values())

    @property
    def search_seconds(self) -> float:
        """Time of the phases that only a search has."""
        return sum(value for phase, value in self.seconds.items() if phase not in PLAIN_PHASES)

    @property
    def state(self) -> str:
        """Where the run stands, in words."""
        if self.finished:
            return "finished"
        if self.problem is not None:
            return f"failed: {self.problem}"
        return f"epoch {self.epochs_done} of {self.epochs}" if self.accuracy else "not started"

    @classmethod
    def read(cls, run: RunFolder, arm: str, *, at_once: int = 1, problem: str | None = None) -> RunRecord:
        """Gather a run's figures from its folder."""
        records = run.read_metrics()
        epochs = [record for record in records if record["kind"] == "epoch"]
        at = [record["epoch"] for record in epochs]
        health = filter_health(records)
        return cls(
            arm=arm,
            seed=run.config.seed,
            epochs=run.config.training.epochs,
            finished=run.finished,
            accuracy=tuple(round(record["test_accuracy"], 6) for record in epochs),
            train_loss=tuple(round(record["train_loss"], 6) for record in epochs),
            ops_per_image=tuple(round(record["ops_per_image"], 6) for record in epochs if "ops_per_image" in record),
            seconds={phase: round(value, 3) for phase, value in phase_seconds(records).items()},
            filter=health if health["steps"] else {},
            at_once=at_once,
            problem=None if run.finished else problem,
            evaluated=() if at == list(range(1, len(at) + 1)) else tuple(at),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunRecord:
        """Rebuild a record from :meth:`to_dict`."""
        values = {item.name: data[item.name] for item in fields(cls) if item.name != "evaluated"}
        values["evaluated"] = tuple(data.get("evaluated", ()))
        for name in ("accuracy", "train_loss", "ops_per_image"):
            values[name] = tuple(float(value) for value in values[name])
        return cls(**values)
