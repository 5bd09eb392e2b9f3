"""Write the tables of README and of the pages under docs from the result files, and the list of recipes.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    fail, and name the pages, if they are out of date

A table stands between the comments ``<!-- NAME table -->`` and ``<!-- end of NAME table -->``.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from settings_table import settings_rows

from particleaugment.compare.comparison import Comparison
from particleaugment.compare.records import RunRecord
from particleaugment.compare.statistics import mean
from particleaugment.compare.summary import accuracy_text, arm_summaries, differences, interval_text, time_remark
from particleaugment.recipes import PRESETS, RECIPES
from particleaugment.training.config import Config, settings_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LITERAL_RUN = RESULTS / "runs" / "cifar10-wrn28-2-particles" / "metrics.jsonl"
WHOLE_KERNEL = "fused, 32x32, 3 ops + crop, flip, erase, normalise"
PHASES = ("train", "clone", "measure", "filter")
POLICIES = {
    "none": "no policy",
    "trivial": "TrivialAugment",
    "randaugment": "RandAugment",
    "randaugment-n3-m4": "RandAugment, 3 ops at level 4",
    "improved": "the improved filter",
    "particles": "the paper's filter",
}

ARMS = {
    "improved": "**the improved filter**",
    "none": "no policy: crop, flip, erasing",
    "trivialaugment": "TrivialAugment",
    "randaugment": "RandAugment",
    "autoaugment": "AutoAugment",
    "particles": "the paper's filter, to the letter",
    "particles-authors": "the paper's filter, as released",
}
PAPERS = {"particles": "96.43 ± 0.11 %", "randaugment": "95.8 %", "autoaugment": "95.9 %"}


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(header)
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, *rows)]
    lines.insert(1, "|---" * len(titles) + "|")
    return "\n".join(lines)


def spread(measured: dict[str, float]) -> str:
    return f"{measured['median']:,.0f} ({measured['low']:,.0f} to {measured['high']:,.0f})"


def gpu_rows() -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["name"], row["batch"]): row for row in result("gpu_throughput")["results"]["rows"]}


def speed() -> str:
    """README's: what users feel, in a few lines."""
    cpu, gpu, rows = result("cpu_throughput"), result("gpu_throughput")["machine"]["gpu"], gpu_rows()
    lines = [
        [
            f"augmenting on the CPU, {row['size']}x{row['size']}, one thread",
            f"{row['ours_1_thread']['median']:,.0f} images/s: "
            f"**{row['ratio_1_thread']:.1f} times** Pillow called as timm does",
        ]
        for row in cpu["results"]
    ]
    for name, batch in ((WHOLE_KERNEL, 128), (WHOLE_KERNEL, 8192), ("fused, 224x224, 3 ops", 1024)):
        label = name.removeprefix("fused, ").split(",")[0]
        lines.append([f"on an {gpu}, {label}, batch {batch:,}", f"{rows[name, batch]['images_per_second']:,} images/s"])
    epochs = {(row["model"], row["policy"]): row["seconds_per_epoch"] for row in result("gpu_training")["results"]}
    for model in ("wrn-28-2", "wrn-28-10"):
        timed = {"plain": "randaugment", "with the improved filter": "improved", "with the paper's": "particles"}
        said = [f"{epochs[model, name]:.2f} s {words}" for words, name in timed.items() if (model, name) in epochs]
        lines.append([f"CIFAR-10 epoch on it, {model.upper()}", ", ".join(said)])
    return table(["", ""], lines)


def cpu_speed() -> str:
    document = result("cpu_throughput")
    rows = (
        [
            f"{row['size']}x{row['size']}",
            spread(row["ours_1_thread"]),
            spread(row["ours_2_threads"]),
            spread(row["timm"]),
            f"{row['ratio_1_thread']:.1f}",
        ]
        for row in document["results"]
    )
    text = table(["images", "one thread", "two threads", "Pillow, called as timm does", "ratio, one thread"], rows)
    peer = document["results"][0]["peer"]
    return f"{text}\n\n{document['machine']['cpu']}; peer: {peer}. Command: `{document['command']}`."


