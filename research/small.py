"""Screen forms of the difficulty filter on the small tasks, on a CPU: ``python research/small.py --data DIR``.

Options and result format are those of ``benchmarks/proving_ground.py``; a run takes about two minutes on one core. What
wins here is worth trying on the tasks of the core, no more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

import torch  # noqa: E402
from proving_ground import run_command  # noqa: E402
from proving_tasks import ARMS  # noqa: E402
from proving_worker import run_job, serve  # noqa: E402

from particleaugment.core.op_table import op_indices  # noqa: E402
from particleaugment.core.program import Program  # noqa: E402
from particleaugment.core.random import Stream  # noqa: E402
from particleaugment.policies.mixture import Mixture, even_counts  # noqa: E402
from particleaugment.policies.policy import Draws, get_semantics  # noqa: E402
from particleaugment.search import difficulty  # noqa: E402
from particleaugment.search.difficulty import DifficultyFilter, DifficultyRecord, DifficultyState  # noqa: E402
from particleaugment.search.filter_base import Subject  # noqa: E402
from particleaugment.search.held_out import Division  # noqa: E402
from particleaugment.search.plain_losses import evaluation_mode, own_statistics  # noqa: E402
from particleaugment.search.training_signs import averaged, expected_loss, lag  # noqa: E402
from particleaugment.training.config import Config  # noqa: E402
from particleaugment.training.shared import SharedParts  # noqa: E402
from particleaugment.util.stop import Stop  # noqa: E402


@dataclass(frozen=True)
class Form:
    """A form of the filter: its settings, its replacements in ``search/``, and its start as a share of 2.

    If a form says nothing else, it does as the default once did: it holds out 2 % of the samples, at least 64, measures
    them with the statistics of their own batch, and corrects small errors too.
    """

    settings: tuple[str, ...] = ()
    instead: dict[str, Any] = field(default_factory=dict)
    start: Callable[[int], float] = lambda epochs: min(1.0, epochs / difficulty.LONG)
    of_default: bool = False  # whether it changes today's default, and not that of its time
    by_size: Callable[[int], tuple[str, ...]] = lambda size: ()  # more settings, from the number of training images

    @property
    def replaced(self) -> dict[str, Any]:
        """What it has instead of names in ``search/``."""

        def first_strength(filter: DifficultyFilter, epochs: int) -> float:
            start = difficulty.FULL * self.start(epochs) if isinstance(filter.start, str) else filter.start
            return min(filter.strongest, start)

        if self.of_default:
            return self.instead
        return {
            "difficulty.DifficultyFilter.updated": _tolerant(0.0),
            "difficulty.DifficultyFilter.first_strength": first_strength,
            "difficulty.DifficultyFilter.held_out_of": _two_percent,
            "difficulty.held_out_losses": _with_own_statistics,
            "difficulty.expected_loss": _mean_and_one,
            **self.instead,
        }


def _two_percent(filter: DifficultyFilter, samples: int) -> int:
    return max(2, min(samples // 10, max(64, min(difficulty.MOST, samples // 50))))


def _few(filter: DifficultyFilter, samples: int) -> int:
    return max(2, min(samples // 20, max(32, min(difficulty.MOST, samples // 100))))


def _mean_and_one(losses: torch.Tensor, chance: float) -> float:
    """The mean of all losses and of one sample at chance, as the default once had it."""
    return (float(losses.sum()) + chance) / (len(losses) + 1)


def _squared(epochs: int) -> float:
    return min(1.0, epochs / difficulty.LONG) ** 2


def _from_half(epochs: int) -> float:
    return max(0.0, min(1.0, 2 * epochs / difficulty.LONG - 1))


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


def _fading(length: float) -> Callable[..., Any]:
    """Let strength fall linearly to 0 over the last share of training."""
    plain = DifficultyFilter.step

    def step(
        filter: DifficultyFilter, state: DifficultyState, subject: Subject, *, epoch: int, epochs: int
    ) -> tuple[DifficultyState, DifficultyRecord]:
        state, record = plain(filter, state, subject, epoch=epoch, epochs=epochs)
        left, before = epochs - epoch, epochs - epoch + filter.interval
        if left < length * epochs:
            state = replace(state, strength=state.strength * left / min(before, length * epochs))
            record = replace(record, strength=state.strength, ops_per_image=filter.policy(state).ops_per_image)
        return state, record

    return step


def _tolerant(tolerance: float) -> Callable[..., DifficultyState]:
    """Leave strength as it is where the error's size is at most so much, and make larger errors smaller by it."""

    def updated(
        filter: DifficultyFilter,
        state: DifficultyState,
        training_loss: float,
        held_out_loss: float,
        *,
        epoch: int,
        epochs: int,
        chance: float = math.inf,
        doubt: bool = False,
    ) -> DifficultyState:
        steps, done = epochs / filter.interval, epoch / epochs
        held_out_loss = averaged(held_out_loss, state.held_out_loss, difficulty.MEMORY * steps)
        error = math.log(filter.wanted(epoch, epochs) * held_out_loss / max(training_loss, 1e-6))
        error = max(0.0, abs(error) - tolerance) * math.copysign(1.0, error)
        error = max(-1.0, min(1.0, error)) * min(1.0, done / difficulty.INFORMED)
        rate = filter.speed / steps
        strength = (state.strength + difficulty.BELOW) * math.exp(min(difficulty.FASTEST, rate) * error)
        strength -= difficulty.BELOW
        behind = lag(training_loss, chance, done)
        if behind < 0:
            strength = min(strength, state.strength + min(difficulty.BRAKE, 2 * rate) * behind)
        strength = max(0.0, min(filter.strongest, strength))
        return replace(state, strength=strength, held_out_loss=held_out_loss)

    return updated


