"""Screen settings of the difficulty filter on the small tasks, on a CPU: ``python research/small.py --data DIR --jobs 2``.

Options and result format are those of ``benchmarks/proving_ground.py``; a run takes about two minutes on one core. What
wins here is worth trying on the tasks of the core, no more.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from proving_ground import run_command  # noqa: E402
from proving_tasks import ARMS  # noqa: E402
from proving_worker import run_job, serve  # noqa: E402


def _steered(*changes: str) -> tuple[str, ...]:
    return ("filter=difficulty", *changes)


def _constant(wanted: float) -> tuple[str, ...]:
    return _steered(f"difficulty={wanted}", f"early_difficulty={wanted}")


VARIANTS: dict[str, tuple[str, ...]] = {
    "counts-1": _steered("start=1.0", "speed=0.0"),
    "counts-2": _steered("start=2.0", "speed=0.0"),
    "counts-3": _steered("start=3.0", "speed=0.0"),
    "wanted-1.1-0.6": _steered("early_difficulty=1.1", "difficulty=0.6"),
    "wanted-1.0-0.6": _steered("early_difficulty=1.0", "difficulty=0.6"),
    "wanted-1.1-0.8": _steered("early_difficulty=1.1", "difficulty=0.8"),
    "wanted-1.2-0.4": _steered("early_difficulty=1.2", "difficulty=0.4"),
    "wanted-1.0": _constant(1.0),
    "wanted-0.8": _constant(0.8),
}


def _settings(arm: str, size: int) -> tuple[str, ...]:
    if arm in ARMS:
        return ARMS[arm].settings(size)
    return (*VARIANTS[arm], f"measure_size={min(64, size // 10)}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        torch.set_num_threads(1)
        serve(run_job, _settings)
    else:
        arms = {name: arm.own_ops for name, arm in ARMS.items()} | dict.fromkeys(VARIANTS, False)
        run_command(arms, Path(__file__), HERE / "results" / "small.json", "none,trivialaugment,wanted-1.1-0.6")
