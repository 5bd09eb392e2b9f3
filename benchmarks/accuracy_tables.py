"""The tables of accuracies, made from comparisons and single runs under benchmarks/results; tables.py writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from common import RESULTS, result, table
from old_names import OLD_ARMS, in_new_names, read_comparison

from particleaugment.compare.arm_summary import accuracy_text, arm_summaries, differences, interval_text, time_remark
from particleaugment.compare.comparison import Comparison
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.statistics import mean

LITERAL_RUN = RESULTS / "runs" / "cifar10-wrn28-2-particles" / "metrics.jsonl"
PHASES = ("train", "clone", "measure", "filter")
POLICIES = {
    "none": "no policy",
    "trivial": "TrivialAugment",
    "randaugment": "RandAugment",
    "randaugment-n3-m4": "RandAugment, 3 ops at level 4",
    "difficulty": "the difficulty filter",
    "gap": "the gap filter (withdrawn)",
    "paper": "the paper's filter",
}
ARMS = {
    "gap": "the gap filter (withdrawn)",
    "none": "no policy: crop, flip, erasing",
    "trivialaugment": "TrivialAugment",
    "randaugment-n1-m1": "RandAugment, one op at level 1 (by validation)",
    "autoaugment": "AutoAugment",
    "paper": "the paper's filter, as written",
    "paper-authors": "the paper's filter, as released",
}
CONTROLS = (
    ("gap", "gap-frozen", "measurement and update of the gap filter"),
    ("gap", "matched", "its choice of ops; both apply the same number"),
    ("paper", "paper-frozen", "measurement and update of the paper's filter"),
    ("paper", "paper-shuffled", "which particle a score belongs to"),
    ("paper-shuffled", "paper-frozen", "updates with random scores"),
)
CONTROLLED = {"CIFAR-10": "cifar10-60", "digits": "digits"}
PAPERS = {"paper": "96.43 ± 0.11 %", "randaugment-n1-m1": "95.8 %", "autoaugment": "95.9 %"}


def policy_text(name: str) -> str:
    """Return what a policy is called in tables, by its name in result files."""
    return POLICIES[OLD_ARMS.get(name, name)]


def results() -> str:
    """README's: CIFAR-10 with the paper's network, last epochs, at two lengths of training; controls are elsewhere."""
    short, long = (accuracies(f"cifar10-{epochs}") for epochs in (60, 250))
    long.setdefault("paper", f"{literal_records()[0][-1]['test_accuracy']:.2f} % (1)")
    rows = [
        [said, short.get(arm, "–"), long.get(arm, "–"), PAPERS.get(arm, "–")]
        for arm, said in ARMS.items()
        if arm in short or arm in long
    ]
    minus_none = to_one(read("cifar10-60"), "none")["gap"]
    text = table(["", "60 epochs", "250 epochs", "the paper, 250 epochs"], rows)
    return f"{text}\n\nThe gap filter minus no policy, 60 epochs, with its 95 % interval: {minus_none} points."


def accuracies(name: str) -> dict[str, str]:
    """Return each arm's accuracy in a comparison, with the number of its seeds."""
    found = read(name)
    return {each.arm: f"{accuracy_text(each)} % ({each.runs})" for each in arm_summaries(found.arms, found.runs)}


def comparison(name: str) -> str:
    """The arms of a comparison: every finished run, and the differences to one of them and to no policy."""
    found = read(name)
    machine = found.commands[-1]["machine"]
    timed = machine["gpu"] is None or not time_remark(found)
    columns = {f"minus `{arm}` [95 %]": to_one(found, arm) for arm in dict.fromkeys((found.against, "none"))}
    rows = []
    for summary in sorted(arm_summaries(found.arms, found.runs), key=lambda each: each.arm != found.against):
        row = [f"`{summary.arm}`", str(summary.runs), f"{accuracy_text(summary)} %"]
        row += [column.get(summary.arm, "") for column in columns.values()]
        runs = [run for run in found.of_arm(summary.arm) if run.finished]
        row += [f"{summary.best_epoch_mean:.2f} %", f"{mean([run.train_loss[-1] for run in runs]):.2f}", density(runs)]
        rows.append(row + ([f"{summary.search_overhead:.1f} %" if summary.search_overhead else ""] if timed else []))
    head = ["arm", "runs", "last epoch", *columns, "best epoch*", "training loss", "ops per image**"]
    head += ["search, of training"] if timed else []
    commands = dict.fromkeys(f"`{entry['command'].partition(' --jobs')[0]}`" for entry in found.commands)
    bullets = "\n".join(f"- {each}" for each in commands)
    times = time_remark(found) if timed else "Runs shared the GPU, so their times are left out."
    return (
        "<details><summary>Table, commands and files</summary>\n\n"
        f"{table(head, rows)}\n\n\\* selected by the accuracy it reports, so not a result. \\*\\* learned policies "
        f"only: mean over training; first and last epoch. Accuracy on {found.measured_on} images, "
        f"{found.base.config.training.epochs} epochs; {machine['gpu'] or machine['cpu']}. {times}\n\n"
        f"{bullets}\n\nAll runs and their curves: "
        f"`benchmarks/results/compare/{name}`.\n\n</details>"
    )


