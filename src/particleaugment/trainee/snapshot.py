"""Snapshots: train a clone in place, then put everything back bit for bit.

There is no second module. So compiled models, captured graphs, wrapped models, any optimizer, a GradScaler and
gradients being accumulated keep working, and a filter step costs one copy of model and optimizer state, whose memory is
reused from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Snapshot"]


class Snapshot:
    """Holds the state of a model and its optimizer and restores it in place.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> before = model.weight.detach().clone()
    >>> with Snapshot().of(model, optimizer):
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     optimizer.step()
    >>> torch.equal(model.weight, before), len(optimizer.state)
    (True, 0)
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, ...], Tensor] = {}

    @contextmanager
    def of(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None
    ) -> Iterator[None]:
        """Take a snapshot, run the block with empty gradients, and restore."""
        parameters = _parameters(model, optimizer)
        buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
        held = {id(tensor): tensor for tensor in (*parameters, *(buffer for *_, buffer in buffers))}
        restore_model = self._kept(("model",), list(held.values()))
        gradients = [parameter.grad for parameter in parameters]
        modes = [(module, module.training) for module in model.modules()]
        inner = getattr(optimizer, "optim", None)  # ZeroRedundancyOptimizer's own, with this rank's part of the state
        optimizers = [optimizer, *([inner] if isinstance(inner, torch.optim.Optimizer) else [])]
        restore_optimizers = [self._kept_optimizer(each, str(i)) for i, each in enumerate(optimizers)]
        scaler_state = None if scaler is None else dict(scaler.state_dict())
        generators = _generator_states(parameters)
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
        finally:
            with torch.no_grad():
                restore_model()
                for restore_optimizer in restore_optimizers:
                    restore_optimizer()
            for module, name, buffer in buffers:
                module._buffers[name] = buffer  # some modules assign a new tensor where others write into the old
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
            for module, training in modes:
                module.training = training
            if scaler is not None and scaler_state:
                scaler.load_state_dict(scaler_state)
            _restore_generators(generators)

    def _save(self, key: tuple[str, ...], tensor: Tensor) -> Tensor:
        kept = self._memory.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype or kept.device != tensor.device:
            kept = torch.empty_like(tensor, requires_grad=False)
            self._memory[key] = kept
        with torch.no_grad():
            kept.copy_(tensor)
        return kept

    def _kept(self, key: tuple[str, ...], value: Any) -> Callable[[], Any]:
        """Copy a value and return what puts it back; tensors, lists and dicts stay the objects that they are."""
        if isinstance(value, Tensor):
            saved = self._save(key, value)
            return lambda: value.copy_(saved)
        if isinstance(value, dict):
            items = {name: self._kept((*key, str(name)), item) for name, item in value.items()}

            def restore_dict() -> dict[Any, Any]:
                restored = {name: restore() for name, restore in items.items()}
                value.clear()
                value.update(restored)
                return value

            return restore_dict
        if isinstance(value, (list, tuple)):
            parts = [self._kept((*key, str(i)), item) for i, item in enumerate(value)]

            def restore_sequence() -> Any:
                restored = [restore() for restore in parts]
                if isinstance(value, list):
                    value[:] = restored
                return value

            return restore_sequence
        return lambda: value

    def _kept_optimizer(self, optimizer: torch.optim.Optimizer, key: str) -> Callable[[], None]:
        states = {
            parameter: self._kept(("state", key, str(i)), state)
            for i, (parameter, state) in enumerate(optimizer.state.items())
        }
        groups = [
            {name: self._kept(("group", key, str(i), name), value) for name, value in group.items() if name != "params"}
            for i, group in enumerate(optimizer.param_groups)
        ]

        def restore_optimizer() -> None:
            optimizer.state.clear()
            for parameter, restore in states.items():
                optimizer.state[parameter] = restore()
            for group, values in zip(optimizer.param_groups, groups):
                for name in group.keys() - values.keys() - {"params"}:
                    del group[name]
                for name, restore in values.items():
                    group[name] = restore()

        return restore_optimizer


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """What the clone's training can change: the model's parameters and any others that the optimizer moves."""
    trained = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return list({id(parameter): parameter for parameter in (*model.parameters(), *trained)}.values())


def _generator_states(parameters: list[nn.Parameter]) -> dict[torch.device | None, Tensor]:
    """Dropout in the clone must not shift what dropout draws afterwards."""
    states: dict[torch.device | None, Tensor] = {None: torch.get_rng_state()}
    for device in {parameter.device for parameter in parameters if parameter.device.type == "cuda"}:
        states[device] = torch.cuda.get_rng_state(device)
    return states


def _restore_generators(states: dict[torch.device | None, Tensor]) -> None:
    for device, state in states.items():
        if device is None:
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)
