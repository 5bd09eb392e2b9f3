"""Print the tables of ``next-filter.md``: every arm and candidate by task, mean over seeds, and difficulty.

python research/summary.py          # the core tasks
python research/summary.py small    # the tasks for a CPU
python research/summary.py short    # those of 40 to 60 epochs, on other images
python research/summary.py gpu      # the small tasks on an H200
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

from candidates import CANDIDATES  # noqa: E402
from common import table  # noqa: E402
from proving_results import Run, load_runs, merge_runs  # noqa: E402
from proving_tasks import ARMS, TASKS, WITHDRAWN  # noqa: E402
from small import FORMS  # noqa: E402

FILES = {
    "core": (HERE.parent / "benchmarks/results/proving-ground.json", HERE / "results/candidates.json"),
    "small": (HERE.parent / "benchmarks/results/small-tasks.json", HERE / "results/small.json"),
    "gpu": (HERE / "results/small-gpu.json",),
    "short": (HERE / "results/short-starts.json",),
}


def main(which: str = "core") -> None:
    """Print one of them."""
    runs: list[Run] = []
    for file in FILES[which]:
        runs = merge_runs(runs, load_runs(file))
    found = defaultdict(list)
    for run in runs:
        if run["measured_on"] == "judge" and "failed" not in run:
            found[run["arm"], run["task"]].append(run)
    tasks = [name for name in TASKS if any(task == name for _, task in found)]
    rows = []
    names = dict.fromkeys((*ARMS, *WITHDRAWN, *CANDIDATES, *FORMS, *(arm for arm, _ in found)))
    for arm in names:
        if not any(name == arm for name, _ in found):
            continue
        cells = [arm]
        for task in tasks:
            runs = found.get((arm, task), [])
            accuracy = sum(run["accuracy"] for run in runs) / len(runs) if runs else 0.0
            ratio = sum(run["difficulty"] for run in runs) / len(runs) if runs else 0.0
            seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
            cells.append(f"{accuracy:.2f} ({ratio:.2f}{seeds})" if runs else "–")
        rows.append(cells)
    print(table(["", *tasks], rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
