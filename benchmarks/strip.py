"""The strip of docs/index.md: two photographs, plain and under ten ops, each with its name.

python benchmarks/strip.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

import particleaugment as pa

__all__ = ["write_strip"]

DOCS = Path(__file__).parents[1] / "docs"
SIDE, GAP, LABEL, COLUMNS = 144, 8, 24, 6
PAPER, INK = (250, 250, 248), (40, 40, 40)
CROPS = {"flower.jpg": (150, 0, 577, 427), "china.jpg": (60, 0, 487, 427)}
OPS: tuple[tuple[str, float] | str, ...] = (
    "Identity",
    ("Rotate", 25.0),
    ("ShearX", 0.3),
    ("TranslateY", 0.2),
    ("Color", 1.9),
    ("Contrast", 1.8),
    ("Brightness", 0.5),
    ("Sharpness", 4.0),
    ("Posterize", 2),
    ("Solarize", 128),
    "Equalize",
    "Invert",
)


def write_strip(path: Path = DOCS / "strip.png") -> Path:
    """Draw the strip: the ops in rows of six, and the two photographs in turn."""
    photos = [
        Image.fromarray(load_sample_image(name)).crop(box).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        for name, box in CROPS.items()
    ]
    cells = [np.array(photos[number % 2 if number else 0]) for number in range(len(OPS))]
    images = torch.from_numpy(np.stack(cells)).permute(0, 3, 1, 2).contiguous()
    changed = pa.apply(images, pa.Program.from_ops([[op] for op in OPS]))
    rows = -(-len(OPS) // COLUMNS)
    width, height = COLUMNS * (SIDE + GAP) + GAP, rows * (SIDE + LABEL + GAP) + GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for number, (op, image) in enumerate(zip(OPS, changed, strict=True)):
        row, column = divmod(number, COLUMNS)
        left, top = GAP + column * (SIDE + GAP), GAP + row * (SIDE + LABEL + GAP)
        label = "original" if op == "Identity" else op if isinstance(op, str) else f"{op[0]} {op[1]:g}"
        draw.text((left, top), label, fill=INK, font=font)
        sheet.paste(Image.fromarray(image.permute(1, 2, 0).numpy()), (left, top + LABEL))
    sheet.save(path, optimize=True)
    return path


if __name__ == "__main__":
    write_strip()
