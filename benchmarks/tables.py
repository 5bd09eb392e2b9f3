"""Write README's tables from the result files.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    fail if they are out of date
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def speed() -> str:
    cpu, gpu = result("cpu_throughput"), result("gpu_throughput")
    lines = ["| | images/s | beside |", "|---|---|---|"]
    for row in cpu["results"]:
        size = f"{row['size']}x{row['size']}"
        lines.append(
            f"| CPU, {size}, one thread | {row['ours_1_thread']['median']:,.0f} | "
            f"timm's ops {row['timm']['median']:,.0f}: **{row['ratio_1_thread']:.1f} times** |"
        )
        lines.append(
            f"| CPU, {size}, two threads | {row['ours_2_threads']['median']:,.0f} | "
            f"one thread: {row['scaling_2_threads']:.2f} times |"
        )
    rows = {(row["name"], row["batch"]): row for row in gpu["results"]["rows"]}
    whole = "fused, 32x32, 3 ops + crop, flip, erase, normalise"
    for name, batch, peer in (
        (whole, 128, "torchvision v2, 32x32, 3 ops, ONE draw for the whole batch"),
        (whole, 8192, "torchvision v2, 32x32, 3 ops, ONE draw for the whole batch"),
        ("fused, 224x224, 3 ops", 64, "torchvision v2, 224x224, 3 ops, ONE draw for the whole batch"),
        ("fused, 224x224, 3 ops", 1024, None),
    ):
        ours = rows[name, batch]
        beside = ""
        if peer is not None:
            other = rows[peer, batch]["images_per_second"]
            beside = f"torchvision v2, one draw for the whole batch, ops only: {other:,}"
        label = name.removeprefix("fused, ")
        lines.append(
            f"| {gpu['machine']['gpu']}, {label}, batch {batch:,} | {ours['images_per_second']:,} | {beside} |"
        )
    lines += ["", f"CPU: {cpu['machine']['cpu']}; peer: {cpu['results'][0]['peer']}."]
    lines.append(f"Commands: `{cpu['command']}`, `{gpu['command']}`.")
    return "\n".join(lines)


def exactness() -> str:
    cpu, gpu = result("exactness"), result("gpu_exactness")
    pixels = gpu["results"]["pixels"]
    return "\n".join(
        [
            f"CPU executors: {cpu['results']['images']:,} images compared with direct Pillow calls, "
            f"{cpu['results']['differing']} differ (`{cpu['command']}`).",
            f"GPU kernel: {pixels['pairs']:,} (image, program) pairs, {pixels['fused_differing']} differ "
            f"(`{gpu['command']}`).",
        ]
    )


def training() -> str:
    document = result("gpu_training")
    lines = ["| network | policy | seconds an epoch | of which |", "|---|---|---|---|"]
    for row in document["results"]:
        phases = ", ".join(f"{name} {value:.2f}" for name, value in row["phases"].items() if name != "evaluate")
        lines.append(f"| {row['model']} | {row['policy']} | {row['seconds_per_epoch']:.2f} | {phases} |")
    lines += ["", "Medians over the epochs after the fourth; evaluation apart. Commands:"]
    lines[-1] += " " + ", ".join(sorted({f"`{row['command']}`" for row in document["results"]})) + "."
    return "\n".join(lines)


def rewritten(text: str) -> str:
    for name, table in (("speed", speed()), ("training", training()), ("exactness", exactness())):
        pattern = rf"(<!-- {name} table[^>]*-->\n).*?(<!-- end of {name} table -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def main() -> int:
    path = ROOT / "README.md"
    old, new = path.read_text(), rewritten(path.read_text())
    if "--check" in sys.argv:
        return int(old != new)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
