"""The Python source that an exported list of sub-policies becomes; formatted by :mod:`.exports`."""

from __future__ import annotations

import re

__all__ = ["TIMM_SNIPPET", "TORCHVISION_OPS", "TORCHVISION_SNIPPET"]

TIMM_SNIPPET = '''"""A policy for timm: `policy` takes and returns a Pillow image, like timm's --aa transform."""

{imports}from PIL import Image, ImageOps
from timm.data.auto_augment import AugmentOp, AutoAugment

{closest}HPARAMS = {{{hparams}}}
# timm draws sub-policies uniformly: each is repeated this often.
COUNTS = [
{counts}
]
# One sub-policy per line: (timm's op, probability, magnitude of 10).
SUB_POLICIES = [
{rows}
]


def posterize(image, bits, **_):
    # 0 bits give black, but Pillow 13 refuses them.
    return ImageOps.posterize(image, min(bits, 8)) if bits >= 1 else image.point(lambda _: 0)


def op(name, probability, magnitude):
    made = AugmentOp(name, probability, magnitude, HPARAMS)
    if name.startswith("Posterize"):
        made.aug_fn = posterize
    return made


policy = AutoAugment(
    [
        [op(*step) for step in steps]
        for steps, count in zip(SUB_POLICIES, COUNTS)
        for _ in range(count)
    ]
)
'''

TORCHVISION_SNIPPET = '''"""A policy for torchvision: `policy` takes and returns an image, also inside v2.Compose."""

import math
import random

from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

GEOMETRY = {{"interpolation": InterpolationMode.BILINEAR, "fill": [128, 128, 128]}}
WEIGHTS = [
{weights}
]
# One sub-policy per line: (op, probability, argument, argument with the other sign). Brightness 0: Posterize to 0 bits.
SUB_POLICIES = [
{rows}
]


def affine(image, shift=(0, 0), shear=(0.0, 0.0)):
    degrees = [math.degrees(math.atan(value)) for value in shear]
    return F.affine(image, 0.0, list(shift), 1.0, degrees, center=[0, 0], **GEOMETRY)


OPS = {{
    "AutoContrast": lambda image, _: F.autocontrast(image),
    "Equalize": lambda image, _: F.equalize(image),
    "Invert": lambda image, _: F.invert(image),
    "Rotate": lambda image, degrees: F.rotate(image, degrees, **GEOMETRY),
    "Solarize": lambda image, threshold: F.solarize(image, threshold) if threshold <= 255 else image,
    "Posterize": lambda image, bits: F.posterize(image, int(bits)),
    "Color": lambda image, factor: F.adjust_saturation(image, factor),
    "Contrast": lambda image, factor: F.adjust_contrast(image, factor),
    "Brightness": lambda image, factor: F.adjust_brightness(image, factor),
    "Sharpness": lambda image, factor: F.adjust_sharpness(image, factor),
    "Rotate90": lambda image, degrees: F.rotate(image, degrees, **GEOMETRY),
    "FlipX": lambda image, _: F.horizontal_flip(image),
    "FlipY": lambda image, _: F.vertical_flip(image),
    "ShearX": lambda image, value: affine(image, shear=(value, 0.0)),
    "ShearY": lambda image, value: affine(image, shear=(0.0, value)),
    "TranslateX": lambda image, part: affine(image, shift=(int(part * F.get_size(image)[1]), 0)),
    "TranslateY": lambda image, part: affine(image, shift=(0, int(part * F.get_size(image)[0]))),
}}


def policy(image):
    for op, probability, argument, opposite in random.choices(SUB_POLICIES, WEIGHTS)[0]:
        if random.random() < probability:
            image = OPS[op](image, random.choice((argument, opposite)))
    return image
'''

TORCHVISION_OPS = frozenset(re.findall(r'^    "(\w+)": lambda', TORCHVISION_SNIPPET, re.MULTILINE))
"""The ops that this source can apply."""
