"""Augmentation policies learned while a network trains, and a pixel-exact engine that runs any policy."""

from particleaugment import filter, ops, semantics
from particleaugment.augment import Augment
from particleaugment.executors import EXECUTORS, apply
from particleaugment.image_transform import ImageTransform
from particleaugment.ops import OPS
from particleaugment.policies import (
    AutoAugment,
    Identity,
    ParticlePolicy,
    Policy,
    RandAugment,
    Schedule,
    SubPolicies,
    TrivialAugment,
    parse,
)
from particleaugment.policies import from_dict as policy_from_dict
from particleaugment.policies import load as load_policy
from particleaugment.program import Program
from particleaugment.samples import IndexedDataset
from particleaugment.search import FilterSettings, ParticleAugment
from particleaugment.trained import TrainedModel, load_model
from particleaugment.transforms import ColorJitter, HorizontalFlip, Normalize, PadCrop, RandomErasing

__version__ = "0.1.0"
__all__ = [
    "EXECUTORS",
    "OPS",
    "Augment",
    "AutoAugment",
    "ColorJitter",
    "FilterSettings",
    "HorizontalFlip",
    "Identity",
    "ImageTransform",
    "IndexedDataset",
    "Normalize",
    "PadCrop",
    "ParticleAugment",
    "ParticlePolicy",
    "Policy",
    "Program",
    "RandAugment",
    "RandomErasing",
    "Schedule",
    "SubPolicies",
    "TrainedModel",
    "TrivialAugment",
    "__version__",
    "apply",
    "filter",
    "load_model",
    "load_policy",
    "ops",
    "parse",
    "policy_from_dict",
    "semantics",
]
