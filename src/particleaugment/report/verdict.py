"""What came out of a run, in one sentence."""

from __future__ import annotations

from particleaugment.report.metrics import RunHistory
from particleaugment.report.strength import settled_strength

__all__ = ["verdict_of"]


def verdict_of(run: RunHistory) -> str:
    """Return the sentence that a run's report begins with."""
    last, epochs = run.epochs[-1], run.config.training.epochs
    done = last["epoch"] == epochs
    reached = f"{last['test_accuracy']:.2f} % of the {run.config.data.measured_on} images"
    state = (
        f"The network classifies {reached} correctly after {epochs} epochs"
        if done
        else (f"Not finished: {reached} are classified correctly after {last['epoch']} of {epochs} epochs")
    )
    return f"{state}, {_training(run)}."


def _training(run: RunHistory) -> str:
    config = run.config
    if config.policy == "none":
        return "trained without a policy"
    if not config.searches:
        return f"trained under the policy {config.policy}"
    strength = settled_strength(run) if run.mixtures else run.ops_per_image[-1]
    when = "ended" if run.epochs[-1]["epoch"] == config.training.epochs else "is"
    return f"trained under a learned policy that {when} at {strength:.2f} ops per image"
