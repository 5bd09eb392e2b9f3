"""The prediction step: particles move, weights stay."""

from __future__ import annotations

from torch import Tensor

from particleaugment.core.random import Stream, standard_normal
from particleaugment.filter._checks import Numbers, as_float64, as_real, particle_uniforms
from particleaugment.filter.state import ParticleSet

__all__ = ["transition"]


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
    uniforms = particle_uniforms(state.num_particles, Stream.NOISE, seed, step, state.num_ops)
    moved = state.particles + _displacement(state, sigma, velocity, uniforms)
    return ParticleSet(moved.clamp(0.0, 1.0), state.log_weights)


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
    return scale * standard_normal(uniforms) - c
