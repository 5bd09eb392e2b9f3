"""A run of the digits recipe killed with SIGKILL again and again, and compared with one that never was.

    python benchmarks/soak.py --kills 30

Each life of the run is ended at a random moment: every third one after a random time, the others a random while after a
phase drawn in turn has begun (set-up, training, the clone, a measurement, a checkpoint, the report, the weights). The
phase that was really hit is read from a page of memory that the run's process shares with this one, and counted. A run
that reaches its end is compared, and the next one begins. Compared are hashes of the weights, the optimizer's state,
the search's state, policy.json, and metrics.jsonl without what stands under ``seconds``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import write

SETTINGS = ["epochs=3", "batch_size=128", "clone_size=256", "measure_size=60", "num_particles=8", "precision=fp32"]
PHASES = ("start", "set-up", "train", "evaluate", "clone", "measure", "metrics", "checkpoint", "policy", "report",
          "weights", "end")  # fmt: skip
TARGETS = ("set-up", "train", "clone", "checkpoint", "measure", "report", "checkpoint", "weights")
# Longest wait after a targeted phase has begun, in seconds; a checkpoint is written in a few milliseconds.
LONGEST = {
    "set-up": 0.5,
    "train": 0.5,
    "clone": 0.1,
    "checkpoint": 0.01,
    "measure": 0.2,
    "report": 1.0,
    "weights": 0.003,
}
LIMIT = 600


def child(page: str, arguments: list[str]) -> None:
    """Run the command line, noting in shared memory what it is doing."""
    from particleaugment.cli.main import app
    from particleaugment.report import page as report
    from particleaugment.search import clone
    from particleaugment.trainee import eager
    from particleaugment.training import session
    from particleaugment.training.run import RunFolder
    from particleaugment.util.atomic import write_atomically

    with open(page, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 1)

    def note(phase: str) -> None:
        shared[0] = PHASES.index(phase)

    def noted(owner: Any, name: str, phase: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def wrapped(*positional: Any, **keywords: Any) -> Any:
            before = shared[0]
            note(phase)
            try:
                return work(*positional, **keywords)
            finally:
                shared[0] = before

        setattr(owner, name, wrapped)

    noted(session.Session, "train_epoch", "train")
    noted(session.Session, "evaluate", "evaluate")
    noted(session.Session, "write_policy", "policy")
    noted(session, "save_checkpoint", "checkpoint")
    noted(session, "weights_file", "weights")
    noted(RunFolder, "append_metrics", "metrics")
    noted(report, "write_report", "report")
    noted(clone, "_train_clone", "clone")
    noted(eager.EagerTrainee, "measure", "measure")

    def noted_by_name(path: Path, content: bytes | str) -> None:
        before = shared[0]
        note("weights" if path.name == "model.safetensors" else PHASES[before])
        write_atomically(path, content)
        shared[0] = before

    session.write_atomically = noted_by_name  # type: ignore[attr-defined]
    note("set-up")
    sys.argv = ["particleaugment", *arguments]
    app()


class Run:
    """One run folder, lived in several lives."""

    def __init__(self, path: Path, settings: list[str]):
        self.path, self.settings = path, settings
        self.page = path.with_suffix(".page")
        self.page.write_bytes(b"\0")
        with open(self.page, "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 1)

    @property
    def phase(self) -> str:
        """What the process is (or was) doing."""
        return PHASES[self.shared[0]]

    def live(self) -> subprocess.Popen[bytes]:
        """Start or continue."""
        self.shared[0] = 0
        again = self.path.exists()
        arguments = (
            ["resume", str(self.path)]
            if again
            else ["train", "digits", "--set", "filter=paper", "--out", str(self.path)]
        )
        if not again:
            arguments += [part for setting in self.settings for part in ("--set", setting)]
        command = [sys.executable, __file__, "--child", str(self.page), *arguments, "-q", "--checkpoint-seconds", "0"]
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Let it come to its end."""
        _, errors = process.communicate(timeout=LIMIT)
        if process.returncode or errors:
            raise SystemExit(f"the run in {self.path} failed with code {process.returncode}: {errors.decode()}")

    def hashes(self) -> dict[str, str]:
        """Return a hash of each part of the result."""
        from particleaugment.training.checkpoint import load_latest

        state, problems = load_latest(self.path)
        assert state is not None
        assert not problems, problems
        records = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            del record["seconds"]
        return {
            "model": _digest((self.path / "model.safetensors").read_bytes()),
            "optimizer": _digest(_canonical(state["optimizer"])),
            "search": _digest(_canonical(state["search"])),
            "policy": _digest((self.path / "policy.json").read_bytes()),
            "metrics": _digest(json.dumps(records).encode()),
        }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(value: Any) -> bytes:
    """Return bytes that are equal for equal states."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return b"".join(str(key).encode() + _canonical(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return b"".join(_canonical(item) for item in value)
    return repr(value).encode()


def kill_at_a_moment(run: Run, target: str | None, moments: random.Random, longest_life: float) -> str | None:
    """Live until the moment comes, and kill; return the phase that was hit, or None if the run ended first."""
    process = run.live()
    limit = time.monotonic() + LIMIT
    if target is None:
        moment = time.monotonic() + moments.uniform(0, longest_life)
        while time.monotonic() < moment and process.poll() is None:
            time.sleep(0.001)
    else:
        while run.phase != target and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.0002)
        time.sleep(moments.uniform(0, LONGEST[target]))
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=LIMIT)
    if process.returncode == -signal.SIGKILL:
        return run.phase
    if process.returncode or errors:
        raise SystemExit(f"the run in {run.path} failed with code {process.returncode}: {errors.decode()}")
    return None


def soak(
    folder: Path, kills: int, seed: int, settings: list[str] = SETTINGS, say: Callable[[str], None] = print
) -> Any:
    """Kill a run so many times, compare every run that ended, and return the counts."""
    moments = random.Random(seed)
    whole = Run(folder / "undisturbed", settings)
    start = time.monotonic()
    whole.end(whole.live())
    longest_life, expected = time.monotonic() - start, whole.hashes()
    say(f"undisturbed run: {longest_life:.0f} s")
    hit: Counter[str] = Counter()
    compared, differing, lives, number = 0, 0, 0, 0
    run = Run(folder / "run-0", settings)

    def compare() -> None:
        nonlocal compared, differing
        found = run.hashes()
        wrong = [name for name in expected if found[name] != expected[name]]
        compared, differing = compared + 1, differing + bool(wrong)
        say(f"{run.path.name}: {'identical' if not wrong else 'DIFFERS in ' + ', '.join(wrong)}")

    while sum(hit.values()) < kills:
        target = None if lives % 3 == 2 else TARGETS[(lives - lives // 3) % len(TARGETS)]
        lives += 1
        phase = kill_at_a_moment(run, target, moments, longest_life)
        if phase is not None:
            hit[phase] += 1
            say(f"kill {sum(hit.values())} of {kills}: in {phase}")
        else:
            compare()
            number += 1
            run = Run(folder / f"run-{number}", settings)
    run.end(run.live())
    compare()
    return {
        "settings": settings,
        "kills": sum(hit.values()),
        "phase_hit": {phase: hit[phase] for phase in PHASES if hit[phase]},
        "runs_compared": compared,
        "runs_differing": differing,
        "compared": sorted(expected),
    }


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = soak(Path(folder), options.kills, options.seed)
    phases = ", ".join(f"{phase} {count}" for phase, count in results["phase_hit"].items())
    print(f"{results['kills']} kills ({phases}); {results['runs_compared']} runs compared with the undisturbed one, "
          f"{results['runs_differing']} differ")  # fmt: skip
    write("soak", results, options.seed)
    raise SystemExit(1 if results["runs_differing"] else 0)


if __name__ == "__main__":
    main()
