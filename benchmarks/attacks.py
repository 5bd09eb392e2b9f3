"""Thousands of random attacks on run folders, their files, their data and the engine; each must come to nothing.

    python benchmarks/attacks.py --seconds 780

The classes of attacks share the time equally. An attack copies a sound run, changes something in it, and lets
real commands and functions have it, in a forked process. Reported is whatever hangs, takes much memory, ends in a
traceback instead of a documented error, changes anything outside the folder, shows raw escapes, is accepted although it
is wrong, or on which ``verify`` and ``resume`` disagree. An attack is a function of the seed, its class and its number:
``--only links:17`` repeats one.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # a forked process has no threads but its own
os.environ["COLUMNS"] = "100"

from attack_engine import engine
from attack_folders import changed_data, links, special_files
from attack_inputs import archives, policy_lists, replies
from attack_moments import moments
from attack_sandbox import KINDS, Sandbox, Workshop, attempt
from attack_states import checkpoints, impossible, weights
from attack_texts import tampered_results, terminal
from common import RESULTS, write
from matplotlib.figure import Figure

UNDRAWN = 0.9
Attack = Callable[[Sandbox, random.Random], str]
CLASSES: Mapping[str, Attack] = {
    "engine": engine,
    "weights": weights,
    "archives": archives,
    "servers": replies,
    "policy lists": policy_lists,
    "terminal": terminal,
    "tampered results": tampered_results,
    "changed data": changed_data,
    "links": links,
    "special files": special_files,
    "checkpoints": checkpoints,
    "impossible values": impossible,
    "clocks and disks": moments,
}


def carry_out(name: str, number: int, seed: int, workshop: Workshop) -> dict[str, str]:
    """Do one attack in a folder of its own."""

    def work() -> str:
        draw = random.Random(f"{seed} {name} {number}")
        with undrawn() if draw.random() < UNDRAWN else nullcontext():
            return CLASSES[name](Sandbox(Path(folder), workshop), draw)

    with tempfile.TemporaryDirectory() as folder:
        return attempt(work)


def undrawn() -> AbstractContextManager[Any]:
    """Leave out the last step of drawing, which takes most of the time of a report and sees nothing but floats."""
    return patch.object(Figure, "savefig", lambda figure, buffer, **_: buffer.write('<svg><use href="#a"/></svg>'))


def attack_class(name: str, seconds: float, most: int, seed: int, workshop: Workshop) -> dict[str, Any]:
    """Attack for so long, and count what came of it."""
    counts: Counter[str] = Counter()
    findings = []
    start = time.monotonic()
    slowest = 0.0
    while time.monotonic() - start < seconds and sum(counts.values()) < most:
        number, begun = sum(counts.values()), time.monotonic()
        found = carry_out(name, number, seed, workshop)
        slowest = max(slowest, time.monotonic() - begun)
        counts[found.get("outcome", "findings")] += 1
        if "finding" in found:
            findings.append({"attack": f"{name}:{number}", "finding": found["finding"]})
            print(f"FOUND {name}:{number}: {found['finding']}", flush=True)
    counted = {word: counts[word] for word in ("refused", "accepted", "passed over") if counts[word]}
    return {"attacks": sum(counts.values()), **counted, "slowest_seconds": round(slowest, 1), "findings": findings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=780, help="time for all classes together")
    parser.add_argument("--most", type=int, default=1000, help="attacks per class, at most")
    parser.add_argument("--classes", default=",".join(CLASSES), help="classes of attacks, separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of runs to attack, separated by commas")
    parser.add_argument("--only", metavar="CLASS:NUMBER", help="one attack; nothing is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), tuple(options.kinds.split(",")))
        if options.only:
            name, _, number = options.only.partition(":")
            print(*carry_out(name, int(number), options.seed, workshop).values())
            return
        results = {}
        names = options.classes.split(",")
        deadline = time.monotonic() + options.seconds
        for left, name in zip(range(len(names), 0, -1), names):
            seconds = (deadline - time.monotonic()) / left  # what one class does not need, the others have
            results[name] = attack_class(name, max(seconds, 0.1), options.most, options.seed, workshop)
            print(f"{name}: {results[name] | {'findings': len(results[name]['findings'])}}", flush=True)
    write("attacks", {"classes": results}, options.seed, options.out)
    sys.exit(1 if any(found["findings"] for found in results.values()) else 0)


if __name__ == "__main__":
    main()
