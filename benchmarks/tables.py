"""Write the tables of README and of the pages under docs from the result files, and the list of recipes.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    fail, and name the pages, if they are out of date

A table stands between the comments ``<!-- NAME table -->`` and ``<!-- end of NAME table -->``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accuracy_tables import PHASES, POLICIES, comparison, controls, literal, policy_text, quick, results
from common import result, table
from cpu_threads import threads_table
from difficulty_page import constants_table, evidence_table, settings_few, strengths_table
from loader_throughput import images_table, loaders_table
from old_names import in_new_names
from paper_table import paper_table
from peers import peers_table, readme_peers
from proving_page import FRESH_FILE, RESULT_FILE, SMALL_FILE, figures_of
from proving_words import by_task_table, proving_table
from ranks_model import scaling_table, steps_table
from settings_table import settings_tables
from size_picture import small_results
from targets import targets_table

from particleaugment.recipes import RECIPES, Recipe
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config, settings_of

ROOT = Path(__file__).parents[1]
WHOLE_KERNEL = "fused, 32x32, 3 ops + crop, flip, erase, normalise"


def spread(measured: dict[str, float]) -> str:
    return f"{measured['median']:,.0f} ({measured['low']:,.0f} to {measured['high']:,.0f})"


def gpu_rows() -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["name"], row["batch"]): row for row in result("gpu_throughput")["results"]["rows"]}


def speed() -> str:
    """README's: what users feel, in a few lines."""
    cpu, gpu, rows = result("cpu_throughput"), result("gpu_throughput")["machine"]["gpu"], gpu_rows()
    lines = [
        [
            f"augmentation on the CPU, {row['size']}x{row['size']}, one thread",
            f"{row['ours_1_thread']['median']:,.0f} images/s: **{row['ratio_1_thread']:.1f} times** {_peer(row)}",
        ]
        for row in cpu["results"]
    ]
    for name, batch in ((WHOLE_KERNEL, 128), (WHOLE_KERNEL, 8192), ("fused, 224x224, 3 ops", 1024)):
        label = name.removeprefix("fused, ").split(",")[0]
        lines.append(
            [
                f"augmentation on an {gpu}, {label}, batch {batch:,}",
                f"{rows[name, batch]['images_per_second']:,} images/s",
            ]
        )
    epochs = {(row["model"], row["policy"]): row["seconds_per_epoch"] for row in result("gpu_training")["results"]}
    for model in ("wrn-28-2", "wrn-28-10"):
        timed = {
            "plain": "randaugment",
            "with the difficulty filter": "difficulty",
            "with the gap filter (withdrawn)": "improved",
            "with the paper's": "particles",
        }
        said = [f"{epochs[model, name]:.2f} s {words}" for words, name in timed.items() if (model, name) in epochs]
        lines.append([f"one CIFAR-10 epoch on it, {model.upper()}", ", ".join(said)])
    return table(["", ""], lines)


def _peer(row: dict[str, Any]) -> str:
    return "timm" if row["peer"] == "timm" else "Pillow called as timm does"


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
    text = table(["images", "one thread", "two threads", _peer(document["results"][0]), "ratio, one thread"], rows)
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
    text = table(["", "batch", "images/s", "time; lower bound by bandwidth"], rows)
    bandwidth = document["results"]["bandwidth_bytes_per_second"] / 1e12
    return (
        f"{text}\n\n{document['machine']['gpu']}, memory measured at {bandwidth:.2f} TB/s. "
        f"Command: `{document['command']}`."
    )


def training() -> str:
    document, order = result("gpu_training"), list(POLICIES.values())
    rows = []
    for row in sorted(
        document["results"], key=lambda row: (len(row["model"]), order.index(policy_text(row["policy"])))
    ):
        phases = ", ".join(f"{name} {row['phases'][name]:.2f}" for name in PHASES if name in row["phases"])
        share = row.get("augmentation", {}).get("share_of_step")
        rows.append(
            [
                row["model"].upper(),
                policy_text(row["policy"]),
                f"{row['seconds_per_epoch']:.2f}",
                phases,
                f"{row['training_tflops']:.0f}",
                "" if share is None else f"{100 * share:.2f} %",
            ]
        )
    text = table(
        ["network", "policy", "seconds per epoch", "by phase", "TFLOP/s, training", "augmentation, share"],
        rows,
    )
    commands = ", ".join(sorted({f"`{in_new_names(row['command'])}`" for row in document["results"]}))
    return f"{text}\n\nMedians over the epochs after the fourth; without evaluation. Commands: {commands}."


