"""Files of weights (safetensors) that nobody has to trust.

What a file announces is compared with what the network needs before memory is spent on either.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from particleaugment.models import build_model
from particleaugment.util.reading import open_file, read_file
from particleaugment.util.strict_json import JSONError, clipped, parse_json

__all__ = ["Weights", "mismatch", "network_tensors", "open_weights", "tensor_problem"]

_HEADER_LIMIT = 16 << 20
_NOT_NEGATIVE = ("running_var", "num_batches_tracked")
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def network_tensors(model: str, num_classes: int) -> dict[str, Tensor]:
    """Return the tensors that a network has, on the meta device: they take no memory.

    >>> network_tensors("wrn-10-1", num_classes=3)["head.weight"].shape
    torch.Size([3, 64])
    """
    with torch.device("meta"):
        return build_model(model, num_classes, seed=0).state_dict()


def mismatch(found: Mapping[str, Any], expected: Mapping[str, Tensor]) -> str | None:
    """Return in what tensors differ from those expected, layout, device, type, shape and range, or None.

    Nothing is converted or copied, and no number is read of a tensor that is not as it should be.

    >>> mismatch({"bias": torch.zeros(3)}, {"bias": torch.zeros(2, device="meta")})
    'bias must be torch.float32 of shape (2,), got torch.float32 of shape (3,)'
    """
    if problem := _other_names(found, expected):
        return problem
    for name, wanted in expected.items():
        if problem := tensor_problem(found[name]) or _other_form(found[name], wanted) or _not_finite(found[name]):
            return f"{name} {problem}"
        if name.endswith(_NOT_NEGATIVE) and bool((found[name] < 0).any()):
            return f"{name} contains negative numbers"
    return None


def tensor_problem(tensor: Any) -> str | None:
    """Return why a value is not an ordinary tensor in memory that holds all its numbers, or None."""
    if type(tensor) is not Tensor:
        return f"must be a tensor, got {type(tensor).__name__}"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        layout = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)
        return f"must be an ordinary tensor, got one that is {layout.removeprefix('torch.')}"
    if tensor.device.type != "cpu":
        return f"must be in memory, got a tensor on the device {tensor.device}"
    if tensor.is_complex():
        return f"must hold real numbers, got {tensor.dtype}"
    repeated = any(step == 0 and side > 1 for step, side in zip(tensor.stride(), tensor.shape))
    if repeated or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"must hold {tensor.numel():,} numbers and holds fewer"
    return None


def _not_finite(tensor: Tensor) -> str | None:
    return None if bool(tensor.isfinite().all()) else "contains non-finite numbers"


def _other_names(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    for name in sorted(map(str, found.keys() ^ expected.keys())):
        return f"the tensor {name} is {'missing' if name in expected else 'not one of the network'}"
    return None


def _other_form(tensor: Tensor, wanted: Tensor) -> str | None:
    if (tensor.dtype, tensor.shape) == (wanted.dtype, wanted.shape):
        return None
    form = f"{wanted.dtype} of shape {tuple(wanted.shape)}"
    return f"must be {form}, got {tensor.dtype} of shape {tuple(tensor.shape)}"


@dataclass(frozen=True)
class Weights:
    """What a file of weights announces.

    Attributes:
        path: The file.
        metadata: Texts by name.
        tensors: The tensors, on the meta device.
        size: The whole file's size.
    """

    path: str
    metadata: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    size: int

    def read(self, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors, if they are those expected and finite.

        Raises:
            ValueError: if they are not; the message does not name the file.
            OSError: if the file cannot be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        if problem := _other_names(self.tensors, expected):
            raise ValueError(problem)
        for name, tensor in self.tensors.items():
            if problem := _other_form(tensor, expected[name]):
                raise ValueError(f"{name} {problem}")
        try:
            tensors = load(read_file(self.path, self.size))
        except (SafetensorError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"it is damaged ({clipped(error)})") from None
        if problem := mismatch(tensors, expected):
            raise ValueError(problem)
        return tensors


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """Read what a file of weights announces.

    Raises:
        ValueError: if it is damaged; the message does not name the file.
        OSError: if it cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(_HEADER_LIMIT, size - 8):
            raise ValueError("it is damaged (its header is truncated or too long)")
        header = file.read(length)
    try:
        fields = parse_json(header.rstrip(b" "))
    except JSONError as error:
        raise ValueError(f"it is damaged (its header is not valid JSON: {error})") from None
    if not isinstance(fields, dict):
        raise ValueError("it is damaged (its header must be an object)")
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("it is damaged (its metadata must be strings)")
    tensors = {name: _announced(name, entry) for name, entry in fields.items()}
    expected = 8 + length + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size != expected:
        raise ValueError(f"it is damaged (it has {size:,} bytes, and its header declares {expected:,})")
    return Weights(os.fspath(path), metadata, tensors, size)


def _announced(name: str, entry: Any) -> Tensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*sides]} if dtype in _DTYPES and all(type(side) is int for side in sides):
            if min(sides, default=0) >= 0 and math.prod(sides) < 1 << 48:
                return torch.empty(sides, dtype=_DTYPES[dtype], device="meta")
    raise ValueError(clipped(f"it is damaged (its tensor {name!r} has no valid shape and type)"))
