"""Which arm of a comparison to use, and how sure that is, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from particleaugment.compare.arm_summary import ArmSummary, Difference, accuracy_text, arm_summaries, interval_text
from particleaugment.compare.arms import Arm
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.statistics import PairedDifference, mean, paired_difference, seeds_to_settle
from particleaugment.training.config import LEARNED

__all__ = ["Recommendation", "Sureness", "recommend"]

Sureness = Literal["clear", "likely", "cannot tell"]

LIKELY = 0.8
"""Level of the interval that has to lie above 0 for a lead to be called likely; for a clear one it is 95 %."""
FEWEST_SEEDS = 3
"""Seeds that two arms must share before one is chosen: an interval over two is too wide to say anything."""
MOST_SEEDS = 50
"""More seeds than this are not worth a choice between two arms."""
CHEAPER = 1.1
"""Run times within this factor of the shortest count as equal."""

Values = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What a comparison advises.

    Attributes:
        arm: The arm to use, or None where the runs do not allow a choice yet.
        sureness: ``clear``: it leads every other arm and no 95 % interval of a lead holds 0. ``likely``: no 80 %
            interval does. ``cannot tell``: other arms are level with the best one.
        accuracy: Its mean accuracy of the last epoch, in percent.
        level: The arms that are level with the best one, itself included; empty where there is a clear or likely one.
        over_none: Its lead over the arm ``none``, where both have runs and it is another arm.
        over_rival: Its lead over the best of the other arms: negative where a simpler arm is recommended.
        verdict: What came out, in one sentence.
        sentences: The advice in words.
    """

    arm: str | None
    sureness: Sureness
    verdict: str
    accuracy: float | None = None
    level: tuple[str, ...] = ()
    over_none: Difference | None = None
    over_rival: Difference | None = None
    sentences: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The advice as one paragraph."""
        return " ".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the recommendation as plain JSON data."""
        leads = {"over_none": self.over_none, "over_rival": self.over_rival}
        data = {name: None if lead is None else lead.to_dict() for name, lead in leads.items()}
        return asdict(self) | data | {"sentences": list(self.sentences), "level": list(self.level)}


def recommend(arms: Sequence[Arm], runs: Sequence[RunRecord], measured_on: str) -> Recommendation | None:
    """Return the advice that finished runs allow, or None where fewer than two arms have one.

    The best arm is the one with the highest mean. Where others are level with it, that is, where its lead over them is
    neither clear nor likely, the simplest of them is recommended: no policy before a fixed one before a learned one,
    then the cheapest, then the one with the highest mean. Means are over the seeds that all arms have, if these are
    enough.

    Args:
        arms: The arms of a comparison.
        runs: Its runs; those that have not finished are left out.
        measured_on: ``validation`` or ``test``: the images that accuracies are of.

    >>> arms = (Arm("none", "none"), Arm("trivialaugment", "trivial"))
    >>> accuracy = {"none": (81.5, 81.8, 82.0), "trivialaugment": (84.6, 84.7, 85.0)}
    >>> runs = [
    ...     RunRecord(arm=arm, seed=seed, epochs=1, finished=True, accuracy=(value,))
    ...     for arm, values in accuracy.items() for seed, value in enumerate(values)
    ... ]
    >>> found = recommend(arms, runs, "validation")
    >>> found.arm, found.sureness
    ('trivialaugment', 'clear')
    >>> found.sentences[1]
    'It beats none, the runner-up, by +3.00 [+2.75, +3.25] points.'
    """
    summaries = {summary.arm: summary for summary in arm_summaries(arms, runs)}
    if len(summaries) < 2:
        return None
    values = {name: {run.seed: run.last for run in runs if run.arm == name and run.finished} for name in summaries}
    notes = _notes(runs, measured_on)
    several = [name for name in values if len(values[name]) >= FEWEST_SEEDS]
    means, together = _means({name: values[name] for name in several})
    best = max(several, key=lambda name: means[name], default=None)
    judged = [name for name in several if best == name or _pairs(values, best, name) >= FEWEST_SEEDS]
    if best is None or len(judged) < 2:
        return Recommendation(
            arm=None,
            sureness="cannot tell",
            verdict=_who_is_ahead(values),
            level=tuple(values),
            sentences=(_too_few(values), *notes),
        )
    level = [name for name in judged if name == best or _lead(values, best, name) == "cannot tell"]
    chosen, why = _simplest(level, {arm.name: arm for arm in arms}, summaries, runs, means)
    sureness = min((_lead(values, best, name) for name in judged if name != best), key=_ORDER.index)
    rival = max((name for name in judged if name != chosen), key=lambda name: means[name])
    over_rival = _difference(values, chosen, rival)
    over_none = _difference(values, chosen, "none") if "none" in judged and chosen != "none" else None
    sentences = [
        f"Recommendation: {chosen}, {accuracy_text(summaries[chosen])} % on {measured_on} images "
        f"({len(values[chosen])} seeds).",
        *_leads(values, chosen, over_none, over_rival if len(level) == 1 else None),
        *(
            _verdict(values, best, judged, sureness)
            if len(level) == 1
            else _level_verdict(values, chosen, best, level, means[best], together, why)
        ),
        *_not_judged([name for name in values if name not in judged], best),
        *notes,
    ]
    if len(level) == 1:
        verdict = _of_the_best(chosen, sureness, over_rival, _pairs(values, chosen, rival))
    else:
        verdict = _of_level_arms(chosen, level, min(_pairs(values, best, name) for name in level), why)
    return Recommendation(
        arm=chosen,
        sureness=sureness,
        verdict=verdict,
        accuracy=summaries[chosen].mean,
        level=tuple(level) if len(level) > 1 else (),
        over_none=over_none,
        over_rival=over_rival,
        sentences=tuple(sentences),
    )


