"""The table that a run ends with."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.table import Table

from particleaugment.policies import Policy
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.shown import shown_command

__all__ = ["filter_health", "leading_ops", "phase_seconds", "print_summary"]


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


def print_summary(run: RunFolder, policy: Policy, console: Console) -> None:
    """Print accuracy, the policy's leading ops, the filter's health, time per phase and where the files are."""
    records = run.read_metrics()
    epochs = [record for record in records if record["kind"] == "epoch"]
    if not epochs:
        raise RunError(f"{run.metrics} holds no epoch; {shown_command('verify', run.path)} says what is sound")
    last, best = epochs[-1], max(epochs, key=lambda record: record["test_accuracy"])
    table = Table(title=f"{run.config.recipe}, seed {run.config.seed}", show_header=False, title_justify="left")
    table.add_row(f"{run.config.data.measured_on} accuracy, last epoch", f"{last['test_accuracy']:.2f} %")
    table.add_row("best epoch (not a result)", f"{best['test_accuracy']:.2f} % in epoch {best['epoch']}")
    health = filter_health(records)
    if health["steps"]:
        ops = ", ".join(f"{name} {100 * share:.0f} %" for name, share in leading_ops(policy))
        most = max(record["ops_per_image"] for record in records if record["kind"] == "filter")
        table.add_row("leading ops, at the end", ops or "none: every op is applied to under 0.5 % of the images")
        table.add_row("ops per image", f"{health['ops_per_image']:.2f} at the end, {most:.2f} at most")
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
