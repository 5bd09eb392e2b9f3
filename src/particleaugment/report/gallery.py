"""Galleries: what ops and policies do to real images, as PNG grids drawn by Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from particleaugment.core.op_table import TABLE, Kind, Op
from particleaugment.core.program import Program
from particleaugment.core.semantics import get
from particleaugment.executors import apply
from particleaugment.policies import Policy, SubPolicies, parse
from particleaugment.util.atomic import replacing

__all__ = ["Row", "draw_grid", "draw_strip", "example_images", "ops_rows", "policy_rows", "write_gallery"]

Row = tuple[str, Sequence[tuple[str, Tensor]]]
"""A row of a grid: its title, and captioned images, uint8 ``[3, H, W]``."""

_SCALE, _GAP, _TITLE_WIDTH, _CAPTION_HEIGHT = 2, 6, 178, 18
_INK, _FAINT, _PAPER = (28, 32, 38), (90, 98, 108), (250, 250, 248)
_SIDE = 112
_PHOTOGRAPHS = {"flower.jpg": (150, 0), "china.jpg": (60, 0)}
_LEVELS = (2.0, 5.0, 8.0, 10.0)
_POLICIES = ("none", "randaugment-n2-m5", "trivial", "autoaugment-cifar10", "rand-m9-n3-mstd0.5-inc1")
_UNITS = {
    "degrees": "{:.0f}°",
    "threshold": "from {:.0f}",
    "value": "+{:.0f}",
    "factor": "x {:.2f}",
    "fraction": "{:.0%} of side",
    "side": "{:.0%} of side",
    "bits": "bits {:.0f}",
}


def example_images(count: int = 2) -> Tensor:
    """Return colour photographs, uint8 ``[count, 3, 112, 112]``: two scenes in turn, each pair of them closer up.

    >>> example_images(3).shape
    torch.Size([3, 3, 112, 112])
    """
    from sklearn.datasets import load_sample_image

    images = []
    for number in range(count):
        name, (left, top) = list(_PHOTOGRAPHS.items())[number % 2]
        inset = 35 * (number // 2)
        box = (left + inset, top + inset, left + 427 - inset, top + 427 - inset)
        picture = Image.fromarray(load_sample_image(name)).crop(box).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        images.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    return torch.stack(images)


def _in_units(op: Op, argument: float) -> str:
    """Return an argument as a caption says it.

    >>> _in_units(TABLE[3], 15.0), _in_units(TABLE[12], 0.225)
    ('15°', '22% of side')
    """
    return _UNITS.get(op.unit.split()[0].rstrip(","), "{:.2f}").format(argument)


def ops_rows(images: Tensor, semantics: str = "timm-increasing") -> list[Row]:
    """Return one row per op: one of the images, in turn, without the op and at rising levels."""
    size = (images.shape[-2], images.shape[-1])
    rows: list[Row] = []
    for op in TABLE:
        mapping = get(semantics if op.name in get(semantics).rules else "fast-autoaugment")
        image = images[op.index % len(images)][None]
        cells = [("original", image[0])]
        if not op.takes_argument:
            steps = [("applied", 0.0, 0.0)]
        elif op.values:
            steps = [(_in_units(op, value), 0.0, value) for value in op.values]
        else:
            levels = [level / 10 * mapping.top for level in _LEVELS]
            arguments = [mapping.argument(op.name, level, size=size) for level in levels]
            steps = [
                (f"level {_LEVELS[i]:g}: {_in_units(op, argument)}", levels[i], argument)
                for i, argument in enumerate(arguments)
            ]
        for caption, level, argument in steps:
            if op.kind is Kind.PATCH:  # its place is drawn
                drawn = SubPolicies((((op.name, 1.0, level),),), mapping.name)
                program = drawn.sample(torch.arange(1), size=size)
            else:
                program = Program.from_ops([[(op.name, argument)]])
            cells.append((caption, apply(image, program)[0]))
        rows.append((op.name, cells))
    return rows


def policy_rows(images: Tensor, policies: Sequence[tuple[str, Policy]], seed: int = 0) -> list[Row]:
    """Return one row per policy: the images under its draws."""
    ids = torch.arange(len(images))
    rows: list[Row] = []
    for title, policy in policies:
        program = policy.sample(ids, epoch=0, seed=seed, size=(images.shape[-2], images.shape[-1]))
        rows.append((title, [("", image) for image in apply(images, program)]))
    return rows


def draw_grid(rows: Sequence[Row], scale: int = 1) -> Image.Image:
    """Draw rows of captioned images as one picture."""
    side_y, side_x = (scale * side for side in rows[0][1][0][1].shape[-2:])
    columns = max(len(cells) for _, cells in rows)
    row_height = side_y + _CAPTION_HEIGHT + _GAP
    canvas = Image.new("RGB", (_TITLE_WIDTH + columns * (side_x + _GAP) + _GAP, len(rows) * row_height + _GAP), _PAPER)
    pen = ImageDraw.Draw(canvas)
    font, small = ImageFont.load_default(14), ImageFont.load_default(12)
    for r, (title, cells) in enumerate(rows):
        top = _GAP + r * row_height
        pen.text((_GAP, top + _CAPTION_HEIGHT + side_y // 2 - 8), title, fill=_INK, font=font)
        for c, (caption, image) in enumerate(cells):
            left = _TITLE_WIDTH + c * (side_x + _GAP)
            pen.text((left, top), caption, fill=_FAINT, font=small)
            picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
            canvas.paste(picture.resize((side_x, side_y), Image.Resampling.NEAREST), (left, top + _CAPTION_HEIGHT))
    return canvas


def draw_strip(images: Tensor, scale: int = _SCALE) -> Image.Image:
    """Draw images, uint8 ``[N, 1 or 3, H, W]``, side by side on a transparent ground.

    >>> draw_strip(torch.zeros(3, 3, 10, 10, dtype=torch.uint8), scale=2).size
    (72, 20)
    """
    height, width = (scale * side for side in images.shape[-2:])
    strip = Image.new("RGBA", (len(images) * (width + _GAP) - _GAP, height))
    for place, image in enumerate(images.expand(-1, 3, -1, -1)):
        picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
        strip.paste(picture.resize((width, height), Image.Resampling.NEAREST), (place * (width + _GAP), 0))
    return strip


def write_gallery(path: str | Path, policy: Policy | None = None) -> Path:
    """Write a PNG of two photographs under a policy; without one, under every op and several policies."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if policy is None:
        policies = [(name, parse(name)) for name in _POLICIES]
        rows = ops_rows(example_images(2)) + policy_rows(example_images(5), policies)
    else:
        images = example_images(6)
        rows = policy_rows(images, [("original", parse("none"))])
        for seed in range(8):
            rows += policy_rows(images, [(f"draw {seed + 1}", policy)], seed)
    with replacing(path) as file:
        draw_grid(rows).save(file, Image.registered_extensions().get(path.suffix.lower(), "PNG"))
    return path
