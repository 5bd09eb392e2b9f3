"""Write the tables and the picture of docs/filter.md from the result files.

python research/filter_page.py            rewrite them
python research/filter_page.py --check    fail if the tables are out of date
"""

from __future__ import annotations

import sys
from collections import defaultdict
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
from old_names import OLD_ARMS  # noqa: E402
from pictures import on_white  # noqa: E402
from proving_results import load_runs  # noqa: E402
from proving_tasks import TASKS  # noqa: E402
from signal_statistics import ranks, summary  # noqa: E402

RESULTS = HERE / "results"

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "filter.md"
RUNS = ("large", "small")
IMAGES = {"large": "45,000", "small": "10,000"}
MOMENTS = ("high", "middle", "low")
SIGNALS = (
    "training loss of the op (free)",
    "delta",
    "d_i - d_0",
    "d_0 <= 0",
    "delta, averaged weights",
    "loss gap, averaged weights",
    "affinity: held-out loss gap, averaged weights",
    "gradient alignment with held-out data, averaged weights",
    "own clone per op",
)
"""Those in the tables; the result file and the picture have all of them."""
SEVERITIES = (
    "none", "trivialaugment", "improved", "frozen-m6", "fading-n1-m10", "rising-n1-m10", "stopping-n1-m10",
    "randaugment-n1-m10", "randaugment-n1-m1", "randaugment-n1-m3", "randaugment-n1-m6", "randaugment-n2-m2",
    "randaugment-n2-m4", "randaugment-n3-m4",
)  # fmt: skip
CANDIDATES = {
    "trivialaugment": "TrivialAugment, fixed",
    "knob": "one strength, wanted difficulty 1",
    "knob-k0.5": "the same, wanted difficulty 0.5",
    "knob-k1.4": "the same, wanted difficulty 1.4",
    "mild": "one strength, three ops per image",
    "per-op": "the same, each op calibrated by its own loss",
    "own-difficulty": "particles with their own difficulty",
    "own-difficulty-shuffled": "control: their losses shuffled",
    "moderate-steered-2": "moderate ranges, starts at strength 2",
    "moderate-steered": "the same, starts at 1",
    "moderate-steered-0": "the same, starts at 0",
}
TASKS_SHOWN = ("cifar10-1280", "cifar10-4000", "cifar100-10000", "imagenette-2000", "mnist-tints-2000")


def tables(results: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    """Return the page's tables by name."""
    lost = result("gradient_filter", RESULTS)
    severities = {name: result(f"compare/{name}/compare") for name in ("severity", "severity-250")}
    return {
        "gradient": _arms(lost["runs"], ["gradient", "improved-frozen"], {"improved-frozen": "its frozen copy"}),
        "severity": _arms(severities["severity"]["runs"], list(SEVERITIES)),
        "severity-250": _arms(severities["severity-250"]["runs"], _names(severities["severity-250"])),
        "repeatability": _signals(found["repeatability"], " sparse") + _yardstick(found["shuffled"]),
        "validity": _signals(found["validity"], "") + _significant(found["validity"]),
        "truth": _truth(found["truth"], results["truth"]),
        "candidates": _candidates(),
    }


def _names(comparison: dict[str, Any]) -> list[str]:
    return [arm["name"] for arm in comparison["arms"]]


def _candidates() -> str:
    """Return accuracy by candidate and task, with the number of seeds."""
    found = defaultdict(list)
    for file in (RESULTS / "candidates.json", ROOT / "benchmarks" / "results" / "proving-ground.json"):
        for run in load_runs(file):
            if run["measured_on"] == "judge" and "failed" not in run:
                found[run["arm"], run["task"]].append(run["accuracy"])
    rows = []
    for arm, label in CANDIDATES.items():
        cells = [found.get((arm, task), []) for task in TASKS_SHOWN]
        rows.append([label, *(f"{np.mean(cell):.1f} ({len(cell)})" if cell else "–" for cell in cells)])
    return table(["accuracy, %", *(TASKS[name].title for name in TASKS_SHOWN)], rows)


def _signals(rows: dict[str, Any], kind: str) -> str:
    columns = [f"{run} {moment}" for run in RUNS for moment in MOMENTS]
    header = [
        f"{'45,000 images' if run == 'large' else '10,000 images'}, {moment}" for run in RUNS for moment in MOMENTS
    ]
    lines = (
        [name, *(_cell(row.get(f"{column}{kind}") or row.get(column)) for column in columns)]
        for name, row in ((name, rows[name]) for name in SIGNALS if name in rows)
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
    return table(["arm", "seeds", "held-out accuracy", "each", "training loss", "ops per image"], lines)


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


def pictures(found: dict[str, Any]) -> dict[str, str]:
    """Return the page's pictures by file name."""
    drawn = {
        name: [rows.get(f"large {moment} sparse") for moment in MOMENTS]
        for name, rows in found["repeatability"].items()
    }
    names = [name for name, rows in drawn.items() if not name.endswith("<= 0") and any(rows)]

    def repeatability(figure: Any, axes: Any) -> None:
        heights = np.arange(len(names))[::-1]
        for shift, (moment, colour) in enumerate(zip(MOMENTS, (BLUE, ORANGE, GREEN))):
            points = [(height, drawn[name][shift]) for height, name in zip(heights, names) if drawn[name][shift]]
            axes.errorbar(
                [row["spearman"] for _, row in points],
                [height + 0.2 * (1 - shift) for height, _ in points],
                xerr=[row["error"] for _, row in points],
                fmt="o", color=colour, markersize=4, linewidth=1, label=f"{moment} learning rate",
            )  # fmt: skip
        axes.axvline(0, color="#888888", linewidth=0.6)
        axes.set_yticks(heights, names)
        axes.set_xlabel("rank correlation of the particles' order between epochs")
        axes.legend(frameon=False, loc="center", bbox_to_anchor=(0.62, 0.82))

    return {"filter-repeatability.svg": inline_svg(9, 4.6, repeatability)}


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
    for name, content in pictures(found).items():
        (ROOT / "docs" / name).write_text(on_white(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
