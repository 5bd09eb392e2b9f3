"""Write the tables and pictures of docs/filter.md from the signal study's result file.

python benchmarks/filter_page.py            rewrite them
python benchmarks/filter_page.py --check    fail if the tables are out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from signal_statistics import ranks, summary

from particleaugment.compare.records import RunRecord
from particleaugment.report.svg import BLUE, GREEN, ORANGE, inline_svg

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "filter.md"
RUNS = ("large", "small")
IMAGES = {"large": "45,000", "small": "10,000"}
MOMENTS = ("high", "middle", "low")
SHOWN = "gradient alignment with held-out data, averaged weights"


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the page's tables by name."""
    lost = json.loads((RESULTS / "gradient_filter.json").read_text())
    severities = {
        name: json.loads((RESULTS / "compare" / name / "compare.json").read_text())
        for name in ("severity", "severity-250")
    }
    return {
        "gradient": _arms(lost["runs"], ["gradient", "improved-frozen"]),
        **{name: _arms(one["runs"], [arm["name"] for arm in one["arms"]]) for name, one in severities.items()},
        "repeatability": _signals(found["repeatability"], " sparse") + _yardstick(found["shuffled"]),
        "validity": _signals(found["validity"], ""),
        "truth": _truth(found["truth"]),
        "averaging": _averaging(),
    }


def _signals(rows: dict[str, Any], kind: str) -> str:
    columns = [f"{run} {moment}" for run in RUNS for moment in MOMENTS]
    header = [
        f"{'45,000 images' if run == 'large' else '10,000 images'}, {moment}" for run in RUNS for moment in MOMENTS
    ]
    lines = [f"| | {' | '.join(header)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = [_cell(row.get(f"{column}{kind}") or row.get(column)) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _yardstick(shuffled: dict[str, float]) -> str:
    cell = f"{shuffled['spearman']:.2f} ± {shuffled['deviation']:.2f}"
    return f"\n| scores in random order | {' | '.join([cell] * (len(RUNS) * len(MOMENTS)))} |"


def _cell(entry: dict[str, float] | None) -> str:
    if entry is None:
        return "–"
    if "share" in entry:
        return f"{100 * entry['share']:.0f} %"
    significance = f", p {entry['p']:.2f}" if "p" in entry else ""
    return f"{entry['spearman']:.2f} ± {entry['error']:.2f}{significance}"


def _arms(runs: list[dict[str, Any]], names: list[str]) -> str:
    """Return one row per arm: the last epoch of its finished runs, their last training loss and the search's time."""
    lines = ["| arm | seeds | held-out accuracy | each | training loss | search, of training |", "|---" * 6 + "|"]
    for name in names:
        finished = [run for run in runs if run["arm"] == name and run["finished"]]
        last = [run["accuracy"][-1] for run in finished]
        if last:
            loss = np.mean([run["train_loss"][-1] for run in finished])
            each = ", ".join(f"{value:.2f}" for value in last)
            search = np.mean([RunRecord.from_dict(run).search_seconds / run["seconds"]["train"] for run in finished])
            cost = f"{100 * search:.1f} %" if search else ""
            lines.append(f"| {name} | {len(last)} | {np.mean(last):.2f} % | {each} | {loss:.2f} | {cost} |")
    return "\n".join(lines)


def _truth(rows: dict[str, Any]) -> str:
    lines = ["| op | held-out accuracy | deviation | seeds | training loss |", "|---|---|---|---|---|"]
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["mean"]):
        lines.append(
            f"| {name} | {row['mean']:.2f} % | {row['deviation']:.2f} | {row['seeds']} | {row['train_loss']:.3f} |"
        )
    return "\n".join(lines)


def _replays() -> dict[str, Any]:
    return json.loads((RESULTS / "gap_average.json").read_text())["results"]  # type: ignore[no-any-return]


def _averaging() -> str:
    found = _replays()
    lines = [
        "| averaged over | steps that resample | effective sample size | change of ops an image |",
        "|---" * 4 + "|",
    ]
    for row in found["replays"]:
        of = f"of {len(row['ops_per_image'])}"
        share = f"{100 * row['share']:.0f} % of training" if row["share"] else "nothing"
        cells = [share, f"{row['resampled']} {of}", f"{row['effective_sample_size']:.1f}"]
        lines.append(f"| {' | '.join(cells)} | {row['mean_change_of_ops_per_image']:.3f} |")
    lines += ["", f"Scatter of one gap {found['scatter_of_a_gap']:.3f}, mean of all {found['mean_gap']:.3f}."]
    return "\n".join(lines)