_ORDER: tuple[Sureness, ...] = ("cannot tell", "likely", "clear")


def _means(values: Values) -> tuple[dict[str, float], str]:
    """Return the arms' means, and of which seeds they are, in words.

    Where enough seeds are of all arms, it is over these: seeds that only some have may be easy or hard ones.
    """
    shared = set.intersection(*(set(found) for found in values.values())) if values else set[int]()
    if len(shared) < FEWEST_SEEDS:
        return {name: mean([*found.values()]) for name, found in values.items()}, ""
    together = "" if all(len(found) == len(shared) for found in values.values()) else " on the seeds that all arms have"
    return {name: mean([found[seed] for seed in sorted(shared)]) for name, found in values.items()}, together


def _pairs(values: Values, one: str | None, other: str) -> int:
    return len(values[one].keys() & values[other].keys()) if one is not None else 0


def _difference(values: Values, arm: str, against: str) -> Difference:
    return Difference(arm, against, paired_difference(values[arm], values[against]))


def _lead(values: Values, arm: str, other: str) -> Sureness:
    """Return how sure it is that one arm is above another."""
    if _above(paired_difference(values[arm], values[other])):
        return "clear"
    return "likely" if _above(paired_difference(values[arm], values[other], LIKELY)) else "cannot tell"


def _above(points: PairedDifference | None) -> bool:
    return points is not None and points.low is not None and points.low > 0


def _kind(arm: Arm) -> int:
    """Return how complex an arm is: 0 for no policy, 1 for a fixed one, 2 for one that is learned."""
    return {"none": 0, LEARNED: 2}.get(arm.policy, 1)


def _simplest(
    names: Sequence[str],
    arms: Mapping[str, Arm],
    summaries: Mapping[str, ArmSummary],
    runs: Sequence[RunRecord],
    means: Mapping[str, float],
) -> tuple[str, str]:
    """Return which of some arms is the simplest, and what it has before others that are as simple, if there are any."""
    kind = min(_kind(arms[name]) for name in names)
    alike = [name for name in names if _kind(arms[name]) == kind]
    cheap = alike
    if len({run.at_once for run in runs if run.finished and run.arm in alike}) == 1:
        shortest = min(summaries[name].seconds for name in alike)
        cheap = [name for name in alike if summaries[name].seconds <= CHEAPER * shortest]
    chosen = max(cheap, key=lambda name: means[name])
    if len(alike) == 1:
        return chosen, ""
    return chosen, "takes the least time" if len(cheap) == 1 else "has the highest mean"


def _leads(values: Values, chosen: str, over_none: Difference | None, over_rival: Difference | None) -> list[str]:
    found = []
    if over_none is not None:
        sure = _lead(values, chosen, "none")
        runner_up = over_rival is not None and over_rival.against == "none"
        if sure == "cannot tell":
            found.append(f"Its difference from none is {interval_text(over_none)} points: level.")
        else:
            who = "none, the runner-up," if runner_up else "none"
            found.append(f"It beats {who} by {interval_text(over_none)} points{'' if sure == 'clear' else ': likely'}.")
    if over_rival is not None and over_rival.against != "none":
        found.append(f"Its lead over the runner-up, {over_rival.against}, is {interval_text(over_rival)} points.")
    return found


