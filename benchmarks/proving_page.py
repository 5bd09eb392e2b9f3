"""Write the page of the proving ground from one or several files of runs.

python benchmarks/proving_page.py [RESULTS.json ...] [--out PAGE.html] [--measured-on test]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import proving_plots as plots
from common import RESULTS
from markupsafe import Markup
from proving_results import ResultsError, Run, load_runs, merge_runs
from proving_statistics import BEST_FIXED, NONE, ArmFacts, Figures, TaskFacts
from proving_words import accuracy, mean_text, points_text, trap_sentences, verdicts

from particleaugment.compare.statistics import mean
from particleaugment.report.html import (
    alarm_box,
    bullets,
    command,
    figure,
    folded,
    heading,
    paragraph,
    self_contained,
    table,
)
from particleaugment.util.atomic import write_atomically

__all__ = ["figures_of", "render", "write_page"]

RESULT_FILE = RESULTS / "proving-ground.json"
SMALL_FILE = RESULTS / "small-tasks.json"
FRESH_FILE = RESULTS / "fresh-images.json"

_MEANS = (
    "Mean over tasks, taken as they are, with a 95 % interval from a bootstrap over seeds within each task. Circles "
    "are fixed policies, diamonds learned ones."
)
_TASKS = (
    "Left: every run, and the mean. Middle and right: mean difference over paired seeds with its 95 % interval "
    "(Student's t); open marks are one seed. Intervals that are wider than a panel are cut off."
)
_DIFFICULTIES = (
    "Every run. Difficulty ratio: training loss under augmentation over the loss on plain held-out images, mean over "
    "60 to 80 % of training; the dotted line is 1, where training samples are as hard as new ones."
)


def write_page(
    results: Path | Sequence[Path],
    page: Path,
    measured_on: str = "judge",
    tasks: Mapping[str, TaskFacts] | None = None,
    arms: Mapping[str, ArmFacts] | None = None,
) -> Path:
    """Write the page of one or several files of runs, and return its path.

    Args:
        results: Files of runs; of two runs with one key, the later file's is taken.
        page: Where the page goes.
        measured_on: ``judge`` or ``test``.
        tasks: Facts about tasks; those of ``proving_tasks`` if not given.
        arms: Facts about arms, likewise.
    """
    figures = figures_of([results] if isinstance(results, Path) else results, measured_on, tasks, arms)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, render(figures).encode())
    return page


def figures_of(
    results: Sequence[Path],
    measured_on: str = "judge",
    tasks: Mapping[str, TaskFacts] | None = None,
    arms: Mapping[str, ArmFacts] | None = None,
) -> Figures:
    """Return the figures of files of runs, with the same arguments as :func:`write_page`."""
    runs: list[Run] = []
    for path in results:
        runs = merge_runs(runs, load_runs(path))
    if runs and (tasks is None or arms is None):
        from proving_tasks import ARMS, TASKS, WITHDRAWN

        tasks, arms = TASKS, {**ARMS, **WITHDRAWN}
    return Figures(runs, tasks or {}, arms or {}, measured_on)


def render(figures: Figures) -> str:
    """Return the page."""
    where = "training images that no run trains on" if figures.measured_on == "judge" else "test images"
    subtitle = (
        f"{len(figures.runs)} runs of {len(figures.arms)} arms on {len(figures.tasks)} tasks; accuracy of the last "
        f"epoch on {where}"
    )
    parts: list[Markup | None] = [alarm_box(_remarks(figures))]
    if figures.runs:
        parts += [*_means(figures), *_in_words(figures), *_by_task(figures), *_differences(figures)]
        parts += [heading("Difficulty and accuracy"), figure(plots.difficulties(figures), _DIFFICULTIES)]
        parts += [*_cost(figures), *_arms(figures), *_made_by(figures)]
    else:
        parts.append(paragraph("No runs yet."))
    return self_contained("The proving ground", subtitle, parts)


def _remarks(figures: Figures) -> list[str]:
    found = [f"{run['task']}, {run['arm']}, seed {run['seed']} failed: {run['failed']}" for run in figures.failed]
    if figures.outdated:
        found.append(f"Left out, since they are of other versions of their tasks: {_count(figures.outdated)}.")
    if figures.measured_elsewhere:
        other = "test" if figures.measured_on == "judge" else "judge"
        found.append(f"Left out, since they were measured on {other} images: {_count(figures.measured_elsewhere)}.")
    single = [figures.title(task) for task in figures.tasks if not figures.best_fixed[task]]
    if single:
        found.append(f"best-fixed is chosen by other seeds, so one seed does not define it: {'; '.join(single)}.")
    return found


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _in_words(figures: Figures) -> list[Markup | None]:
    parts: list[Markup | None] = [heading("Where learned arms lose")]
    for arm in figures.learned:
        meaning = figures.meaning(arm)
        parts.append(heading(arm + (f": {meaning}" if meaning else ""), 3))
        for each in verdicts(figures, arm):
            parts += [paragraph(each.summary), *_list(each.details)]
    if not figures.learned:
        parts.append(paragraph("No learned arm has runs yet."))
    traps = trap_sentences(figures)
    if traps:
        parts += [heading("Traps", 3), *_list(traps)]
    parts.append(
        paragraph(
            "To lose or win means that the 95 % interval of the difference, paired by seed, is below or above 0. Each "
            "interval stands for itself: of twenty one is expected to miss. Over two seeds they are wide.",
            faint=True,
        )
    )
    return parts


def _list(sentences: Sequence[str]) -> list[Markup]:
    return [bullets(sentences)] if sentences else []


def _means(figures: Figures) -> list[Markup | None]:
    heads = ("arm", *(f"minus {said}" for said in plots.REFERENCES.values()))
    parts: list[Markup | None] = [heading("Mean over tasks"), figure(plots.means(figures), _MEANS)]
    for group in figures.groups:
        rows = [
            (arm, *(_unless_same(arm, against, figures, group) for against in plots.REFERENCES))
            for arm in plots.mean_rows(figures, group)
        ]
        parts.append(folded(group.capitalize(), table(heads, rows), wide=True))
    parts.append(
        paragraph(
            "Points [95 % interval]. best-fixed: for each seed, the fixed arm with the highest mean accuracy over the "
            "other seeds, which is what careful tuning would give. Means over different tasks do not compare. A trap "
            "counts where TrivialAugment loses at least one point to none.",
            faint=True,
        )
    )
    return parts


def _unless_same(arm: str, against: str, figures: Figures, group: str) -> str:
    return "" if arm == against else mean_text(figures.mean_difference(arm, against, group))


def _by_task(figures: Figures) -> list[Markup | None]:
    rows = [(figures.title(task), *(accuracy(figures, task, arm) for arm in figures.arms)) for task in figures.tasks]
    heads = ("task", *figures.arms)
    return [
        heading("Tasks"),
        figure(plots.tasks(figures), _TASKS),
        folded("Accuracies as a table", table(heads, rows), wide=True),
    ]


def _differences(figures: Figures) -> list[Markup | None]:
    parts: list[Markup | None] = [heading("Differences by task")]
    for task in figures.tasks:
        rows = [
            (
                arm,
                accuracy(figures, task, arm),
                *(
                    "" if arm == against else points_text(figures.difference(task, arm, against), unit=False)
                    for against in plots.REFERENCES
                ),
            )
            for arm in (*figures.arms, BEST_FIXED)
            if figures.values(task, arm)
        ]
        heads = ("arm", "accuracy, % (seeds)", *(f"minus {said} (seeds)" for said in plots.REFERENCES.values()))
        picked = ", ".join(f"seed {seed}: {arm}" for seed, (arm, _) in figures.best_fixed[task].items())
        chosen = paragraph(f"best-fixed takes {picked}.", faint=True) if picked else None
        title = figures.title(task) + (" (trap)" if figures.is_trap(task) else "")
        parts.append(folded(title, table(heads, rows), chosen, wide=True))
    return parts


def _cost(figures: Figures) -> list[Markup | None]:
    costs = {arm: list(figures.costs(arm).values()) for arm in figures.arms if arm != NONE}
    rows = [
        (arm, f"{mean(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}", str(len(ratios)))
        for arm, ratios in costs.items()
        if ratios
    ]
    if not rows:
        return []
    heads = ("arm", "times none, mean over tasks", "least", "most", "tasks")
    return [
        heading("Cost"),
        table(heads, rows),
        paragraph(
            "Seconds per run over those of none, on the same task and device with the same number of processes "
            "sharing it.",
            faint=True,
        ),
    ]


def _arms(figures: Figures) -> list[Markup | None]:
    rows = [(arm, "fixed" if figures.is_fixed(arm) else "learned", figures.meaning(arm)) for arm in figures.arms]
    rows.append((BEST_FIXED, "derived", "the fixed arm that the other seeds choose; never run"))
    return [heading("Arms"), table(("arm", "", ""), rows)]


def _made_by(figures: Figures) -> list[Markup | None]:
    made = sorted(
        {(run["command"], run["machine"].get("gpu") or run["machine"].get("cpu") or "") for run in figures.runs}
    )
    return [
        heading("How it was made"),
        *(part for line, device in made for part in (command(line), paragraph(device, faint=True))),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help=f"files of runs; {RESULT_FILE.name} if none is given")
    parser.add_argument("--out", type=Path, help="where the page goes; beside the first file if not given")
    parser.add_argument("--measured-on", choices=("judge", "test"), default="judge")
    given = parser.parse_args(arguments)
    results = given.results or [RESULT_FILE]
    missing = [path for path in results if not path.is_file()]
    if missing:
        print(f"there is no file {missing[0]}; proving_ground.py writes files of runs", file=sys.stderr)
        return 2
    try:
        page = write_page(results, given.out or results[0].with_suffix(".html"), given.measured_on)
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"page to open: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
