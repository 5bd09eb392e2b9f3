"""Screen forms of the difficulty filter on the small tasks, on a CPU: ``python research/small.py --data DIR``.

Options and result format are those of ``benchmarks/proving_ground.py``; a run takes about two minutes on one core. What
wins here is worth trying on the tasks of the core, no more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from proving_ground import run_command  # noqa: E402
from proving_tasks import ARMS  # noqa: E402
from proving_worker import run_job, serve  # noqa: E402

from particleaugment.search import difficulty  # noqa: E402
from particleaugment.search.difficulty import DifficultyFilter, lag  # noqa: E402
from particleaugment.search.held_out import Division  # noqa: E402
from particleaugment.training.config import Config  # noqa: E402
from particleaugment.training.shared import SharedParts  # noqa: E402
from particleaugment.util.stop import Stop  # noqa: E402


@dataclass(frozen=True)
class Form:
    """A form of the filter: its settings, and what it has instead of names in ``search/``."""

    settings: tuple[str, ...] = ()
    instead: dict[str, Any] = field(default_factory=dict)


def _squared(filter: DifficultyFilter, epochs: int) -> float:
    return min(filter.strongest, difficulty.FULL * min(1.0, epochs / difficulty.LONG) ** 2)


def _caught_up(extra: int) -> Callable[[Division, int], torch.Tensor]:
    """Let samples that were held out come more often than others once they are trained on, in others' places."""
    plain = Division.places_in

    def places_in(division: Division, epoch: int) -> torch.Tensor:
        ids = plain(division, epoch)
        if division.split is not None and not division.holds_out_in(epoch):
            for held_out, others in division._stand_ins:
                count = min(extra * len(held_out), len(others))
                turn = torch.arange(epoch * count, (epoch + 1) * count)
                ids[others[turn % len(others)]] = held_out[turn % len(held_out)]
        return ids

    return places_in


def _few(filter: DifficultyFilter, samples: int) -> int:
    return max(2, min(samples // 20, max(32, min(difficulty.MOST, samples // 100))))


def _half_the_lag(training_loss: float, chance: float, done: float) -> float:
    return lag(2 * training_loss - chance, chance, done)


FORMS: dict[str, Form] = {
    **{f"counts-{mean}": Form((f"start={mean}.0", "speed=0.0")) for mean in (1, 2, 3)},
    "proportional": Form(("start=2.0",)),
    "visits": Form(),
    **{f"late-{last}": Form((f"difficulty={last}",)) for last in (0.8, 1.0)},
    "until-0.6": Form(("difficulty=0.725",), instead={"difficulty.STEERED": 0.6}),
    "squared": Form(instead={"difficulty.DifficultyFilter.first_strength": _squared}),
    "squared-until-0.6": Form(
        ("difficulty=0.725",),
        instead={"difficulty.STEERED": 0.6, "difficulty.DifficultyFilter.first_strength": _squared},
    ),
    "few": Form(instead={"difficulty.DifficultyFilter.held_out_of": _few}),
    "few-until-0.4": Form(
        ("difficulty=0.85",),
        instead={"difficulty.STEERED": 0.4, "difficulty.DifficultyFilter.held_out_of": _few},
    ),
    "only-held-out": Form(("start=0.0", "speed=0.0")),
    **{f"caught-up-{extra}": Form(instead={"held_out.Division.places_in": _caught_up(extra)}) for extra in (1, 3)},
    "visits-half-pace": Form(instead={"difficulty.lag": _half_the_lag}),
    "visits-no-brake": Form(instead={"difficulty.BRAKE": 0.0}),
}


def _settings(arm: str, size: int) -> tuple[str, ...]:
    return ARMS[arm].settings(size) if arm in ARMS else ("filter=difficulty", *FORMS[arm].settings)


def _run_form(job: dict[str, Any], config: Config, runs: Path, shared: SharedParts, stop: Stop) -> Any:
    with ExitStack() as stack:
        for name, value in FORMS.get(job["arm"], Form()).instead.items():
            stack.enter_context(patch(f"particleaugment.search.{name}", value))
        return run_job(job, config, runs, shared, stop)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        torch.set_num_threads(1)
        serve(_run_form, _settings)
    else:
        arms = {name: arm.own_ops for name, arm in ARMS.items()} | dict.fromkeys(FORMS, False)
        run_command(arms, Path(__file__), HERE / "results" / "small.json", "none,trivialaugment,visits")
