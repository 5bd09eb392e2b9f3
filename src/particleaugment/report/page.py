"""``report.html``: one self-contained page that tells a run's story."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from particleaugment.data import find_files
from particleaugment.data.listing import FolderListing
from particleaugment.policies import load
from particleaugment.report import plots
from particleaugment.report.gallery import draw_grid, policy_rows
from particleaugment.report.metrics import RunHistory, alarms, history
from particleaugment.report.summary import leading_ops
from particleaugment.training.config import Config, settings_of
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.atomic import write_atomically

__all__ = ["alarm_box", "figure", "render", "self_contained", "settings_table", "write_report"]

_LARGEST_EXAMPLE = 64  # pixels a side of a shown image

# The page loads nothing: what is not in the file is refused by the browser.
_ALLOWED = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2026; --faint: #667; --paper: #fbfbf9; --card: #fff; --line: #dde;
  --alarm: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #9aa3ad; --paper: #14171b; --card: #1b1f25; --line: #2d333b; --alarm: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.5rem 0 .4rem }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem }
p, li { max-width: 44rem } .faint { color: var(--faint) }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem 1rem;
  flex: 1 1 9rem }
.card b { display: block; font-size: 1.5rem; font-weight: 650 } .card span { color: var(--faint); font-size: .85rem }
.alarms { border-left: 4px solid var(--alarm); padding: .1rem 1rem; background: var(--card) }
figure { margin: .6rem 0 } figure svg { width: 100%; height: auto; font-family: system-ui, sans-serif }
figure img { max-width: 100%; image-rendering: pixelated; border-radius: .4rem }
figcaption { color: var(--faint); font-size: .9rem }
table { border-collapse: collapse; font-size: .9rem }
td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top }
code, pre { font: .85rem/1.5 ui-monospace, monospace } pre { background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; padding: .8rem 1rem; overflow-x: auto; white-space: pre-wrap }
details summary { cursor: pointer }
@media print { body { max-width: none; padding: 0 } figure, .card { break-inside: avoid } }
"""


def write_report(run: RunFolder) -> Path:
    """Write ``report.html`` into a run's folder and return its path."""
    records = run.read_metrics()
    if not any(record["kind"] == "epoch" for record in records):
        raise RunError(f"{run.path} has no finished epoch yet, so there is nothing to report")
    if not run.policy.exists():
        raise RunError(f"{run.path} has no policy.json yet; it is written when the run stops or ends")
    path = run.path / "report.html"
    write_atomically(path, render(history(run.config, records, load(run.policy))))
    return path


def render(run: RunHistory) -> str:
    """Return the page of a run."""
    judge, found = run.config.data.measured_on, _found(run.config)
    parts = [
        _cards(run),
        _data(run, found),
        alarm_box(alarms(run)),
        "<h2>Training</h2>",
        figure(plots.curves(run), f"Loss (training under augmentation, {judge} on plain images) and {judge} accuracy."),
    ]
    if run.inclusion.size:
        parts += _policy_story(run)
    if run.searched:
        parts += _filter_story(run)
    parts += _pictures(run, found)
    parts += _times(run)
    parts += _config(run)
    return self_contained(f"{run.config.recipe}, seed {run.config.seed}", _subtitle(run), parts)


def self_contained(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """Return a page of the given parts that needs nothing besides itself."""
    head = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · ParticleAugment</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">',
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>',
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{escape(subtitle)}</p>',
    ]
    return "\n".join([*head, *parts, "</body></html>\n"])


def figure(svg: str, caption: str) -> str:
    """Return a figure with its caption, or nothing where there is no figure."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" if svg else ""


def alarm_box(sentences: Sequence[str]) -> str:
    """Return a box with what deserves attention, or nothing."""
    if not sentences:
        return ""
    return '<div class="alarms">' + "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences) + "</div>"


def settings_table(settings: Mapping[str, Any]) -> str:
    """Return all settings of a configuration, folded away."""
    rows = "".join(f"<tr><td>{name}</td><td>{escape(str(value))}</td></tr>" for name, value in settings.items())
    return f"<details><summary>All settings</summary><table>{rows}</table></details>"


def _subtitle(run: RunHistory) -> str:
    config = run.config
    policy = "policy learned by the particle filter" if config.searches else f"policy {config.policy}"
    epochs = f"{len(run.epochs)} of {config.training.epochs} epochs"
    return f"{config.model} on {config.data.name}{config.data.part}, {epochs}, {policy}"


def _cards(run: RunHistory) -> str:
    last = run.epochs[-1]
    best = max(run.epochs, key=lambda record: record["test_accuracy"])
    cards = [
        (f"{last['test_accuracy']:.2f} %", f"{run.config.data.measured_on} accuracy, last epoch ({last['epoch']})"),
        (
            f"{best['test_accuracy']:.2f} %",
            f"best epoch ({best['epoch']}): chosen on the {run.config.data.measured_on} set, not a result",
        ),
    ]
    if run.inclusion.size:
        cards.append((f"{run.ops_per_image[-1]:.2f}", "ops per image at the end"))
    if run.searched:
        skipped = sum(step["skip_reason"] is not None for step in run.steps)
        cards.append((f"{len(run.steps) - skipped} of {len(run.steps)}", "filter steps that updated the weights"))
        cards.append((f"{run.overhead_percent:.0f} %", "search time on top of plain training"))
    boxes = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in cards
    )
    return f'<div class="cards">{boxes}</div>'


def _found(config: Config) -> FolderListing | None:
    """Return what a run's data set of files holds now, if it has one that is still there."""
    try:
        data = config.data
        return find_files(data.name, data.data_dir, data.groups) if data.has_files else None
    except (OSError, ValueError):
        return None


