"""``particleaugment bench --quick`` of two versions, alternated, and the ratios of their speeds row by row."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from same_results_cases import RENAMES, respelled
from same_results_files import renamed
from same_results_versions import Version

__all__ = ["WITHIN", "Row", "alternated", "compared", "speeds"]

WITHIN = 0.03
"""How far apart the speeds of two versions that count as equal may be."""


@dataclass(frozen=True)
class Row:
    """A row of the benchmark.

    Attributes:
        name: What was timed.
        ratios: NEW's speed divided by OLD's, for each round.
    """

    name: str
    ratios: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """What the rounds say together: ``agrees``, ``faster``, ``slower``, or ``unclear`` where they disagree.

        >>> Row("a", (0.99, 1.02)).verdict, Row("a", (0.9, 0.95)).verdict, Row("a", (0.9, 1.0)).verdict
        ('agrees', 'slower', 'unclear')
        """
        low, high = min(self.ratios) - 1, max(self.ratios) - 1
        if max(-low, high) <= WITHIN:
            return "agrees"
        return "faster" if low > WITHIN else "slower" if high < -WITHIN else "unclear"

    def line(self) -> str:
        """Return the row as text: the median ratio, the rounds' range and the verdict."""
        spread = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        return f"{statistics.median(self.ratios):6.3f}  {spread:16} {self.verdict:8} {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        median = round(statistics.median(self.ratios), 4)
        return {
            "row": self.name,
            "verdict": self.verdict,
            "median": median,
            "ratios": [round(ratio, 4) for ratio in self.ratios],
        }


def alternated(old: Version, new: Version, rounds: int, folder: Path) -> list[Row]:
    """Run the benchmark of both versions so many times, in turn, and compare them."""
    found: dict[str, list[dict[str, float]]] = {"OLD": [], "NEW": []}
    for number in range(rounds):
        # Every other round begins with NEW, so that a machine that gets slower is not held against it.
        for version in (old, new) if number % 2 == 0 else (new, old):
            out = folder / f"{version.label.lower()}-{number + 1}"
            words = ["bench", "--quick", "--out", str(out / "bench.json")]
            if version.new_names:
                words = respelled(words, RENAMES["command"])
            version.run(["-m", "particleaugment", *words], out, threads=None, gpu=True)
            document = json.loads((out / "bench.json").read_text())
            apply = new.new_names and not version.new_names
            found[version.label].append(speeds(renamed(document, RENAMES["bench"]) if apply else document))
    return compared(found["OLD"], found["NEW"])


def speeds(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the speed of each row of the benchmark's document, in images or epochs per second."""
    results = document["results"]
    found = {}
    for row in results["cpu"]:
        found[f"{row['name']}, {row['size']}x{row['size']}, threads: {row['threads']}"] = row["median"]
    for row in (results["gpu"] or {}).get("rows", ()):
        found[f"{row['name']}, batch {row['batch']}"] = row["images_per_second"]
    for row in results["training"]:
        found[f"epochs, {row['policy']}"] = 1 / row["seconds_per_epoch"]
    return found


def compared(old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]) -> list[Row]:
    """Return the ratios of the rows that both versions have.

    >>> compared([{"a": 2.0}, {"a": 4.0}], [{"a": 1.0}, {"a": 4.0}])
    [Row(name='a', ratios=(0.5, 1.0))]
    """
    differing = sorted({name for ours, theirs in zip(old, new) for name in ours.keys() ^ theirs.keys()})
    if differing:
        raise ValueError(f"only one of the versions times {differing[0]!r}; name it in RENAMES['bench']")
    return [Row(name, tuple(theirs[name] / ours[name] for ours, theirs in zip(old, new))) for name in old[0]]