def controls() -> str:
    """What each part of the two filters adds: an arm minus the same without that part, on the seeds that both have."""
    rows = [[f"`{arm}` minus `{control}`", meaning] for arm, control, meaning in CONTROLS]
    for name in CONTROLLED.values():
        found = read(name)
        for row, (arm, control, _) in zip(rows, CONTROLS, strict=True):
            each = next(each for each in differences(found.arms, found.runs, control) if each.arm == arm)
            row.append(f"{interval_text(each)} ({each.points.pairs if each.points else 0})")
    return table(["", "what differs", *(f"{said}: points [95 %] (seeds)" for said in CONTROLLED)], rows)


def density(runs: Iterable[RunRecord]) -> str:
    """How many ops a learned policy applies to an image, mean of an arm's finished runs; nothing for other policies."""
    courses = [run.ops_per_image for run in runs if run.ops_per_image]
    if not courses:
        return ""
    first, last = (mean([course[epoch] for course in courses]) for epoch in (0, -1))
    return f"{mean([mean(course) for course in courses]):.2f}; {first:.2f}, {last:.2f}"


def to_one(found: Comparison, arm: str) -> dict[str, str]:
    """Return the differences of all arms to one, with intervals over paired seeds."""
    return {each.arm: interval_text(each) for each in differences(found.arms, found.runs, arm)}


def read(name: str) -> Comparison:
    """Return a committed comparison."""
    return read_comparison(RESULTS / "compare" / name)


def literal() -> str:
    epochs, steps = literal_records()
    third = len(steps) // 3
    parts = (steps[:third], steps[third : 2 * third], steps[2 * third :])
    skipped = [sum(step["skip_reason"] is not None for step in part) for part in parts]
    risen = [sum(step["d0"] is not None and step["d0"] <= 0 for step in part) for part in parts]
    shown = (1, 25, 50, 100, 150, 200, 250)
    density = ", ".join(f"{epochs[epoch - 1]['ops_per_image']:.2f}" for epoch in shown)
    seconds = sum(
        value
        for record in (*epochs, *steps)
        for name, value in record["seconds"].items()
        if name in (*PHASES, "evaluate")
    )
    rows = [
        ["test accuracy, last epoch", f"{epochs[-1]['test_accuracy']:.2f} % (the paper: 96.43 ± 0.11)"],
        [
            "weight updates skipped",
            f"{sum(skipped)} of {len(steps)} ({', '.join(map(str, skipped))} in the first, second and last third)",
        ],
        [
            "of these with d0 ≤ 0: the clone's loss on plain images rose",
            f"{sum(risen)} ({', '.join(map(str, risen))}); in the others d0 was smaller than its own standard error",
        ],
        [f"ops per image in epoch {', '.join(map(str, shown))}", density],
        ["total time, with evaluation", f"{seconds:.0f} s"],
    ]
    return table(["", ""], rows)


def literal_records() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    records = [json.loads(line) for line in LITERAL_RUN.read_text().splitlines()]
    return tuple([record for record in records if record["kind"] == kind] for kind in ("epoch", "filter"))  # type: ignore[return-value]


def quick() -> str:
    document = result("cifar10_quick")
    rows = (
        [
            policy_text(row["policy"]),
            f"{row['test_accuracy_last_epoch']:.2f} %",
            f"{row['wall_seconds']:.0f} s",
            f"`{in_new_names(row['command'])}`",
        ]
        for row in document["results"]
    )
    text = table(["policy", "test accuracy, last epoch", "wall-clock time", "command"], rows)
    cores, cpu = document["results"][0]["cores"], document["machine"]["cpu"]
    made_by = ", ".join(dict.fromkeys(f"`{in_new_names(row['benchmark'])}`" for row in document["results"]))
    return f"{text}\n\n{cores} cores of an {cpu}, one seed. Made by {made_by}."
