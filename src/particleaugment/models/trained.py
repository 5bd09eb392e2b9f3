"""The network that a run has trained, to be used."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from particleaugment.augment.transforms import Normalize
from particleaugment.data.decode import CentreCrop, read_image
from particleaugment.models import build_model

__all__ = ["TrainedModel", "load_model"]

_NEEDED = ("model", "classes", "mean", "std", "size", "margin")


class TrainedModel(nn.Module):
    """A run's network together with what its images went through.

    Attributes:
        network: The network.
        classes: Names of the classes, in the order of the logits.
        normalize: What turns uint8 images into the network's input.
        size: Height and width of the images.
        centre: How the centre of a larger image is cut out.

    >>> network, normalize = build_model("wrn-10-1", num_classes=2, seed=0), Normalize((0.5,) * 3, (0.2,) * 3)
    >>> model = TrainedModel(network, ["cat", "dog"], normalize, size=32, centre=CentreCrop()).eval()
    >>> model(torch.zeros(4, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([4, 2])
    """

    def __init__(self, network: nn.Module, classes: Sequence[str], normalize: Normalize, size: int, centre: CentreCrop):
        super().__init__()
        self.network, self.classes, self.normalize = network, tuple(classes), normalize
        self.size, self.centre = size, centre

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of uint8 images ``[N, C, size, size]``."""
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[-2:] != (self.size, self.size):
            raise ValueError(
                f"uint8 images [N, C, {self.size}, {self.size}] are expected, got {images.dtype} {list(images.shape)}; "
                "read() makes them of files"
            )
        logits: Tensor = self.network(self.normalize.run(images))
        return logits

    def read(self, files: Sequence[str | os.PathLike[str]]) -> Tensor:
        """Read image files as the run read its test images, uint8 ``[N, 3, size, size]``."""
        region = partial(self.centre.box, size=self.size)
        images = torch.empty(len(files), 3, self.size, self.size, dtype=torch.uint8, device="cpu")
        for file, image in zip(files, images):
            read_image(file, self.size, region, out=image)
        return images

    @torch.inference_mode()
    def classify(self, files: Sequence[str | os.PathLike[str]]) -> list[str]:
        """Return the likeliest class of each image file."""
        device = next(self.network.parameters()).device
        return [self.classes[number] for number in self(self.read(files).to(device)).argmax(1).tolist()]


def load_model(path: str | os.PathLike[str]) -> TrainedModel:
    """Load the network of a finished run, ready to be used.

    Args:
        path: The run's folder, or its ``model.safetensors``.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> weights = build_model("wrn-10-1", num_classes=2, seed=0).state_dict()
    >>> known = {"model": "wrn-10-1", "classes": '["cat", "dog"]', "mean": "[0.5, 0.5, 0.5]",
    ...          "std": "[0.2, 0.2, 0.2]", "size": "32", "margin": "1.0"}
    >>> with tempfile.TemporaryDirectory() as run:
    ...     save_file(weights, f"{run}/model.safetensors", known)
    ...     load_model(run).classes
    ('cat', 'dog')
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    file = Path(path).expanduser()
    file = file / "model.safetensors" if file.is_dir() else file
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}; a run writes it when it ends")
    try:
        with safe_open(file, "pt") as content:
            known = content.metadata() or {}
        weights = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if missing := [name for name in _NEEDED if name not in known]:
        raise ValueError(f"{file} does not say its {missing[0]}; load its weights into build_model(...) by yourself")
    classes = json.loads(known["classes"])
    network = build_model(known["model"], len(classes), seed=0)
    network.load_state_dict(weights)
    normalize = Normalize(tuple(json.loads(known["mean"])), tuple(json.loads(known["std"])))
    centre = CentreCrop(json.loads(known["margin"]))
    return TrainedModel(network, classes, normalize, json.loads(known["size"]), centre).eval()
