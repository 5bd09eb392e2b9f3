"""Augmentation policies learned while a network trains, and a pixel-exact engine that runs any policy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from particleaugment import filter, ops
from particleaugment.augment.image import ImageTransform
from particleaugment.augment.module import Augment
from particleaugment.augment.resized_crop import ResizedCrop
from particleaugment.augment.transforms import ColorJitter, HorizontalFlip, Normalize, PadCrop, RandomErasing
from particleaugment.core import semantics
from particleaugment.core.op_table import OPS
from particleaugment.core.program import Program
from particleaugment.data.samples import IndexedDataset
from particleaugment.executors import EXECUTORS, apply
from particleaugment.executors.targets import Augmented
from particleaugment.models.trained import TrainedModel, load_model
from particleaugment.policies import (
    AutoAugment,
    Identity,
    Mixture,
    MixtureSchedule,
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
from particleaugment.search.difficulty import DifficultyFilter
from particleaugment.search.paper import PaperFilter
from particleaugment.search.search import ParticleAugment

if TYPE_CHECKING:
    from particleaugment.recipes import recipe
    from particleaugment.runs.train import resume, train

__version__ = "0.1.0"
__all__ = [
    "EXECUTORS",
    "OPS",
    "Augment",
    "Augmented",
    "AutoAugment",
    "ColorJitter",
    "DifficultyFilter",
    "HorizontalFlip",
    "Identity",
    "ImageTransform",
    "IndexedDataset",
    "Mixture",
    "MixtureSchedule",
    "Normalize",
    "PadCrop",
    "PaperFilter",
    "ParticleAugment",
    "ParticlePolicy",
    "Policy",
    "Program",
    "RandAugment",
    "RandomErasing",
    "ResizedCrop",
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
    "recipe",
    "resume",
    "semantics",
    "train",
]

_LATER = {"recipe": "recipes", "resume": "runs.train", "train": "runs.train"}


def __getattr__(name: str) -> Any:
    # Whole runs need what a training script of one's own does not, so it is imported when it is asked for.
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
