"""Train candidate filters on the proving ground's tasks: ``python research/explore.py --data DIR --arms knob,per-op``.

Options, result format and the sharing of the GPU are those of ``benchmarks/proving_ground.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

from candidates import CANDIDATES  # noqa: E402
from proving_ground import run_command  # noqa: E402

if __name__ == "__main__":
    run_command(
        dict.fromkeys(CANDIDATES, False),
        HERE / "explore_worker.py",
        HERE / "results" / "candidates.json",
        "knob,per-op",
    )
