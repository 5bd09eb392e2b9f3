"""Damaged files of every format, drawn by Hypothesis: each is read as it stands or refused in one clear sentence.

    python benchmarks/fuzz_files.py --files 10000

Bits are flipped, bytes cut, dropped, repeated, inserted and overwritten; in JSON, values are replaced by numbers too
large, deep nesting, other types, text that no terminal should see, and fields are dropped, renamed and given twice.
Any other exception, a message of several lines, one that does not name the file, or five seconds of work is a failure.
Afterwards the costliest files that the limits let through are read in processes of their own, for their memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from common import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reliability"))

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from mutations import FORMATS, Format, mutations  # type: ignore[import-not-found]

MEMORY_LIMIT_MIB = 1024
# Contents of the largest size allowed, by what they are made of.
COSTLY = {
    "whole numbers": "b'[' + b'257,' * ((64 << 18) - 1) + b'0]'",
    "fractions": "b'[' + b'1.5,' * ((64 << 18) - 1) + b'0]'",
    "lists": "b'[' + b'[],' * 1_990_000 + b'0]'",
    "texts": "b'[' + b'\"ab\",' * 1_990_000 + b'0]'",
    "many lists": "b'[' + b'[],' * 20_000_000 + b'0]'",
    "nesting": "b'[' * (64 << 20)",
    "one number": "b'9' * (64 << 20)",
}
READER = """
import resource, sys, time
from particleaugment.util.strict_json import JSONError, parse_json
content = {expression}
start = time.process_time()
try:
    parse_json(content)
    outcome = "read"
except JSONError as error:
    outcome = "refused"
print(outcome, round(time.process_time() - start, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def fuzz(made: Format, files: int, seed: int, folder: Path) -> dict[str, Any]:
    """Read so many damaged files and count what became of them."""
    counts: Counter[str] = Counter()

    @with_seed(seed)
    @settings(max_examples=files, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(mutations(made))
    def check(content: bytes) -> None:
        message = made.outcome(folder, content)
        counts["read" if message == "read" else "refused"] += 1

    check()
    return {"files": sum(counts.values()), "refused": counts["refused"], "read": counts["read"]}


def memory(expression: str) -> dict[str, Any]:
    """Read one costly file in a process of its own."""
    command = [sys.executable, "-c", READER.format(expression=expression)]
    outcome, seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return {"outcome": outcome, "seconds": float(seconds), "peak_mib": int(peak)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="damaged files per format")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results: dict[str, Any] = {"formats": {}, "costly": {}}
    for name, made in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz(made, options.files, options.seed, Path(folder))
        results["formats"][name] = found
        print(f"{name}: {found['files']} damaged files, {found['refused']} refused in one sentence, "
              f"{found['read']} still sound", flush=True)  # fmt: skip
    for name, expression in COSTLY.items():
        found = results["costly"][name] = memory(expression)
        print(f"64 MiB of {name}: {found['outcome']} in {found['seconds']} s with {found['peak_mib']} MiB", flush=True)
    write("fuzz_files", results, options.seed)
    too_much = [name for name, found in results["costly"].items() if found["peak_mib"] > MEMORY_LIMIT_MIB]
    raise SystemExit(f"too much memory: {', '.join(too_much)}" if too_much else 0)


if __name__ == "__main__":
    main()
