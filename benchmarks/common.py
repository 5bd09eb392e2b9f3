"""Result files that say how they were made; the timing itself is in ``particleaugment.bench``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from particleaugment.util.timing import machine, rate

__all__ = ["RESULTS", "command", "earlier_rows", "rate", "result", "table", "write"]

RESULTS = Path(__file__).parent / "results"


def command() -> str:
    """Return the command that this benchmark was started with."""
    return "python " + " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def write(name: str, results: Any, seed: int) -> Path:
    """Write a result file with machine, versions, command and seed."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"command": command(), "seed": seed, "machine": machine(), "results": results}
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}")
    return path


def earlier_rows(name: str, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a result file that this machine wrote before with the same seed; none if another did."""
    path = RESULTS / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if (document.get("machine"), document.get("seed")) != (machine(), seed):
        return []
    return document["results"]  # type: ignore[no-any-return]


def result(name: str) -> Any:
    """Return a result file's contents."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = list(header)
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, *rows)]
    lines.insert(1, "|---" * len(titles) + "|")
    return "\n".join(lines)
