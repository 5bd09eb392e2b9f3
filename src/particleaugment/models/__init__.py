"""Networks whose starting weights are a pure function of a seed."""

import re
from functools import cache

import torch
from torch import nn

from particleaugment.models.initialise import initialise_parameters, keyed_normal_, keyed_uniform_
from particleaugment.models.resnet import ResNet
from particleaugment.models.shake_shake import ShakeShake
from particleaugment.models.wide_resnet import WideResNet
from particleaugment.util.hints import nearest_name

__all__ = [
    "MODELS",
    "PATTERNS",
    "ResNet",
    "ShakeShake",
    "WideResNet",
    "build_model",
    "check_model",
    "initialise_parameters",
    "keyed_normal_",
    "keyed_uniform_",
]

MODELS: tuple[str, ...] = (
    "wrn-10-1",
    "wrn-28-2",
    "wrn-28-10",
    "shake-shake-26-2x32d",
    "shake-shake-26-2x96d",
    "resnet-18",
    "resnet-50",
)
"""Names of the networks that recipes use, and of others that are well known."""

PATTERNS: tuple[str, ...] = ("wrn-DEPTH-WIDTH", "shake-shake-DEPTH-2xWIDTHd")
"""How networks are named whose depth and width are free."""


def build_model(name: str, num_classes: int, seed: int) -> nn.Module:
    """Build a network by name: ``wrn-DEPTH-WIDTH``, ``shake-shake-DEPTH-2xWIDTHd``, ``resnet-18`` or ``resnet-50``.

    >>> type(build_model("wrn-10-1", num_classes=10, seed=0)).__name__
    'WideResNet'
    >>> build_model("wide-resnet-28-10", num_classes=10, seed=0)
    Traceback (most recent call last):
    ValueError: there is no model 'wide-resnet-28-10'; did you mean wrn-28-10?
    >>> build_model("wrn-10-x", num_classes=10, seed=0)
    Traceback (most recent call last):
    ValueError: there is no model 'wrn-10-x'; the form is wrn-DEPTH-WIDTH, like wrn-10-1
    """
    if match := re.fullmatch(r"wrn-(\d{1,4})-(\d{1,4})", name):
        _check_size(name, int(match[1]), int(match[2]), widest=64)
        return WideResNet(int(match[1]), int(match[2]), num_classes, seed=seed)
    if match := re.fullmatch(r"shake-shake-(\d{1,4})-2x(\d{1,4})d", name):
        _check_size(name, int(match[1]), int(match[2]), widest=1024)
        return ShakeShake(int(match[1]), int(match[2]), num_classes, seed=seed)
    if match := re.fullmatch(r"resnet-(\d{1,4})", name):
        return ResNet(int(match[1]), num_classes, seed=seed)
    hint = _pattern_hint(name) or nearest_name(name, MODELS) or f"; the models are named like {', '.join(MODELS)}"
    raise ValueError(f"there is no model {name[:80]!r}{hint}")


@cache
def check_model(name: str) -> None:
    """Raise a ValueError where :func:`build_model` would, without taking memory for a network.

    >>> check_model("resnet-81")
    Traceback (most recent call last):
    ValueError: depth must be 18 or 50, got 81
    """
    with torch.device("meta"):
        build_model(name, num_classes=2, seed=0)


def _pattern_hint(name: str) -> str:
    """Return the pattern that a name begins like, or nothing: its numbers are the user's to choose, not to guess."""
    for pattern in PATTERNS:
        family = pattern.partition("DEPTH")[0]
        if name.startswith(family):
            return f"; the form is {pattern}, like {next(model for model in MODELS if model.startswith(family))}"
    return ""


def _check_size(name: str, depth: int, width: int, widest: int) -> None:
    """Refuse what no machine could hold before it is tried."""
    if depth > 1000 or width > widest:
        raise ValueError(f"the model {name!r} is too large: its depth may be at most 1000, its width at most {widest}")
