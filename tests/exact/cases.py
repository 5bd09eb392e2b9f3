"""Images, arguments and programs for the exactness suite, all drawn from a seed."""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import oracle
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

import particleaugment as pa
from particleaugment.augment.one_image import OneImage
from particleaugment.core.op_table import Kind
from particleaugment.policies.plan import Drawn

NAMES = tuple(op.name for op in pa.ops.TABLE if op.kind is not Kind.PATCH)  # which test_exact_cutout.py compares
GEOMETRIC = tuple(op.name for op in pa.ops.TABLE if op.kind is Kind.GEOMETRIC and not op.values)
EXECUTORS = tuple(name for name in pa.EXECUTORS if name not in ("auto", "fused"))
"""Those that run on a CPU."""
KINDS = ("random", "smooth", "constant", "two-valued", "digit", "photo")
ONE_BY_ONE = "one by one"
"""Stands for an executor: compiled loops on single Pillow images, as ``ImageTransform`` calls them."""
SMALL = ((1, 1), (2, 3), (17, 23), (32, 32))
SIZES = (*SMALL, (64, 48), (224, 224))

_INDEX = {name: pa.ops.lookup(name).index for name in NAMES}


def names_for(height: int, width: int) -> tuple[str, ...]:
    """The ops that images of a size can go through."""
    return tuple(name for name in NAMES if name != "Rotate90" or height == width)


def value_range(name: str) -> tuple[float, float]:
    """The valid arguments of an op; (0, 0) for one without."""
    op = pa.ops.lookup(name)
    return op.low, op.high


