"""Other libraries' RandAugment beside ours on one CPU thread, and how far their rotation is from Pillow's.

    python benchmarks/peers.py

Each library that is installed is timed: torchvision, timm, kornia, albumentations and DALI. Every work is three ops per
image at level 9 with bilinear interpolation on 224x224 images that are ready in memory, in the form that the library
takes. Times are processor time on one thread, which other load on the machine changes little, and rounds alternate
between the libraries. albumentations has no RandAugment: it draws three of its own counterparts of the same ops.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import torch
from common import result, table, write
from PIL import Image
from torch import Tensor

from particleaugment.augment.image import ImageTransform
from particleaugment.bench.cpu import augmentation, each, generated_images, pictures_of
from particleaugment.bench.peers import timm_transform, torchvision_transform
from particleaugment.policies import RandAugment
from particleaugment.policies.parse import TIMM_OPS

SIZE, BATCH, DEGREES = 224, 64, 15.0
OURS = "ParticleAugment"
PACKAGES = {
    "torchvision": "torchvision",
    "timm": "timm",
    "kornia": "kornia",
    "albumentations": "albumentations",
    "DALI": "nvidia-dali-cuda120",
}
Work = Callable[[], object]


def works(images: Tensor, seed: int) -> dict[tuple[str, str], Work]:
    """Return what is timed, by library and by ``image`` or ``batch``."""
    pictures, arrays = pictures_of(images), [np.asarray(picture) for picture in pictures_of(images)]
    single = ImageTransform(RandAugment(n=3, m=9, ops=TIMM_OPS), seed)
    found: dict[tuple[str, str], Work] = {
        (OURS, "image"): lambda: each(single, pictures),
        (OURS, "batch"): augmentation(images, "auto", seed),
    }
    torchvision, timm = torchvision_transform(), timm_transform()
    if torchvision is not None:
        found["torchvision", "image"] = lambda: each(torchvision, pictures)
        found["torchvision", "batch"] = lambda: torchvision(images)
    if timm is not None:
        found["timm", "image"] = lambda: each(timm, pictures)
    for name, make in (("kornia", kornia_work), ("albumentations", albumentations_work), ("DALI", dali_work)):
        try:
            found[name, "image" if name == "albumentations" else "batch"] = make(images, arrays)
        except ImportError as error:
            print(f"{name} is not timed: {error}")
    return found


def kornia_work(images: Tensor, arrays: list[Any]) -> Work:
    auto = importlib.import_module("kornia.augmentation.auto")
    transform, floats = auto.RandAugment(n=3, m=9), images.float() / 255
    return lambda: transform(floats)


def albumentations_work(images: Tensor, arrays: list[Any]) -> Work:
    a = importlib.import_module("albumentations")
    border = {"fill": 128, "p": 1.0}
    ops = [
        a.NoOp(p=1.0), a.AutoContrast(p=1.0), a.Equalize(p=1.0), a.Rotate((-27, 27), **border),
        a.Solarize((0.1, 0.1), p=1.0), a.RandomBrightnessContrast((0.3, 0.3), (0, 0), p=1.0),
        a.RandomBrightnessContrast((0, 0), (0.8, 0.8), p=1.0), a.Sharpen((0.8, 0.8), p=1.0), a.ToGray(p=1.0),
        a.Affine(shear={"x": (-15, 15), "y": (0, 0)}, **border),
        a.Affine(shear={"x": (0, 0), "y": (-15, 15)}, **border),
        a.Affine(translate_percent={"x": (-0.4, 0.4), "y": (0, 0)}, **border),
        a.Affine(translate_percent={"x": (0, 0), "y": (-0.4, 0.4)}, **border), a.Posterize(4, p=1.0),
        a.InvertImg(p=1.0),
    ]  # fmt: skip
    transform = a.SomeOf(ops, n=3, replace=True, p=1.0)
    return lambda: [transform(image=array) for array in arrays]


def dali_work(images: Tensor, arrays: list[Any]) -> Work:
    dali = importlib.import_module("nvidia.dali")
    fn, auto = importlib.import_module("nvidia.dali.fn"), importlib.import_module("nvidia.dali.auto_aug.rand_augment")

    @dali.pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        given = fn.external_source(source=lambda: arrays, layout="HWC", batch=True)
        return auto.rand_augment(given, n=3, m=9, fill_value=128, shape=(SIZE, SIZE))

    # Nothing is prepared while others are timed.
    alone = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}
    built = pipeline(batch_size=len(arrays), num_threads=1, device_id=None, **alone)
    built.build()
    return lambda: built.run()


def rotation_differences(picture: Image.Image) -> dict[str, dict[str, float]]:
    """Return, by library, the percentage of values that a bilinear rotation gives other than Pillow does."""
    expected = np.asarray(picture.rotate(DEGREES, Image.Resampling.BILINEAR, fillcolor=(0, 0, 0))).astype(int)
    array = np.asarray(picture)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    found = {}
    for name, rotate in (
        ("torchvision", _torchvision_rotation),
        ("kornia", _kornia_rotation),
        ("albumentations", _albumentations_rotation),
        ("DALI", _dali_rotation),
    ):
        try:
            off = np.abs(np.asarray(rotate(array, tensor)).astype(int) - expected)
        except ImportError:
            continue
        found[name] = {
            "any": round(100 * float((off > 0).mean()), 1),
            "over 1": round(100 * float((off > 1).mean()), 1),
        }
    return found


def _torchvision_rotation(array: Any, tensor: Tensor) -> Any:
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    bilinear = importlib.import_module("torchvision.transforms").InterpolationMode.BILINEAR
    return np.asarray(functional.rotate(tensor, DEGREES, interpolation=bilinear, fill=[0.0] * 3).permute(1, 2, 0))


def _kornia_rotation(array: Any, tensor: Tensor) -> Any:
    transform = importlib.import_module("kornia.geometry.transform")
    turned = transform.rotate(tensor[None].float() / 255, torch.tensor([DEGREES]), padding_mode="zeros")
    return np.asarray((turned[0] * 255).round().to(torch.uint8).permute(1, 2, 0))


def _albumentations_rotation(array: Any, tensor: Tensor) -> Any:
    a = importlib.import_module("albumentations")
    return a.Rotate((DEGREES, DEGREES), fill=0, p=1.0)(image=array)["image"]


def _dali_rotation(array: Any, tensor: Tensor) -> Any:
    dali, fn = importlib.import_module("nvidia.dali"), importlib.import_module("nvidia.dali.fn")

    @dali.pipeline_def  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        given = fn.external_source(source=lambda: [array], layout="HWC", batch=True)
        return fn.rotate(given, angle=DEGREES, fill_value=0, keep_size=True)

    built = pipeline(batch_size=1, num_threads=1, device_id=None)
    built.build()
    return built.run()[0].as_array()[0]


def rates(found: dict[tuple[str, str], Work], rounds: int) -> list[dict[str, Any]]:
    """Time all works by turns, on one thread."""
    torch.set_num_threads(1)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in found}
    for number in range(rounds + 1):
        for key, work in found.items():
            start = time.process_time()
            work()
            if number:  # the first round is for warming up
                times[key].append(time.process_time() - start)
    return [
        {"library": name, "given": given, "images_per_second": round(BATCH / statistics.median(each), 1)}
        for (name, given), each in times.items()
    ]


# What is not measured here is what each project documents; SOURCES says where.
FEATURES = {
    # library: ops per sample on the GPU, Pillow's pixels, reproducible by id, learned policy, boxes and masks
    OURS: ("yes", "yes", "yes", "while training", "yes"),
    "torchvision": ("no: one draw per batch", "PIL yes, tensors no", "no", "no", "yes, but not its RandAugment"),
    "timm": ("no: CPU only", "yes: it calls Pillow", "no", "no", "no"),
    "kornia": ("no: ops per batch, signs per sample", "no", "no", "no", "yes"),
    "albumentations": ("no: CPU only", "no", "no", "no", "yes"),
    "DALI": ("yes", "no", "no", "no", "yes, but not its RandAugment"),
}
SOURCES = {
    "torchvision": (
        "[Transforms](https://docs.pytorch.org/vision/stable/transforms.html) (boxes and masks) and "
        "`transforms/v2/_auto_augment.py`: each call of `RandAugment` draws one op for its whole input from torch's "
        "global generator, and raises an error for boxes and masks (read on the main branch)"
    ),
    "timm": (
        "`data/auto_augment.py`: `RandAugment` takes Pillow images and draws from the global generators of Python and "
        "NumPy; only `RandomErasing` and Mixup run on GPU batches"
    ),
    "kornia": (
        "docstrings of `RandAugment`, `PolicyAugmentBase` (which has no generator of its own) and "
        "`AugmentationSequential`; also tried: a batch gets one op, each sample its own sign, and boxes and masks move "
        "with their images under `RandAugment`"
    ),
    "albumentations": (
        "[Reproducibility](https://albumentations.ai/docs/4-advanced-guides/reproducibility): a seed fixes the "
        "sequence of a pipeline, and `ReplayCompose` repeats one recorded draw; NumPy arrays on the CPU; no "
        "RandAugment, and policy search is a separate project (AutoAlbument)"
    ),
    "DALI": (
        "[Automatic augmentations](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/auto_aug/auto_aug.html): "
        "every sample draws its ops; `rand_augment` takes images only. Boxes have operators of their own "
        "([`bb_flip`]"
        "(https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.bb_flip.html) "
        "and others), and random operators keep a state that starts from a seed (documentation of 2.x)"
    ),
}
"""Where the documented columns come from."""
FEATURE_NAMES = ("ops per sample on GPU", "Pillow's pixels", "same by sample id", "learned policy", "boxes, masks")


def gpu_rates() -> dict[str, str]:
    """Return measured images/s on a GPU, largest batches of 224x224, by library."""
    rows = result("gpu_throughput")["results"]["rows"]
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name, start in ((OURS, "fused, 224x224"), ("torchvision", "torchvision v2, 224x224, 3 ops, ONE")):
            if row["name"].startswith(start) and row["batch"] >= best.get(name, row)["batch"]:
                best[name] = row
    return {name: f"{row['images_per_second']:,}" for name, row in best.items()}


def _cells(short: bool = False) -> dict[str, list[str]]:
    document, gpu = result("peers"), gpu_rates()
    found = {(row["library"], row["given"]): row["images_per_second"] for row in document["results"]["rates"]}
    differing, cells = document["results"]["rotation_differs_percent"], {}
    for name, features in FEATURES.items():
        marks = list(features)
        if name in differing:
            off = differing[name]
            rest = "" if short else f" of values differ, {off['over 1']:.1f} % by more than 1"
            marks[1] += f" ({off['any']:.0f} %{rest})"
        speeds = [f"{found[name, given]:,.0f}" if (name, given) in found else "–" for given in ("image", "batch")]
        on_gpu = gpu.get(name, "not measured" if name in ("kornia", "DALI") else "–")
        cells[name] = [*marks, *speeds, on_gpu]
    return cells


def peers_table() -> str:
    """docs/speed.md: features and speeds of each library."""
    document = result("peers")
    versions = ", ".join(f"{name} {version}" for name, version in document["results"]["versions"].items())
    head = ["", *FEATURE_NAMES, "images/s, one by one", "images/s, batches", "images/s, GPU"]
    rows = [[f"**{name}**" if name == OURS else name, *cells] for name, cells in _cells().items()]
    gpu, machine, load = result("gpu_throughput")["machine"]["gpu"], document["machine"], document["results"]["load"]
    rough = f" Other work was running (load {load:g} on {machine['cores']} cores)." if load > machine["cores"] else ""
    return (
        f"{table(head, rows)}\n\nSpeeds and pixels are measured; the sources of the other columns are below. "
        f"Pixels: share of values that differ from Pillow's after a bilinear rotation by {DEGREES:g} degrees. CPU: "
        f"{machine['cpu']}, processor time of one thread, batches of {BATCH}; {versions}; `{document['command']}`."
        f"{rough} GPU: {gpu}, "
        "largest batch timed, torchvision with one draw per batch. torchvision and kornia draw ops once per batch; "
        "DALI and this package draw them per image."
        "\n\n<details><summary>Sources of the documented columns</summary>\n\n"
        + "\n".join(
            f"- **{name} {document['results']['versions'].get(name, '')}**: {source}."
            for name, source in SOURCES.items()
        )
        + "\n\n</details>"
    )


def readme_peers() -> str:
    """README: the same, shorter."""
    heads = (*FEATURE_NAMES, "images/s, one by one", "batches", "GPU")
    rows = [[f"**{name}**" if name == OURS else name, *cells] for name, cells in _cells(short=True).items()]
    return table(["", *heads], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    images = generated_images(SIZE, BATCH, arguments.seed)
    load = os.getloadavg()[0]
    found = rates(works(images, arguments.seed), arguments.rounds)
    differing = rotation_differences(pictures_of(images)[0])
    versions = {}
    for name, package in PACKAGES.items():
        try:
            versions[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for row in found:
        print(f"{row['library']}, {row['given']}: {row['images_per_second']:,.0f} images/s")
    print(f"values that differ from Pillow's after a rotation, %: {differing}")
    results = {
        "rates": found,
        "rotation_differs_percent": differing,
        "versions": versions,
        "load": round(max(load, os.getloadavg()[0]), 1),
    }
    write("peers", results, arguments.seed)


if __name__ == "__main__":
    main()
