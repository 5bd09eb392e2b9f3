"""Time of phases."""

import time

import pytest

from particleaugment.training.clock import timed


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
