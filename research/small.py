"""Screen settings of the difficulty filter on the small tasks, on a CPU: ``python research/small.py --data DIR``.

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


def _wanted(early: float, late: float, *more: str) -> tuple[str, ...]:
    return ("filter=difficulty", f"early_difficulty={early}", f"difficulty={late}", *more)


VARIANTS: dict[str, tuple[str, ...]] = {
    **{f"counts-{mean}": ("filter=difficulty", f"start={mean}.0", "speed=0.0") for mean in (1, 2, 3)},
    **{
        f"wanted-{early}-{late}": _wanted(early, late)
        for early, late in ((1.1, 0.6), (1.0, 0.6), (1.1, 0.8), (1.0, 1.0), (1.2, 0.4))
    },
    "proportional": _wanted(1.1, 0.6),
    "none-180": ("policy=none", "train_size=180"),  # small-mnist-200 without what a filter holds out
    "from-1": _wanted(1.1, 0.6, "start=1.0"),
    "wide": _wanted(1.1, 0.6, "semantics=trivial-wide"),
}


def _settings(arm: str, size: int) -> tuple[str, ...]:
    if arm in ARMS:
        return ARMS[arm].settings(size)
    return VARIANTS[arm]


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        torch.set_num_threads(1)
        serve(run_job, _settings)
    else:
        arms = {name: arm.own_ops for name, arm in ARMS.items()} | dict.fromkeys(VARIANTS, False)
        run_command(arms, Path(__file__), HERE / "results" / "small.json", "none,trivialaugment,wanted-1.1-0.6")
