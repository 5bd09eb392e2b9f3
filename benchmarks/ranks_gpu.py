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
from collections.abc import Iterable
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

__all__ = ["compared", "measured", "row_of"]

SECONDS = 170  # a launch that takes longer hangs
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


def measure(ranks: Ranks, network: str, captured: bool, device: str, seed: int) -> dict[str, Any]:
    """Time rounds of training steps of one network, and compare what the ranks end with."""
    side, classes, per_rank, steps = NETWORKS[network]
    if device == "cpu":
        side, per_rank, steps = 32, 4, 2
    batch = per_rank * ranks.world
    data = images_of(batch * steps, side, classes, device, seed)
    settings = [f"device={device}", f"model={network}", f"batch_size={batch}", "policy=randaugment-n3-m4"]
    config = override(Config(recipe="ranks"), [*settings, "compile=false", "crop=4", f"seed={seed}"])
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
    found = row_of(ranks, network, captured, per_rank, seconds[1:]) | {
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


def measured(ranks: int, networks: Iterable[str], seed: int, device: str = "cuda") -> list[dict[str, Any]]:
    """Measure in processes of their own; 0 ranks is one process without a group."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
        command = [sys.executable, *launcher, __file__, "--out", str(out), "--seed", str(seed), "--device", device]
        subprocess.run([*command, "--networks", *networks], check=True, timeout=SECONDS)
        rows: list[dict[str, Any]] = json.loads(out.read_text())
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with joined() as all_ranks:
        ranks = on_own_device(all_ranks, arguments.device)
        rows = []
        for network in arguments.networks:
            for captured in (True, False) if ranks.in_group else (True,):
                rows.append(measure(ranks, network, captured, arguments.device, arguments.seed))
                if ranks.first:
                    print(json.dumps(rows[-1]), flush=True)
        if ranks.first:
            arguments.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