def _verdict(values: Values, best: str, judged: Sequence[str], sureness: Sureness) -> list[str]:
    """Say how sure a choice is that leads all others."""
    others = [name for name in judged if name != best]
    if sureness == "clear":
        whom = others[0] if len(others) == 1 else "every other arm"
        said = f"This is clear: the 95 % interval of its lead over {whom} is above 0."
    else:
        unsure = [name for name in others if _lead(values, best, name) == "likely"]
        said = (
            f"This is likely, not certain: the 95 % interval of its lead over {' and '.join(unsure)} contains 0, the "
            f"80 % interval does not. {_more_seeds(values, best, unsure)}"
        )
    optimism = f"The same runs picked the best of {len(judged)} arms, so its lead is slightly optimistic."
    return [said, *([optimism] if len(judged) > 2 else [])]


def _level_verdict(
    values: Values, chosen: str, best: str, level: Sequence[str], highest: float, together: str, why: str
) -> list[str]:
    """Say which arms are level, and why one of them was chosen."""
    rest = sorted((name for name in level if name != best), key=lambda name: name != chosen)
    leads = ", ".join(f"{interval_text(_difference(values, best, name))} points over {name}" for name in rest)
    if chosen == best:
        said = (
            f"It has the highest mean{together}, but these runs cannot tell whether it is the best arm: it leads by "
            f"{leads}."
        )
    else:
        said = (
            f"These runs cannot tell which arm is best: {best} has the highest mean{together}, {highest:.2f} %, but "
            f"leads by {leads}."
        )
    rule = "Among arms that are level, the simplest is recommended: none before fixed policies before learned ones"
    also = f"; of those that are as simple, {chosen} {why}" if why else ""
    return [said, f"{rule}{also}.", _more_seeds(values, best, rest)]


def _more_seeds(values: Values, best: str, others: Sequence[str]) -> str:
    leads = [paired_difference(values[best], values[name]) for name in others]
    needed = [seeds_to_settle(lead, MOST_SEEDS) for lead in leads if lead is not None]
    if None in needed:
        return f"More than {MOST_SEEDS} seeds would be needed to separate them."
    return f"If the differences stay the same, about {max(filter(None, needed))} seeds in total would settle it."


def _of_level_arms(chosen: str, level: Sequence[str], seeds: int, why: str) -> str:
    reason = f"of the simplest, {chosen} {why}" if why else f"{chosen} is the simplest"
    return f"{', '.join(level[:-1])} and {level[-1]} are level ({seeds} seeds); {reason}."


def _of_the_best(chosen: str, sureness: Sureness, over_rival: Difference, seeds: int) -> str:
    how = "best" if sureness == "clear" else "likely best"
    return f"{chosen} is {how}: {interval_text(over_rival)} points over {over_rival.against} ({seeds} seeds)."


def _seeds(values: Values) -> list[int]:
    return sorted({seed for found in values.values() for seed in found})


def _few(values: Values) -> str:
    """Return which seeds are too few for a choice, in words."""
    return {1: "one seed is", 2: "two seeds are"}.get(
        len(_seeds(values)), f"fewer than {FEWEST_SEEDS} shared seeds are"
    )


def _who_is_ahead(values: Values) -> str:
    means = {name: mean([*found.values()]) for name, found in values.items()}
    first, second = sorted(means, key=lambda name: -means[name])[:2]
    accuracies = f"{means[first]:.2f} % against {means[second]:.2f} %"
    if f"{means[first]:.2f}" == f"{means[second]:.2f}":
        return f"{first} and {second} are level at {means[first]:.2f} %; {_few(values)} too few for a verdict."
    lead = means[first] - means[second]
    return f"{first} is ahead of {second} by {lead:.2f} points ({accuracies}); {_few(values)} too few for a verdict."


def _too_few(values: Values) -> str:
    seeds = _seeds(values)
    missing = FEWEST_SEEDS - len(seeds)
    if missing > 0:
        wanted = ",".join(map(str, seeds + [seeds[-1] + step for step in range(1, missing + 1)]))
        advice = f"Train {FEWEST_SEEDS} or more: repeat the command with --seeds {wanted}."
    else:
        advice = f"Train all arms with the same {FEWEST_SEEDS} seeds or more."
    return f"No recommendation yet: {_few(values)} too few: two runs of the same arm also differ. {advice}"


def _not_judged(names: Sequence[str], best: str) -> list[str]:
    if not names:
        return []
    why = f"fewer than {FEWEST_SEEDS} finished seeds are shared with {best}"
    return [f"Not considered, because {why}: {', '.join(names)}."]


def _notes(runs: Sequence[RunRecord], measured_on: str) -> list[str]:
    found = []
    left = sum(not run.finished for run in runs)
    if left:
        found.append(f"This is preliminary: {left} of {len(runs)} runs {'has' if left == 1 else 'have'} not finished.")
    if measured_on == "test":
        found.append(
            "Accuracies are on test images. Choosing by them makes them optimistic: to choose, hold out "
            "training images with --set validation=0.2, then use the test set once."
        )
    return found
