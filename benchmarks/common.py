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
    script = Path(sys.argv[0]).resolve()
    return "python " + " ".join([f"{script.parent.name}/{script.name}", *sys.argv[1:]])


def write(name: str, results: Any, seed: int, folder: Path = RESULTS) -> Path:
    """Write a result file with machine, versions, command and seed."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
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


def result(name: str, folder: Path = RESULTS) -> Any:
    """Return a result file's contents."""
    return json.loads((folder / f"{name}.json").read_text())


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = list(header)
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, *rows)]
    lines.insert(1, "|---" * len(titles) + "|")
    return "\n".join(lines)
