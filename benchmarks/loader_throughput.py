"""Augmenting one image at a time, in loaders over JPEG files and in batches, beside torchvision and timm themselves.

    python benchmarks/loader_throughput.py

Needs torchvision and timm, which bring a CUDA build of torch. Every row is timed by turns with its peer's, on one
thread (a loader: on one thread per worker). The rows without Numba are measured in a process that cannot import it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import result, table, write

from particleaugment.bench.loader import batch_rows, image_rows, loader_rows

SIZES = {32: 256, 224: 48}
BATCHES = {32: 512, 224: 64}
FILES, WORKERS = 512, (2, 8)


def single_rows(rounds: int, seed: int) -> list[dict[str, Any]]:
    """Time single images of both sizes."""
    return [row for size, count in SIZES.items() for row in image_rows(size, count, rounds, seed)]


def rows_without_numba(rounds: int, seed: int) -> list[dict[str, Any]]:
    """Time single images in a process that cannot import Numba."""
    program = (
        "import json, sys\nsys.modules['numba'] = None\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from loader_throughput import single_rows\nprint(json.dumps(single_rows({rounds}, {seed})))"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def measured(value: dict[str, float] | None) -> str:
    return "" if value is None else f"{value['median']:,.0f} ({value['low']:,.0f} to {value['high']:,.0f})"


def said(document: dict[str, Any]) -> str:
    """Where it was measured, and by which command."""
    machine, load = document["machine"], document["results"]["load"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torchvision", "timm", "pillow"))
    rough = f" Other work was running (load {load:g} on {machine['cores']} cores): rates are rough, ratios less so."
    return f"{machine['cpu']}, {machine['cores']} cores; {versions}. Command: `{document['command']}`." + (
        rough if load > machine["cores"] else ""
    )


def images_table() -> str:
    """Single images, and batches of the same."""
    document = result("loader_throughput")
    found = document["results"]
    rows = []
    groups = (("", found["images"]), (", without Numba", found["without_numba"]), ("", found["batches"]))
    for note, group in groups:
        for row in group:
            given = f"batches of {row['batch']}" if row["input"] == "batch" else f"single, {row['input']}"
            cells = [f"{row['size']}x{row['size']}, {row['policy']}", given + note, measured(row["ours"])]
            rows.append([*cells, f"{row['peer_name']}: {measured(row['peer'])}", f"{row['ratio']:.2f}"])
    return f"{table(['images', 'given as', 'here, images/s', 'peer, images/s', 'ratio'], rows)}\n\n{said(document)}"


def loaders_table() -> str:
    """Whole loaders over JPEG files."""
    document = result("loader_throughput")
    rows = []
    for row in document["results"]["loaders"]:
        peer = f"{row['peer_name']}: {measured(row['peer'])}" if "peer" in row else ""
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        rows.append([str(row["workers"]), row["policy"], measured(row["ours"]), peer, ratio])
    return f"{table(['workers', 'policy', 'here, images/s', 'peer, images/s', 'ratio'], rows)}\n\n{said(document)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rounds, seed = arguments.rounds, arguments.seed
    load = os.getloadavg()[0]
    results: dict[str, Any] = {
        "images": single_rows(rounds, seed),
        "without_numba": rows_without_numba(rounds, seed),
        "batches": [row for size, batch in BATCHES.items() for row in batch_rows(size, batch, rounds, seed)],
        "loaders": list(loader_rows(FILES, WORKERS, max(3, rounds // 2), seed)),
    }
    for name, rows in results.items():
        for row in rows:
            where = f"{row['size']}x{row['size']}, {row['input']}" if "size" in row else f"{row['workers']} workers"
            beside = f", {row['peer_name']} {row['peer']['median']:,.0f}/s: {row['ratio']}" if "peer" in row else ""
            print(f"{name}: {row['policy']}, {where}: {row['ours']['median']:,.0f}/s{beside}")
    write("loader_throughput", results | {"load": round(load, 1)}, seed)


if __name__ == "__main__":
    main()
