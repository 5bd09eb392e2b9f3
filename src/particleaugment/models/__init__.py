"""Networks whose starting weights are a pure function of a seed."""

import re

from torch import nn

from particleaugment.models.initialise import initialise_parameters, keyed_normal_, keyed_uniform_
from particleaugment.models.wide_resnet import WideResNet

__all__ = ["WideResNet", "build_model", "initialise_parameters", "keyed_normal_", "keyed_uniform_"]


def build_model(name: str, num_classes: int, seed: int) -> nn.Module:
    """Build a network by name: ``wrn-DEPTH-WIDTH``.

    >>> type(build_model("wrn-10-1", num_classes=10, seed=0)).__name__
    'WideResNet'
    """
    match = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if match is None:
        raise ValueError(f"there is no model {name!r}; the models are wrn-DEPTH-WIDTH, such as wrn-28-10")
    return WideResNet(int(match[1]), int(match[2]), num_classes, seed=seed)
