"""Write the tables and pictures of docs/filter.md from the signal study's result file.

python research/filter_page.py            rewrite them
python research/filter_page.py --check    fail if the tables are out of date
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from particleaugment.compare.arm_summary import Difference, interval_text
from particleaugment.compare.statistics import paired_difference
from particleaugment.report.svg import BLUE, GREEN, ORANGE, inline_svg

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

from common import result, table  # noqa: E402
from gap_average import is_measured  # noqa: E402
from old_names import OLD_ARMS  # noqa: E402
from pictures import on_white  # noqa: E402
from signal_statistics import ranks, summary  # noqa: E402

RESULTS = HERE / "results"

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "filter.md"
RUNS = ("large", "small")
IMAGES = {"large": "45,000", "small": "10,000"}
MOMENTS = ("high", "middle", "low")
SHOWN = "gradient alignment with held-out data, averaged weights"


def tables(results: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    """Return the page's tables by name."""
    lost = result("gradient_filter", RESULTS)
    severities = {name: result(f"compare/{name}/compare") for name in ("severity", "severity-250")}
    return {
        "gradient": _arms(lost["runs"], ["gradient", "improved-frozen"], {"improved-frozen": "its frozen copy"}),
        **{name: _arms(one["runs"], [arm["name"] for arm in one["arms"]]) for name, one in severities.items()},
        "repeatability": _signals(found["repeatability"], " sparse") + _yardstick(found["shuffled"]),
        "validity": _signals(found["validity"], "") + _significant(found["validity"]),
        "truth": _truth(found["truth"], results["truth"]),
        "averaging": _averaging(),
    }


def _signals(rows: dict[str, Any], kind: str) -> str:
    columns = [f"{run} {moment}" for run in RUNS for moment in MOMENTS]
    header = [
        f"{'45,000 images' if run == 'large' else '10,000 images'}, {moment}" for run in RUNS for moment in MOMENTS
    ]
    lines = (
        [name, *(_cell(row.get(f"{column}{kind}") or row.get(column)) for column in columns)]
        for name, row in rows.items()
    )
    return table(["", *header], lines)


def _significant(rows: dict[str, Any]) -> str:
    found = [entry["p"] for row in rows.values() for entry in row.values()]
    return f"\n\nOf {len(found)} correlations {sum(p <= 0.05 for p in found)} have p <= 0.05."


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


def _arms(runs: list[dict[str, Any]], names: list[str], called: dict[str, str] | None = None) -> str:
    """Return one row per arm: the last epoch of its finished runs, their last training loss, and learned density."""
    lines = []
    for name in names:
        finished = [run for run in runs if run["arm"] == name and run["finished"]]
        last = [run["accuracy"][-1] for run in finished]
        if last:
            loss = np.mean([run["train_loss"][-1] for run in finished])
            each = ", ".join(f"{value:.2f}" for value in last)
            learned = [np.mean(run["ops_per_image"]) for run in finished if run["ops_per_image"]]
            density = f"{np.mean(learned):.2f}" if learned else ""
            label = (called or OLD_ARMS).get(name, name)
            lines.append([label, str(len(last)), f"{np.mean(last):.2f} %", each, f"{loss:.2f}", density])
    return table(["arm", "seeds", "held-out accuracy", "each", "training loss", "ops an image"], lines)


def _truth(rows: dict[str, Any], runs: dict[str, Any]) -> str:
    lines = []
    by_seed = {op: {int(seed): run["accuracy"] for seed, run in found.items()} for op, found in runs.items()}
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["mean"]):
        difference = Difference(name, "Identity", paired_difference(by_seed[name], by_seed["Identity"]))
        cells = [name, f"{row['mean']:.2f} %", f"{row['deviation']:.2f}", str(row["seeds"])]
        cells += ["" if name == "Identity" else interval_text(difference), f"{row['train_loss']:.3f}"]
        lines.append(cells)
    text = table(["op", "held-out accuracy", "deviation", "seeds", "minus Identity [95 %]", "training loss"], lines)
    return f"{text}\n\nRank correlation of two seeds' orders, mean: {_agreement(by_seed):.2f}."


def _agreement(by_seed: dict[str, dict[int, float]]) -> float:
    """Return the mean rank correlation of the ops' order between two seeds that all ops have."""
    seeds = sorted(set.intersection(*(set(found) for found in by_seed.values())))
    orders = [ranks(np.array([found[seed] for found in by_seed.values()])) for seed in seeds]
    return float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in combinations(orders, 2)]))


def _averaging() -> str:
    found = result("gap_average", RESULTS)["results"]
    lines = []
    for row in found["replays"]:
        of = f"of {len(row['ops_per_image'])}"
        share = f"{100 * row['share']:.0f} % of training" if row["share"] else "nothing"
        cells = [share, f"{row['resampled']} {of}", f"{row['effective_sample_size']:.1f}"]
        lines.append([*cells, f"{row['mean_change_of_ops_per_image']:.3f}"])
    text = table(["averaged over", "steps that resample", "effective sample size", "change of ops an image"], lines)
    epochs = len(found["steps"]) + 1
    gaps = np.array([step["gap"] for step in found["steps"] if is_measured(step, epochs)])
    quarters = ", ".join(f"{part.mean():.3f}" for part in np.array_split(gaps, 4))
    return (
        f"{text}\n\nScatter of one gap {found['scatter_of_a_gap']:.3f}; mean gap of the four quarters of the "
        f"{len(gaps)} steps that measured one {quarters}; {int((gaps == 0).sum())} were under 0 and recorded as 0."
    )


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
        found = result("gap_average", RESULTS)["results"]
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


def rewritten(text: str, results: dict[str, Any], found: dict[str, Any]) -> str:
    """Return the page with its tables replaced."""
    for name, made in tables(results, found).items():
        start, end = f"<!-- {name} table -->\n", f"<!-- end of {name} table -->"
        before, opened, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise SystemExit(f"{PAGE} has no place for the {name} table")
        text = f"{before}{start}{made}\n{end}{after}"
    return text


def main() -> int:
    results = result("filter_signal", RESULTS)["results"]
    found = summary(results, len(results["particles"]) - len(results["ops"]), results["ops"])
    old = PAGE.read_text()
    new = rewritten(old, results, found)
    if "--check" in sys.argv:
        return int(old != new)
    PAGE.write_text(new)
    for name, content in pictures(results, found).items():
        (ROOT / "docs" / name).write_text(on_white(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
