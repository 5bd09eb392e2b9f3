"""Checks that filters make of their settings, before any long work."""

from __future__ import annotations

from particleaugment import filter as pf
from particleaugment.filter.resample import SCHEMES
from particleaugment.policies.policy import checked_choice, checked_level, get_semantics
from particleaugment.util.hints import nearest_name

__all__ = ["check_choice", "check_count", "check_moments", "check_particles", "check_resampling", "check_size"]

MOST_PARTICLES, MOST_OPS = 10**5, 1000


def check_particles(
    *, num_particles: int, nonzero: int, start_value: float, m: float, semantics: str, order: str
) -> None:
    """Refuse settings of particles that are wrong whatever the ops."""
    if isinstance(num_particles, int) and num_particles > MOST_PARTICLES:
        raise ValueError(f"num_particles must be at most {MOST_PARTICLES:,}, got {num_particles}")
    check_count("nonzero", nonzero, 1, MOST_OPS)
    pf.sparse_init(num_particles, nonzero, nonzero, start_value, seed=0)
    checked_level("m", m, get_semantics(semantics).top)
    checked_choice("order", order, ("fixed", "random"))


def check_resampling(alpha: float, scheme: str) -> None:
    """Refuse settings of the resampling."""
    check_choice("resampling", scheme, tuple(SCHEMES))
    pf.resample(pf.ParticleSet([[0.0], [0.0]]), alpha=alpha, scheme=scheme, seed=0, step=0)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a setting that is not one of its choices."""
    if value not in choices:
        hint = nearest_name(str(value), choices) or f"; it is one of {', '.join(choices)}"
        raise ValueError(f"{name} cannot be {value!r}{hint}")


def check_count(name: str, value: object, least: int, most: int) -> None:
    """Refuse a setting that is not a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most:,}, got {value!r}")


def check_moments(every: object, warmup: object) -> None:
    """Refuse settings of when steps are taken."""
    if every != "auto" and (isinstance(every, bool) or not isinstance(every, int) or not 1 <= every <= 10**6):
        raise ValueError(f"every must be auto, or a number of epochs from 1 to 1,000,000, got {every!r}")
    check_count("warmup", warmup, 0, 10**6)


def check_size(name: str, size: object) -> None:
    """Refuse a setting that is neither a number of samples nor a fraction."""
    valid = size >= 1 if isinstance(size, int) else isinstance(size, float) and 0 < size < 1
    if isinstance(size, bool) or not valid:
        raise ValueError(f"{name} must be a number of samples or a fraction between 0 and 1, got {size!r}")
