"""Where the time of a ParticleAugment epoch goes, and what the filter's own arithmetic costs.

    python benchmarks/filter_overhead.py

Trains the digits recipe for a few epochs and times every part of the filter step apart: the clone's training and the
forward passes, which the algorithm needs, and everything else (drawing subsets and programs, augmenting the measured
images, snapshot and restore, transition, weights, resampling), which is the filter's own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import write

from particleaugment.policies.particles import ParticlePolicy
from particleaugment.recipes import recipe
from particleaugment.search import clone
from particleaugment.search.paper import PaperFilter
from particleaugment.trainee import pipelines
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.protocol import silent
from particleaugment.trainee.snapshot import Snapshot
from particleaugment.training.build import resolve
from particleaugment.training.display import Display
from particleaugment.training.loop import train
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop

SECONDS: dict[str, float] = defaultdict(float)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            SECONDS[name] += time.perf_counter() - start

    return wrapper


def instrument() -> None:
    clone.disjoint_stratified_subsets = timed("draw the subsets", clone.disjoint_stratified_subsets)  # type: ignore[attr-defined]
    clone._train_clone = timed("train the clone", clone._train_clone)
    pipelines.apply = timed("augment the measured images", pipelines.apply)  # type: ignore[attr-defined]
    ParticlePolicy.sample_particle = timed("draw the programs", ParticlePolicy.sample_particle)  # type: ignore[method-assign]
    Learner.losses = timed("forward passes", Learner.losses)  # type: ignore[method-assign]
    PaperFilter.step = timed("filter step", PaperFilter.step)  # type: ignore[method-assign]
    original = Snapshot.of

    @contextmanager
    def of(*arguments: Any, **options: Any) -> Iterator[None]:
        manager = original(*arguments, **options)
        timed("snapshot and restore", manager.__enter__)()
        try:
            yield
        finally:
            timed("snapshot and restore", manager.__exit__)(None, None, None)

    Snapshot.of = of  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = resolve(recipe("digits", filter="paper", epochs=arguments.epochs, seed=arguments.seed))
    with tempfile.TemporaryDirectory() as folder, Stop() as stop:
        run = RunFolder.create(Path(folder) / "run", config)
        session = Session(run, Display(quiet=True), stop, checkpoint_seconds=1e9)
        with Snapshot().of(session.model, session.optimizer):  # warm up
            session.trainee.train(session.policy_of(1), torch.arange(config.training.batch_size), 0, progress=silent)
        instrument()
        start = time.perf_counter()
        train(session)
        total = time.perf_counter() - start
    needed = SECONDS["train the clone"] + SECONDS["forward passes"]
    step = SECONDS.pop("filter step")
    parts = {name: round(value / total * 100, 2) for name, value in SECONDS.items()}
    named = sum(SECONDS.values())
    parts["transition, weights, resampling and the rest"] = round((step - named) / total * 100, 2)
    results = {
        "epochs": arguments.epochs,
        "seconds_per_epoch": round(total / arguments.epochs, 3),
        "percent_of_epoch": parts,
        "filter_step_percent": round(step / total * 100, 2),
        "filters_own_arithmetic_percent": round((step - needed) / total * 100, 2),
        "required_percent": 5.0,
    }
    for name, value in results["percent_of_epoch"].items():  # type: ignore[attr-defined]
        print(f"{name:<46} {value:6.2f} %")
    print(f"the filter's own arithmetic: {results['filters_own_arithmetic_percent']} % of the epoch")
    write("filter_overhead", results, arguments.seed)


if __name__ == "__main__":
    main()
