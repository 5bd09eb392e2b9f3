"""Resident memory, open files and threads over a long run of the digits recipe: they must stay flat.

    python benchmarks/endurance.py --epochs 300

Read from /proc after every epoch, filter step and checkpoint included, on the first 100 training and 40 test images, so
that epochs are many and short. The first tenth of them is warm-up; after it no reading may lie more than 5 % above the
first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import write

from particleaugment.data import ImageData, load_digits
from particleaugment.recipes import get_recipe
from particleaugment.training import build, loop
from particleaugment.training.config import override
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.training.stop import Stop

SETTINGS = ["batch_size=50", "clone_size=40", "measure_size=20", "num_particles=4", "precision=fp32"]
TRAIN_IMAGES, TEST_IMAGES = 100, 40
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


def few_digits() -> ImageData:
    """Return the first of the digits."""
    data = load_digits()
    return replace(
        data,
        train_images=data.train_images[:TRAIN_IMAGES],
        train_labels=data.train_labels[:TRAIN_IMAGES],
        test_images=data.test_images[:TEST_IMAGES],
        test_labels=data.test_labels[:TEST_IMAGES],
    )


def endure(folder: Path, epochs: int, settings: list[str] = SETTINGS) -> dict[str, Any]:
    """Run so many epochs and return how each quantity grew after the warm-up."""
    config = override(get_recipe("digits"), [*settings, f"epochs={epochs}"])
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
    data = few_digits()
    build.load_data = lambda *_, **__: data  # type: ignore[attr-defined]
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
