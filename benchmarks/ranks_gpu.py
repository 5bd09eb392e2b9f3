"""Training steps on GPUs, captured and eager, with and without a process group: what ``ranks.py --gpus`` starts.

Random images, resident on each GPU; every rank takes the same number of images per step, so that steps of more ranks
should take as long as those of one. Each run ends with a step of the paper's filter, after which weights and policy
are compared across ranks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import particleaugment as pa
from particleaugment.data import ImageData
from particleaugment.trainee.ranks import Ranks
from particleaugment.training.build import build
from particleaugment.training.config import Config
from particleaugment.training.distributed import joined, on_own_device
from particleaugment.training.override import override
from particleaugment.training.shared import SharedParts

__all__ = ["compared", "measured", "row_of", "verdicts"]

SECONDS = 120  # a launch that takes longer per network hangs
ENDING_SECONDS = 20
SLOWER_PERCENT = 5.0  # the most that a group of one may cost
NETWORKS = {  # side of the images, classes, images per rank and step, steps timed at a time
    "wrn-28-2": (32, 10, 128, 100),
    "wrn-28-10": (32, 10, 128, 60),
    "resnet-50": (224, 1000, 128, 15),
}
ROUNDS = 4
FILTER = pa.PaperFilter(num_particles=8, nonzero=2, clone_size=512, measure_size=128)


class Synthetic(SharedParts):
    """Random images in place of a data set; captured steps are for resident ones, so ``resident`` chooses."""

    def __init__(self, data: ImageData, resident: bool):
        super().__init__()
        self._given = data, resident

    def data(self, config: Config, load: Any) -> tuple[ImageData, bool]:
        """Return the random images."""
        return self._given


def images_of(count: int, side: int, classes: int, device: str, seed: int) -> ImageData:
    """Return random images on the device, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (256, 3, side, side), dtype=torch.uint8, generator=generator).to(device)
    images, labels = pixels[torch.arange(count, device=device) % 256], torch.arange(count, device=device) % classes
    names = tuple(f"class {number}" for number in range(classes))
    return ImageData(
        train_images=images,
        train_labels=labels,
        test_images=images[:256],
        test_labels=labels[:256],
        classes=names,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )


def measure(
    ranks: Ranks, network: str, captured: bool, device: str, seed: int, synchronised: bool = False
) -> dict[str, Any]:
    """Time rounds of training steps of one network, and compare what the ranks end with.

    With ``synchronised``, batch norm normalises over the batches of all ranks.
    """
    side, classes, per_rank, steps = NETWORKS[network]
    if device == "cpu":
        side, per_rank, steps = 32, 4, 2
    batch = per_rank * ranks.world
    data = images_of(batch * steps, side, classes, device, seed)
    settings = [f"device={device}", f"model={network}", f"batch_size={batch}", "policy=randaugment-n3-m4"]
    config = override(Config(recipe="ranks"), [*settings, "compile=false", "crop=4", f"seed={seed}"])
    if synchronised:
        config = override(config, ["sync_batchnorm=true"])
    said: list[str] = []
    parts = build(config, said.append, quiet=True, ranks=ranks, shared=Synthetic(data, captured))
    trainee, policy, seconds = parts.trainee, config.fixed_policy(), []
    parts.model.train()
    for epoch in range(ROUNDS + 1):
        ranks.largest(0)  # begin together
        start = time.perf_counter()
        trainee.train(policy, torch.arange(batch * steps), epoch, progress=lambda phase, done, total: None)
        seconds.append((time.perf_counter() - start) / steps)
    policies_differ: list[int] | None = None  # not compared
    if side == 32 and classes == 10 and device != "cpu":
        search = pa.ParticleAugment(parts.samples, epochs=3, filter=FILTER.at_every(1), seed=seed)
        search.step_with(trainee, epoch=1, progress=lambda phase, done, total: None)
        policies_differ = ranks.differing(search.state_tensors())
    differ = ranks.differing(parts.model.state_dict().values())
    gradients = sum(4 * parameter.numel() for parameter in parts.model.parameters())
    name = f"{network}, synchronised batch norm" if synchronised else network
    found = row_of(ranks, name, captured, per_rank, seconds[1:]) | {
        "trainee": type(trainee).__name__,
        "said": said,
        "bytes_reduced": gradients,
        "all_reduce_milliseconds": all_reduce_milliseconds(ranks, gradients, device),
        "weights_equal": not differ,
        "policy_equal": None if policies_differ is None else not policies_differ,
        "chosen": parts.chosen,
    }
    trainee.close()
    return found


