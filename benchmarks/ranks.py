"""What measuring the particles costs on one rank and on several, and what a word between ranks costs.

    python benchmarks/ranks.py
    python benchmarks/ranks.py --gpus [N]

Starts torchrun on this machine, a process with a single thread per rank, and times the measurement of a filter step of
the digits recipe (24 particles, 120 samples, both models) many times over. Wall-clock seconds feel whatever else the
machine does: the least of them is the figure to compare, and the processor seconds beside it do not feel it.

With --gpus it times training steps instead, captured and eager, of WRN-28-2, WRN-28-10 and ResNet-50 on random images:
without a process group, and on 1, 2, 4, ... GPUs over NCCL, up to N or as many as there are; and it checks that all
ranks end with the same weights and the same policy. This writes ``results/ranks_gpu.json``, also where a part fails,
and ends with one line per check, "passed" or "FAILED".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import write
from ranks_gpu import NETWORKS, compared, measured, verdicts

from particleaugment import OPS, Augment
from particleaugment.augment.transforms import Normalize
from particleaugment.data import disjoint_stratified_subsets, load_data
from particleaugment.data.samples import Samples
from particleaugment.models import build_model
from particleaugment.recipes import get_recipe
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner
from particleaugment.trainee.ranks import Ranks
from particleaugment.training.distributed import joined

WORDS = 300


def measurement(ranks: Ranks, seed: int) -> Callable[[], object]:
    """Return what measures the digits recipe's particles once."""
    config, data = get_recipe("digits").config, load_data("digits")
    model = build_model(config.model, data.num_classes, seed).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = Learner(
        model, optimizer, torch.nn.CrossEntropyLoss(reduction="none"), Normalize(data.mean, data.std).run, ranks=ranks
    )
    samples = Samples((data.train_images, data.train_labels))
    trainee = EagerTrainee(learner, samples, Augment("none", seed), config.training.batch_size)
    filter = get_recipe("digits").paper
    policy = filter.policy(filter.moved(filter.init(seed, OPS, config.training.epochs)))
    (ids,) = disjoint_stratified_subsets(samples.labels, [filter.measure_size], seed, 1)
    return lambda: trainee.measure(policy, ids, 1, progress=lambda phase, done, total: None, phase="measure")


def work(out: Path, repeats: int, seed: int) -> None:
    """On each rank: measure, and let rank 0 write what all ranks took."""
    torch.set_num_threads(1)
    with joined() as ranks:
        measure = measurement(ranks, seed)
        measure()
        walls, processors = [], []
        for _ in range(repeats):
            ranks.largest(0)  # begin together
            wall, processor = time.perf_counter(), time.process_time()
            measure()
            walls.append(time.perf_counter() - wall)
            processors.append(time.process_time() - processor)
        start = time.perf_counter()
        for _ in range(WORDS):
            ranks.largest(0)
        word = (time.perf_counter() - start) / WORDS
        most = [max(float(part) for part in ranks.gather(torch.tensor(seconds))) for seconds in processors]
        if ranks.first:
            out.write_text(json.dumps({"wall": walls, "processor": most, "word": word}))


def launch(ranks: int, repeats: int, seed: int) -> dict[str, Any]:
    """Start a number of ranks and return their seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [__file__, "--out", str(out), "--repeats", str(repeats), "--seed", str(seed)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        seconds: dict[str, Any] = json.loads(out.read_text())
        return seconds


def on_gpus(parser: argparse.ArgumentParser, most: int, networks: list[str], seed: int) -> None:
    """Measure training steps without a group and on 1, 2, 4, ... GPUs, and print a verdict."""
    there = torch.cuda.device_count()
    if not there:
        parser.error("--gpus needs a GPU, and torch sees none here; leave it out to measure on the CPU")
    if most > there:
        parser.error(f"--gpus {most} was asked for, but there are {there} GPUs here; ask for {there} or fewer")
    rows, problems = list[dict[str, Any]](), list[str]()
    for ranks in (0, *(2**power for power in range(20) if 2**power <= (most or there))):
        found, problem = measured(ranks, networks, seed)
        rows += found
        problems += [problem] if problem else []
    results = {"rows": rows, "group_of_one_slower_percent": compared(rows), "problems": problems}
    write("ranks_gpu", results, seed)
    checks = [*((False, problem) for problem in problems), *verdicts(rows)]
    for passed, text in checks:
        print(f"{'passed' if passed else 'FAILED'}: {text}")
    sys.exit(0 if all(passed for passed, _ in checks) else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3, help="launches of each number of ranks, taking turns")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpus", type=int, nargs="?", const=0, metavar="N", help="time steps on 1, 2, 4, ... N GPUs")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), help="with --gpus")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out is not None:
        work(arguments.out, arguments.repeats, arguments.seed)
        return
    if arguments.gpus is not None:
        on_gpus(parser, arguments.gpus, arguments.networks, arguments.seed)
        return
    found: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in arguments.ranks}
    load = os.getloadavg()[0]
    for _ in range(arguments.rounds):
        for ranks in arguments.ranks:
            found[ranks].append(launch(ranks, arguments.repeats, arguments.seed))
    rows = []
    for ranks, launches in found.items():
        walls = [second for each in launches for second in each["wall"]]
        processors = [second for each in launches for second in each["processor"]]
        rows.append(
            {
                "ranks": ranks,
                "measurements": len(walls),
                "wall_seconds_least": round(min(walls), 4),
                "wall_seconds_median": round(statistics.median(walls), 4),
                "processor_seconds_of_the_busiest_rank_median": round(statistics.median(processors), 4),
                "microseconds_per_word_least": round(1e6 * min(each["word"] for each in launches), 1),
            }
        )
        print(rows[-1])
    filter = get_recipe("digits").paper
    results = {
        "particles": filter.num_particles,
        "samples": filter.measure_size,
        "threads_per_rank": 1,
        "load_average_before": round(load, 2),
        "rows": rows,
    }
    write("ranks", results, arguments.seed)


if __name__ == "__main__":
    main()
