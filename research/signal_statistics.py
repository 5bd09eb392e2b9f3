"""How well orders agree: rank correlations with their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def ranks(values: Floats) -> Floats:
    """Return ranks, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts + 1) / 2)[inverse], dtype=np.float64)


def spearman(first: Floats, second: Floats) -> float:
    """Return the rank correlation, 0 where one side is constant."""
    a, b = (ranks(values) - (len(values) - 1) / 2 for values in (first, second))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else 0.0


def mean_pairwise(scores: Sequence[Floats]) -> float:
    """Return the mean rank correlation over all pairs of measurements."""
    return float(np.mean([spearman(a, b) for a, b in combinations(scores, 2)]))


def jackknife(values: Sequence[Any], statistic: Callable[[Sequence[Any]], float]) -> float:
    """Return the standard error of a statistic, by leaving out one value at a time."""
    parts = np.array([statistic([*values[:i], *values[i + 1 :]]) for i in range(len(values))])
    return float(np.sqrt((len(parts) - 1) / len(parts) * np.square(parts - parts.mean()).sum()))


def summary(results: dict[str, Any], sparse: int, ops: Sequence[str]) -> dict[str, Any]:
    """Return the tables of both studies from their raw results; signals hold ``sparse`` particles, then one per op."""
    runs = {name: results["truth"][name] for name in ops if name in results["truth"]}
    truth = _truth(runs)
    found: dict[str, Any] = {"truth": truth, "repeatability": {}, "validity": {}}
    for run, study in results["repeatability"].items():
        for moment, models in study["moments"].items():
            for name in models[0]:
                rows = [np.array(model[name]) for model in models]
                if len(rows[0]) == 1:
                    found["repeatability"].setdefault(f"{name} <= 0", {})[f"{run} {moment}"] = {
                        "models": len(rows), "share": float(np.mean([row[0] <= 0 for row in rows])),
                    }  # fmt: skip
                    continue
                for kind, part in (("sparse", slice(0, sparse)), ("single", slice(sparse, None))):
                    scores = [row[part] for row in rows]
                    entry = {
                        "models": len(rows),
                        "spearman": mean_pairwise(scores),
                        "error": jackknife(scores, mean_pairwise),
                    }
                    found["repeatability"].setdefault(name, {})[f"{run} {moment} {kind}"] = entry
                if truth:
                    single = np.mean([ranks(row[sparse:]) for row in rows], axis=0)
                    found["validity"].setdefault(name, {})[f"{run} {moment}"] = _validity(single, runs)
    found["shuffled"] = _shuffled(sparse)
    return found


def _truth(runs: dict[str, Any]) -> dict[str, Any]:
    table = {}
    for name, seeds in runs.items():
        reached = np.array([entry["accuracy"] for entry in seeds.values()])
        deviation = float(reached.std(ddof=1)) if len(reached) > 1 else math.nan
        table[name] = {
            "seeds": len(reached),
            "mean": float(reached.mean()),
            "deviation": deviation,
            "train_loss": float(np.mean([entry["train_loss"] for entry in seeds.values()])),
        }
    return table


def _validity(signal: Floats, runs: dict[str, Any]) -> dict[str, float]:
    """Return the rank correlation with the truth, its jackknife error over ops, and a permutation p-value."""
    accuracy = np.array([np.mean([e["accuracy"] for e in seeds.values()]) for seeds in runs.values()])
    if len(accuracy) != len(signal):
        return {"spearman": math.nan, "error": math.nan, "p": math.nan}
    pairs = list(zip(signal, accuracy))
    value = spearman(signal, accuracy)
    error = jackknife(pairs, lambda part: spearman(*(np.array(column) for column in zip(*part))))
    generator = np.random.default_rng(0)
    a, b = (ranks(values) - (len(values) - 1) / 2 for values in (signal, accuracy))
    orders = generator.permuted(np.tile(b, (2000, 1)), axis=1)
    chance = orders @ a / math.sqrt(float(a @ a) * float(b @ b))
    return {"spearman": value, "error": error, "p": float(np.mean(np.abs(chance) >= abs(value) - 1e-12))}


def _shuffled(count: int) -> dict[str, float]:
    """Return the yardstick's own check: scores in random order must not correlate."""
    generator = np.random.default_rng(0)
    values = [mean_pairwise([generator.permutation(count).astype(np.float64) for _ in range(8)]) for _ in range(100)]
    return {"spearman": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)), "repeats": len(values)}