def gpu_speed() -> str:
    document = result("gpu_throughput")
    rows = []
    for row in document["results"]["rows"]:
        floor = ""
        if row["name"].startswith("fused"):
            micros, fraction = row["microseconds"], row["fraction_of_floor"]
            floor = f"{micros:,.0f} µs; {micros * fraction:,.1f} µs ({100 * fraction:.1f} %)"
        spread_text = f"{row['images_per_second']:,}"
        if "low" in row:
            spread_text += f" ({row['low']:,} to {row['high']:,})"
        rows.append([row["name"], f"{row['batch']:,}", spread_text, floor])
    text = table(["", "batch", "images/s", "time; the least that its bytes need"], rows)
    bandwidth = document["results"]["bandwidth_bytes_per_second"] / 1e12
    return (
        f"{text}\n\n{document['machine']['gpu']}, memory measured at {bandwidth:.2f} TB/s. "
        f"Command: `{document['command']}`."
    )


def training() -> str:
    document, order = result("gpu_training"), list(POLICIES)
    rows = []
    for row in sorted(document["results"], key=lambda row: (len(row["model"]), order.index(row["policy"]))):
        phases = ", ".join(f"{name} {row['phases'][name]:.2f}" for name in PHASES if name in row["phases"])
        share = row.get("augmentation", {}).get("share_of_step")
        rows.append(
            [
                row["model"].upper(),
                POLICIES[row["policy"]],
                f"{row['seconds_per_epoch']:.2f}",
                phases,
                f"{row['training_tflops']:.0f}",
                "" if share is None else f"{100 * share:.2f} %",
            ]
        )
    text = table(
        ["network", "policy", "seconds an epoch", "of which", "TFLOP/s, training", "augmentation, of a step"], rows
    )
    commands = ", ".join(sorted({f"`{row['command']}`" for row in document["results"]}))
    return f"{text}\n\nMedians over the epochs after the fourth; evaluation apart. Commands: {commands}."


def imagenet() -> str:
    document = result("imagenet_path")
    run = document["results"]["runs"][0]
    alone = run["alone"]
    rows = [["the network alone, a batch that never changes", spread(alone["network"])]]
    rows.append(["the loader alone, decoding and cropping", f"{alone['loader']['images_per_second']:,.0f}"])
    for name, measured in alone.items():
        if name.startswith("augmentation"):
            policy = POLICIES[name.removeprefix("augmentation, ")]
            rows.append([f"augmentation alone, {policy}", spread(measured)])
    for policy, measured in run["training"].items():
        rows.append([f"**training, {POLICIES[policy]}**", f"**{measured['images_per_second']:,.0f}**"])
    jpeg, text = document["results"]["jpeg"], table(["", "images/s"], rows)
    width, height = jpeg["size"]
    return (
        f"{text}\n\n{jpeg['files']:,} JPEGs of {width}x{height} and {jpeg['kilobytes']:.0f} kB, "
        f"{run['workers']} workers, batch {document['results']['batch']}. What limits it: {run['limit']}. "
        f"Command: `{document['command']}`."
    )


def folder_decode() -> str:
    document = result("folder_decode")
    rows = (
        [
            row["jpeg"],
            spread(row["ours_images_per_second"]),
            spread(row["plain_images_per_second"]),
            f"{row['ratio']:.2f}",
        ]
        for row in document["results"]
    )
    text = table(["JPEGs", "here, images/s", "DataLoader with Pillow, images/s", "ratio"], rows)
    return f"{text}\n\nTwo workers, {document['machine']['cpu']}. Command: `{document['command']}`."


def overhead() -> str:
    document = result("filter_overhead")
    measured = document["results"]
    rows = ([name, f"{share:.2f} %"] for name, share in measured["percent_of_epoch"].items())
    text = table(["part of a step of the paper's filter", "of the epoch, step included"], rows)
    return (
        f"{text}\n\nThe filter's own arithmetic, all but the network's passes: "
        f"{measured['filters_own_arithmetic_percent']:.2f} %. Digits, two CPU cores. Command: `{document['command']}`."
    )


