"""The embedded digits: everything runs, without a download."""

from __future__ import annotations

from particleaugment.recipes.definition import Recipe
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config
from particleaugment.training.settings import DataSettings, TrainingSettings, TransformSettings

__all__ = ["digits"]


def digits() -> Recipe:
    """WRN-10-1 on scikit-learn's handwritten digits.

    Takes about a minute on two CPU cores and should classify 98 % or more of the 360 test images correctly (last
    epoch). No flips, because a mirrored digit is not a digit. The network and the data set are small: this shows how a
    run works, not what the method is worth.
    """
    return Recipe(
        Config(
            recipe="digits",
            data=DataSettings(name="digits"),
            model="wrn-10-1",
            training=TrainingSettings(epochs=40, batch_size=64),
            transforms=TransformSettings(crop=2, flip=0.0, erase=0.0),
        ),
        paper=PaperFilter(num_particles=24, nonzero=3, m=3.0, clone_size=512, measure_size=120),
    )
