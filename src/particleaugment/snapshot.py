"""Snapshots: train a clone in place, then put everything back bit for bit.

There is no second module. So compiled models, captured graphs, wrapped models, any optimizer, a GradScaler and
gradients being accumulated keep working, and a filter step costs one copy of model and optimizer state, whose memory is
reused from step to step.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        parameters = list(model.parameters())
        tensors = {("model", str(i)): tensor for i, tensor in enumerate([*parameters, *model.buffers()])}
        saved = {key: self._save(key, tensor) for key, tensor in tensors.items()}
        gradients = [parameter.grad for parameter in parameters]
        modes = [(module, module.training) for module in model.modules()]
        optimizer_state = self._save_optimizer(optimizer)
        groups = [
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        scaler_state = None if scaler is None else dict(scaler.state_dict())
        generators = _generator_states(parameters)
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
        finally:
            with torch.no_grad():
                for key, tensor in tensors.items():
                    tensor.copy_(saved[key])
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
            for module, training in modes:
                module.training = training
            _restore_optimizer(optimizer, optimizer_state)
            for group, values in zip(optimizer.param_groups, groups):
                _restore_group(group, values)
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

    def _save_optimizer(self, optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, dict[str, Any]]]:
        """For each parameter with state: its entries, tensors as (live tensor, saved copy)."""
        entries = []
        for i, (parameter, state) in enumerate(optimizer.state.items()):
            values: dict[str, Any] = {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    values[name] = (value, self._save(("optimizer", str(i), str(name)), value))
                else:
                    values[name] = _copied(value)
            entries.append((parameter, values))
        return entries


def _restore_optimizer(optimizer: torch.optim.Optimizer, entries: list[tuple[Tensor, dict[str, Any]]]) -> None:
    known = {id(parameter) for parameter, _ in entries}
    for parameter in [parameter for parameter in optimizer.state if id(parameter) not in known]:
        del optimizer.state[parameter]
    for parameter, values in entries:
        state = optimizer.state[parameter]
        for name in [name for name in state if name not in values]:
            del state[name]
        for name, value in values.items():
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor):
                live, saved = value
                with torch.no_grad():
                    live.copy_(saved)
                state[name] = live
            else:
                state[name] = value


def _restore_group(group: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        live = group.get(key)
        if isinstance(live, Tensor) and isinstance(value, Tensor):
            live.copy_(value)  # a learning rate that a captured graph reads must stay the same tensor
        else:
            group[key] = value


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


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