def special_arguments(name: str, height: int, width: int) -> list[float]:
    """The ends of an op's range and the places where its arithmetic changes its path or is about to round."""
    if name == "Rotate90":
        return [90, 180, 270]
    if name == "Rotate":
        exact = [0, 90, 180, 270, 360, 45, 30, 12.5, 135, 300]
        near = [math.nextafter(90, 0), math.nextafter(90, 91), math.nextafter(180, 181), 359.9999999, 89.99999]
        tiny = [1e-1, 1e-3, 1e-6, 1e-9, 1e-12, 6e-14, 2.9e-14, 1e-15, 1e-300]
        return [sign * value for value in exact + near + tiny for sign in (1, -1)]
    if name.startswith("Shear"):
        values = [0, 0.03, 0.1, 0.3, 1 / 3, 0.5, 0.99, 1, 1.5, 2, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-16, 3e-17, 1e-300]
        return [sign * value for value in values for sign in (1, -1)]
    if name.startswith("Translate"):
        side = width if name.endswith("X") else height
        pixels = [0, 1, 2, side // 2, side - 1, side, side + 1, 0.5, 1.5, side - 0.5, 0.25, 0.1, 1 / 3, side - 0.01]
        pixels += [
            1 + 2e-12,
            3 - 9e-10,
            1 + 1.1e-9,
            2 - 1e-6,
            1e-8,
            5e-10,
            math.nextafter(1, 0),
            math.nextafter(0.5, 0),
        ]
        fractions = [p / side for p in pixels] + [0.1, 0.3, 0.7, 0.45, 1.5, 2]
        return [sign * value for value in fractions if value <= 2 for sign in (1, -1)]
    if name == "Solarize":
        return [0, 0.5, 1, 25.6, 127, 127.5, 128, 129, 254, 255, 255.5, 256]
    if name == "SolarizeAdd":
        return [0, 0.9, 1, 33, 33.9, 110, 127, 128, 129, 200, 254, 255]
    if name == "Posterize":
        return [0, 0.5, 0.999, 1, 2, 3, 3.7, 4, 5, 6, 7, 7.999, 8]
    if pa.ops.lookup(name).kind in (Kind.BLEND, Kind.NEIGHBOURHOOD):
        near = [1 - 1e-9, 1 + 1e-7, 1 - 6e-8, 1e-8, 1e-45, 1e-60, math.nextafter(2, 3)]
        return [0, 0.1, 0.3, 0.5, 0.64, 0.9, 1, 1.1, 1.27, 1.5, 1.9, 2, 3, 5.5, 9.99, 10, *near]
    low, high = value_range(name)
    return sorted({low, (low + high) / 2, high, pa.ops.lookup(name).neutral or low})


def random_argument(rng: np.random.Generator, name: str) -> float:
    """Any valid argument of an op."""
    return rng.choice([90, 180, 270]) if name == "Rotate90" else rng.uniform(*value_range(name))


@lru_cache(maxsize=1)
def _real() -> tuple[np.ndarray, list[np.ndarray]]:
    digits = (load_digits().images * (255 / 16)).astype(np.uint8)
    return digits, [np.asarray(photo) for photo in load_sample_images().images]


def draw_image(rng: np.random.Generator, kind: str, height: int, width: int) -> np.ndarray:
    """One uint8 image [3, H, W]."""
    shape = (3, height, width)
    if kind == "random":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind == "constant":
        return np.broadcast_to(rng.integers(0, 256, (3, 1, 1), dtype=np.uint8), shape)
    if kind == "two-valued":
        pairs = [(0, 255), (0, 1), (1, 255), (254, 255), (127, 128), tuple(rng.choice(256, 2, replace=False))]
        return np.array(pairs[rng.integers(len(pairs))], np.uint8)[rng.integers(0, 2, shape)]
    if kind == "smooth":
        y, x = np.mgrid[:height, :width]
        slopes, phase = rng.uniform(-0.4, 0.4, (2, 3, 1, 1)), rng.uniform(0, 6, (3, 1, 1))
        return (127.5 + 127.5 * np.sin(slopes[0] * y + slopes[1] * x + phase)).astype(np.uint8)
    digits, photos = _real()
    if kind == "digit":
        digit = Image.fromarray(digits[rng.integers(len(digits))]).resize((width, height), Image.Resampling.BILINEAR)
        return np.broadcast_to(np.asarray(digit), shape)
    photo = photos[rng.integers(len(photos))]
    # A crop; where the photograph is too small, it starts over.
    rows, columns = (
        (rng.integers(max(1, have - want + 1)) + np.arange(want)) % have
        for have, want in zip(photo.shape, (height, width))
    )
    return photo[np.ix_(rows, columns)].transpose(2, 0, 1)


@lru_cache(maxsize=32)
def pool(kind: str, height: int, width: int, count: int, seed: int = 0) -> np.ndarray:
    """Some images of one kind, [count, 3, H, W]."""
    rng = np.random.default_rng([seed, KINDS.index(kind), height, width])
    return np.stack([draw_image(rng, kind, height, width) for _ in range(count)])


@dataclass
class Case:
    """A batch of images, each with its row of ops, arguments and filters."""

    images: np.ndarray
    names: list[list[str]]
    args: np.ndarray
    codes: np.ndarray
    fill: tuple[int, int, int] = (128, 128, 128)

    def __len__(self) -> int:
        return len(self.images)

    def program(self) -> pa.Program:
        op = torch.tensor([[_INDEX[name] for name in row] for row in self.names], dtype=torch.int64)
        return pa.Program(op, torch.from_numpy(self.args), torch.from_numpy(self.codes))

    def expected(self) -> np.ndarray:
        return oracle.run(self.images, self.names, self.args.tolist(), self.codes.tolist(), self.fill)


def as_kind(pixels: np.ndarray, kind: str) -> object:
    """An image [C, H, W] as a Pillow image, an array or a tensor."""
    if kind == "tensor":
        return torch.from_numpy(np.array(pixels))
    array = np.ascontiguousarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    return Image.fromarray(array) if kind == "pillow" else array


def as_planes(image: object) -> np.ndarray:
    array = np.asarray(image)
    return array if isinstance(image, torch.Tensor) else array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def run_one_by_one(case: Case, kind: str, compiled: bool) -> np.ndarray:
    program, images = case.program(), []
    for i, pixels in enumerate(case.images):
        drawn = Drawn(*(part[i : i + 1].numpy() for part in (program.op, program.arg, program.resample)), None)
        given = as_kind(pixels, kind)
        before = as_planes(given).copy()
        images.append(as_planes(OneImage(given).run(drawn, case.fill, compiled)))
        assert np.array_equal(as_planes(given), before), "the given image is never changed"
    return np.stack(images)


@dataclass
class Tally:
    """How many images and masks were compared with Pillow's, on which executors, and how many differed."""

    images: int = 0
    masks: int = 0
    differing: int = 0
    executors: Counter = field(default_factory=Counter)

    def check(self, case: Case, *executors: str) -> None:
        """Compare executors with Pillow, and fail if a pixel of any differs."""
        images, program, expected = torch.from_numpy(np.array(case.images)), case.program(), case.expected()
        self.images += len(case)
        outputs = {
            name: run_one_by_one(case, "pillow", compiled=True)
            if name == ONE_BY_ONE
            else pa.apply(images, program, executor=name, fill=case.fill).numpy()
            for name in executors
        }
        failures = [self.compare(executor, case, output, expected) for executor, output in outputs.items()]
        assert not any(failures), "\n".join(filter(None, failures))

    def compare(self, executor: str, case: Case, output: np.ndarray, expected: np.ndarray) -> str:
        """Count the images that differ, and describe the first of them."""
        assert output.shape == expected.shape
        differs = (output != expected).any(axis=(1, 2, 3))
        self.executors[executor] += len(case)
        self.differing += int(differs.sum())
        if not differs.any():
            return ""
        i = int(differs.argmax())
        row = [(n, a, oracle.FILTERS[c]) for n, a, c in zip(case.names[i], case.args[i].tolist(), case.codes[i])]
        where = tuple(np.argwhere(output[i] != expected[i])[0].tolist())
        return (
            f"{executor} differs from Pillow on {differs.sum()} of {len(case)} images of shape "
            f"{case.images.shape[1:]}, first at channel, row, column {where} of image {i}: "
            f"{output[i][where]} for {expected[i][where]} after {row}"
        )

    def __str__(self) -> str:
        parts = ", ".join(f"{executor} {count:,}" for executor, count in self.executors.items())
        return (
            f"{self.images:,} images and {self.masks:,} masks compared, {self.differing:,} differ "
            f"(images by executor: {parts})"
        )


def singles(name: str, code: int, height: int, width: int, count: int, seed: int = 0) -> Case:
    """One op on ``count`` images: its special arguments on every kind of image first, then random ones."""
    rng = np.random.default_rng([seed, NAMES.index(name), code, height, width])
    special = special_arguments(name, height, width)
    if count < len(special) * len(KINDS):  # too few for all pairs: let the kind of image change with the argument
        pairs = [(value, KINDS[i % len(KINDS)]) for i, value in enumerate(special)]
        rng.shuffle(pairs)
    else:
        pairs = [(value, kind) for value in special for kind in KINDS]
    pairs = pairs[:count]
    pairs += [(random_argument(rng, name), KINDS[rng.integers(len(KINDS))]) for _ in range(count - len(pairs))]
    size = 4 if height * width > 10_000 else 40
    images = [pool(kind, height, width, size, seed)[rng.integers(size)] for _, kind in pairs]
    args = np.array([[value] for value, _ in pairs], dtype=np.float64)
    return Case(np.stack(images), [[name]] * count, args, np.full((count, 1), code))


def chains(height: int, width: int, slots: int, count: int, seed: int = 0, channels: int = 3) -> Case:
    """Random programs: any ops, special or random arguments, a filter per slot, a fill colour per batch."""
    rng = np.random.default_rng([seed, height, width, slots, channels])
    special = {name: special_arguments(name, height, width) for name in NAMES}
    names = rng.choice(names_for(height, width), (count, slots)).tolist()
    args = np.zeros((count, slots))
    for i, row in enumerate(names):
        for k, name in enumerate(row):
            args[i, k] = rng.choice(special[name]) if rng.random() < 0.3 else random_argument(rng, name)
    size = 4 if height * width > 10_000 else 40
    kinds = rng.integers(len(KINDS), size=count)
    images = np.stack([pool(KINDS[kind], height, width, size, seed)[rng.integers(size)] for kind in kinds])
    fill = tuple(int(value) for value in rng.integers(0, 256, 3))
    return Case(images[:, :channels], names, args, rng.integers(0, 3, (count, slots)), fill)


def drawn_masks(case: Case, seed: int = 0) -> np.ndarray:
    """Masks for a case's images: every pixel of another class as far as 255 classes go, or a few large areas."""
    count, (height, width) = len(case), case.images.shape[-2:]
    rng = np.random.default_rng([seed, count, height, width])
    noise = rng.integers(0, 255, (count, height, width), dtype=np.uint8)
    y, x = np.mgrid[:height, :width]
    areas = ((x + y * rng.integers(1, 4, (count, 1, 1))) * 5 // (height + width)).astype(np.uint8)
    return np.where(rng.random((count, 1, 1)) < 0.7, noise, areas)
