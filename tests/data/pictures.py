"""What the tests of image files share."""

import numpy as np
import torch
from PIL import Image


def picture(seed=0, width=48, height=40, mode="RGB"):
    """A smooth random picture, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def as_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def whole(width, height):
    return 0, 0, width, height


def one_sentence(error):
    assert "\n" not in str(error.value)
