"""Time of phases, and what an epoch should take."""

import time

import pytest

from particleaugment.recipes import get_recipe
from particleaugment.training.clock import epoch_seconds, timed
from particleaugment.training.config import override


@pytest.mark.parametrize(
    ("preset", "settings", "step"),
    [
        ("paper", ["clone_size=200", "measure_size=50", "num_particles=9"], 200 * 3 + 2 * 10 * 50 * 1),
        ("paper", ["clone_size=0.5", "measure_size=50", "num_particles=9", "every=2"], (500 * 3 + 2 * 10 * 50 * 1) / 2),
        ("improved", ["measure_size=50"], 16 * 50 * 1),
        ("paper", ["measure=none"], 0),
        ("improved", ["policy=trivial"], 0),
    ],
)
def test_an_epochs_time_is_that_of_its_passes(preset, settings, step):
    config = override(get_recipe("digits", preset), settings)
    assert epoch_seconds(config, trained=1000, tested=100, per_train=3, per_forward=1) == 3000 + 100 + step


def test_phases_add_up_also_where_they_fail():
    seconds: dict[str, float] = {}

    def fails():
        with timed(seconds, "train"):
            time.sleep(0.01)
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fails()
    assert seconds.keys() == {"train"}
    assert seconds["train"] >= 0.02
