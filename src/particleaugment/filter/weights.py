"""The update step: how well each particle's images train the network, and the weights that follow from it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from particleaugment.filter._checks import Numbers, as_float64, as_real
from particleaugment.filter.state import ParticleSet, effective_sample_size

__all__ = ["LossDifference", "ReweightInfo", "relative_loss_difference", "reweight"]


class LossDifference(NamedTuple):
    """What :func:`relative_loss_difference` measured.

    >>> LossDifference(delta=torch.ones(2), d0=3.0, standard_error=None, skip_reason=None).d0
    3.0
    """

    delta: Tensor
    """delta_i = d_i / d_0, float64 [r]; nan where it has no value."""
    d0: float
    """The loss that the clone shed on the plain samples, summed."""
    standard_error: Tensor | None
    """Standard error of each delta, float64 [r]; None when sums were given, nan for a single sample."""
    skip_reason: str | None
    """Why these deltas must not reach :func:`reweight`, in a sentence; None when they may."""


class ReweightInfo(NamedTuple):
    """Diagnostics of one :func:`reweight`.

    >>> ReweightInfo(2.0, 0.5, 0.0, torch.zeros(2)).max_weight
    0.5
    """

    effective_sample_size: float
    """N_eff after the update."""
    max_weight: float
    """The largest weight after the update."""
    log_normalizer: float
    """log sum_i w_i f_i, the old weights' mean factor."""
    log_factors: Tensor
    """log f_i = eta log(tanh(delta_i - 1) + 1), float64 [r]."""


def relative_loss_difference(
    ref: Numbers, upd: Numbers, ref_clean: Numbers, upd_clean: Numbers, *, min_signal: float = 1.0
) -> LossDifference:
    """Return delta_i = d_i / d_0, where d is how much the loss fell from the reference model to its trained clone.

    Args:
        ref: the reference model's losses on samples augmented by each particle: sums [r], or per sample [r, N].
        upd: the clone's losses on the same images, of the same shape.
        ref_clean: the reference model's losses on the plain samples: their sum, or per sample [N].
        upd_clean: the clone's, of the same shape.
        min_signal: with per-sample losses, d_0 must reach this many of its own standard errors.

    A measurement is to be skipped, and ``skip_reason`` says why, when a loss is not finite, when d_0 <= 0 (a division
    would invert the ranking), when d_0 drowns in its own noise, or when a ratio is too large for a float.

    >>> m = relative_loss_difference(ref=[10.0, 8.0], upd=[6.0, 7.0], ref_clean=5.0, upd_clean=3.0)
    >>> m.delta.tolist(), m.d0, m.skip_reason
    ([2.0, 0.5], 2.0, None)
    >>> relative_loss_difference([10.0, 8.0], [6.0, 7.0], 5.0, 6.0).skip_reason
    'd0 = -1 is not positive: the clone did not improve on the plain samples, so relative differences have no meaning'
    """
    ref, upd = as_float64("ref", ref), as_float64("upd", upd)
    ref_clean, upd_clean = as_float64("ref_clean", ref_clean), as_float64("upd_clean", upd_clean)
    _check_shapes(ref, upd, ref_clean, upd_clean)
    min_signal = as_real("min_signal", min_signal, "pass 0.0 to accept any positive d0", low=0.0)

    falls, clean_falls = ref - upd, ref_clean - upd_clean
    per_sample = falls.dim() == 2
    d, d0 = (falls.sum(dim=1), float(clean_falls.sum())) if per_sample else (falls, float(clean_falls))
    delta = d / d0 if d0 != 0 else torch.full_like(d, math.nan)
    standard_error = _ratio_standard_error(falls, clean_falls, delta, d0) if per_sample else None

    losses = {"ref": ref, "upd": upd, "ref_clean": ref_clean, "upd_clean": upd_clean}
    reason = (
        _non_finite_loss(losses)
        or _weak_signal(d0, clean_falls if per_sample else None, min_signal)
        or _overflow(delta, d0)
    )
    return LossDifference(delta, d0, standard_error, reason)


