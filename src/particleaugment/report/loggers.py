"""A search's numbers and figures for TensorBoard, Weights & Biases and anything with a ``log`` of the same shape."""

from __future__ import annotations

import importlib
import io
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from PIL import Image

from particleaugment.policies import Policy
from particleaugment.policies.mixture import Mixture
from particleaugment.report.plots import draw_deltas, draw_inclusion
from particleaugment.report.strength import draw_counts
from particleaugment.report.svg import picture
from particleaugment.search.filter_base import FilterRecord
from particleaugment.search.paper import PaperRecord
from particleaugment.search.search import ParticleAugment

__all__ = [
    "SearchLogger",
    "heat_map",
    "log_values",
    "own_numbers",
    "policy_figure",
    "rendered",
    "search_figures",
    "search_metrics",
]

_COMMON = frozenset({"kind", "epoch", *(field.name for field in fields(FilterRecord))})


class SearchLogger:
    """Logs every filter step: its numbers, how often each op is applied, and figures of the policy and of δ.

    Args:
        target: A ``torch.utils.tensorboard.SummaryWriter``, a Weights & Biases run (or the module ``wandb``), or
            anything with ``log(values, step=...)``.
        every: Figures are drawn at every so many filter steps; 0 for none.

    >>> import torch
    >>> from particleaugment import PaperFilter
    >>> class Printer:
    ...     def log(self, values, step):
    ...         print(step, sorted(values)[:2])
    >>> data = torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8) % 2
    >>> search = ParticleAugment(data, epochs=3, filter=PaperFilter(measure_size=2))
    >>> SearchLogger(Printer(), every=0).log(search, None, step=1)
    1 ['policy/AutoContrast', 'policy/Brightness']
    """

    def __init__(self, target: Any, every: int = 1):
        if not (hasattr(target, "log") or hasattr(target, "add_scalar")):
            raise TypeError(
                f"a logger must have log(values, step=...) or be a SummaryWriter, got {type(target).__name__}"
            )
        self.target, self.every = target, every

    def log(self, search: ParticleAugment, record: FilterRecord | None, step: int) -> None:
        """Log a filter step.

        Args:
            search: The search, after the step.
            record: What its ``step`` returned; None logs the policy alone.
            step: The step to log under: the epoch, or the training step if your other metrics use that.
        """
        values: dict[str, Any] = dict(search_metrics(search, record))
        if self.every and search.steps_taken % self.every == 0:
            values |= search_figures(search, record)
        log_values(self.target, values, step)


def search_metrics(search: ParticleAugment, record: FilterRecord | None = None) -> dict[str, float]:
    """Return the numbers of a search and of its last filter step, by name.

    >>> import torch
    >>> from particleaugment import PaperFilter
    >>> data = torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8) % 2
    >>> search = ParticleAugment(data, epochs=3, filter=PaperFilter(num_particles=4, measure_size=2))
    >>> round(search_metrics(search)["policy/ops_per_image"], 2)
    0.62
    """
    metrics = {f"policy/{name}": share for name, share in search.policy.inclusion.items()}
    metrics["policy/ops_per_image"] = search.policy.ops_per_image
    if record is not None:
        metrics["filter/skipped"] = float(record.skip_reason is not None)
        metrics |= {f"filter/{name}": value for name, value in own_numbers(vars(record)).items()}
        metrics |= {f"filter/seconds_{phase}": value for phase, value in record.seconds.items()}
    return metrics


def own_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a filter step's record that not every filter has.

    >>> own_numbers({"step": 1, "strength": 0.5, "held_out_loss": None})
    {'strength': 0.5}
    """
    found = {name: value for name, value in record.items() if name not in _COMMON}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def search_figures(search: ParticleAugment, record: FilterRecord | None = None) -> dict[str, Any]:
    """Return matplotlib figures of a search: the policy by epoch, and δ of the last filter step."""
    epochs = max(1, search.epoch + 1)
    figures = dict([policy_figure(search.schedule(epochs), epochs)])
    if isinstance(record, PaperRecord) and np.isfinite(record.delta).all():
        delta, errors, when = record.delta, record.standard_error, f"filter step {record.step}"
        figures["filter/delta"] = picture(9, 2.4, lambda figure, axes: draw_deltas(axes, delta, errors, when))
    return figures


def policy_figure(policy: Policy, epochs: int) -> tuple[str, Any]:
    """Return the name and the matplotlib figure that show a learned policy by epoch.

    That is the heat map of its ops; for mixtures, whose ops are all drawn equally often, how many ops images get.
    """
    shown = [(epoch, policy.at(epoch)) for epoch in range(1, epochs + 1)]
    mixtures = {epoch: one for epoch, one in shown if isinstance(one, Mixture)}
    if not mixtures:
        return "policy/heat_map", heat_map(policy, epochs)
    figure = picture(9, 2.6, lambda figure, axes: draw_counts(figure, axes, mixtures))
    return "policy/op_counts", figure


def heat_map(policy: Policy, epochs: int) -> Any:
    """Return a matplotlib figure of the probability with which each op is applied, by epoch."""
    of_epoch = [policy.at(epoch) for epoch in range(1, epochs + 1)]
    inclusion = np.array([list(one.inclusion.values()) for one in of_epoch])
    height = 0.8 + 0.22 * len(policy.ops)
    return picture(9, height, lambda figure, axes: draw_inclusion(figure, axes, inclusion, policy.ops, epochs))


def log_values(target: Any, values: Mapping[str, Any], step: int) -> None:
    """Log numbers and matplotlib figures under their names, as the target likes them."""
    if hasattr(target, "add_scalar"):
        for name, value in values.items():
            if isinstance(value, (int, float)):
                target.add_scalar(name, value, step)
            else:
                target.add_figure(name, value, step)
        return
    image = _image_class(target)
    shown = {
        name: value if image is None or isinstance(value, (int, float)) else image(rendered(value))
        for name, value in values.items()
    }
    target.log(shown, step=step)


def _image_class(target: Any) -> type | None:
    """The class ``Image`` of the package that a logger comes from, as wandb has one."""
    package = target.__name__ if isinstance(target, types.ModuleType) else type(target).__module__
    root = package.split(".")[0]
    found = getattr(importlib.import_module(root), "Image", None)
    return found if isinstance(found, type) and found.__module__.split(".")[0] == root else None


def rendered(figure: Any) -> Image.Image:
    """Return a matplotlib figure as a picture."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return Image.open(file).convert("RGB")
