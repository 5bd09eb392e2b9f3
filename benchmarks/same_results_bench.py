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
PEERS = ("timm", "Pillow", "torchvision")


@dataclass(frozen=True)
class Row:
    """A row of the benchmark.

    Attributes:
        name: What was timed.
        old: OLD's speed in each round.
        new: NEW's.
    """

    name: str
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """NEW's speed divided by OLD's, round by round."""
        return [new / old for old, new in zip(self.old, self.new)]

    @property
    def best(self) -> float:
        """The ratio of the fastest rounds: other load on the machine can only slow a round down."""
        return max(self.new) / max(self.old)

    @property
    def is_peer(self) -> bool:
        """Whether it times another library, the same code in both versions: its ratios are the machine's noise."""
        return self.name.startswith(PEERS)

    @property
    def verdict(self) -> str:
        """What the rounds say together: ``agrees``, ``faster``, ``slower``, or ``unclear`` where they disagree.

        >>> one = (1.0, 1.0)
        >>> Row("a", one, (0.99, 1.02)).verdict, Row("a", one, (0.9, 0.95)).verdict, Row("a", one, (0.9, 1.0)).verdict
        ('agrees', 'slower', 'unclear')
        """
        low, high = min(self.ratios) - 1, max(self.ratios) - 1
        if max(-low, high) <= WITHIN:
            return "agrees"
        return "faster" if low > WITHIN else "slower" if high < -WITHIN else "unclear"

    def line(self) -> str:
        """Return the row as text: the ratio of the fastest rounds, the median, the rounds' range and the verdict."""
        spread = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        verdict = "(noise)" if self.is_peer else self.verdict
        return f"{self.best:6.3f} {statistics.median(self.ratios):7.3f}  {spread:15} {verdict:8} {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return {
            "row": self.name,
            "verdict": self.verdict,
            "best": round(self.best, 4),
            "median": round(statistics.median(self.ratios), 4),
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
            version.run(["-m", "particleaugment", *words], out, gpu=True)
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
    """Return the rows of several rounds, which must be the same in both versions, peers apart.

    >>> compared([{"a": 2.0}, {"a": 4.0}], [{"a": 1.0}, {"a": 4.0}])
    [Row(name='a', old=(2.0, 4.0), new=(1.0, 4.0))]
    """
    differing = {name for ours, theirs in zip(old, new) for name in ours.keys() ^ theirs.keys()}
    unknown = sorted(name for name in differing if not name.startswith(PEERS))
    if unknown:
        raise ValueError(f"only one of the versions times {unknown[0]!r}; name it in RENAMES['bench']")
    both = [name for name in old[0] if name not in differing]
    return [Row(name, *(tuple(found[name] for found in rounds) for rounds in (old, new))) for name in both]