def pictures(results: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    """Return the page's pictures by file name."""
    names = [name for name in found["repeatability"] if not name.endswith("<= 0")]

    def repeatability(figure: Any, axes: Any) -> None:
        heights = np.arange(len(names))[::-1]
        for shift, (moment, colour) in enumerate(zip(MOMENTS, (BLUE, ORANGE, GREEN))):
            rows = [found["repeatability"][name].get(f"large {moment} sparse") for name in names]
            points = [(height, row) for height, row in zip(heights, rows) if row is not None]
            axes.errorbar(
                [row["spearman"] for _, row in points],
                [height + 0.2 * (1 - shift) for height, _ in points],
                xerr=[row["error"] for _, row in points],
                fmt="o", color=colour, markersize=4, linewidth=1, label=f"{moment} learning rate",
            )  # fmt: skip
        axes.axvline(0, color="#888888", linewidth=0.6)
        axes.set_yticks(heights, names)
        axes.set_xlabel("rank correlation of the particles' order between epochs")
        axes.legend(frameon=False, loc="lower left")

    def validity(figure: Any, axes: Any) -> None:
        sparse = len(results["particles"]) - len(results["ops"])
        accuracy = np.array([found["truth"][name]["mean"] for name in results["ops"]])
        for one, moment in zip(axes, MOMENTS):
            models = results["repeatability"]["small"]["moments"][moment]
            signal = np.mean([ranks(np.array(model[SHOWN])[sparse:]) for model in models], axis=0)
            one.plot(signal, accuracy, "o", color=BLUE, markersize=4)
            for name, x, y in zip(results["ops"], signal, accuracy):
                one.annotate(name, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
            one.set_title(f"{moment} learning rate", fontsize=9)
            one.set_xlabel("mean rank by gradient alignment")
        axes[0].set_ylabel("held-out accuracy of the op alone, %")

    def averaging(figure: Any, axes: Any) -> None:
        found = _replays()
        rows = {row["share"]: row["ops_per_image"] for row in found["replays"]}
        axes[0].plot(
            [step["epoch"] for step in found["steps"]],
            [step["gap"] for step in found["steps"]],
            color=BLUE,
            linewidth=0.8,
        )
        axes[0].set_ylabel("generalisation gap, step by step")
        axes[1].plot(np.arange(1, len(rows[0.0]) + 1), rows[0.0], color=ORANGE, linewidth=0.8, label="nothing averaged")
        axes[1].plot(np.arange(1, len(rows[0.05]) + 1), rows[0.05], color=BLUE, linewidth=1.2, label="gap averaged")
        axes[1].set_ylabel("ops an image")
        axes[1].legend(frameon=False, loc="upper left")
        for one in axes:
            one.set_xlabel("epoch")

    return {
        "filter-gap.svg": inline_svg(9, 2.8, averaging, columns=2),
        "filter-repeatability.svg": inline_svg(9, 4.6, repeatability),
        "filter-validity.svg": inline_svg(9, 3.2, validity, columns=3),
    }


def rewritten(text: str, found: dict[str, Any]) -> str:
    """Return the page with its tables replaced."""
    for name, table in tables(found).items():
        start, end = f"<!-- {name} table -->\n", f"<!-- end of {name} table -->"
        before, opened, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise SystemExit(f"{PAGE} has no place for the {name} table")
        text = f"{before}{start}{table}\n{end}{after}"
    return text


def main() -> int:
    results = json.loads((RESULTS / "filter_signal.json").read_text())["results"]
    found = summary(results, len(results["particles"]) - len(results["ops"]), results["ops"])
    old = PAGE.read_text()
    new = rewritten(old, found)
    if "--check" in sys.argv:
        return int(old != new)
    PAGE.write_text(new)
    for name, content in pictures(results, found).items():
        # A picture of its own has no page to take its colours from.
        content = content.replace("<svg ", '<svg style="background: white; color: #222" ', 1)
        (ROOT / "docs" / name).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
