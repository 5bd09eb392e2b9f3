"""Starting weights as pure functions of (seed, parameter ordinal, element index).

Element ``e`` of a parameter, counted in row-major order whatever its memory format, takes slot ``e % 2`` of id
``e // 2`` in stream ``MODEL``; the parameter's ordinal stands where other streams have the epoch. So torch's global
generator is neither read nor advanced, and the same seed gives the same bits on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from particleaugment.core.random import CHUNK, Stream, standard_normal, uniform

__all__ = ["device_of_new_tensors", "initialise_parameters", "keyed_normal_", "keyed_uniform_"]


def device_of_new_tensors() -> torch.device:
    """Return the device that tensors are created on: ``torch.get_default_device`` of torch 2.6 ignores contexts.

    >>> with torch.device("meta"):
    ...     device_of_new_tensors()
    device(type='meta')
    """
    return torch.empty(0).device


def keyed_normal_(tensor: Tensor, std: float, seed: int, ordinal: int) -> Tensor:
    """Fill ``tensor`` with draws from N(0, std²) keyed by (seed, ordinal), and return it.

    >>> first = keyed_normal_(torch.empty(1000), std=2.0, seed=0, ordinal=5)
    >>> torch.equal(first, keyed_normal_(torch.empty(10, 100), std=2.0, seed=0, ordinal=5).flatten())
    True
    >>> round(float(first.std()), 1)
    2.0
    """
    return _fill_(tensor, lambda u: standard_normal(u) * std, seed, ordinal)


def keyed_uniform_(tensor: Tensor, bound: float, seed: int, ordinal: int) -> Tensor:
    """Fill ``tensor`` with draws from the uniform distribution on [-bound, bound) keyed by (seed, ordinal).

    >>> values = keyed_uniform_(torch.empty(1000), bound=0.5, seed=0, ordinal=0)
    >>> bool((values.abs() <= 0.5).all()), bool(values.abs().max() > 0.49)
    (True, True)
    """
    return _fill_(tensor, lambda u: (u * 2 - 1) * bound, seed, ordinal)


@torch.no_grad()
def _fill_(tensor: Tensor, transform: Callable[[Tensor], Tensor], seed: int, ordinal: int) -> Tensor:
    if tensor.is_meta:
        return tensor
    count = tensor.numel()
    values = torch.empty(count, dtype=tensor.dtype, device="cpu")
    for start in range(0, count, 2 * CHUNK):
        stop = min(start + 2 * CHUNK, count)
        pairs = torch.arange(start // 2, (stop + 1) // 2, dtype=torch.int64, device="cpu")
        draws = uniform(seed, Stream.MODEL, ordinal, pairs, slots=2).reshape(-1)
        values[start:stop] = transform(draws[: stop - start])
    tensor.copy_(values.view(tensor.shape))
    return tensor


def initialise_parameters(model: nn.Module, seed: int) -> None:
    """Initialise every convolution, batch norm and linear layer of ``model`` in place, keyed by ``seed``.

    Convolutions: He normal by fan-out, N(0, 2 / (output channels x kernel area)). Linear weights: uniform within
    ±1/√(inputs). Batch norms: weight 1, bias 0, fresh statistics. Biases: 0. A parameter's ordinal is its place
    in ``model.parameters()``.

    >>> layer = nn.Conv2d(3, 8, 3)
    >>> initialise_parameters(layer, seed=1)
    >>> again = nn.Conv2d(3, 8, 3)
    >>> initialise_parameters(again, seed=1)
    >>> torch.equal(layer.weight, again.weight)
    True
    """
    ordinals = {id(parameter): ordinal for ordinal, parameter in enumerate(model.parameters())}
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Conv2d):
            weight = module.weight
            fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
            keyed_normal_(weight, math.sqrt(2 / fan_out), seed, ordinals[id(weight)])
        elif isinstance(module, nn.Linear):
            weight = module.weight
            keyed_uniform_(weight, 1 / math.sqrt(weight.shape[1]), seed, ordinals[id(weight)])
        elif next(module.parameters(recurse=False), None) is not None:
            raise TypeError(
                f"initialise_parameters knows convolutions, batch norms and linear layers, but {name or 'the model'!r} "
                f"is a {type(module).__name__} with parameters of its own; "
                "fill those with keyed_normal_ or keyed_uniform_"
            )
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
