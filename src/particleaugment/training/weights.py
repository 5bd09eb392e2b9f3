"""The file of a run's final weights."""

from __future__ import annotations

import json

from safetensors.torch import save as to_safetensors
from torch import Tensor

__all__ = ["weights_file"]


def weights_file(weights: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file; the library puts metadata in random order, so that part is written anew."""
    content = to_safetensors(weights, metadata)
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start]) | {"__metadata__": metadata}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]