def imagenet() -> str:
    document = result("imagenet_path")
    run = document["results"]["runs"][0]
    alone = run["alone"]
    rows = [["the network alone, always the same batch", spread(alone["network"])]]
    rows.append(["the loader alone: decode and crop", f"{alone['loader']['images_per_second']:,.0f}"])
    for name, measured in alone.items():
        if name.startswith("augmentation"):
            policy = policy_text(name.removeprefix("augmentation, "))
            rows.append([f"augmentation alone, {policy}", spread(measured)])
    for policy, measured in run["training"].items():
        rows.append([f"**training, {policy_text(policy)}**", f"**{measured['images_per_second']:,.0f}**"])
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
    text = table(["part of the step", "share of the epoch, with the step"], rows)
    return (
        f"{text}\n\nEverything but the network's forward and backward passes: "
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


def recipes() -> str:
    """Every recipe: its docstring, its command, and the settings that are not the defaults."""
    sections = []
    for name, make in RECIPES.items():
        title, *paragraphs = (inspect.getdoc(make) or "").split("\n\n")
        body = [paragraph.replace("``", "`") for paragraph in paragraphs]
        location = "" if name == "digits" else " --set data_dir=DIR"
        command = f"```\nparticleaugment train {name}{location}\n```"
        own, papers = changed_settings(make())
        said = f"Settings that differ from the defaults: {own}." + (
            f" With `--set filter=paper`: {papers}." if papers else ""
        )
        sections.append("\n\n".join([f"## `{name}`", title, *body, command, said]))
    return "\n\n".join(sections)


def changed_settings(recipe: Recipe) -> tuple[str, str]:
    """Return a recipe's settings that are not the defaults, and those of its paper's filter."""
    usual, found = settings_of(Config(recipe=recipe.config.recipe)), settings_of(recipe.config)
    own = [f"`{key}={value}`" for key, value in found.items() if value != usual[key]]
    papers = [f"`{key}={value}`" for key, value in vars(recipe.paper).items() if value != getattr(PaperFilter(), key)]
    return ", ".join(own), ", ".join(papers)


def demo_gain() -> str:
    """What the demo's learned policy gains over several seeds."""
    found = result("demo_gain")["results"]
    accuracy, (low, high) = found["mean_accuracy"], found["interval"]
    rows = [["no policy", f"{accuracy['none']:.2f}"], ["learned policy", f"{accuracy['learned']:.2f}"]]
    gain = f"{found['mean_difference']:+.2f} [{low:+.2f}, {high:+.2f}]"
    text = table([f"the demo, {len(found['seeds'])} seeds", "accuracy, %"], rows)
    return f"{text}\n\nDifference with its 95 % interval: {gain} points. Command: `python benchmarks/demo_gain.py`."


TABLES: dict[str, Callable[[], str]] = {
    "demo gain": demo_gain,
    "speed": speed,
    "results": results,
    "small results": small_results,
    "peers": peers_table,
    "README peers": readme_peers,
    "CPU speed": cpu_speed,
    "single images": images_table,
    "loader": loaders_table,
    "GPU speed": gpu_speed,
    "training": training,
    "ImageNet": imagenet,
    "decoding": folder_decode,
    "overhead": overhead,
    "CPU threads": threads_table,
    "exactness": exactness,
    "targets": targets_table,
    "controls": controls,
    "paper": paper_table,
    "literal": literal,
    "quick": quick,
    "recipes": recipes,
    "proving ground": lambda: proving_table(figures_of([RESULT_FILE])),
    "small tasks": lambda: proving_table(figures_of([SMALL_FILE])),
    "fresh images": lambda: proving_table(figures_of([FRESH_FILE])),
    "fresh images by task": lambda: by_task_table(figures_of([FRESH_FILE]), "difficulty"),
    "settings": settings_tables,
    "difficulty settings": settings_few,
    "difficulty constants": constants_table,
    "difficulty strengths": strengths_table,
    "difficulty evidence": evidence_table,
    "ranks on GPUs": steps_table,
    "scaling": scaling_table,
}


def rewritten(text: str) -> str:
    """Return a page with its tables up to date."""

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
