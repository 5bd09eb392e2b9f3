"""Conversions shared by the filter's functions: whatever a caller hands in becomes a checked, private value."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from particleaugment.core.random import Stream, uniform

Numbers: TypeAlias = Tensor | npt.ArrayLike


def as_float64(name: str, values: Numbers) -> Tensor:
    """Return a float64 CPU copy that shares no memory with ``values``."""
    if isinstance(values, Tensor):
        return values.detach().cpu().to(torch.float64, copy=True)
    try:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be numbers in a regular array ({error}); pass a tensor or equal-length lists"
        ) from None


def as_count(name: str, value: SupportsIndex) -> int:
    """Return a whole number as int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an int") from None


def as_real(
    name: str, value: SupportsFloat, hint: str, *, low: float, high: float = math.inf, above: bool = False
) -> float:
    """Return a finite number of [low, high], or (low, high] with ``above``; ``hint`` says what to do otherwise."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}; {hint}") from None
    if not (math.isfinite(number) and low <= number <= high) or (above and number == low):
        expected = (
            f"finite and {'above' if above else 'at least'} {low:g}" if math.isinf(high) else f"in [{low:g}, {high:g}]"
        )
        raise ValueError(f"{name} must be {expected}, got {number!r}; {hint}")
    return number


def particle_uniforms(num_particles: int, stream: Stream, seed: int | Tensor, step: int | Tensor, slots: int) -> Tensor:
    """Return uniforms [num_particles, slots]; row i depends on (seed, stream, step, i) alone."""
    if not isinstance(step, Tensor):
        step = as_count("step", step)
        if not 0 <= step < 1 << 32:
            raise ValueError(f"step must be in 0..2^32-1, got {step}; count the filter's steps from 0")
    return uniform(seed, stream, epoch=step, ids=torch.arange(num_particles, device="cpu"), slots=slots)
