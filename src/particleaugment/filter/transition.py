"""The prediction step: particles move, weights stay."""

from __future__ import annotations

import torch
from torch import Tensor

from particleaugment.filter._checks import Numbers, as_float64, as_real, particle_uniforms
from particleaugment.filter.state import ParticleSet
from particleaugment.random import Stream, standard_normal

__all__ = ["sparse_transition", "transition"]


def transition(
    state: ParticleSet, *, sigma: float = 0.05, velocity: Numbers = 0.0, seed: int | Tensor, step: int | Tensor
) -> ParticleSet:
    """Return the particles after x <- clip(x - c + N(0, sigma^2), 0, 1), every component with its own noise.

    Args:
        state: the particles; their weights are kept.
        sigma: standard deviation of the noise.
        velocity: c, one number or one per op. It is signed and subtracted: c = -0.001 raises every probability.
        seed: the key of the draws.
        step: the number of the filter step, also part of the key.

    >>> s = ParticleSet([[0.5, 0.0], [0.999, 1.0]])
    >>> transition(s, sigma=0.0, velocity=-0.25, seed=0, step=1).particles
    tensor([[0.7500, 0.2500],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    moved = state.particles + _displacement(state, sigma, velocity, _uniforms(state, seed, step))
    return ParticleSet(moved.clamp(0.0, 1.0), state.log_weights)


def sparse_transition(
    state: ParticleSet, *, sigma: float = 0.05, velocity: Numbers = 0.0, seed: int | Tensor, step: int | Tensor
) -> ParticleSet:
    """Return the particles after a move that never makes them denser; arguments as for :func:`transition`.

    The paper's noise makes every component non-zero after one step. Here only non-zero components move, by the same
    noise. One that falls to zero or through it leaves its op, and the distance it fell through becomes the probability
    of an op drawn uniformly from those that are then zero: a particle keeps its number of ops, not its choice of them.

    >>> s = ParticleSet([[0.5, 0.0], [0.0, 0.25]])
    >>> sparse_transition(s, sigma=0.0, velocity=-0.25, seed=0, step=1).particles
    tensor([[0.7500, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    uniforms = _uniforms(state, seed, step)
    active = state.particles > 0
    moved = state.particles + _displacement(state, sigma, velocity, uniforms)
    survives = active & (moved > 0)
    fallen = active & ~survives

    # Column k of `vacancies` is the k-th op, in random order, that no survivor holds; column k of `values` is what the
    # k-th fallen component brings there. A particle has at least as many vacancies as fallen components, and the
    # columns beyond the fallen ones carry zero.
    vacancies = uniforms[:, state.num_ops :].masked_fill(survives, 2.0).argsort(dim=1, stable=True)
    fallen_first = fallen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    values = torch.where(fallen, -moved, 0.0).gather(1, fallen_first)
    settled = torch.where(survives, moved, 0.0).scatter_add(1, vacancies, values)
    return ParticleSet(settled.clamp(0.0, 1.0), state.log_weights)


def _uniforms(state: ParticleSet, seed: int | Tensor, step: int | Tensor) -> Tensor:
    return particle_uniforms(state.num_particles, Stream.NOISE, seed, step, 2 * state.num_ops)


def _displacement(state: ParticleSet, sigma: float, velocity: Numbers, uniforms: Tensor) -> Tensor:
    scale = as_real("sigma", sigma, "it is the noise's standard deviation (the paper uses 0.05)", low=0.0)
    c = as_float64("velocity", velocity)
    if c.dim() != 0 and c.shape != (state.num_ops,):
        raise ValueError(
            f"velocity must be one number or one for each of the {state.num_ops} ops, got shape {list(c.shape)}; "
            "pass a number to move all ops alike"
        )
    if not bool(c.isfinite().all()):
        raise ValueError(f"velocity must be finite, got {c.tolist()}; pass 0.0 for no drift")
    return scale * standard_normal(uniforms[:, : state.num_ops]) - c
