"""Training ResNet-50 on JPEG files, end to end, with and without a policy, and what limits it.

    python benchmarks/imagenet_path.py
    python benchmarks/imagenet_path.py --device cpu --model resnet-18 --size 64 --files 160 --classes 8 --batch 16 \\
        --batches 4 --clone 32 --measure 16 --particles 4 --rounds 3 --result imagenet_path_cpu   # tries it out

The JPEGs are made on the spot, of ImageNet's usual size. Every arm trains for the same number of batches through the
run's own path: workers decode random resized crops, the device jitters, flips, applies the policy and trains. The
filter's step trains a clone and measures every particle on the same path. Beside them stand the parts on their own, at
full speed: the loader, the augmentation, and the network's step on a batch that lies on the device.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import rate, write
from PIL import Image

from particleaugment.data import epoch_permutation
from particleaugment.policies import Policy, parse
from particleaugment.recipes import recipe
from particleaugment.search.clone import probe
from particleaugment.search.paper import PaperFilter
from particleaugment.trainee.batches import Batch, Share
from particleaugment.trainee.snapshot import Snapshot
from particleaugment.trainee.stream import TRAIN, StreamTrainee
from particleaugment.training.build import build
from particleaugment.training.config import Config
from particleaugment.util.timing import seconds

_started = time.perf_counter()


def say(text: str) -> None:
    print(f"[{time.perf_counter() - _started:6.1f} s] {text}", flush=True)


def nothing(phase: str, done: int, total: int) -> None:
    """Take no notice of progress."""


def make_files(root: str, first: int, last: int, classes: int, size: tuple[int, int]) -> int:
    """Write JPEGs of smooth noise at several scales, about as large as photographs of that size; return their bytes."""
    width, height = size
    total = 0
    for number in range(first, last):
        generator = np.random.default_rng(number)
        pixels = np.zeros((height, width, 3), np.float32)
        for cell, share in ((64, 0.4), (16, 0.2), (4, 0.15), (2, 0.25)):
            coarse = generator.integers(0, 256, (height // cell + 2, width // cell + 2, 3), dtype=np.uint8)
            pixels += share * np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.float32)
        # Every class of its own tint, so that there is something to learn.
        pixels += np.random.default_rng(number % classes).normal(0, 20, 3).astype(np.float32)
        file = Path(root) / f"{number % classes:04d}" / f"{number:06d}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, quality=95)
        total += file.stat().st_size
    return total


def make_folder(root: Path, files: int, classes: int, size: tuple[int, int]) -> float:
    """Fill ``train`` and ``val`` in parallel and return the kilobytes of a training file."""
    for part in ("train", "val"):
        for number in range(classes):
            (root / part / f"{number:04d}").mkdir(parents=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        pieces = [
            pool.submit(make_files, str(root / "train"), first, min(first + 50, files), classes, size)
            for first in range(0, files, 50)
        ]
        held_out = pool.submit(make_files, str(root / "val"), files, files + classes, classes, size)
        total = sum(piece.result() for piece in pieces)
        held_out.result()
    return total / files / 1024


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Bench:
    """One run's parts, timed together and apart."""

    def __init__(self, config: Config, arguments: argparse.Namespace):
        self.config, self.arguments = config, arguments
        self.parts = build(config, say, quiet=True)
        assert isinstance(self.parts.trainee, StreamTrainee)
        self.trainee = self.parts.trainee
        self.device = self.trainee.device
        say(self.parts.chosen)

    def skipped(self) -> int:
        """Return how many batches come before the counted ones."""
        batches: int = self.arguments.batches
        return max(1, min(5, batches // 4))

    def ids(self, epoch: int) -> torch.Tensor:
        """Return the samples of a timed stretch: epoch after epoch of the files, as many as there are batches."""
        files, needed = len(self.parts.samples), self.arguments.batches * self.config.training.batch_size
        orders = [epoch_permutation(files, self.config.seed, epoch * 100 + k) for k in range(-(-needed // files))]
        return torch.cat(orders)[:needed]

    def train(self, policy: Policy, epoch: int) -> dict[str, Any]:
        """Train a number of batches under a policy; the first few, for which images wait already, are not counted."""
        stamps: list[float] = []
        skipped = self.skipped()

        def note(phase: str, done: int, total: int) -> None:
            if done in (1, skipped, total):
                settle(self.device)
                stamps.append(time.perf_counter())

        self.parts.model.train()
        start = time.perf_counter()
        self.trainee.train(policy, self.ids(epoch), epoch, progress=note)
        images = (self.arguments.batches - skipped) * self.config.training.batch_size
        return {
            "images_per_second": round(images / (stamps[-1] - stamps[-2]), 1),
            "seconds_to_first_batch": round(stamps[0] - start, 2),
            "seconds": round(stamps[-1] - start, 2),
        }

    def loader(self) -> dict[str, Any]:
        """Decode the same number of batches and do nothing with them."""
        start = time.perf_counter()
        batches = self.ids(50).split(self.config.training.batch_size)
        stamps = [time.perf_counter() for _ in self.trainee.reader.batches(TRAIN, batches)]
        skipped = self.skipped()
        images = (len(batches) - skipped) * self.config.training.batch_size
        return {
            "images_per_second": round(images / (stamps[-1] - stamps[skipped - 1]), 1),
            "seconds_to_first_batch": round(stamps[0] - start, 2),
        }

    def batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a resident batch: images, labels, ids."""
        count, size = self.config.training.batch_size, self.config.data.image_size
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, len(self.parts.data.classes), (count,), generator=generator)
        return images.to(self.device), labels.to(self.device), torch.arange(count).to(self.device)

    def augmentation(self, policy: Policy) -> dict[str, float]:
        """Time jitter, flip, policy and normalisation of a resident batch."""
        images, _, ids = self.batch()
        pipeline = self.trainee.pipelines.training
        pipeline.set_policy(policy)
        pipeline.set_epoch(1)
        return rate(self.config.training.batch_size, self.timed(lambda: pipeline(images, ids)))

    def network(self) -> dict[str, float]:
        """Time the training step on a resident batch."""
        images, labels, ids = self.batch()
        inputs = self.trainee.pipelines.plain(images, ids)
        batch = Batch(inputs, labels, Share(ids, 1.0, len(ids)))
        self.parts.model.train()
        return rate(self.config.training.batch_size, self.timed(lambda: self.trainee._step(batch)))

    def timed(self, work: Callable[[], object]) -> list[float]:
        """Return the seconds of repeated calls, each to the device's end."""

        def whole() -> None:
            work()
            settle(self.device)

        whole()
        return seconds(whole, self.arguments.rounds)

    def filter_step(self) -> dict[str, Any]:
        """Train a clone and measure all particles, before and after."""
        settings = self.config.filter
        assert isinstance(settings, PaperFilter)
        measured = probe(
            settings.policy(settings.init(self.config.seed, self.config.ops, self.config.training.epochs)),
            self.trainee,
            self.parts.samples.labels,
            Snapshot(),
            clone_size=settings.clone_size,
            measure_size=settings.measure_size,
            clone_epochs=1,
            seed=self.config.seed,
            step=1,
            progress=nothing,
        )
        forward = 2 * (settings.num_particles + 1) * int(settings.measure_size)
        return {
            "clone_images": settings.clone_size,
            "measured_images_and_particles": [settings.measure_size, settings.num_particles],
            "seconds": {name: round(value, 2) for name, value in measured.seconds.items()},
            "clone_images_per_second": round(settings.clone_size / measured.seconds["clone"], 1),
            "measured_images_per_second": round(forward / measured.seconds["measure"], 1),
        }


def limit_of(parts: dict[str, float], reached: float) -> str:
    """Say which part is the slowest, and how near to it training comes."""
    name = min(parts, key=parts.__getitem__)
    return f"the {name}: training under RandAugment reaches {100 * reached / parts[name]:.0f} % of its speed alone"


def measure(config: Config, arguments: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(config, arguments)
    settings = config.filter
    policies: dict[str, Policy] = {
        "none": parse("none"),
        "randaugment-n3-m4": parse("randaugment-n3-m4"),
        "particles": settings.policy(settings.init(config.seed, config.ops, config.training.epochs)),
    }
    say("the network and the workers warm up")
    warm = replace_batches(arguments, 3)
    bench.arguments = warm
    for policy in policies.values():
        bench.train(policy, 90)
    bench.arguments = arguments
    result: dict[str, Any] = {"workers": bench.trainee.reader.workers, "alone": {}, "training": {}}
    result["alone"]["network"] = bench.network()
    say(f"network alone: {result['alone']['network']['median']:,.0f} images/s")
    for name, policy in policies.items():
        result["alone"][f"augmentation, {name}"] = bench.augmentation(policy)
        say(f"augmentation alone, {name}: {result['alone'][f'augmentation, {name}']['median']:,.0f} images/s")
    result["alone"]["loader"] = bench.loader()
    say(f"loader alone: {result['alone']['loader']['images_per_second']:,.0f} images/s")
    for epoch, (name, policy) in enumerate(policies.items(), start=1):
        result["training"][name] = bench.train(policy, epoch)
        say(f"training, {name}: {result['training'][name]['images_per_second']:,.0f} images/s")
    result["filter_step"] = bench.filter_step()
    say(f"filter step: {result['filter_step']}")
    bench.trainee.close()
    alone = result["alone"]
    speeds = {
        "network": alone["network"]["median"],
        "loader": alone["loader"]["images_per_second"],
        "augmentation": alone["augmentation, randaugment-n3-m4"]["median"],
    }
    result["limit"] = limit_of(speeds, result["training"]["randaugment-n3-m4"]["images_per_second"])
    training = {name: row["images_per_second"] for name, row in result["training"].items()}
    result["relative_to_no_policy"] = {name: round(value / training["none"], 3) for name, value in training.items()}
    say(f"what limits it: {result['limit']}")
    return result


def replace_batches(arguments: argparse.Namespace, batches: int) -> argparse.Namespace:
    return argparse.Namespace(**vars(arguments) | {"batches": batches})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", action="store_true", help="compile the network's training step")
    parser.add_argument("--model", default="resnet-50")
    parser.add_argument("--size", type=int, default=224, help="side of the images that the network sees")
    parser.add_argument("--jpeg", type=int, nargs=2, default=(500, 375), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=40, help="per arm, the first few of them not counted")
    parser.add_argument("--workers", default="auto", nargs="+", help="one or several numbers of workers")
    parser.add_argument("--particles", type=int, default=50)
    parser.add_argument("--clone", type=int, default=2048, help="samples that the clone trains on")
    parser.add_argument("--measure", type=int, default=512, help="samples that every particle is measured on")
    parser.add_argument("--rounds", type=int, default=20, help="of the parts that are timed alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", default="imagenet_path", help="name of the result file")
    arguments = parser.parse_args()
    workers = [arguments.workers] if isinstance(arguments.workers, str) else arguments.workers
    config = recipe(
        "imagenet-resnet50",
        filter="paper",
        seed=arguments.seed,
        device=arguments.device,
        precision=arguments.precision,
        compile=arguments.compile,
        model=arguments.model,
        image_size=arguments.size,
        batch_size=arguments.batch,
        num_particles=arguments.particles,
        clone_size=arguments.clone,
        measure_size=arguments.measure,
    )
    with tempfile.TemporaryDirectory() as name:
        kilobytes = make_folder(Path(name), arguments.files, arguments.classes, tuple(arguments.jpeg))
        say(f"made {arguments.files:,} JPEGs of {arguments.jpeg[0]}x{arguments.jpeg[1]}, {kilobytes:.0f} kB each")
        results = {
            "jpeg": {"size": list(arguments.jpeg), "kilobytes": round(kilobytes, 1), "files": arguments.files},
            "model": arguments.model,
            "image_size": arguments.size,
            "batch": arguments.batch,
            "batches": arguments.batches,
            "compiled": arguments.compile,
            "runs": [],
        }
        for number in workers:
            choice = number if number == "auto" else int(number)
            data = replace(config.data, data_dir=name, workers=choice)
            results["runs"].append(measure(replace(config, data=data), arguments))
            write(arguments.result, results, arguments.seed)


if __name__ == "__main__":
    main()
