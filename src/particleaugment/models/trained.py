"""The network that a run has trained, to be used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from particleaugment.augment.transforms import Normalize
from particleaugment.data.decode import CentreCrop, read_image
from particleaugment.data.folder import LARGEST_SIZE
from particleaugment.models import build_model
from particleaugment.models.weight_files import network_tensors, open_weights
from particleaugment.util.strict_json import clipped

__all__ = ["TrainedModel", "load_model"]

_LARGEST_MARGIN = 10


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
                f"expected uint8 images [N, C, {self.size}, {self.size}], got {images.dtype} {list(images.shape)}; "
                "read() loads them from files"
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
    file = Path(path).expanduser()
    file = file / "model.safetensors" if file.is_dir() else file
    if not file.exists():
        raise FileNotFoundError(f"there is no {file}; a run writes it when it ends")
    try:
        content = open_weights(file)
        facts = _Facts.of(content.metadata)
        weights = content.read(network_tensors(facts.model, len(facts.classes)))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {clipped(error)}") from None
    network = build_model(facts.model, len(facts.classes), seed=0)
    network.load_state_dict(weights)
    normalize, centre = Normalize(facts.mean, facts.std), CentreCrop(facts.margin)
    return TrainedModel(network, facts.classes, normalize, facts.size, centre).eval()


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What a file of weights says of its network."""

    model: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    margin: float

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> _Facts:
        """Read them, each checked."""
        if missing := [item.name for item in fields(cls) if item.name not in metadata]:
            raise ValueError(f"its metadata lack {missing[0]}; load its weights into build_model(...) yourself")
        classes = _list(metadata, "classes")
        if not classes or not all(isinstance(name, str) for name in classes) or len(set(classes)) < len(classes):
            raise ValueError("its classes must be different names")
        mean, std = (_list(metadata, name) for name in ("mean", "std"))
        if len(mean) != 3 or not all(_is_number(value, 0, 1) for value in mean):
            raise ValueError("its mean must be three numbers from 0 to 1")
        if len(std) != 3 or not all(_is_number(value, 1e-6, 1) for value in std):
            raise ValueError("its std must be three positive numbers of at most 1")
        size, margin = _value(metadata, "size"), _value(metadata, "margin")
        if not isinstance(size, int) or not _is_number(size, 1, LARGEST_SIZE):
            raise ValueError(f"its size must be a whole number from 1 to {LARGEST_SIZE}")
        if not _is_number(margin, 1, _LARGEST_MARGIN):
            raise ValueError(f"its margin must be a number from 1 to {_LARGEST_MARGIN}")
        return cls(
            model=metadata["model"], classes=tuple(classes), mean=tuple(mean), std=tuple(std), size=size, margin=margin
        )


def _value(metadata: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(metadata[name])
    except (ValueError, RecursionError):
        raise ValueError(f"its {name} is not JSON") from None


def _list(metadata: Mapping[str, str], name: str) -> list[Any]:
    value = _value(metadata, name)
    if not isinstance(value, list):
        raise ValueError(f"its {name} must be a list")
    return value


def _is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
