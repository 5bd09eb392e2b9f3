"""``report.html``: one self-contained page that tells a run's story."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from particleaugment.data import find_files
from particleaugment.data.listing import FolderListing
from particleaugment.policies import load
from particleaugment.report import plots
from particleaugment.report.html import (
    alarm_box,
    cards,
    command,
    figure,
    folded,
    heading,
    paragraph,
    self_contained,
    settings_table,
    table,
    verdict,
)
from particleaugment.report.metrics import RunHistory, alarms, history
from particleaugment.report.seen import chosen_part, what_the_network_saw
from particleaugment.report.strength import reached, settled_strength, strength_story
from particleaugment.report.summary import leading_ops
from particleaugment.report.verdict import verdict_of
from particleaugment.training.config import Config, settings_of
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.atomic import write_atomically

__all__ = ["render", "write_report"]


def write_report(run: RunFolder) -> Path:
    """Write ``report.html`` into a run's folder and return its path."""
    records = run.read_metrics()
    if not any(record["kind"] == "epoch" for record in records):
        raise RunError(f"{run.path} has no finished epoch yet, so there is nothing to report")
    if not run.policy.exists():
        raise RunError(f"{run.path} has no policy.json yet; it is written when the run stops or ends")
    path, policy = run.path / "report.html", load(run.policy)
    if not policy.learned and any(record["kind"] == "filter" for record in records):
        raise RunError(f"{run.policy} does not match the filter steps in {run.metrics}; restore the file")
    write_atomically(path, render(history(run.config, records, policy)))
    return path


def render(run: RunHistory) -> str:
    """Return the page of a run."""
    judge, found = run.config.data.measured_on, _found(run.config)
    parts: list[Markup | None] = [
        verdict(verdict_of(run)),
        _cards(run),
        _data(run, found),
        alarm_box(alarms(run)),
        heading("Training"),
        figure(plots.curves(run), f"Loss (training under augmentation, {judge} on plain images) and {judge} accuracy."),
    ]
    if run.mixtures:
        parts += [*strength_story(run), _skips(run)]
    elif run.inclusion.size:
        parts += _policy_story(run)
        parts += _filter_story(run) if run.searched else []
    parts += what_the_network_saw(run, found)
    parts += _times(run)
    parts += _config(run)
    return self_contained(f"{run.config.recipe}, seed {run.config.seed}", _subtitle(run), parts)


def _subtitle(run: RunHistory) -> str:
    config = run.config
    policy = f"policy learned (filter={config.filter.kind})" if config.searches else f"policy {config.policy}"
    epochs = f"{run.epochs[-1]['epoch']} of {config.training.epochs} epochs"
    return f"{config.model} on {config.data.name}{config.data.part}, {epochs}, {policy}"


def _cards(run: RunHistory) -> Markup:
    last = run.epochs[-1]
    best = max(run.epochs, key=lambda record: record["test_accuracy"])
    shown = [
        (f"{last['test_accuracy']:.2f} %", f"{run.config.data.measured_on} accuracy, last epoch ({last['epoch']})"),
        (
            f"{best['test_accuracy']:.2f} %",
            f"best epoch ({best['epoch']}): chosen on the {run.config.data.measured_on} set, not a result",
        ),
    ]
    if run.mixtures:
        shown.append((f"{settled_strength(run):.2f}", "strength at the end: ops per image"))
    elif run.inclusion.size:
        shown.append((f"{run.ops_per_image[-1]:.2f}", "ops per image at the end"))
    if (difficulty := reached(run)) is not None:
        shown.append(difficulty)
    elif run.searched and not run.mixtures:
        skipped = sum(step["skip_reason"] is not None for step in run.steps)
        shown.append((f"{len(run.steps) - skipped} of {len(run.steps)}", "filter steps that updated the weights"))
    if run.searched:
        shown.append((f"{run.overhead_percent:.0f} %", "search time on top of plain training"))
    return cards(shown)


def _found(config: Config) -> FolderListing | None:
    """Return what a run's data set of files holds now, if it has one that is still there."""
    try:
        data = config.data
        return find_files(data.name, data.data_dir, data.groups) if data.has_files else None
    except (OSError, ValueError):
        return None


def _data(run: RunHistory, found: FolderListing | None) -> Markup | None:
    if found is None:
        return None
    try:
        description = found.describe(*chosen_part(run.config))
    except ValueError:  # the folder has changed since
        return None
    what = "The folder of images" if found.part == "folder" else "The data set"
    return paragraph(f"{what}, when this page was written: {description}.")


def _policy_story(run: RunHistory) -> list[Markup | None]:
    leading = ", ".join(f"{name} ({100 * share:.0f} %)" for name, share in leading_ops(run.policy))
    return [
        heading("The policy"),
        paragraph(
            f"At the end the policy applies most often: {leading}."
            if leading
            else "At the end the policy applies no op to more than 0.5 % of the images."
        ),
        figure(plots.heat_map(run), "Probability that each op is applied to an image, by epoch."),
        figure(plots.ops_per_image(run), "Mean number of ops per image."),
    ]


def _filter_story(run: RunHistory) -> list[Markup | None]:
    return [
        heading("The filter"),
        figure(
            plots.effective_sample_size(run),
            "How many particles effectively share the weight. A cross marks a step whose measurement was unusable: "
            "it left the weights unchanged.",
        ),
        figure(
            plots.delta_of_last_step(run),
            "δ: how much the clone's loss fell under a particle, relative to plain images. Above 1 a particle gains "
            "weight. Where the bars overlap, the order of the particles is noise.",
        ),
        _skips(run),
    ]


def _skips(run: RunHistory) -> Markup | None:
    skipped = [step for step in run.steps if step["skip_reason"] is not None]
    if not skipped:
        return None
    rows = [(str(step["epoch"]), step["skip_reason"]) for step in skipped]
    return folded(f"{len(skipped)} skipped updates, with reasons", table((), rows))


def _times(run: RunHistory) -> list[Markup | None]:
    return [heading("Time"), figure(plots.phases(run), "Seconds per phase over the whole run.")]


def _config(run: RunHistory) -> list[Markup | None]:
    return [
        heading("The exact command and configuration"),
        command(_command(run)),
        settings_table(settings_of(run.config)),
    ]


def _command(run: RunHistory) -> str:
    from particleaugment.recipes import RECIPES, get_recipe

    config = run.config
    words = ["particleaugment", "train", config.recipe, "--seed", str(config.seed)]
    if config.recipe in RECIPES:
        recipe = get_recipe(config.recipe)
        usual = settings_of(recipe.with_filter(config.filter.kind)) | {"filter": recipe.config.filter.kind}
        words += [word for change in _changes(settings_of(config), usual) for word in ("--set", change)]
    return shlex.join(words)


def _changes(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """Return the settings in which a run differs from its recipe, as ``key=value``."""
    texts = {
        name: ",".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
        for name, value in settings.items()
        if value != usual[name] and name not in ("seed", "recipe")
    }
    return [f"{name}={text}" for name, text in texts.items()]
