"""Policies: immutable values that draw a Program per sample."""

from particleaugment.policies.auto import AutoAugment
from particleaugment.policies.mixture import Mixture, MixtureSchedule
from particleaugment.policies.parse import parse
from particleaugment.policies.particles import ParticlePolicy
from particleaugment.policies.policy import Policy, from_dict, load
from particleaugment.policies.rand import Identity, RandAugment
from particleaugment.policies.schedule import Schedule
from particleaugment.policies.subpolicies import SubPolicies
from particleaugment.policies.trivial import TrivialAugment

__all__ = [
    "AutoAugment",
    "Identity",
    "Mixture",
    "MixtureSchedule",
    "ParticlePolicy",
    "Policy",
    "RandAugment",
    "Schedule",
    "SubPolicies",
    "TrivialAugment",
    "from_dict",
    "load",
    "parse",
]