def _applied(share: Callable[[float, float], float]) -> dict[str, Any]:
    """Apply a share of the strength that depends on time and on the share so far; steer up only at full strength."""
    plain_init, plain_step = DifficultyFilter.init, DifficultyFilter.step

    def init(filter: DifficultyFilter, seed: int, ops: tuple[str, ...], epochs: int) -> DifficultyState:
        return replace(plain_init(filter, seed, ops, epochs), applied=share(0.0, 1.0))

    def step(
        filter: DifficultyFilter, state: DifficultyState, subject: Subject, *, epoch: int, epochs: int
    ) -> tuple[DifficultyState, DifficultyRecord]:
        found, record = plain_step(filter, state, subject, epoch=epoch, epochs=epochs)
        if state.applied == 0 or (epoch < 0.9 * epochs and state.applied < 1 and found.strength > state.strength):
            found = replace(found, strength=state.strength)
        return replace(found, applied=share(epoch / epochs, found.applied)), record

    return {"difficulty.DifficultyFilter.init": init, "difficulty.DifficultyFilter.step": step}


def _with_a_pause(done: float, applied: float) -> float:
    return 0.0 if 0.2 <= done < 0.25 else applied


def _one_op_first(done: float, applied: float) -> float:
    return max(0.5, min(1.0, 0.5 + (done - 0.2) / 0.4))


def _by_epochs(size: int) -> tuple[str, ...]:
    """One wide op where the core has 100 epochs, 2.5 or three where it has 250 or 500."""
    if size >= 10_000:
        return "start=1.0", "semantics=trivial-wide"
    return (f"start={3.0 if size < 1500 else 2.5}",)


def _by_size(size: int) -> tuple[str, ...]:
    """Two ops up to 2,500 images, one from 10,000 on. For runs of 100 epochs or more."""
    return (f"start={2 - max(0.0, min(1.0, math.log(size / 2500) / math.log(4))):.2f}",)


def _wide_by_size(size: int) -> tuple[str, ...]:
    """Two moderate ops up to 3,000 images, otherwise one wide op. For runs of 100 epochs or more."""
    return ("start=1.0", "semantics=trivial-wide") if size > 3000 else ()


_NO_DOUBT: dict[str, Any] = {"difficulty.nothing_is_certain": lambda losses, chance: False}
_UNTIL_04: dict[str, Any] = {"difficulty.STEERED": 0.4}
_KEPT: dict[str, Any] = {
    "difficulty.DifficultyFilter.held_out_of": lambda filter, samples: 0,
    "difficulty.DifficultyFilter.holds_out_in": lambda filter, epoch, epochs: False,
}


def _with_averages(subject: Subject) -> torch.Tensor:
    """Measure held-out samples as test images are: with batch norm's running averages."""
    assert subject.split is not None
    with evaluation_mode(subject.trainee.model):
        return subject.trainee.losses(subject.split[1])


def _with_own_statistics(subject: Subject) -> torch.Tensor:
    """Measure them with the statistics of their own batch alone, as the default once did."""
    assert subject.split is not None
    with own_statistics(subject.trainee.model):
        return subject.trainee.losses(subject.split[1])


