"""The figures of a comparison."""

import re
from dataclasses import replace

from particleaugment.compare.arms import Arm, Base
from particleaugment.compare.comparison import Comparison
from particleaugment.compare.comparison_plots import curves
from particleaugment.compare.run_record import RunRecord
from particleaugment.recipes import get_recipe

EPOCHS = 3


def finished_run(arm):
    course = tuple(float(epoch) for epoch in range(1, EPOCHS + 1))
    return RunRecord(arm=arm, seed=0, epochs=EPOCHS, finished=True, accuracy=course, train_loss=course)


def comparison_of(names):
    arms = tuple(Arm(name, "none") for name in names)
    return Comparison(
        base=Base.of(get_recipe("digits")), arms=arms, against=names[0], runs=tuple(map(finished_run, names))
    )


def test_accuracy_is_shown_from_the_first_epoch_on():
    accuracy = (10.0, *(90.0 + 0.1 * epoch for epoch in range(9)))
    run = RunRecord(arm="one", seed=0, epochs=10, finished=True, accuracy=accuracy, train_loss=(1.0,) * 10)
    ticks = set(re.findall(r">(\d+)<", curves(replace(comparison_of(["one"]), runs=(run,)))))
    assert {"20", "40", "60", "80"} <= ticks


def test_no_two_of_many_arms_have_the_same_line():
    names = [f"arm-{number}" for number in range(25)]
    styles = re.findall(r'style="fill: none; ([^"]*stroke-width: 1.2[^"]*)"', curves(comparison_of(names)))
    strokes = {re.sub(r"; stroke-line\w+: \w+|stroke-line\w+: \w+; ", "", style) for style in styles}
    assert len(styles) == 3 * len(names), "two panels and the legend"
    assert len(strokes) == len(names)
