"""The prediction step: particles move, weights stay."""

from __future__ import annotations

import torch
from torch import Tensor

from particleaugment.core.random import Stream, standard_normal
from particleaugment.filter._checks import Numbers, as_float64, as_real, particle_uniforms
from particleaugment.filter.state import ParticleSet

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
    state: ParticleSet, *, nonzero: float, value: float, sigma: float = 0.02, seed: int | Tensor, step: int | Tensor
) -> ParticleSet:
    """Return the particles after a move whose stationary law is sparse; their weights are kept.

    Under that law each op is active with probability l/n, independently, and an active op's probability follows
    Beta(1, 1/value - 1), of mean ``value``: l active ops and l * value applied ops a particle, for ever, where the
    paper's clipped noise ends near n/2 applied ops. Without selection nothing drifts.

    Args:
        state: the particles.
        nonzero: l, the mean number of active ops.
        value: mean probability of an active op, above 0 and below 1.
        sigma: standard deviation of the latent move; about 0.4 sigma of all components become active, as many fall
            to zero.
        seed: the key of the draws.
        step: the number of the filter step, also part of the key.

    >>> s = ParticleSet([[0.5, 0.0], [0.0, 0.25]])
    >>> sparse_transition(s, nonzero=1, value=0.25, sigma=0.0, seed=0, step=1).particles
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]], dtype=torch.float64)
    """
    scale = as_real("sigma", sigma, "it is the latent move's standard deviation", low=0.0)
    share = as_real("nonzero", nonzero, "it is the mean number of active ops", low=0.0, high=state.num_ops, above=True)
    value = as_real("value", value, "it is the mean probability of an active op", low=0.0, high=1.0, above=True)
    share, power = share / state.num_ops, 1.0 / value - 1.0
    if power == 0:
        raise ValueError("value must be below 1, got 1.0; at 1 an active op has no probability to move")
    # A component's latent u is uniform on [0, 1]. Below 1 - share the op is inactive and only that is remembered, so
    # its place there is drawn anew; above, u is a function of the probability through its distribution 1 - (1-p)^power.
    # Gaussian noise reflected at 0 and 1 is a symmetric kernel, which leaves the uniform law as it is.
    uniforms = _uniforms(state, seed, step)
    edge = 1.0 - share
    active = state.particles > 0
    latent = torch.where(
        active, edge + share * (1.0 - (1.0 - state.particles) ** power), edge * uniforms[:, state.num_ops :]
    )
    moved = (latent + scale * standard_normal(uniforms[:, : state.num_ops])).remainder(2.0)
    moved = torch.where(moved > 1.0, 2.0 - moved, moved)
    quantile = ((moved - edge) / share).clamp(0.0, 1.0)
    settled = 1.0 - (1.0 - quantile) ** (1.0 / power)
    return ParticleSet(torch.where(moved > edge, settled, 0.0), state.log_weights)


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
