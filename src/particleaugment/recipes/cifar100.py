"""CIFAR-100: the paper's two rows."""

from __future__ import annotations

from particleaugment.recipes.definition import Recipe
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config
from particleaugment.training.settings import DataSettings

__all__ = ["cifar100_wrn28_2", "cifar100_wrn28_10"]

_CIFAR100 = DataSettings(name="cifar100")


def cifar100_wrn28_2() -> Recipe:
    """WRN-28-2, 250 epochs.

    Takes about five minutes on one H200, eight with ``--set filter=paper``. The paper reports 78.8 %.
    """
    return Recipe(
        Config(recipe="cifar100-wrn28-2", data=_CIFAR100, model="wrn-28-2"),
        paper=PaperFilter(nonzero=2, m=2.0, clone_size=25600),
    )


def cifar100_wrn28_10() -> Recipe:
    """WRN-28-10, 250 epochs; in the paper's filter probabilities start at 1 and drift up by 0.001 per step.

    Takes about twenty minutes on one H200, half an hour with ``--set filter=paper``. The paper reports 83.3 % (at best
    82.7 % without the velocity).
    """
    return Recipe(
        Config(recipe="cifar100-wrn28-10", data=_CIFAR100, model="wrn-28-10"),
        paper=PaperFilter(nonzero=4, m=6.0, velocity=-0.001, start_value=1.0, unit_vectors=True, clone_size=25600),
    )
