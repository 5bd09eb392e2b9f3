"""Presets: named choices of the filter's parts, laid over any recipe."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from particleaugment.ops import nearest_name
from particleaugment.training.config import ConfigError

__all__ = ["PRESETS", "preset_settings"]

PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "paper": (
            *("policy=particles", "measure=clone", "measure_on=train"),
            *("transition=gaussian", "sigma=0.05", "update=paper", "alpha=0.8"),
        ),
        "improved": (
            *("policy=particles", "measure=loss", "measure_on=heldout", "measure_size=0.01"),
            *("transition=sparse", "sigma=0.05", "velocity=0", "update=tilted", "course=gap", "alpha=0.5"),
            *("m=6", "nonzero=3", "start_value=0.33", "unit_vectors=false"),
        ),
    }
)
"""Settings of each preset, as ``key=value``: ``paper`` is the algorithm to the letter, ``improved`` steers the
policy's severity to the generalisation gap."""


def preset_settings(name: str | None) -> tuple[str, ...]:
    """Return the settings of a preset, none for None.

    >>> preset_settings("paper")[1]
    'measure=clone'
    """
    if name is None:
        return ()
    if name not in PRESETS:
        hint = nearest_name(name, PRESETS) or f"; the presets are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no preset {name!r}{hint}")
    return PRESETS[name]
