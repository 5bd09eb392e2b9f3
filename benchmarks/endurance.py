"""Resident memory, open files and threads over a long run of the digits recipe: they must stay flat.

    python benchmarks/endurance.py --epochs 300
    python benchmarks/endurance.py --epochs 300 --filters difficulty

Trains with the paper's filter and with the difficulty filter, each in its own process. Every epoch ends with a filter
step, a checkpoint and TensorBoard events, after which memory is read from /proc. The first tenth of the epochs is
warm-up; after it no reading may be more than 5 % above the first. What a run remembers of its filter steps grows with
their number, so the sizes of the search's state, ``policy.json``, ``metrics.jsonl`` and the checkpoints are reported
too. The result file keeps the rows of filters that are not run again, each with its command.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, command, result, write

from particleaugment.recipes import get_recipe
from particleaugment.report.report_and_events import ReportAndEvents
from particleaugment.training import loop
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop

COMMON = ("train_size=256", "every=1", "evaluate_every=1", "measure_size=60")
SETTINGS: Mapping[str, Sequence[str]] = {
    "paper": ("clone_size=128", "num_particles=8", *COMMON),
    "difficulty": COMMON,
}
LIMIT = 0.05


def reading() -> dict[str, int]:
    """Return what the process holds now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident_kib": int(status["VmRSS"].split()[0]),
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


class Readings(Session):
    """A session that takes a reading after every epoch."""

    def finish_epoch(self) -> None:
        """Move on to the next epoch and take a reading."""
        super().finish_epoch()
        self.readings = [*getattr(self, "readings", []), reading()]
        self.checkpoint_bytes = [*getattr(self, "checkpoint_bytes", []), self._newest_checkpoint()]

    def _newest_checkpoint(self) -> int:
        return find_checkpoints(self.run.path)[-1].stat().st_size


def endure(folder: Path, epochs: int, filter: str, settings: Sequence[str] | None = None) -> dict[str, Any]:
    """Run so many epochs and return how each quantity grew after the warm-up, and how large files have become."""
    settings = SETTINGS[filter] if settings is None else settings
    config = get_recipe("digits").override([f"filter={filter}", *settings, f"epochs={epochs}"])
    run = RunFolder.create(folder / f"run-{filter}", config)
    session = Readings(run, Display(quiet=True), Stop(), 0.0, extras=ReportAndEvents(run))
    start = time.perf_counter()
    loop.train(session)
    seconds = time.perf_counter() - start
    warm = session.readings[max(1, epochs // 10) :]
    quantities = {
        name: {
            "after_warm_up": warm[0][name],
            "highest": max(row[name] for row in warm),
            "growth_percent": round(100 * (max(row[name] for row in warm) / warm[0][name] - 1), 2),
        }
        for name in warm[0]
    }
    flat = all(quantity["growth_percent"] <= 100 * LIMIT for quantity in quantities.values())
    return {
        "settings": list(settings),
        "epochs": epochs,
        "seconds": round(seconds, 1),
        "flat": flat,
        **quantities,
        "sizes": sizes(session),
    }


def sizes(session: Readings) -> dict[str, int]:
    """Return what a run has remembered at its end, in bytes."""
    assert session.search is not None
    state = io.BytesIO()
    torch.save(session.search.state_dict(), state)
    run = session.run
    return {
        "filter_steps": session.search.steps_taken,
        "search_state": state.tell(),
        "policy": run.policy.stat().st_size,
        "metrics": run.metrics.stat().st_size,
        "checkpoints": len(find_checkpoints(run.path)),
        "first_checkpoint": session.checkpoint_bytes[0],
        "last_checkpoint": session.checkpoint_bytes[-1],
        "report": (run.path / "report.html").stat().st_size if (run.path / "report.html").exists() else 0,
        "events": sum(file.stat().st_size for file in (run.path / "tensorboard").glob("*")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--filters", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args()
    results: dict[str, Any] = result("endurance")["results"] if (RESULTS / "endurance.json").exists() else {}
    for filter in options.filters:
        own_process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        with tempfile.TemporaryDirectory() as folder, own_process as pool:
            found = pool.submit(endure, Path(folder), options.epochs, filter).result()
        results[filter] = {"command": command(), **found}
        for name in ("resident_kib", "open_files", "threads"):
            row = found[name]
            grown = f"{row['after_warm_up']} after warm-up, {row['highest']} at most ({row['growth_percent']:+.2f} %)"
            print(f"{filter}: {name}: {grown}", flush=True)
        print(f"{filter}: {found['seconds']} s; bytes: {found['sizes']}", flush=True)
    write("endurance", results, 0)
    raise SystemExit(0 if all(found["flat"] for found in results.values()) else 1)


if __name__ == "__main__":
    main()
