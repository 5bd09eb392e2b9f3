"""The table that a run ends with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from particleaugment.policies import MixtureSchedule, Policy
from particleaugment.search.difficulty import MEMORY
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.shown import shown_command

__all__ = ["averaged_difficulty", "filter_health", "leading_ops", "phase_seconds", "print_summary"]


def leading_ops(policy: Policy, count: int = 5) -> list[tuple[str, float]]:
    """Return the ops that a policy (of a schedule, the last) applies most often; under half a percent is left out.

    >>> from particleaugment import ParticlePolicy
    >>> leading_ops(ParticlePolicy([[0.0, 0.25, 0.5]], [1.0], m=3, ops=("Rotate", "Color", "Invert")))
    [('Invert', 0.5), ('Color', 0.25)]
    """
    chosen = [(name, share) for name, share in policy.inclusion.items() if name != "Identity" and share >= 0.005]
    return sorted(chosen, key=lambda pair: -pair[1])[:count]


def phase_seconds(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds spent in each phase over a whole run."""
    totals: dict[str, float] = defaultdict(float)
    for record in records:
        for phase, value in record["seconds"].items():
            if phase not in ("resumes", "ranks"):
                totals[phase] += value
    return dict(totals)


def filter_health(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the filter fared: steps, skipped updates, resamplings, last effective sample size."""
    steps = [record for record in records if record["kind"] == "filter"]
    return {
        "steps": len(steps),
        "skipped": sum(record["skip_reason"] is not None for record in steps),
        "resampled": sum(record.get("resampled", False) for record in steps),
        "effective_sample_size": steps[-1].get("effective_sample_size") if steps else None,
        "ops_per_image": steps[-1]["ops_per_image"] if steps else None,
    }


def _policy_rows(steps: list[dict[str, Any]], policy: Policy) -> list[tuple[str, str]]:
    """What the summary says of a learned policy; where all ops are drawn equally often, none of them leads."""
    if "strength" in steps[-1]:
        first = [sum(policy.at(1).slots)] if isinstance(policy, MixtureSchedule) else []
        most = max([step["strength"] for step in steps] + first)
        rows = [("strength, in ops per image", f"{steps[-1]['strength']:.2f} at the end, at most {most:.2f}")]
        for last, difficulty in averaged_difficulty(steps)[-1:]:
            wanted = f", wanted {last['wanted']:.2f}" if last.get("wanted") is not None else ""
            rows.append(("difficulty, averaged", f"{difficulty:.2f} in epoch {last['epoch']}{wanted}"))
        return rows
    ops = ", ".join(f"{name} {100 * share:.0f} %" for name, share in leading_ops(policy))
    most = max(step["ops_per_image"] for step in steps)
    return [
        ("leading ops at the end", ops or "none: each op is applied to less than 0.5 % of the images"),
        ("ops per image", f"{steps[-1]['ops_per_image']:.2f} at the end, at most {most:.2f}"),
    ]


def averaged_difficulty(steps: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Return the steps that measured a difficulty, each with its running average, taken over its logarithm.

    >>> steps = [{"difficulty": 2.0}, {"difficulty": 0.5}, *[{"difficulty": None}] * 37]
    >>> [value for _, value in averaged_difficulty(steps)]
    [2.0, 1.0]
    """
    measured = [step for step in steps if (step.get("difficulty") or 0.0) > 0]
    weight = 1.0 / max(1.0, MEMORY * (len(steps) + 1))  # no step follows the last epoch
    found: list[tuple[dict[str, Any], float]] = []
    mean = math.log(measured[0]["difficulty"]) if measured else 0.0
    for step in measured:
        mean += weight * (math.log(step["difficulty"]) - mean)
        found.append((step, math.exp(mean)))
    return found


def print_summary(run: RunFolder, policy: Policy, console: Console) -> None:
    """Print accuracy, what the policy does, the filter's health, time per phase and where the files are."""
    records = run.read_metrics()
    epochs = [record for record in records if record["kind"] == "epoch"]
    if not epochs:
        raise RunError(f"{run.metrics} has no epoch; {shown_command('verify', run.path)} checks every file")
    last, best = epochs[-1], max(epochs, key=lambda record: record["test_accuracy"])
    table = Table(title=f"{run.config.recipe}, seed {run.config.seed}", show_header=False, title_justify="left")
    table.add_row(f"{run.config.data.measured_on} accuracy, last epoch", f"{last['test_accuracy']:.2f} %")
    table.add_row("best epoch (not a result)", f"{best['test_accuracy']:.2f} % in epoch {best['epoch']}")
    health = filter_health(records)
    if health["steps"]:
        for name, text in _policy_rows([record for record in records if record["kind"] == "filter"], policy):
            table.add_row(name, text)
        told = f"{health['steps']} steps, {health['skipped']} skipped"
        if health["effective_sample_size"] is not None:
            particles = getattr(run.config.filter, "num_particles", 0)
            told += f", {health['resampled']} resampled, N_eff {health['effective_sample_size']:.1f} of {particles}"
        table.add_row("filter", told)
    seconds = phase_seconds(records)
    total = sum(seconds.values())
    phases = ", ".join(f"{phase} {value:.1f}" for phase, value in seconds.items())
    table.add_row("seconds", f"{total:.1f}: {phases}")
    console.print(table)
    # Outside the table, which would break a long path in two.
    console.print(f"files: {run.path}", soft_wrap=True)
    console.print(f"report to open: {run.path / 'report.html'}", soft_wrap=True)
