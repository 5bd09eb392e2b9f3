"""Networks whose starting weights are a pure function of a seed."""

from particleaugment.models.initialise import initialise_parameters, keyed_normal_, keyed_uniform_
from particleaugment.models.wide_resnet import WideResNet

__all__ = ["WideResNet", "initialise_parameters", "keyed_normal_", "keyed_uniform_"]