def reweight(state: ParticleSet, delta: Numbers, *, eta: float = 1.0) -> tuple[ParticleSet, ReweightInfo]:
    """Return the particles with weights proportional to w_i (tanh(delta_i - 1) + 1)^eta, and diagnostics.

    Args:
        state: the particles and their weights so far.
        delta: relative loss differences [r], finite; delta = 1 leaves a particle's weight alone, more raises it.
        eta: how strongly one measurement counts, above zero.

    >>> s, info = reweight(ParticleSet([[0.5], [0.25]]), [2.0, 1.0])
    >>> ratio = s.weights[0] / s.weights[1]
    >>> round(float(ratio), 12) == round(math.tanh(1.0) + 1, 12)
    True
    >>> round(info.effective_sample_size, 3)
    1.859
    """
    delta = as_float64("delta", delta)
    if delta.shape != (state.num_particles,):
        raise ValueError(
            f"delta must have shape [{state.num_particles}], one number for each particle, got {list(delta.shape)}; "
            "measure every particle of this set"
        )
    if not bool(delta.isfinite().all()):
        bad = int((~delta.isfinite()).nonzero()[0])
        raise ValueError(
            f"delta must be finite, got {float(delta[bad])!r} for particle {bad}; skip the update when the measurement "
            "gives a skip_reason"
        )
    eta = as_real("eta", eta, "pass a positive exponent (the paper uses 0.15 to 1)", low=0.0, above=True)

    log_factors = _log_factors(delta, eta)
    log_weights = state.log_weights + log_factors
    updated = ParticleSet(state.particles, log_weights)
    return updated, ReweightInfo(
        effective_sample_size=effective_sample_size(updated),
        max_weight=float(updated.weights.max()),
        log_normalizer=float(torch.logsumexp(log_weights, dim=0)),
        log_factors=log_factors,
    )


def _log_factors(delta: Tensor, eta: float) -> Tensor:
    # tanh(x) + 1 = 2 e^x / (e^x + e^-x) = 2 / (1 + e^-2x), so log(tanh(x) + 1) = log 2 - log(1 + e^-2x): far below zero
    # this is log 2 + 2x, where tanh(x) + 1 itself rounds to zero. The clamp keeps the largest floats from reaching
    # -inf, which could leave no particle with a weight.
    log_one_plus = torch.logaddexp(torch.zeros_like(delta), -2.0 * (delta - 1.0))
    return (eta * (math.log(2.0) - log_one_plus)).clamp(min=-1e300)


def _check_shapes(ref: Tensor, upd: Tensor, ref_clean: Tensor, upd_clean: Tensor) -> None:
    named = {"ref": ref, "upd": upd, "ref_clean": ref_clean, "upd_clean": upd_clean}
    shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in named.items())
    fits = ref.dim() in (1, 2) and ref.shape == upd.shape and ref_clean.shape == upd_clean.shape == ref.shape[1:]
    if not fits or ref.numel() == 0:
        raise ValueError(
            f"losses must be sums [r] with scalars, or per sample [r, N] with [N], got {shapes}; make them agree"
        )


def _ratio_standard_error(falls: Tensor, clean_falls: Tensor, delta: Tensor, d0: float) -> Tensor:
    # delta = sum_k a_k / sum_k b_k is a ratio estimator over the same samples k. To first order its error is
    # sum_k e_k / d0 with residuals e_k = a_k - delta b_k, so the pairing removes what a sample's losses share.
    num_samples = len(clean_falls)
    if num_samples < 2 or d0 == 0:
        return torch.full_like(delta, math.nan)
    residuals = falls - delta.unsqueeze(1) * clean_falls
    return torch.sqrt(num_samples * residuals.var(dim=1, correction=1)) / abs(d0)


def _non_finite_loss(losses: dict[str, Tensor]) -> str | None:
    counts = {name: int((~values.isfinite()).sum()) for name, values in losses.items()}
    where = ", ".join(f"{count} in {name}" for name, count in counts.items() if count)
    return f"some losses are not finite ({where}), so the particles cannot be compared" if where else None


def _weak_signal(d0: float, clean_falls: Tensor | None, min_signal: float) -> str | None:
    if not math.isfinite(d0):
        return f"d0 = {d0} is not finite: the losses on the plain samples are too large to sum"
    if d0 <= 0:
        return (
            f"d0 = {d0:.6g} is not positive: the clone did not improve on the plain samples, "
            "so relative differences have no meaning"
        )
    if clean_falls is None or len(clean_falls) < 2:
        return None
    noise = math.sqrt(len(clean_falls) * float(clean_falls.var(correction=1)))
    if d0 < min_signal * noise:
        return (
            f"d0 = {d0:.6g} is below {min_signal:g} of its standard errors ({noise:.6g} over {len(clean_falls)} "
            "samples), so relative differences would be noise"
        )
    return None


def _overflow(delta: Tensor, d0: float) -> str | None:
    bad = int((~delta.isfinite()).sum())
    return (
        f"{bad} of {len(delta)} relative differences are not finite: losses are too large against d0 = {d0:.6g}"
        if bad
        else None
    )
