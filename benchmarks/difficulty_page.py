"""The pictures of docs/difficulty.md, and its tables, which ``tables.py`` writes.

python benchmarks/difficulty_page.py                     the pictures that are drawn from the result files
python benchmarks/difficulty_page.py runs/difficulty     and that of a run, which the page says how to make
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, table
from pictures import DOCS, ROOT, on_white
from proving_page import SMALL_FILE
from proving_results import Run, load_runs
from proving_tasks import TASKS
from settings_table import setting_rows
from size_picture import SIZES

from particleaugment.policies import load
from particleaugment.report.metrics import history
from particleaugment.report.strength import difficulty
from particleaugment.report.svg import BLUE, GREEN, INK, ORANGE, PURPLE, RED, inline_svg
from particleaugment.search import difficulty as rules
from particleaugment.search import training_signs as signs
from particleaugment.search.difficulty import DifficultyFilter
from particleaugment.training.run import RunFolder

__all__ = [
    "constants_table",
    "course",
    "evidence_table",
    "fixed_courses",
    "settings_few",
    "strengths",
    "strengths_table",
]

ON_GPU = (RESULTS / "proving-ground.json", ROOT / "research" / "results" / "candidates.json")
FILTER = DifficultyFilter.kind
ARMS_SHOWN = {
    "none": "no policy",
    "trivialaugment": "TrivialAugment",
    "randaugment-2-6": "RandAugment, two ops at level 6",
    "randaugment-3-4": "RandAugment, three ops at level 4",
    "difficulty-2-percent": "**difficulty filter**, without tolerance, holding out 2 %, not fading out",
    "difficulty-1-percent": "**difficulty filter**, without tolerance",
    "difficulty-frozen": "its initial strength, for the whole run",
    "gap": "gap filter (withdrawn)",
    "moderate-steered": "steered to 1, from strength 1",
    "moderate-steered-2": "steered to 1, from strength 2",
    "moderate-steered-k0.8": "steered to 0.8, from strength 1",
}
GOOD_FIXED = {
    "cifar10-1280": "moderate-slots-3",
    "imagenette-2000": "moderate-slots-3",
    "cifar10-4000": "moderate-slots-2",
    "cifar100-10000": "moderate-slots-1",
    "cifar10-12800": "randaugment-1-3",
}
"""A good fixed policy of each task: three, two or one op per image in moderate ranges, or one op at level 3."""
FEW = ("difficulty", "early_difficulty", "start", "measure_size")
CONSTANTS = {
    "FULL": ("F", "strength at the start of a long run"),
    "SHORT": ("K", "number of epochs up to which a run starts without augmentation"),
    "LONG": ("L", "number of epochs from which a run starts at F"),
    "STEERED": ("ρ", "share of training in which strength is steered and samples are held out"),
    "FADED": ("φ", "share of training, at its end, over which augmentation fades out"),
    "MEMORY": ("μ", "share of training over which held-out losses are averaged"),
    "TOLERANCE": ("θ", "error, as a logarithm, up to which strength stays as it is"),
    "INFORMED": ("τ", "share of training after which strength rises at full speed"),
    "KNOWING": ("υ", "share of the loss of chance below which the network has learned much"),
    "DOUBT": ("ω", "share of the mean held-out loss above which the easiest tenth of the images are in doubt"),
    "FASTEST": ("m", "largest change of the logarithm of strength in one step"),
    "BELOW": ("δ", "added to strength before it is multiplied, so that it can reach 0 and leave it again"),
    "BRAKE": ("β", "most ops per image that the brake removes in one step"),
    "FARTHEST": (
        "κ",
        "cap on each held-out loss, as a multiple of their mean, or chance if that is higher",
    ),
    "LEARNED": ("λ", "largest share by which the training loss is expected to have fallen from chance"),
}


def _judged(*files: Path) -> dict[tuple[str, str], list[Run]]:
    found = defaultdict(list)
    for run in (run for file in files for run in load_runs(file)):
        if run["measured_on"] == "judge" and "failed" not in run:
            found[run["arm"], run["task"]].append(run)
    return found


def evidence_table() -> str:
    """Return accuracy by arm and task, with the number of seeds where there are several."""
    found = _judged(*ON_GPU)
    tasks = [name for name in TASKS if ("moderate-steered", name) in found]
    rows = []
    for arm, label in ARMS_SHOWN.items():
        cells = [found.get((arm, task), []) for task in tasks]
        rows.append([label, *map(_accuracy, cells)])
    titles = [TASKS[name].title + (" (trap)" if TASKS[name].trap else "") for name in tasks]
    return table(["accuracy, %", *titles], rows)


def _accuracy(runs: Sequence[Run]) -> str:
    if not runs:
        return "–"
    mean = sum(run["accuracy"] for run in runs) / len(runs)
    return f"{mean:.1f} ({len(runs)})"


def strengths_table() -> str:
    """Return the strength and the difficulty that the filter ended with on each small task, seed by seed."""
    found, rows = _judged(SMALL_FILE), []
    for name, task in TASKS.items():
        if runs := sorted(found.get((FILTER, name), []), key=lambda run: run["seed"]):
            strength = ", ".join(f"{run['trace'][-1][1]['strength']:.1f}" for run in runs)
            ratio = ", ".join(f"{run['difficulty']:.2f}" for run in runs)
            rows.append([task.title, f"{task.epochs}", strength, ratio])
    return table(["task", "epochs", "strength at the end, by seed", "difficulty, over 60 to 80 % of training"], rows)


def settings_few() -> str:
    """Return the settings that a user may want to change."""
    rows = [row for row in setting_rows(DifficultyFilter()) if row[0].strip("`") in FEW]
    return table(["setting", "default", "meaning"], rows)


def constants_table() -> str:
    """Return what the formulas take from the code."""
    filter = DifficultyFilter()
    rows = [["w₀, w₁", f"{filter.early_difficulty:g}, {filter.difficulty:g}", "wanted difficulty, first and last"]]
    rows += [["v", f"{filter.speed:g}", "`speed`: how far the logarithm of strength could move over a run"]]
    rows += [["S", f"{filter.strongest:g}", "highest strength, half of `slots`"]]
    values = vars(signs) | vars(rules)
    rows += [[sign, f"{values[name]:g}", meaning] for name, (sign, meaning) in CONSTANTS.items()]
    return table(["", "value", "meaning"], rows)


def strengths() -> str:
    """Draw strength over training for four sizes of one data set."""
    found = _judged(SMALL_FILE)

    def draw_strengths(figure: Any, axes: Any) -> None:
        for name, colour in zip(SIZES, (PURPLE, ORANGE, GREEN, BLUE), strict=True):
            for run in found[FILTER, name]:
                first = DifficultyFilter().first_strength(run["epochs"])
                share = [0.0, *(100 * epoch / run["epochs"] for epoch, _ in run["trace"])]
                values = [first, *(state["strength"] for _, state in run["trace"])]
                label = TASKS[name].title if run["seed"] == 0 else None
                axes.plot(share, values, color=colour, linewidth=1.4, label=label)
        axes.axvspan(80, 100, color="#888888", alpha=0.15, linewidth=0)
        axes.set(xlabel="training done, %", ylabel="strength, ops per image", ylim=(0, None), xlim=(0, 100))
        figure.legend(frameon=False, loc="outside right upper")

    return on_white(inline_svg(9, 3.0, draw_strengths))


def fixed_courses() -> str:
    """Draw the difficulty of good fixed policies over training, and what the filter wants and tolerates."""
    found, filter = _judged(*ON_GPU), DifficultyFilter()

    def draw_fixed_courses(figure: Any, axes: Any) -> None:
        for (name, arm), colour in zip(GOOD_FIXED.items(), (PURPLE, RED, ORANGE, GREEN, BLUE)):
            run = found[arm, name][0]
            share = [100 * epoch / run["epochs"] for epoch, *_ in run["curve"]]
            ratio = [training / plain for _, training, plain, _ in run["curve"]]
            axes.plot(share, ratio, color=colour, linewidth=1.2, label=TASKS[name].title)
        steered = range(0, round(100 * rules.STEERED) + 1)
        wanted = [filter.wanted(done, 100) for done in steered]
        axes.plot(steered, wanted, color=INK, linestyle=":", linewidth=1.6, label="wanted by the filter")
        axes.fill_between(
            steered, *zip(*map(rules.tolerated, wanted)), color=INK, alpha=0.08, linewidth=0, label="tolerated by it"
        )
        axes.set(xlabel="training done, %", ylabel="difficulty", xlim=(0, 100), ylim=(0, None))
        figure.legend(frameon=False, loc="outside right upper")

    return on_white(inline_svg(9, 3.0, draw_fixed_courses))


def course(run: RunFolder) -> str:
    """Draw the difficulty of a run beside the wanted one, as its report does."""
    return on_white(difficulty(history(run.config, run.read_metrics(), load(run.policy))))


def main() -> None:
    (DOCS / "difficulty-strength.svg").write_text(strengths())
    (DOCS / "difficulty-fixed.svg").write_text(fixed_courses())
    if len(sys.argv) > 1:
        (DOCS / "difficulty-course.svg").write_text(course(RunFolder.open(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