def row_of(ranks: Ranks, network: str, captured: bool, per_rank: int, seconds: Iterable[float]) -> dict[str, Any]:
    """Return a row of the results from the seconds per step of each round.

    >>> row = row_of(Ranks(), "wrn-28-2", True, 128, [0.003, 0.002, 0.0025])
    >>> row["milliseconds_per_step"], row["low"], row["high"], row["group"]
    (2.5, 2.0, 3.0, False)
    """
    milliseconds = sorted(1e3 * second for second in seconds)
    return {
        "network": network,
        "ranks": ranks.world,
        "group": ranks.in_group,
        "captured": captured,
        "images_per_rank_and_step": per_rank,
        "milliseconds_per_step": round(statistics.median(milliseconds), 4),
        "low": round(milliseconds[0], 4),
        "high": round(milliseconds[-1], 4),
    }


def all_reduce_milliseconds(ranks: Ranks, size: int, device: str) -> float | None:
    """Return how long the sum of so many bytes over ranks takes on its own; None where there is nothing to sum."""
    if ranks.world == 1 or device == "cpu":
        return None
    buffer, times = torch.zeros(size // 4, device=device), []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_reduce(buffer)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return round(1e3 * statistics.median(times[3:]), 4)


def compared(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return by how many percent captured steps of a group of one are slower than those without a group.

    >>> common = {"network": "wrn-28-2", "ranks": 1, "captured": True}
    >>> compared([common | {"group": False, "milliseconds_per_step": 2.0},
    ...           common | {"group": True, "milliseconds_per_step": 2.05}])
    {'wrn-28-2': 2.5}
    """
    alone: dict[str, float] = {}
    group: dict[str, float] = {}
    for row in rows:
        if row["ranks"] == 1 and row["captured"]:
            (group if row["group"] else alone)[row["network"]] = row["milliseconds_per_step"]
    return {name: round(100 * (group[name] / alone[name] - 1), 2) for name in alone if name in group}


def verdicts(rows: Sequence[dict[str, Any]]) -> list[tuple[bool, str]]:
    """Return what was to be shown, each with whether it was.

    >>> row = row_of(Ranks(group=True), "wrn-28-2", True, 128, [0.002])
    >>> row |= {"trainee": "EagerTrainee", "said": [], "weights_equal": True, "policy_equal": True}
    >>> [passed for passed, _ in verdicts([row])]
    [False, True, False]
    """
    wanted = [row for row in rows if row["captured"]]
    eager = [name_of(row) for row in wanted if row["trainee"] != "GraphTrainee" or row["said"]]
    unequal = [name_of(row) for row in rows if not (row["weights_equal"] and row["policy_equal"] is not False)]
    slower = compared(rows)
    slow = [f"{name} by {percent} %" for name, percent in slower.items() if percent > SLOWER_PERCENT]
    return [
        (bool(wanted) and not eager, f"steps are captured{list_of(eager, ', but not: ')}"),
        (bool(rows) and not unequal, f"ranks end with the same weights and policy{list_of(unequal, ', but not: ')}"),
        (
            bool(slower) and not slow,
            f"a group of one is at most {SLOWER_PERCENT:g} % slower{list_of(slow, ', but not: ')} ({slower})",
        ),
    ]


def name_of(row: dict[str, Any]) -> str:
    """Return a row's name in messages."""
    return f"{row['network']} on {row['ranks']}{'' if row['group'] else ' without a group'}"


def list_of(names: Sequence[str], start: str) -> str:
    """Return names in a row after some words, or nothing if there are none."""
    return start + ", ".join(names) if names else ""


def measured(ranks: int, networks: Sequence[str], seed: int, device: str = "cuda") -> tuple[list[dict[str, Any]], str]:
    """Measure in processes of their own; 0 ranks is one process without a group.

    Returns:
        The rows that there are, and what went wrong, if anything did.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
        command = [sys.executable, *launcher, __file__, "--out", str(out), "--seed", str(seed), "--device", device]
        process = subprocess.Popen([*command, "--networks", *networks])
        try:
            code = process.wait(SECONDS * len(networks))
            problem = f"{ranks} ranks ended with the exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"{ranks} ranks did not end within {SECONDS * len(networks)} s"
        finally:
            _end(process)
        rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
        return rows, problem


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and, through it, its workers: those of one that was killed would keep their GPUs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with joined() as all_ranks:
        ranks = on_own_device(all_ranks, arguments.device)
        forms = [(network, captured, False) for network in arguments.networks for captured in (True, False)]
        if not ranks.in_group:
            forms = [form for form in forms if form[1]]
        elif arguments.device == "cuda":
            forms.append((arguments.networks[0], True, True))
        rows = []
        for network, captured, synchronised in forms:
            rows.append(measure(ranks, network, captured, arguments.device, arguments.seed, synchronised))
            if ranks.first:
                print(json.dumps(rows[-1]), flush=True)
                arguments.out.write_text(json.dumps(rows))  # what there is, should a later one fail


if __name__ == "__main__":
    main()