def exactness() -> str:
    cpu, gpu = result("exactness"), result("gpu_exactness")
    pixels = gpu["results"]["pixels"]
    return "\n".join(
        [
            f"- CPU executors: {cpu['results']['images']:,} images compared with direct Pillow calls, "
            f"{cpu['results']['differing']} differ (`{cpu['command']}`).",
            f"- GPU kernel: {pixels['pairs']:,} (image, program) pairs, {pixels['fused_differing']} differ "
            f"(`{gpu['command']}`).",
        ]
    )


def literal_records() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    records = [json.loads(line) for line in LITERAL_RUN.read_text().splitlines()]
    return tuple([record for record in records if record["kind"] == kind] for kind in ("epoch", "filter"))  # type: ignore[return-value]


def results() -> str:
    """README's: CIFAR-10 with the paper's network, last epochs, at two lengths of training; controls are elsewhere."""
    short, long = (accuracies(f"cifar10-{epochs}") for epochs in (60, 250))
    long.setdefault("particles", f"{literal_records()[0][-1]['test_accuracy']:.2f} % (1)")
    rows = [
        [said, short.get(arm, "–"), long.get(arm, "–"), PAPERS.get(arm, "–")]
        for arm, said in ARMS.items()
        if arm in short or arm in long
    ]
    minus_none = to_one(read_comparison("cifar10-60"), "none")["improved"]
    text = table(["", "60 epochs", "250 epochs", "the paper, 250 epochs"], rows)
    return f"{text}\n\nThe improved filter minus no policy, 60 epochs, with its 95 % interval: {minus_none} points."


def accuracies(name: str) -> dict[str, str]:
    """Return each arm's accuracy in a comparison, with the number of its seeds."""
    found = read_comparison(name)
    return {each.arm: f"{accuracy_text(each)} % ({each.runs})" for each in arm_summaries(found.arms, found.runs)}


def read_comparison(name: str) -> Comparison:
    return Comparison.from_json((RESULTS / "compare" / name / "compare.json").read_text())


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
            f"{sum(risen)} ({', '.join(map(str, risen))}); in the others d0 was under one of its own standard errors",
        ],
        [f"ops per image in epoch {', '.join(map(str, shown))}", density],
        ["time of all phases, evaluation included", f"{seconds:.0f} s"],
    ]
    return table(["", ""], rows)


def quick() -> str:
    document = result("cifar10_quick")
    rows = (
        [
            POLICIES[row["policy"]],
            f"{row['test_accuracy_last_epoch']:.2f} %",
            f"{row['wall_seconds']:.0f} s",
            f"`{row['command']}`",
        ]
        for row in document["results"]
    )
    text = table(["policy", "test accuracy, last epoch", "wall-clock time", "command"], rows)
    cores, cpu = document["results"][0]["cores"], document["machine"]["cpu"]
    made_by = ", ".join(dict.fromkeys(f"`{row['benchmark']}`" for row in document["results"]))
    return f"{text}\n\n{cores} cores of an {cpu}, one seed. Made by {made_by}."


def comparison(name: str) -> str:
    """The arms of a comparison: every finished run, and the differences to one of them and to no policy."""
    found = read_comparison(name)
    machine = found.commands[-1]["machine"]
    timed = machine["gpu"] is None or not time_remark(found)
    columns = {f"minus `{arm}` [95 %]": to_one(found, arm) for arm in dict.fromkeys((found.against, "none"))}
    rows = []
    for summary in sorted(arm_summaries(found.arms, found.runs), key=lambda each: each.arm != found.against):
        row = [f"`{summary.arm}`", str(summary.runs), f"{accuracy_text(summary)} %"]
        row += [column.get(summary.arm, "") for column in columns.values()]
        row += [f"{summary.best_epoch_mean:.2f} %", density(found.of_arm(summary.arm))]
        rows.append(row + ([f"{summary.search_overhead:.1f} %" if summary.search_overhead else ""] if timed else []))
    head = ["arm", "runs", "last epoch", *columns, "best epoch*", "ops an image**"]
    head += ["search, of training"] if timed else []
    commands = dict.fromkeys(f"`{entry['command'].partition(' --jobs')[0]}`" for entry in found.commands)
    times = time_remark(found) if timed else "Runs shared the GPU, so their times are left out."
    return (
        f"{table(head, rows)}\n\n\\* chosen by that accuracy itself: not a result. \\*\\* of a learned policy: "
        f"mean over training; first, and last epoch. Accuracy on {found.measured_on} images, "
        f"{found.base.epochs} epochs; {machine['gpu'] or machine['cpu']}. {times} Made by {', '.join(commands)}. "
        f"Curves and figures of all runs: `benchmarks/results/compare/{name}`."
    )


