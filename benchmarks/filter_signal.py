"""Does any signal say which augmentation helps? Repeatability and validity of candidates, on a GPU with CIFAR-10.

Repeatability: particles are held fixed, and every candidate is measured at 8 consecutive epochs' reference models, at a
high, a middle and a low learning rate. Validity: one short run per op and seed tells what each op alone is worth, and
each candidate's order of the ops is compared with that. Finished parts are kept in the result file, so that a stopped
study goes on where it was; more seeds add to what is there.

    python benchmarks/filter_signal.py --data /data --seeds 6
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from common import RESULTS, write
from signal_statistics import summary
from signal_trainee import SINGLE_PROBABILITY, SPARSE, M, StudyTrainee, accuracy, cosine, in_parallel, particles, policy
from signals import measure_all
from torch import Tensor

from particleaugment.data import ImageData, epoch_permutation, load_data, train_validation_split
from particleaugment.ops import OPS

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

Severity = Callable[[float], tuple[Sequence[int], float, float]]
# How severe should augmentation be, and when? The particles, the level m and the scale of their probabilities, by the
# share of training done. One op in every image is scale 2, since a single op's probability is 1/2.
LANDSCAPE: dict[str, Severity] = {
    "none": lambda done: (range(SPARSE), M, 0.0),
    "sparse, m 3": lambda done: (range(SPARSE), M, 1.0),
    "sparse, m 10": lambda done: (range(SPARSE), 10.0, 1.0),
    "one op, m 3": lambda done: (SMALL.rows, M, 2.0),
    "one op, m 6": lambda done: (SMALL.rows, 6.0, 2.0),
    "one op, m 10": lambda done: (SMALL.rows, 10.0, 2.0),
    "one op in half the images, m 10": lambda done: (SMALL.rows, 10.0, 1.0),
    "one op, m 10, fading": lambda done: (SMALL.rows, 10.0, 2.0 * (1.0 - done)),
    "one op, m 10, rising": lambda done: (SMALL.rows, 10.0, 2.0 * done),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary archive")
    parser.add_argument("--seeds", type=int, default=6, help="runs per op for the truth")
    parser.add_argument("--trainees", type=int, default=5, help="networks trained at the same time")
    parser.add_argument("--landscape", type=int, default=2, help="runs per severity")
    parser.add_argument("--minutes", type=float, default=60, help="start no new part after this time")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    study = Study(options.data, deadline)
    jobs = study.jobs(options.seeds, options.landscape)
    print(f"{len(jobs)} parts to do, {options.trainees} at a time", flush=True)
    if jobs:
        trainees = [StudyTrainee(study.data, MODEL) for _ in range(min(options.trainees, len(jobs)))]
        for trainee in trainees:
            trainee.capture()
        torch.cuda.synchronize()
        print("captured", flush=True)
        in_parallel(trainees, jobs)
    study.save()


class Study:
    """The parts of both studies, each a job that adds its result and saves."""

    def __init__(self, directory: str, deadline: float):
        data = load_data("cifar10", directory)
        device = torch.device("cuda")
        self.data: ImageData = replace(
            data, train_images=data.train_images.to(device), train_labels=data.train_labels.to(device)
        )
        self.train, self.held_out = train_validation_split(data.train_labels, 5000, 0)
        self.small, rest = (self.train[part] for part in _two_parts(data.train_labels[self.train], SMALL.images))
        judged = rest[:10000].to(device)
        self.judge_images, self.judge_labels = self.data.train_images[judged], self.data.train_labels[judged]
        self.deadline, self.lock = deadline, threading.Lock()
        self.results: dict[str, Any] = {"repeatability": {}, "truth": {}, "landscape": {}}
        path = RESULTS / "filter_signal.json"
        if path.exists():
            known = json.loads(path.read_text())["results"]
            self.results = {name: known.get(name, {}) for name in self.results}

    def jobs(self, seeds: int, landscape: int) -> list[Callable[[StudyTrainee], None]]:
        """Return what is still to be done, the longest parts first."""
        jobs: list[Callable[[StudyTrainee], None]] = []
        for name in REGIMES:
            if name not in self.results["repeatability"]:
                jobs.append(partial(self.repeatability, name))
        for seed in range(seeds):
            for op, name in enumerate(OPS):
                if str(seed) not in self.results["truth"].get(name, {}):
                    jobs.append(partial(self.truth, op, seed))
        for seed in range(landscape):
            for name in LANDSCAPE:
                if str(seed) not in self.results["landscape"].get(name, {}):
                    jobs.append(partial(self.landscape, name, seed))
        return jobs

    def repeatability(self, name: str, trainee: StudyTrainee) -> None:
        """Measure all candidates along one training run."""
        regime, device, start = REGIMES[name], torch.device("cuda"), time.perf_counter()
        ids = self.small if name == "small" else self.train
        training, seed, epochs = policy(regime.rows), 100, regime.epochs
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
            print(f"{name} {moment} epoch {epoch}: {time.perf_counter() - start:.0f} s", flush=True)
        result = {
            "regime": asdict(regime) | {"rows": [regime.rows.start, regime.rows.stop]},
            "moments": measured,
            "final_accuracy": accuracy(trainee, self.judge_images, self.judge_labels),
            "seconds": round(time.perf_counter() - start, 1),
        }
        self.add("repeatability", name, result)

    def truth(self, op: int, seed: int, trainee: StudyTrainee) -> None:
        """Train under one op alone and note what that is worth."""
        if time.monotonic() > self.deadline:
            return
        start, epochs, training = time.perf_counter(), SMALL.epochs, policy([SPARSE + op])
        trainee.start(seed)
        loss = 0.0
        for epoch in range(1, epochs + 1):
            trainee.set_rate(cosine(epoch, epochs))
            loss = trainee.epoch(training, self.small, seed, epoch, average=False)
        reached = accuracy(trainee, self.judge_images, self.judge_labels)
        print(f"{OPS[op]} seed {seed}: {reached:.2f} %, {time.perf_counter() - start:.1f} s", flush=True)
        self.add("truth", OPS[op], {str(seed): {"accuracy": reached, "train_loss": loss}})

    def landscape(self, name: str, seed: int, trainee: StudyTrainee) -> None:
        """Train on the large set under one course of severity and note the held-out accuracy."""
        if time.monotonic() > self.deadline:
            return
        start, epochs = time.perf_counter(), LARGE.epochs
        trainee.start(seed)
        for epoch in range(1, epochs + 1):
            rows, level, scale = LANDSCAPE[name]((epoch - 1) / (epochs - 1))
            trainee.set_rate(cosine(epoch, epochs))
            loss = trainee.epoch(policy(rows, level, scale), self.train, seed, epoch, average=False)
        held_out = self.held_out.to(self.data.train_images.device)
        reached = accuracy(trainee, self.data.train_images[held_out], self.data.train_labels[held_out])
        print(f"{name} seed {seed}: {reached:.2f} %, {time.perf_counter() - start:.0f} s", flush=True)
        self.add("landscape", name, {str(seed): {"accuracy": reached, "train_loss": loss}})

    def add(self, part: str, name: str, result: Any) -> None:
        """Add a result and save; one writer at a time."""
        with self.lock:
            if part != "repeatability":
                result = self.results[part].get(name, {}) | result
            self.results[part][name] = result
            self._write({})

    def save(self) -> None:
        """Write what there is, with its summary."""
        with self.lock:
            self._write({"summary": summary(self.results, SPARSE, OPS)})

    def _write(self, more: dict[str, Any]) -> None:
        document = {
            "model": MODEL,
            "m": M,
            "single_probability": SINGLE_PROBABILITY,
            "ops": list(OPS),
            "particles": particles().tolist(),
            **self.results,
        }
        write("filter_signal", document | more, seed=0)


def _two_parts(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    rest, part = train_validation_split(labels, count, 1)
    return part, rest


if __name__ == "__main__":
    main()
