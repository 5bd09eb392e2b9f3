"""Whether two versions of the package give the same results, bit for bit, on this machine.

    python benchmarks/same_results.py OLD [NEW]

OLD and NEW are commits (or folders with ``src``); NEW is the working tree if it is not given. Both run the same small
cases with the same Python, each in an environment of its own, and their metrics, policies and weights are compared.
``same_results_cases.py`` has the cases, and the table of what the new version calls otherwise. The exit code is 1 if
anything differs.

With ``--bench``, ``particleaugment bench --quick`` of both versions is alternated instead, and the ratios of their
speeds are printed; other libraries' rows, the same code in both versions, show how far the machine's noise goes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from common import write
from PIL import Image
from same_results_bench import alternated
from same_results_cases import ADDED, CASES, LEFT_OUT, RENAMES, UNDISTURBED, Case
from same_results_files import first_difference
from same_results_versions import Version, VersionError, checked_out, end_processes
from sklearn.datasets import load_digits

SEED = 0


def write_digits(folder: Path) -> None:
    """Write a few digits as files of several sizes, formats and modes; names begin with a group of three."""
    digits = load_digits()
    counts = dict.fromkeys(range(10), 0)
    for pixels, label in list(zip(digits.images, digits.target))[:480]:
        number = counts[label]
        counts[label] += 1
        part = "test" if number % 4 == 3 else "train"
        image = Image.fromarray((pixels * 15.9).astype("uint8"))
        image = image.resize((16 + number % 5, 18), Image.Resampling.BILINEAR)
        path = folder / part / str(label) / f"{number // 12:02}_{number:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            image.convert("RGB").save(path.with_suffix(".jpg"), quality=90)
        else:
            image.save(path.with_suffix(".png"))


def run_case(case: Case, version: Version, folder: Path, digits: Path) -> None:
    """Let a version do a case, in a folder."""
    if case.script is not None:
        program = folder / "program.py"
        program.parent.mkdir(parents=True)
        program.write_text(case.script[version.new_names])
        version.run([str(program), str(folder / "run")], folder)
        return
    words = ["-m", "particleaugment", *case.words(str(digits), version.new_names)]
    if case.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
        words = [*launcher, *words]
    if case.killed:
        version.run([*words, "--out", str(folder / UNDISTURBED)], folder)
        _kill_and_resume(words, version, folder)
        return
    version.run([*words, "--out", str(folder / "run")], folder, gpu=case.gpu)


def _kill_and_resume(words: list[str], version: Version, folder: Path) -> None:
    run = folder / "run"
    process = version.start([*words, "--out", str(run), "--checkpoint-seconds", "0"], folder)
    try:
        while process.poll() is None and not any(run.glob("checkpoint*")):
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    if not any(run.glob("checkpoint*")):
        raise VersionError(f"{version.label} ended without a checkpoint: {folder / 'log.txt'} has what it printed")
    if (run / "model.safetensors").exists():
        raise VersionError(f"{version.label} ended before it could be killed; give the case more epochs")
    version.run(["-m", "particleaugment", "resume", str(run)], folder)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if not records[-1]["seconds"]["resumes"]:
        raise VersionError(f"{version.label} started from the beginning instead of its checkpoint")


def compare_case(case: Case, old: Version, new: Version, folder: Path, digits: Path) -> str | None:
    """Let both versions do a case and return where they first differ, or None."""
    folders = {version: folder / case.name / version.label.lower() for version in (old, new)}
    for path in folders.values():
        shutil.rmtree(path, ignore_errors=True)
    try:
        # Side by side: each has one thread, and results do not depend on the time.
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda version: run_case(case, version, folders[version], digits), folders))
    except VersionError as error:
        return str(error)
    for file in case.files:
        name = Path(file).name
        renames = RENAMES[name] if new.new_names and not old.new_names else {}
        optional = ADDED.get(name, frozenset()), LEFT_OUT.get(name, frozenset())
        if (found := first_difference(folders[old] / file, folders[new] / file, renames, *optional)) is not None:
            return f"{Path(file).parent}/{found}"
    return _killed_differs(case, folders) if case.killed else None


def _killed_differs(case: Case, folders: dict[Version, Path]) -> str | None:
    labels = ("a run that was never killed", "the one that was")
    for version, path in folders.items():
        for file in case.files:
            if file.startswith("run/"):
                whole = path / UNDISTURBED / Path(file).name
                if (found := first_difference(whole, path / file, labels=labels)) is not None:
                    return f"{version.label}, killed and resumed: {found}"
    return None


def chosen_cases(names: Sequence[str], gpu: bool) -> list[Case]:
    """Return the cases to run: those that are named, or all, with or without those of the GPU."""
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no case {name!r}; the cases are {', '.join(known)}")
    chosen = [known[name] for name in names] or list(CASES)
    if gpu and not torch.cuda.is_available():
        raise SystemExit("--gpu needs a CUDA device, and there is none; leave it out")
    if not gpu and any(case.gpu for case in chosen if names):
        raise SystemExit("cases of the GPU were named; add --gpu")
    return [case for case in chosen if gpu or not case.gpu]


def compare_all(cases: Sequence[Case], old: Version, new: Version, folder: Path) -> list[dict[str, Any]]:
    """Run the cases one after the other, print a line for each, and return their verdicts."""
    digits, rows = folder / "digits", list[dict[str, Any]]()
    shutil.rmtree(digits, ignore_errors=True)
    write_digits(digits)
    for case in cases:
        start = time.monotonic()
        if case.since and not old.has_word(case.since):
            verdict, difference = "left out", f"OLD has no setting {case.since}"
        else:
            difference = compare_case(case, old, new, folder, digits) or ""
            verdict = "differs" if difference else "same"
        seconds = round(time.monotonic() - start)
        print(f"{verdict:9} {case.name:19} {seconds:4} s  {difference}".rstrip(), flush=True)
        rows.append({"case": case.name, "verdict": verdict, "difference": difference, "command": case.command})
    return rows


def _stop(number: int, frame: object) -> None:
    """End at a signal, leaving neither processes nor work trees behind."""
    end_processes()
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="commit, or a folder with src")
    parser.add_argument("new", metavar="NEW", nargs="?", help="the same; the working tree if it is not given")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the runs here")
    parser.add_argument("--only", default="", metavar="NAME,...", help="these cases alone")
    parser.add_argument("--gpu", action="store_true", help="the cases of the GPU too")
    parser.add_argument(
        "--bench", type=int, nargs="?", const=3, metavar="N", help="alternate bench N times (3) instead"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/same_results.json")
    options = parser.parse_args()
    cases = chosen_cases([name for name in options.only.split(",") if name], options.gpu)
    if options.bench is not None and options.bench < 1:
        parser.error(f"--bench needs at least one round, got {options.bench}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with tempfile.TemporaryDirectory(prefix="same-") as temporary, ExitStack() as stack:
        folder = (options.out or Path(temporary) / "runs").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            old = stack.enter_context(checked_out("OLD", options.old, Path(temporary)))
            new = stack.enter_context(checked_out("NEW", options.new, Path(temporary)))
            for version in (old, new):
                version.check_sources()
                print(f"{version.label}: {version.name}")
            if options.bench is not None:
                timed = alternated(old, new, options.bench, folder / "bench")
        except VersionError as error:
            raise SystemExit(f"same_results.py: {error}") from None
        versions = {"old": old.name, "new": new.name}
        if options.bench is not None:
            print("NEW's speed divided by OLD's: of the fastest rounds, median, lowest to highest, verdict, row")
            print("\n".join(row.line() for row in timed))
            name, results = "same_results_bench", versions | {"rows": [row.to_dict() for row in timed]}
            failed = any(row.verdict in ("slower", "faster") for row in timed if not row.is_peer)
        else:
            rows = compare_all(cases, old, new, folder)
            name, results = "same_results", versions | {"cases": rows}
            failed = any(row["verdict"] == "differs" for row in rows)
        if options.write:
            write(name, results, SEED)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
