"""What runs that follow each other in one process share: data sets, and networks with their compiled form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from particleaugment.data import ImageData
from particleaugment.models import ShakeShake
from particleaugment.training.config import Config

__all__ = ["SharedNetwork", "SharedParts"]

_NETWORK_SETTINGS = ("device", "precision", "deterministic", "sync_batchnorm")
_KEPT = 4  # data sets, the last ones used


class SharedNetwork:
    """A network on its device, and its compiled form once somebody has asked for it."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._compiled: Callable[[Tensor], Tensor] | None = None

    def compiled(self) -> Callable[[Tensor], Tensor]:
        """Return the compiled network; it computes with the model's own parameters."""
        if self._compiled is None:
            self._compiled = torch.compile(self.model)
        return self._compiled


class SharedParts:
    """Keeps data sets and networks from run to run, so that the next run like it starts in well under a second.

    A network is used again by writing the first weights of the next run into it, so only one run may train at a time.
    What a run computes is the same as in a process of its own.
    """

    def __init__(self) -> None:
        self._data: OrderedDict[tuple[object, ...], tuple[ImageData, bool]] = OrderedDict()
        self._networks: dict[tuple[object, ...], SharedNetwork] = {}

    def data(self, config: Config, load: Callable[[], tuple[ImageData, bool]]) -> tuple[ImageData, bool]:
        """Return the data of a configuration and whether they are on its device, loading them if need be."""
        key = (replace(config.data, stream="auto", workers="auto"), config.training.device)
        if key not in self._data:
            self._data[key] = load()
        self._data.move_to_end(key)
        while len(self._data) > _KEPT:
            self._data.popitem(last=False)
        return self._data[key]

    def network(self, config: Config, num_classes: int, make: Callable[[], nn.Module]) -> SharedNetwork:
        """Return the network of a configuration as it is before its first step."""
        key = (num_classes, config.model, *(getattr(config.training, name) for name in _NETWORK_SETTINGS))
        model = make()
        if isinstance(model, ShakeShake):  # its draws are part of it, beside its weights
            return SharedNetwork(model)
        if key not in self._networks:
            self._networks[key] = SharedNetwork(model)
            return self._networks[key]
        network = self._networks[key]
        network.model.load_state_dict(model.state_dict())
        network.model.zero_grad(set_to_none=True)
        return network