def _data(run: RunHistory, found: FolderListing | None) -> str:
    if found is None:
        return ""
    try:
        description = found.describe(*_chosen(run.config))
    except ValueError:  # the folder has changed since
        return ""
    what = "The folder of images" if found.part == "folder" else "The data set"
    return f"<p>{what}, when this page was written: {escape(description)}.</p>"


def _chosen(config: Config) -> tuple[int | float, int | float, int]:
    """Which images of a folder a run trains and is judged on, as its listing takes it."""
    return config.data.validation, config.data.train_size, config.data.data_seed


def _policy_story(run: RunHistory) -> list[str]:
    leading = ", ".join(f"{name} ({100 * share:.0f} %)" for name, share in leading_ops(run.policy))
    return [
        "<h2>The policy's story</h2>",
        f"<p>At the end the policy applies most often: {escape(leading)}.</p>",
        figure(plots.heat_map(run), "Probability with which each op is applied to an image, by epoch."),
        figure(plots.ops_per_image(run), "Ops applied to an image on average."),
    ]


def _filter_story(run: RunHistory) -> list[str]:
    return [
        "<h2>The filter's health</h2>",
        figure(
            plots.effective_sample_size(run),
            "How many particles the weights are really spread over. A cross is a step whose measurement could not be "
            "trusted: the weights stayed as they were.",
        ),
        figure(
            plots.delta_of_last_step(run),
            "δ: how much the clone's loss fell under a particle, relative to plain images. Above 1 a particle gains "
            "weight. Where the bars overlap, the order of the particles is noise.",
        ),
        figure(
            plots.effects_of_last_step(run),
            "Severity: by how much each op alone raises the network's loss on held-out images. Lines are standard "
            "errors; a particle's severity is the sum over its ops, weighted by their probabilities.",
        ),
        figure(plots.severity(run), "Severity of the whole policy: what the filter steered to, and what it reached."),
        _skips(run),
    ]


def _skips(run: RunHistory) -> str:
    skipped = [step for step in run.steps if step["skip_reason"] is not None]
    if not skipped:
        return ""
    rows = "".join(f"<tr><td>{step['epoch']}</td><td>{escape(step['skip_reason'])}</td></tr>" for step in skipped)
    return f"<details><summary>{len(skipped)} skipped updates and why</summary><table>{rows}</table></details>"


def _pictures(run: RunHistory, found: FolderListing | None) -> list[str]:
    try:
        images = _examples(run.config, found)
    except (OSError, ValueError):
        return []
    rows = policy_rows(images, run.policy.moments(run.epochs[-1]["epoch"]), seed=run.config.seed)
    plain = [("", image) for image in images]
    buffer = io.BytesIO()
    draw_grid([("plain", plain), *rows]).save(buffer, "PNG", optimize=True)
    source = base64.b64encode(buffer.getvalue()).decode()
    return [
        "<h2>What the network saw</h2>",
        f'<figure><img alt="Training images under the policy" src="data:image/png;base64,{source}">'
        "<figcaption>The same training images under the policy, crop, flip and erasing left out.</figcaption></figure>",
    ]


def _examples(config: Config, found: FolderListing | None, count: int = 12) -> Tensor:
    from particleaugment.data import load_data
    from particleaugment.data.streamed import example_images

    if found is not None:  # which may be large: a few files are enough
        size = min(config.data.image_size or _LARGEST_EXAMPLE, _LARGEST_EXAMPLE)
        return example_images(found.selected(*_chosen(config))[0], size, count)
    validation, train_size, seed = _chosen(config)
    data = load_data(
        config.data.name,
        config.data.data_dir or None,
        validation=validation,
        train_size=train_size,
        seed=seed,
        quiet=True,
    )
    return data.train_images[:count]


def _times(run: RunHistory) -> list[str]:
    return ["<h2>Time</h2>", figure(plots.phases(run), "Seconds per phase over the whole run.")]


def _config(run: RunHistory) -> list[str]:
    return [
        "<h2>The exact command and configuration</h2>",
        f"<pre>{escape(_command(run))}</pre>",
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