def density(runs: Iterable[RunRecord]) -> str:
    """How many ops a learned policy applies to an image, mean of an arm's finished runs; nothing for other policies."""
    courses = [run.ops_per_image for run in runs if run.finished and run.ops_per_image]
    if not courses:
        return ""
    first, last = (mean([course[epoch] for course in courses]) for epoch in (0, -1))
    return f"{mean([mean(course) for course in courses]):.2f}; {first:.2f}, {last:.2f}"


def to_one(found: Comparison, arm: str) -> dict[str, str]:
    """Return the differences of all arms to one, with intervals over paired seeds."""
    return {each.arm: interval_text(each) for each in differences(found.arms, found.runs, arm)}


def recipes() -> str:
    """Every recipe: its docstring, its command, and the settings that are not the defaults."""
    sections = []
    for name, make in RECIPES.items():
        title, *paragraphs = (inspect.getdoc(make) or "").split("\n\n")
        body = [paragraph.replace("``", "`") for paragraph in paragraphs]
        location = "" if name == "digits" else " --set data_dir=DIR"
        command = f"```\nparticleaugment train {name}{location}\n```"
        own, papers = changed_settings(name)
        said = f"Settings of its own: {own}." + (f" With `--preset paper` also {papers}." if papers else "")
        sections.append("\n\n".join([f"## `{name}`", title, *body, command, said]))
    return "\n\n".join(sections)


def changed_settings(name: str) -> tuple[str, str]:
    """Return a recipe's settings that are not the defaults: its own, and those that the paper's filter alone heeds."""
    usual, found = settings_of(Config(recipe=name)), settings_of(RECIPES[name]())
    replaced = {setting.partition("=")[0] for setting in PRESETS["improved"]} | {"eta", "clone_size", "clone_epochs"}
    changed = [key for key, value in found.items() if value != usual[key]]
    own = [f"`{key}={found[key]}`" for key in changed if key not in replaced]
    papers = [f"`{key}={found[key]}`" for key in changed if key in replaced]
    return ", ".join(own), ", ".join(papers)


TABLES: dict[str, Callable[[], str]] = {
    "speed": speed,
    "results": results,
    "CPU speed": cpu_speed,
    "GPU speed": gpu_speed,
    "training": training,
    "ImageNet": imagenet,
    "decoding": folder_decode,
    "overhead": overhead,
    "exactness": exactness,
    "literal": literal,
    "quick": quick,
    "recipes": recipes,
    "settings": lambda: table(["setting", "usual value", "meaning"], settings_rows()),
}


def rewritten(text: str) -> str:
    """Return a page with its tables made anew."""

    def renew(match: re.Match[str]) -> str:
        name = match[2]
        made = comparison(name.removesuffix(" comparison")) if name.endswith(" comparison") else TABLES[name]()
        return f"{match[1]}\n{made}\n\n{match[3]}"

    return re.sub(r"(<!-- ([\w -]+) table -->\n).*?(<!-- end of \2 table -->)", renew, text, flags=re.DOTALL)


def main() -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages.remove(ROOT / "docs" / "filter.md")  # filter_page.py writes that one
    stale = [page for page in pages if page.read_text(encoding="utf-8") != rewritten(page.read_text(encoding="utf-8"))]
    for page in stale:
        if "--check" in sys.argv:
            print(f"{page.relative_to(ROOT)} is out of date: run python benchmarks/tables.py", file=sys.stderr)
        else:
            page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
