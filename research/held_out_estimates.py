"""How well do a few held-out losses tell the loss on new images? Ways to estimate it, compared on trained networks.

    python research/held_out_estimates.py --data DIR [--tasks small-turns-300 …] [--seed 0]

Trains small tasks with the default filter. At four moments, the losses of all judge images are taken; subsets as large
as the filter's held-out samples are drawn from them, and each way's estimates are compared with the mean over all. An
estimate's error is its logarithm's: the filter goes by ratios. ``results/held-out-estimates.json`` has the figures.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "benchmarks")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import table, write  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from proving_tasks import ARMS, TASKS  # noqa: E402

import particleaugment as pa  # noqa: E402
from particleaugment.search.filter_base import Subject  # noqa: E402
from particleaugment.search.plain_losses import evaluation_mode, held_out_losses  # noqa: E402
from particleaugment.training.override import override  # noqa: E402

Array = NDArray[np.float64]
DEFAULT_TASKS = ("small-cifar10-300", "small-fashion-300", "small-tints-1000", "small-turns-300")
MOMENTS = (0.2, 0.45, 0.7, 0.95)
DRAWS = 6000
EVERY = 5  # filter steps between two looks at the judge
FAR = 0.7  # about a factor of 2


def _capped(losses: Array, chance: float, times: float) -> Array:
    return np.minimum(losses, np.maximum(chance, times * losses.mean(1, keepdims=True)))


def _with_one(losses: Array, chance: float, weight: float = 1.0) -> Array:
    return (losses.sum(1) + weight * chance) / (losses.shape[1] + weight)


WAYS: dict[str, Callable[[Array, float], Array]] = {
    "mean": lambda losses, chance: np.maximum(losses.mean(1), 1e-3),
    "mean, and one at chance": _with_one,
    "mean, and half of one at chance": lambda losses, chance: _with_one(losses, chance, 0.5),
    "mean, and one at chance, less half a standard error": lambda losses, chance: (
        _with_one(losses, chance) - losses.std(1, ddof=1) / (2 * math.sqrt(losses.shape[1]))
    ),
    "mean with the largest loss set to the second largest, and one at chance": lambda losses, chance: _with_one(
        np.minimum(losses, np.sort(losses, 1)[:, -2:-1]), chance
    ),
    "mean of losses capped at chance, and one at chance": lambda losses, chance: _with_one(
        np.minimum(losses, chance), chance
    ),
    "mean of losses capped at 2.5 times the mean or chance, and one at chance": lambda losses, chance: _with_one(
        _capped(losses, chance, 2.5), chance
    ),
}


def judge_losses(task: str, seed: int, data: str) -> tuple[list[Array], int, int]:
    """Train a task; return the judge's losses at some moments, the number of held-out samples and that of classes."""
    steps, held_out = list[Array](), [0]

    def measured(subject: Subject) -> torch.Tensor:
        found = held_out_losses(subject)
        if held_out[0] % EVERY == 0:
            steps.append(_of_test_images(subject.trainee))
        held_out[0] += 1
        return found

    chosen = TASKS[task]
    config = override(chosen.config(ARMS["difficulty"].settings(chosen.size), seed, data), ["evaluate_every=100000"])
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("particleaugment.search.difficulty.held_out_losses", measured),
    ):
        pa.train(config, Path(folder) / "run", quiet=True)
    return (
        [steps[int(moment * (len(steps) - 1))] for moment in MOMENTS],
        int(pa.DifficultyFilter().held_out_of(chosen.size)),
        chosen.classes,
    )


def _of_test_images(trainee: Any) -> Array:
    kept: list[torch.Tensor] = []
    loss = trainee.learner.loss

    def keep(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        kept.append(loss(logits, labels).double())
        return kept[-1]

    with evaluation_mode(trainee.model), patch.object(trainee.learner, "loss", keep):
        trainee.evaluate()
    return torch.cat(kept).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory with the data sets, as for the proving ground")
    parser.add_argument("--tasks", nargs="+", default=list(DEFAULT_TASKS), choices=[name for name in TASKS])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator, rows = np.random.default_rng(arguments.seed), list[dict[str, Any]]()
    for task in arguments.tasks:
        moments, count, classes = judge_losses(task, arguments.seed, arguments.data)
        for moment, losses in zip(MOMENTS, moments):
            drawn = generator.choice(losses, (DRAWS, count))
            for way, estimate in WAYS.items():
                errors = np.log(estimate(drawn, math.log(classes)) / losses.mean())
                numbers = {"bias": errors.mean(), "spread": errors.std()}
                numbers |= {"far_above": (errors > FAR).mean(), "far_below": (errors < -FAR).mean()}
                where = {"task": task, "moment": moment, "held_out": count, "loss": round(float(losses.mean()), 4)}
                rows.append({**where, "way": way, **{name: round(float(x), 4) for name, x in numbers.items()}})
    write("held-out-estimates", rows, arguments.seed, HERE / "results")
    print(summary(rows))


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the ways' errors over all tasks and moments, as a table."""
    lines = []
    for way in WAYS:
        of_way = [row for row in rows if row["way"] == way]
        bias, spread = (math.sqrt(np.mean([row[name] ** 2 for row in of_way])) for name in ("bias", "spread"))
        above, below = (100 * np.mean([row[name] for row in of_way]) for name in ("far_above", "far_below"))
        lines.append([way, f"{bias:.2f}", f"{spread:.2f}", f"{above:.1f} %", f"{below:.1f} %"])
    return table(["estimate", "bias", "spread", "over twice as high", "under half"], lines)


if __name__ == "__main__":
    main()
