"""What a mask, and boxes, add to the time of augmenting 224x224 images, beside torchvision v2 and albumentations.

    pip install --no-deps --target peers torchvision
    pip install --target peers albumentations opencv-python-headless
    PYTHONPATH=peers python benchmarks/targets.py                  # on a CPU, one thread; without peers ours alone
    python benchmarks/targets.py --device cuda                     # replays of CUDA graphs

"three ops" draws and applies three of timm's ops per image, as in cpu_throughput.py. "one rotation" rotates each image
by its own random angle of up to 30 degrees, bilinear, and its mask by nearest neighbour: what all three libraries do,
each from uint8 to uint8 in the layout that it prefers. Boxes are five per image.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import statistics
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import torch
from common import RESULTS, result, table, write
from torch import Tensor

import particleaugment as pa
from particleaugment.bench.cpu import generated_images, threads_restored
from particleaugment.bench.gpu import as_graph, milliseconds
from particleaugment.policies.parse import TIMM_OPS
from particleaugment.util.timing import rate, seconds

SIZE, CPU_BATCH, GPU_BATCHES, BOXES, DEGREES = 224, 64, (64, 1024), 5, 30.0
LIMIT = 1.4
Work = Callable[[], object]


def drawn_targets(count: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Return masks of a few large areas, uint8, and boxes."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 20, (count, 1, 7, 7), generator=generator).float()
    masks = torch.nn.functional.interpolate(coarse, size=(SIZE, SIZE)).squeeze(1).to(torch.uint8)
    corner = torch.rand(count, BOXES, 2, generator=generator) * 120
    sides = 20 + 80 * torch.rand(count, BOXES, 2, generator=generator)
    return masks, list(torch.cat([corner, corner + sides], 2))


def rotations(count: int, seed: int) -> pa.Program:
    """Return one rotation per image."""
    angles = (
        2 * torch.rand(count, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1
    ) * DEGREES
    return pa.Program(torch.full((count, 1), pa.ops.lookup("Rotate").index), angles)


def ours(images: Tensor, masks: Tensor, boxes: list[Tensor], draw: Callable[[int], pa.Program]) -> dict[str, Work]:
    """Return what augments images alone, with masks, and with masks and boxes, each with the same programs in turn."""

    def work(**targets: Any) -> Work:
        epochs = itertools.count()
        return lambda: pa.apply(images, draw(next(epochs)), **targets)

    return {
        "images": work(),
        "with_masks": work(masks=masks),
        "with_masks_and_boxes": work(masks=masks, boxes=boxes),
    }


def torchvision_works(images: Tensor, masks: Tensor) -> dict[str, Work]:
    """Return torchvision v2's rotation; its transforms are Python, and need no compiled ops."""
    for name in ("nms", "qnms"):  # whose compiled part needs a CUDA build of torch
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    tv_tensors = importlib.import_module("torchvision.tv_tensors")
    v2 = importlib.import_module("torchvision.transforms.v2")
    transform = v2.RandomRotation(DEGREES, interpolation=v2.InterpolationMode.BILINEAR)
    pairs = [(tv_tensors.Image(image), tv_tensors.Mask(mask)) for image, mask in zip(images, masks)]
    return {
        "images": lambda: [transform(image) for image, _ in pairs],
        "with_masks": lambda: [transform(image, mask) for image, mask in pairs],
    }


def albumentations_works(images: Tensor, masks: Tensor) -> dict[str, Work]:
    """Return albumentations' rotation."""
    library, cv2 = importlib.import_module("albumentations"), importlib.import_module("cv2")
    cv2.setNumThreads(1)
    transform = library.Compose([library.Rotate(DEGREES, interpolation=cv2.INTER_LINEAR, border_mode=0, p=1.0)])
    pairs = [(image.permute(1, 2, 0).contiguous().numpy(), mask.numpy()) for image, mask in zip(images, masks)]
    return {
        "images": lambda: [transform(image=image) for image, _ in pairs],
        "with_masks": lambda: [transform(image=image, mask=mask) for image, mask in pairs],
    }


