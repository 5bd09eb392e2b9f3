"""The file of a run's final weights."""

from __future__ import annotations

import json

from safetensors.torch import save as to_safetensors
from torch import Tensor

from particleaugment.data import ImageData
from particleaugment.data.streamed import StreamedData
from particleaugment.training.config import Config

__all__ = ["weights_file", "weights_metadata"]


def weights_metadata(config: Config, data: ImageData | StreamedData) -> dict[str, str]:
    """Return what has to be known to use the weights: the network, its classes, and what images go through."""
    facts = {
        "classes": data.classes,
        "mean": data.mean,
        "std": data.std,
        "size": data.test.size if isinstance(data, StreamedData) else data.test_images.shape[-1],
        "margin": data.test.centre.margin if isinstance(data, StreamedData) else 1.0,
    }
    own = {"format": "pt", "model": config.model, "data": config.data.name, "seed": str(config.seed)}
    return own | {name: json.dumps(value) for name, value in facts.items()}


def weights_file(weights: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file; the library puts metadata in random order, so that part is written anew."""
    content = to_safetensors(weights, metadata)
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start]) | {"__metadata__": metadata}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]
