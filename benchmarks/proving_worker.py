"""Trains the proving ground's runs one after the other: a job per line on standard input, a result per line on output.

When standard input is closed, which the system does however the parent ends, the run in progress is saved.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

from proving_tasks import ARMS, TASKS

from particleaugment.report.summary import phase_seconds
from particleaugment.training.build import resolve
from particleaugment.training.config import Config, settings_of
from particleaugment.training.display import Display
from particleaugment.training.loop import train
from particleaugment.training.override import override
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.training.shared import SharedParts
from particleaugment.util.stop import Stop, Stopped
from particleaugment.util.timing import machine

CHECKPOINT_SECONDS = 30.0
DIFFICULTY_WINDOW = (0.6, 0.8)
TRACED = 20  # filter steps whose strength is kept with a run's result, about

RunJob = Callable[[dict[str, Any], Config, Path, SharedParts, Stop], dict[str, Any] | None]


def difficulty(curve: list[list[float]], epochs: int) -> float | None:
    """Return training loss under augmentation over held-out loss on plain images, mean over 60 to 80 % of training.

    >>> difficulty([[1, 2.0, 1.0, 50.0], [7, 0.5, 1.0, 60.0], [8, 0.7, 1.0, 61.0], [10, 0.1, 1.0, 70.0]], epochs=10)
    0.6
    """
    low, high = (share * epochs for share in DIFFICULTY_WINDOW)
    ratios = [trained / held_out for epoch, trained, held_out, _ in curve if low <= epoch <= high]
    return round(sum(ratios) / len(ratios), 4) if ratios else None


def run_job(job: dict[str, Any], config: Config, runs: Path, shared: SharedParts, stop: Stop) -> dict[str, Any] | None:
    """Train a run, or what is left of it; None if it was asked to stop and has saved."""
    start = time.monotonic()
    path = runs / f"{job['task']}-v{TASKS[job['task']].version}-{job['arm']}-{job['seed']}{'-final' * job['final']}"
    if path.exists() and RunFolder.open(path).config != config:
        shutil.rmtree(path)  # left by an earlier form of the task or the arm
    run = RunFolder.open(path) if path.exists() else RunFolder.create(path, config)
    with run.locked():
        session = Session(run, Display(quiet=True), stop, CHECKPOINT_SECONDS, shared=shared)
        session.restore()
        ready = time.monotonic()
        if not run.finished and not train(session):
            return None
    records = run.read_metrics()
    evaluated = [record for record in records if record["kind"] == "epoch"]
    curve = [[r["epoch"], r["train_loss"], r["test_loss"], r["test_accuracy"]] for r in evaluated]
    steps = [record for record in records if record["kind"] == "filter" and "strength" in record]
    kept = steps[:: max(1, len(steps) // TRACED)]
    trace = {"trace": [[r["epoch"], {"strength": round(r["strength"], 3)}] for r in kept]} if steps else {}
    shutil.rmtree(path)
    phases = {phase: round(value, 2) for phase, value in phase_seconds(records).items()}
    return {
        "accuracy": curve[-1][3],
        "loss": round(curve[-1][2], 5),
        "difficulty": difficulty(curve, config.training.epochs),
        "steps": config.training.epochs * -(-len(session.samples) // config.training.batch_size),
        "epochs": config.training.epochs,
        "images": len(session.samples),
        "curve": [[int(row[0]), *(round(value, 4) for value in row[1:])] for row in curve],
        **trace,
        "seconds": {"total": round(time.monotonic() - start, 2), "start": round(ready - start, 2), **phases},
    }


def _answer(output: Any, **fields: Any) -> None:
    output.write(json.dumps(fields) + "\n")
    output.flush()


def _read_jobs(jobs: Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    jobs.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


def serve(run: RunJob, arm_settings: Callable[[str, int], Sequence[str]]) -> None:
    """Serve jobs until standard input closes.

    Args:
        run: Trains one run.
        arm_settings: Returns the settings of an arm on so many images.
    """
    data_dir, runs, *changes = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    jobs: Queue[dict[str, Any] | None] = Queue()
    shared, where = SharedParts(), machine()
    with Stop() as stop:
        threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
        _answer(output, ready=True)
        while (job := jobs.get()) is not None:
            task = TASKS[job["task"]]
            head = {
                **{name: job[name] for name in ("task", "arm", "seed")},
                "task_version": task.version,
                "measured_on": "test" if job["final"] else "judge",
                "machine": where,
            }
            try:
                arm = arm_settings(job["arm"], task.size)
                config = resolve(override(task.config(arm, job["seed"], data_dir, final=job["final"]), changes))
                found = run(job, config, Path(runs), shared, stop)
            except Stopped:
                break
            except Exception as error:
                traceback.print_exc()
                reason = str(error).strip().splitlines()[:1] or [""]
                _answer(output, run=head | {"accuracy": None, "failed": f"{type(error).__name__}: {reason[0][:300]}"})
                if "CUDA" in str(error):  # the device's state is lost with this process
                    break
                continue
            if found is None:
                break
            _answer(output, run=head | found | {"settings": _changed(config)})


def _changed(config: Config) -> dict[str, Any]:
    """Return the settings that are not the defaults, without where the data are."""
    usual = Config(recipe="")
    plain = settings_of(replace(usual, filter=type(config.filter)())) | {"filter": usual.filter.kind}
    return {name: value for name, value in settings_of(config.with_data_in("")).items() if plain[name] != value}


if __name__ == "__main__":
    serve(run_job, lambda arm, size: ARMS[arm].settings(size))
