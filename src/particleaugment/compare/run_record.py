"""What a comparison keeps of each run: enough for every table and plot, without the run's own folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from particleaugment.report.summary import filter_health, phase_seconds
from particleaugment.training.records import LARGEST_NUMBER, MOST_EPOCHS
from particleaugment.training.run import RunFolder
from particleaugment.util.typed import Matching, Within, rebuilt

__all__ = ["ARM_NAME", "ArmName", "RunRecord"]

ARM_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""What an arm's name looks like; it is part of the names of files."""
ArmName = Annotated[str, Matching(ARM_NAME, "an arm's name: letters, digits, '.', '-' and '_'")]

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

    arm: ArmName
    seed: Annotated[int, Within(0, (1 << 63) - 1)]
    epochs: Annotated[int, Within(1, MOST_EPOCHS)]
    finished: bool = False
    accuracy: tuple[Annotated[float, Within(0, 100)], ...] = ()
    train_loss: tuple[Annotated[float, Within(-LARGEST_NUMBER, LARGEST_NUMBER)], ...] = ()
    ops_per_image: tuple[Annotated[float, Within(0, LARGEST_NUMBER)], ...] = ()
    seconds: dict[str, Annotated[float, Within(0, LARGEST_NUMBER)]] = field(default_factory=dict)
    filter: dict[str, Annotated[int | float, Within(0, LARGEST_NUMBER)] | None] = field(default_factory=dict)
    at_once: Annotated[int, Within(1, 1 << 20)] = 1
    problem: str | None = None
    evaluated: tuple[Annotated[int, Within(1, MOST_EPOCHS)], ...] = ()

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
    def from_dict(cls, data: Any, place: str = "run") -> RunRecord:
        """Rebuild a record from :meth:`to_dict`, or raise a ValueError that names the field."""
        record = rebuilt(cls, data, place)
        if record.finished and not record.accuracy:
            raise ValueError(f"{place} is finished, but has no accuracy")
        for name in ("train_loss", "ops_per_image", "evaluated"):
            length = len(getattr(record, name))
            if length != len(record.accuracy) and (length or name == "train_loss"):
                raise ValueError(f"{place}.{name} must be as long as accuracy, {len(record.accuracy)} numbers")
        at = record.evaluated_epochs
        if list(at) != sorted(set(at)) or record.epochs_done > record.epochs:
            raise ValueError(f"{place}.evaluated must be epochs of the run, in rising order")
        if record.filter and any(record.filter.get(name) is None for name in ("steps", "skipped", "ops_per_image")):
            raise ValueError(f"{place}.filter must have the numbers steps, skipped and ops_per_image")
        return record
