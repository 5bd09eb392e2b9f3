"""``compare.html``: one self-contained page that shows a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from particleaugment.compare import comparison_plots as plots
from particleaugment.compare.arm_summary import (
    ArmSummary,
    accuracy_text,
    arm_summaries,
    differences,
    interval_text,
    remarks,
    time_remark,
)
from particleaugment.compare.comparison import Comparison
from particleaugment.report.html import (
    alarm_box,
    command,
    figure,
    folded,
    heading,
    paragraph,
    self_contained,
    settings_table,
    table,
    verdict,
)
from particleaugment.training.clock import duration

__all__ = ["render"]


def render(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    base = comparison.base.config
    summaries = arm_summaries(comparison.arms, comparison.runs)
    finished = sum(summary.runs for summary in summaries)
    subtitle = (
        f"{base.model} on {base.data.name}{base.data.part}, {base.training.epochs} epochs; "
        f"{finished} of {len(comparison.runs)} runs finished; accuracy on {comparison.measured_on} images"
    )
    advice = comparison.recommendation
    parts: list[Markup | None] = [
        verdict(advice.verdict) if advice is not None else None,
        alarm_box(remarks(comparison)),
        *_recommendation(comparison),
    ]
    if summaries:
        parts += _accuracy(comparison, summaries)
        parts += _differences(comparison)
        parts += [heading("Training"), figure(plots.curves(comparison), _CURVES)]
        parts += _time(comparison, summaries)
    parts += _runs(comparison)
    parts += _made_by(comparison)
    return self_contained(f"Comparison on {base.recipe}", subtitle, parts)


_CURVES = (
    "Accuracy on plain images and training loss under augmentation: mean over the seeds of the finished runs, with a "
    "band of one standard deviation. The losses of arms that augment differently are not comparable."
)


def _recommendation(comparison: Comparison) -> list[Markup | None]:
    advice = comparison.recommendation
    if advice is None:
        return []
    return [heading("Recommendation"), *(paragraph(sentence) for sentence in advice.sentences)]


def _accuracy(comparison: Comparison, summaries: Sequence[ArmSummary]) -> list[Markup | None]:
    meanings = {arm.name: arm.meaning for arm in comparison.arms}
    rows = [(s.arm, str(s.runs), accuracy_text(s), f"{s.best_epoch_mean:.2f}", meanings[s.arm]) for s in summaries]
    heads = ("arm", "runs", "last epoch, % (± deviation over seeds)", "best epoch, %: not a result", "")
    return [
        heading("Accuracy"),
        table(heads, rows),
        paragraph(
            "The result is the accuracy of the last epoch. The best epoch is chosen by the accuracy on the same "
            f"{comparison.measured_on} images, so it is optimistic. It is shown because it is often quoted.",
            faint=True,
        ),
        figure(plots.accuracies(comparison), "Every run's last-epoch accuracy; the line is the arm's mean."),
    ]


def _differences(comparison: Comparison) -> list[Markup | None]:
    found = differences(comparison.arms, comparison.runs, comparison.against)
    if not found:
        return []
    rows = [(d.arm, interval_text(d), str(d.points.pairs) if d.points else "0") for d in found]
    return [
        heading(f"Differences from {comparison.against}"),
        table(("arm", "points [95 % interval]", "pairs of runs"), rows),
        paragraph(
            "Last-epoch accuracy, arm minus arm on the same seed, with Student's t interval over these differences. "
            "An interval that contains 0 shows no difference. Intervals are not corrected for multiple comparisons: "
            "one in twenty is expected to miss.",
            faint=True,
        ),
        figure(
            plots.intervals(comparison), "Mean difference and its interval; an open circle is one pair, no interval."
        ),
    ]


def _time(comparison: Comparison, summaries: Sequence[ArmSummary]) -> list[Markup | None]:
    phases = list(dict.fromkeys(phase for summary in summaries for phase in summary.overhead))
    rows = [
        (s.arm, f"{s.seconds:.1f}", *(_percent(s.overhead.get(phase)) for phase in phases), f"{s.search_overhead:.1f}")
        for s in summaries
    ]
    heads = ("arm", "seconds per run", *(f"{phase}, %" for phase in phases), "search in total, %")
    return [
        heading("Time"),
        table(heads, rows),
        paragraph(
            "Seconds are the sum of a run's phases, without start-up and compilation. Percentages are relative to the "
            "time spent in training. The search is every phase except training and evaluation. "
            f"{time_remark(comparison)}",
            faint=True,
        ),
        figure(plots.times(comparison), "Seconds per phase."),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _runs(comparison: Comparison) -> list[Markup | None]:
    rows = [
        (
            run.arm,
            str(run.seed),
            f"{run.last:.2f}" if run.finished else "",
            f"{run.best:.2f}" if run.finished else "",
            duration(run.total_seconds) if run.seconds else "",
            f"{run.filter['ops_per_image']:.2f}" if run.filter else "",
            f"{run.filter['skipped']} of {run.filter['steps']}" if run.filter else "",
            run.state,
        )
        for run in comparison.runs
    ]
    heads = ("arm", "seed", "last epoch, %", "best epoch, %", "time", "ops per image", "updates skipped", "state")
    return [
        heading("Runs"),
        paragraph("Each run has its own report, next to this page:", code="runs/ARM-SEED/report.html"),
        folded(f"All {len(rows)} runs", table(heads, rows)),
    ]


def _made_by(comparison: Comparison) -> list[Markup | None]:
    parts: list[Markup | None] = [heading("How this was made")]
    for made_by in comparison.commands:
        where = made_by["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        place = (
            f"Ray: {where['ray']}" if where.get("ray") else f"{where['gpu'] or where['cpu']}, {where['cores']} cores"
        )
        machine = f"{place}, Python {where['python']}, {versions}"
        parts += [command(made_by["command"]), paragraph(machine, faint=True)]
    rows = [(arm.name, arm.described) for arm in comparison.arms]
    parts += [
        paragraph("To rewrite this page from its folder:", code="particleaugment compare FOLDER --report"),
        folded("What each arm sets", table(("arm", "settings"), rows)),
        settings_table(comparison.base.settings),
    ]
    return parts
