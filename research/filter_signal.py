"""Does any signal say which augmentation helps? Repeatability and validity of candidates, on a GPU with CIFAR-10.

Repeatability: particles are held fixed, and every candidate is measured at 8 consecutive epochs' reference models, at a
high, a middle and a low learning rate. Validity: one short run per op and seed tells what each op alone is worth, and
each candidate's order of the ops is compared with that. Finished parts are kept in the result file, so that a stopped
study goes on where it was; more seeds add to what is there.

    python research/filter_signal.py --data /data --seeds 6

Several networks train at the same time, each in a process of its own; that pays where CUDA's multi-process service
runs (``nvidia-cuda-mps-control -d``), since one small network leaves most of a large GPU idle.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from particleaugment.core.op_table import OPS
from particleaugment.data import ImageData, epoch_permutation, load_data, train_validation_split

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

from common import write  # noqa: E402
from signal_statistics import summary  # noqa: E402
from signal_trainee import SINGLE_PROBABILITY, SPARSE, M, StudyTrainee, accuracy, cosine, particles, policy  # noqa: E402
from signals import measure_all  # noqa: E402

RESULTS = HERE / "results"

MODEL = "wrn-28-2"
MODELS_PER_MOMENT = 8


@dataclass(frozen=True)
class Regime:
    """A training run along which candidates are measured.

    Attributes:
        images: Training images.
        epochs: Length of the run.
        rows: The particles that it trains under, evenly.
        moments: First of the 8 epochs measured, by name of the learning rate.
        own: Whether one clone per op is trained, too.
    """

    images: int
    epochs: int
    rows: range
    moments: dict[str, int]
    own: bool


SMALL = Regime(10000, 30, range(SPARSE, SPARSE + len(OPS)), {"high": 3, "middle": 12, "low": 22}, own=True)
LARGE = Regime(45000, 60, range(SPARSE), {"high": 4, "middle": 27, "low": 50}, own=False)
REGIMES = {"small": SMALL, "large": LARGE}

Part = tuple[str, str, int]
"""Which study, of which op or regime, with which seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary archive")
    parser.add_argument("--seeds", type=int, default=6, help="runs per op for the truth")
    parser.add_argument("--jobs", type=int, default=5, help="networks trained at the same time")
    options = parser.parse_args()
    results = _known()
    parts = _missing(results, options.seeds)
    print(f"{len(parts)} parts to do, {options.jobs} at a time", flush=True)
    start = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, initializer=_begin, initargs=(options.data,)) as pool:
        running = {pool.submit(_run, part): part for part in parts}
        for done in as_completed(running):
            study, name, seed = running[done]
            found = done.result()
            results[study][name] = results[study].get(name, {}) | found if study == "truth" else found
            print(f"{study} {name} seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
            _save(results)
    _save(results)


def _known() -> dict[str, Any]:
    path = RESULTS / "filter_signal.json"
    known = json.loads(path.read_text())["results"] if path.exists() else {}
    return {name: known.get(name, {}) for name in ("repeatability", "truth")}


def _missing(results: dict[str, Any], seeds: int) -> list[Part]:
    """Return what is still to be done, the longest parts first."""
    regimes = [("repeatability", name, 100) for name in REGIMES if name not in results["repeatability"]]
    runs = [("truth", op, seed) for seed in range(seeds) for op in OPS]
    return regimes + [run for run in runs if str(run[2]) not in results["truth"].get(run[1], {})]


def _save(results: dict[str, Any]) -> None:
    document = {
        "model": MODEL,
        "m": M,
        "single_probability": SINGLE_PROBABILITY,
        "ops": list(OPS),
        "particles": particles().tolist(),
        **results,
    }
    whole = set(results["truth"]) == set(OPS)
    write(
        "filter_signal",
        document | ({"summary": summary(results, SPARSE, OPS)} if whole else {}),
        seed=0,
        folder=RESULTS,
    )


_study: Study


def _begin(directory: str) -> None:
    global _study
    _study = Study(directory)


def _run(part: Part) -> dict[str, Any]:
    kind, name, seed = part
    return _study.repeatability(name, seed) if kind == "repeatability" else _study.truth(OPS.index(name), seed)


class Study:
    """The data, and a network whose captured step serves one part after the other."""

    def __init__(self, directory: str):
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        data = load_data("cifar10", directory)
        device = torch.device("cuda")
        images, labels = data.train_images.to(device), data.train_labels.to(device)
        self.train, self.held_out = train_validation_split(data.train_labels, 5000, 0)
        self.small, rest = (self.train[part] for part in _two_parts(data.train_labels[self.train], SMALL.images))
        judged = rest[:10000].to(device)
        self.data: ImageData = replace(
            data, train_images=images, train_labels=labels, test_images=images[judged], test_labels=labels[judged]
        )
        self.trainee = StudyTrainee(self.data, MODEL)

    def repeatability(self, name: str, seed: int) -> dict[str, Any]:
        """Measure all candidates along one training run."""
        regime, device, start = REGIMES[name], torch.device("cuda"), time.perf_counter()
        trainee, ids = self.trainee, self.small if name == "small" else self.train
        training, epochs = policy(regime.rows), regime.epochs
        trainee.start(seed)
        measured: dict[str, list[dict[str, list[float]]]] = {}
        for epoch in range(1, epochs + 1):
            trainee.set_rate(cosine(epoch, epochs))
            trainee.epoch(training, ids, seed, epoch)
            moment = next((m for m, e in regime.moments.items() if e <= epoch < e + MODELS_PER_MOMENT), None)
            if moment is None:
                continue
            trainee.set_rate(cosine(epoch + 1, epochs))
            order = ids[epoch_permutation(len(ids), seed, (1 << 28) + epoch)]
            probe, clone = order[:512].to(device), order[512 : 512 + round(0.512 * len(ids))].to(device)
            found = measure_all(
                trainee, training, ids.to(device), self.held_out[:2048].to(device), clone, probe, epoch, seed,
                own=regime.own,
            )  # fmt: skip
            measured.setdefault(moment, []).append(found)
        return {
            "regime": asdict(regime) | {"rows": [regime.rows.start, regime.rows.stop]},
            "moments": measured,
            "final_accuracy": accuracy(trainee) if name == "small" else None,
            "seconds": round(time.perf_counter() - start, 1),
        }

    def truth(self, op: int, seed: int) -> dict[str, Any]:
        """Train under one op alone and say what that is worth."""
        trainee, epochs, training = self.trainee, SMALL.epochs, policy([SPARSE + op])
        trainee.start(seed)
        loss = 0.0
        for epoch in range(1, epochs + 1):
            trainee.set_rate(cosine(epoch, epochs))
            loss = trainee.epoch(training, self.small, seed, epoch)
        return {str(seed): {"accuracy": accuracy(trainee), "train_loss": loss}}


def _two_parts(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    rest, part = train_validation_split(labels, count, 1)
    return part, rest


if __name__ == "__main__":
    main()
