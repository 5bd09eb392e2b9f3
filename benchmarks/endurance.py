"""Resident memory, open files and threads over a long run of the digits recipe: they must stay flat.

    python benchmarks/endurance.py --epochs 300

Read from /proc after every epoch, filter step and checkpoint included. The first tenth of the epochs is warm-up; after
it no reading may lie more than 5 % above the first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from common import write

from particleaugment.recipes import get_recipe
from particleaugment.training import loop
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop

SETTINGS = ["clone_size=256", "measure_size=60", "num_particles=8"]
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


def endure(folder: Path, epochs: int, settings: list[str] = SETTINGS) -> dict[str, Any]:
    """Run so many epochs and return how each quantity grew after the warm-up."""
    config = get_recipe("digits").override(["filter=paper", *settings, f"epochs={epochs}"])
    session = Readings(RunFolder.create(folder / "run", config), Display(quiet=True), Stop(), 0.0)
    start = time.perf_counter()
    loop.train(session)
    seconds = time.perf_counter() - start
    warm = session.readings[max(1, epochs // 10) :]
    quantities = {
        name: {
            "after_warm_up": warm[0][name],
            "highest": max(row[name] for row in warm),
            "last": warm[-1][name],
            "growth_percent": round(100 * (max(row[name] for row in warm) / warm[0][name] - 1), 2),
        }
        for name in warm[0]
    }
    flat = all(quantity["growth_percent"] <= 100 * LIMIT for quantity in quantities.values())
    return {"settings": settings, "epochs": epochs, "seconds": round(seconds, 1), "flat": flat, **quantities}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = endure(Path(folder), options.epochs)
    for name in ("resident_kib", "open_files", "threads"):
        row = results[name]
        print(
            f"{name}: {row['after_warm_up']} after warm-up, {row['highest']} at most ({row['growth_percent']:+.2f} %)"
        )
    write("endurance", results, 0)
    raise SystemExit(0 if results["flat"] else 1)


if __name__ == "__main__":
    main()