_lower = difficulty.held_out_losses


class _Narrowing(Mixture):
    """A mixture in which turns, shears and shifts are wide where they come alone, and narrower beside other ops."""

    def sample(
        self,
        ids: torch.Tensor,
        epoch: int | torch.Tensor = 0,
        seed: int | torch.Tensor = 0,
        size: tuple[int, int] = (32, 32),
    ) -> Program:
        """Draw as a mixture does, then divide levels."""
        count, mapping = len(self.slots), get_semantics("trivial-wide")
        draws = Draws(ids, epoch, seed, dict.fromkeys((Stream.OP, Stream.LEVEL, Stream.SIGN), count) | {Stream.GATE: 1})
        choice = draws.choice(Stream.OP, len(self.ops))
        applied = draws[Stream.GATE] < self._gates()[torch.arange(count), choice]
        moves = torch.tensor([name.startswith(("Rotate", "Shear", "Translate")) for name in self.ops])[choice]
        levels = draws.choice(Stream.LEVEL, 31) * (mapping.top / 30)
        levels = torch.where(moves, levels / applied.sum(1, keepdim=True).clamp(min=1), levels)
        arguments = mapping.arguments(self.ops, choice, levels, draws.signs(), size)
        op = torch.where(applied, torch.tensor(op_indices(self.ops))[choice], 0)
        return Program(op, torch.where(applied, arguments, 0.0))

    def plan(self) -> None:
        """Nothing but ``sample`` can draw it."""


def _narrowing(filter: DifficultyFilter, state: DifficultyState) -> _Narrowing:
    return _Narrowing(slots=even_counts(state.strength, filter.slots), ops=state.ops)


def _wide(filter: DifficultyFilter, state: DifficultyState) -> Mixture:
    return Mixture(slots=even_counts(state.strength, filter.slots), ops=state.ops)


def _half_the_lag(training_loss: float, chance: float, done: float) -> float:
    return lag(2 * training_loss - chance, chance, done)


