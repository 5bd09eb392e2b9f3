"""The gallery of docs/targets.md: two photographs under a policy, with mask, boxes and keypoints drawn on them.

python benchmarks/target_pictures.py
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image
from torch import Tensor

import particleaugment as pa

DOCS = Path(__file__).parents[1] / "docs"
SIZE, GAP, COLUMNS = (140, 210), 6, 5
PAPER, IGNORED, MASK, POINT = (250, 250, 248), (120, 120, 120), (70, 130, 255), (0, 255, 90)
BOXES = ((255, 210, 0), (255, 60, 160))
TOWER = (
    *((206, 30), (320, 130), (330, 185), (353, 255), (345, 325), (375, 335)),
    *((325, 400), (205, 385), (70, 345), (62, 265), (84, 175), (95, 115)),
)


class Sample(NamedTuple):
    """One photograph and its targets; each pixel of the mask is 0 or 1."""

    image: Tensor
    mask: Tensor
    boxes: Tensor
    labels: Tensor
    keypoints: Tensor


def sample(name: str, mask: Image.Image, boxes: list[list[float]], keypoints: list[list[float]]) -> Sample:
    """Return a photograph in the gallery's size, with targets that are given in its own pixels."""
    picture = Image.fromarray(load_sample_image(name))
    height, width = SIZE
    scale = torch.tensor([width / picture.width, height / picture.height])
    pixels = np.array(picture.resize((width, height), Image.Resampling.LANCZOS))
    return Sample(
        torch.from_numpy(pixels).permute(2, 0, 1).contiguous(),
        torch.from_numpy(np.array(mask.resize((width, height), Image.Resampling.NEAREST))),
        torch.tensor(boxes) * scale.repeat(2),
        torch.arange(len(boxes)),
        torch.tensor(keypoints) * scale,
    )


def samples() -> list[Sample]:
    """Return the flower, whose mask is its colour, and the tower, whose mask is a polygon."""
    red, _, blue = load_sample_image("flower.jpg").astype(int).transpose(2, 0, 1)
    orange = Image.fromarray(((red > 110) & (red > blue + 40)).astype(np.uint8))
    tower = Image.new("L", (640, 427))
    ImageDraw.Draw(tower).polygon(TOWER, fill=1)
    return [
        sample("flower.jpg", orange, [[168.0, 85, 447, 360], [287, 374, 470, 427]], [[306.0, 219]]),
        sample("china.jpg", tower, [[62.0, 30, 375, 410], [546, 136, 640, 427]], [[206.0, 38], [462, 233]]),
    ]


def drawn(image: Tensor, mask: Tensor, boxes: Tensor, labels: Tensor, keypoints: Tensor) -> Image.Image:
    """Draw targets on an image: the mask as a tint, what is ignored in grey, boxes by label, visible keypoints."""
    pixels = image.permute(1, 2, 0).numpy().astype(np.float64)
    inside, ignored = (mask == 1).numpy(), (mask == 255).numpy()
    pixels[inside] = 0.55 * pixels[inside] + 0.45 * np.array(MASK)
    pixels[ignored] = 0.5 * pixels[ignored] + 0.5 * np.array(IGNORED)
    picture = Image.fromarray(pixels.astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist()):
        pen.rectangle((left, top, right - 1, bottom - 1), outline=BOXES[label], width=2)
    for x, y, *visible in keypoints.tolist():
        if not visible or visible[0]:
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=POINT, outline=(0, 0, 0))
    return picture


def gallery() -> Image.Image:
    """Return the photographs as they are, and under draws of a policy after a random resized crop and a flip."""
    augment = pa.Augment(
        pa.RandAugment(n=2, m=6), seed=1, before=(pa.ResizedCrop((0.5, 1.0)), pa.HorizontalFlip()), fill=(60, 60, 60)
    )
    height, width = SIZE
    canvas = Image.new("RGB", (COLUMNS * (width + GAP) + GAP, 2 * (height + GAP) + GAP), PAPER)
    for row, plain in enumerate(samples()):
        cells = [drawn(*plain)]
        for number in range(1, COLUMNS):
            moved = augment(
                plain.image, 10 * row + number, masks=plain.mask, boxes=plain.boxes, keypoints=plain.keypoints,
                labels=plain.labels,
            )  # fmt: skip
            cells.append(drawn(moved.images, moved.masks, moved.boxes, moved.labels, moved.keypoints))
        for column, cell in enumerate(cells):
            canvas.paste(cell, (GAP + column * (width + GAP), GAP + row * (height + GAP)))
    return canvas


def write_target_gallery() -> None:
    """Write the picture of docs/targets.md."""
    gallery().quantize(192, dither=Image.Dither.NONE).save(DOCS / "targets.png", optimize=True)


if __name__ == "__main__":
    write_target_gallery()
