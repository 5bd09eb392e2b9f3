"""Presets: named choices of the filter's parts, laid over any recipe."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from particleaugment.training.config import ConfigError
from particleaugment.util.hints import nearest_name

__all__ = ["DEFAULT_PRESET", "PRESETS", "preset_settings"]

DEFAULT_PRESET = "improved"
PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "improved": (
            *("policy=particles", "measure=loss", "measure_on=heldout", "update=tilted", "gain=2.0", "alpha=0.5"),
            *("transition=sparse", "sigma=0.05", "velocity=0.0", "start_value=0.33", "unit_vectors=False"),
            *("nonzero=3", "m=10.0"),
        ),
        "paper": (
            *("policy=particles", "measure=clone", "measure_on=train"),
            *("transition=gaussian", "sigma=0.05", "update=paper", "alpha=0.8"),
        ),
    }
)
"""Settings of each preset, as ``key=value``, laid over a recipe's row of the paper.

``improved``, what recipes do by default, steers the policy's severity by the generalisation gap; ``paper`` is the
algorithm to the letter, with that row's l, m and sizes.
"""


def preset_settings(name: str) -> tuple[str, ...]:
    """Return the settings of a preset.

    >>> preset_settings("paper")[1]
    'measure=clone'
    """
    if name not in PRESETS:
        hint = nearest_name(name, PRESETS) or f"; the presets are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no preset {name!r}{hint}")
    return PRESETS[name]