FORMS: dict[str, Form] = {
    **{f"counts-{mean}": Form((f"start={mean}.0", "speed=0.0")) for mean in (1, 2, 3)},
    "proportional": Form(("start=2.0",)),
    "visits": Form(),
    **{f"late-{last}": Form((f"difficulty={last}",)) for last in (0.8, 1.0)},
    "until-0.6": Form(("difficulty=0.725",), instead={"difficulty.STEERED": 0.6}),
    "squared": Form(start=_squared),
    "squared-until-0.6": Form(("difficulty=0.725",), {"difficulty.STEERED": 0.6}, _squared),
    "from-half": Form(start=_from_half),
    "few": Form(instead={"difficulty.DifficultyFilter.held_out_of": _few}),
    "few-until-0.4": Form(
        ("difficulty=0.85",),
        instead={"difficulty.STEERED": 0.4, "difficulty.DifficultyFilter.held_out_of": _few},
    ),
    "only-held-out": Form(("start=0.0", "speed=0.0")),
    **{f"caught-up-{extra}": Form(instead={"held_out.Division.places_in": _caught_up(extra)}) for extra in (1, 3)},
    **{
        f"fade-{length}": Form(start=_from_half, instead={"difficulty.DifficultyFilter.step": _fading(length)})
        for length in (0.05, 0.1, 0.2)
    },
    **{
        name: Form(
            settings,
            {
                "difficulty.DifficultyFilter.held_out_of": _few,
                "difficulty.DifficultyFilter.step": _fading(length),
                **instead,
            },
            _from_half,
        )
        for name, length, settings, instead in (
            ("fade-0.05-few", 0.05, (), {}),
            ("fade-0.1-few", 0.1, (), {}),
            ("fade-0.2-few", 0.2, (), {}),
            ("fade-0.05-few-tolerant-0.2", 0.05, (), {"difficulty.DifficultyFilter.updated": _tolerant(0.2)}),
            ("fade-0.05-few-until-0.6", 0.05, ("difficulty=0.725",), {"difficulty.STEERED": 0.6}),
            ("fade-0.05-few-late-0.8", 0.05, ("difficulty=0.8",), {}),
            ("fade-0.05-few-slots-4", 0.05, ("slots=4",), {}),
            ("fade-0.1-few-slots-4", 0.1, ("slots=4",), {}),
            ("fade-0.2-few-slots-4", 0.2, ("slots=4",), {}),
        )
    },
    **{
        f"tolerant-{tolerance}": Form(
            start=_from_half, instead={"difficulty.DifficultyFilter.updated": _tolerant(tolerance)}
        )
        for tolerance in (0.2, 0.3, 0.5)
    },
    "tolerant-0.3-few": Form(
        start=_from_half,
        instead={
            "difficulty.DifficultyFilter.updated": _tolerant(0.3),
            "difficulty.DifficultyFilter.held_out_of": _few,
        },
    ),
    "tolerant-0.3-late-0.8": Form(
        ("difficulty=0.8",), {"difficulty.DifficultyFilter.updated": _tolerant(0.3)}, _from_half
    ),
    "tolerant-0.3-fade-0.1": Form(
        start=_from_half,
        instead={
            "difficulty.DifficultyFilter.updated": _tolerant(0.3),
            "difficulty.DifficultyFilter.step": _fading(0.1),
        },
    ),
    "averages": Form(start=_from_half, instead={"difficulty.held_out_losses": _with_averages}),
    "lower": Form(start=_from_half, instead={"difficulty.held_out_losses": _lower}),
    **{
        f"{name}-fade-0.05-few": Form(
            start=_from_half,
            instead={
                "difficulty.held_out_losses": measured,
                "difficulty.DifficultyFilter.held_out_of": _few,
                "difficulty.DifficultyFilter.step": _fading(0.05),
            },
        )
        for name, measured in (("averages", _with_averages), ("lower", _lower))
    },
    **{
        f"{name}-fade-0.05-few": Form(
            start=_from_half,
            instead={
                "difficulty.DifficultyFilter.policy": policy,
                "difficulty.DifficultyFilter.held_out_of": _few,
                "difficulty.DifficultyFilter.step": _fading(0.05),
            },
        )
        for name, policy in (("narrowing", _narrowing), ("wide", _wide))
    },
    "tolerant-0.3-averages": Form(
        start=_from_half,
        instead={
            "difficulty.DifficultyFilter.updated": _tolerant(0.3),
            "difficulty.held_out_losses": _with_averages,
        },
    ),
    "at-least-32": Form(
        start=_from_half,
        instead={"difficulty.held_out_losses": _lower, "difficulty.DifficultyFilter.held_out_of": _few},
    ),
    "at-least-32-bound": Form(
        start=_from_half,
        instead={
            "difficulty.held_out_losses": _lower,
            "difficulty.DifficultyFilter.held_out_of": _few,
            "difficulty.expected_loss": expected_loss,
        },
    ),
    "pause": Form(instead={"difficulty.STEERED": 0.6, **_applied(_with_a_pause)}, of_default=True, by_size=_by_epochs),
    "one-op-first": Form(instead={"difficulty.STEERED": 0.6, **_NO_DOUBT, **_applied(_one_op_first)}, of_default=True),
    "by-epochs-kept": Form(instead=_KEPT, of_default=True, by_size=_by_epochs),
    "until-0.4": Form(instead=_UNTIL_04, of_default=True),
    "by-size": Form(of_default=True, by_size=_by_size),
    "wide-by-size": Form(of_default=True, by_size=_wide_by_size),
    "until-0.4-wide-by-size": Form(instead=_UNTIL_04, of_default=True, by_size=_wide_by_size),
    "visits-half-pace": Form(instead={"difficulty.lag": _half_the_lag}),
    "visits-no-brake": Form(instead={"difficulty.BRAKE": 0.0}),
}


def _settings(arm: str, size: int) -> tuple[str, ...]:
    if arm in ARMS:
        return ARMS[arm].settings(size)
    form = FORMS[arm]
    known = form.of_default or any(setting.startswith("difficulty=") for setting in form.settings)
    return ("filter=difficulty", *(() if known else ("difficulty=0.6",)), *form.settings, *form.by_size(size))


def _run_form(job: dict[str, Any], config: Config, runs: Path, shared: SharedParts, stop: Stop) -> Any:
    with ExitStack() as stack:
        for name, value in FORMS[job["arm"]].replaced.items() if job["arm"] in FORMS else ():
            stack.enter_context(patch(f"particleaugment.search.{name}", value))
        return run_job(job, config, runs, shared, stop)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        torch.set_num_threads(1)
        serve(_run_form, _settings)
    else:
        arms = {name: arm.own_ops for name, arm in ARMS.items()} | dict.fromkeys(FORMS, False)
        run_command(arms, Path(__file__), HERE / "results" / "small.json", "none,trivialaugment,difficulty")