def cpu_rows(repeats: int, seed: int) -> list[dict[str, Any]]:
    """Time all works in turn, round by round, so that other load on the machine meets all of them alike."""
    images = generated_images(SIZE, CPU_BATCH, seed)
    masks, boxes = drawn_targets(CPU_BATCH, seed)
    policy, ids = pa.RandAugment(n=3, m=9, ops=TIMM_OPS), torch.arange(CPU_BATCH)
    three = ours(images, masks, boxes, lambda epoch: policy.sample(ids, epoch, seed, (SIZE, SIZE)))
    one = ours(images, masks, boxes, lambda epoch: rotations(CPU_BATCH, seed + epoch))
    rows = [("particleaugment, native", "three ops", three), ("particleaugment, native", "one rotation", one)]
    for package, made in (("torchvision", torchvision_works), ("albumentations", albumentations_works)):
        try:
            rows.append((f"{package} {metadata.version(package)}", "one rotation", made(images, masks)))
        except ImportError:
            print(f"{package} is not installed, and left out")
    times: list[dict[str, list[float]]] = [{kind: [] for kind in works} for _, _, works in rows]
    with threads_restored():
        torch.set_num_threads(1)
        for _ in range(repeats):
            for (_, _, works), found in zip(rows, times):
                for kind, work in works.items():
                    found[kind] += seconds(work, 1)
    return [_cpu_row(name, what, found) for (name, what, _), found in zip(rows, times)]


def _cpu_row(name: str, what: str, times: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "what": what, "device": "cpu", "threads": 1, "batch": CPU_BATCH}
    row |= {kind: rate(CPU_BATCH, found) for kind, found in times.items()}
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    return row | {f"cost_{kind}": round(medians[kind] / medians["images"], 3) for kind in medians if kind != "images"}


def gpu_rows(seed: int) -> list[dict[str, Any]]:
    rows = []
    for batch in GPU_BATCHES:
        images = generated_images(SIZE, batch, seed).cuda()
        masks = drawn_targets(batch, seed)[0].cuda()
        policy, ids = pa.RandAugment(n=3, m=9, ops=TIMM_OPS), torch.arange(batch)
        programs = {"three ops": policy.sample(ids, 0, seed, (SIZE, SIZE)), "one rotation": rotations(batch, seed)}
        for what, program in programs.items():
            works = ours(images, masks, [], partial(_given, program.to("cuda")))
            medians = {
                kind: statistics.median(milliseconds(as_graph(works[kind]))) for kind in ("images", "with_masks")
            }
            row: dict[str, Any] = {"name": "particleaugment, fused", "what": what, "device": "cuda", "batch": batch}
            row |= {kind: {"median": round(batch / median * 1e3)} for kind, median in medians.items()}
            rows.append(row | {"cost_with_masks": round(medians["with_masks"] / medians["images"], 3)})
    return rows


def targets_table() -> str:
    """Return the table of docs/targets.md."""
    documents = [result(name) for name in ("targets", "targets_gpu") if (RESULTS / f"{name}.json").exists()]
    header = ["224x224", "work", "images/s", "with a mask each", "time, images alone = 1"]
    rows, said = [], []
    for document in documents:
        for row in document["results"]["rows"]:
            where = f"{row['name']}" + (f", batch {row['batch']:,}" if row["device"] == "cuda" else "")
            speeds = [f"{row[kind]['median']:,.0f}" for kind in ("images", "with_masks")]
            rows.append([where, row["what"], *speeds, f"{row['cost_with_masks']:.2f}"])
        machine = document["machine"]
        said.append(f"{machine['gpu'] or machine['cpu'] + ', one thread'}: `{document['command']}`.")
        load = document["results"]["load"]
        if not machine["gpu"] and load > machine["cores"]:
            said.append(f"Other work was running (load {load:g} on {machine['cores']} cores): the numbers are rough.")
    return f"{table(header, rows)}\n\n{' '.join(said)}"


def _given(program: pa.Program, epoch: int) -> pa.Program:
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    rows = gpu_rows(arguments.seed) if on_gpu else cpu_rows(arguments.repeats, arguments.seed)
    for row in rows:
        print(
            f"{row['name']}, {row['what']}, batch {row['batch']}: {row['images']['median']:,.0f} images/s, "
            f"{row['with_masks']['median']:,.0f} with masks: {row['cost_with_masks']:.2f} times the time"
            + (
                f"; {row['cost_with_masks_and_boxes']:.2f} with boxes, too"
                if "cost_with_masks_and_boxes" in row
                else ""
            )
        )
    cost = max(row["cost_with_masks"] for row in rows if row["name"].startswith("particleaugment"))
    print(f"a mask costs {cost:.2f} times images alone at most; the limit is {LIMIT}")
    results = {"limit": LIMIT, "load": round(os.getloadavg()[0], 1), "rows": rows}
    write("targets_gpu" if on_gpu else "targets", results, arguments.seed)


if __name__ == "__main__":
    main()
