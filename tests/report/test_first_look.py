"""What a reader of a report sees first: a verdict, images that the policy changed, and every epoch's accuracy."""

import re

import pytest
import torch
from pages import check_self_contained, check_well_formed
from test_report import config_of, records, schedule

import particleaugment as pa
from particleaugment.recipes import recipe
from particleaugment.report.gallery import draw_strip
from particleaugment.report.metrics import history
from particleaugment.report.page import render
from particleaugment.report.plots import curves
from particleaugment.report.seen import most_changed, what_the_network_saw
from particleaugment.report.verdict import verdict_of


def baseline(policy, epochs=5, of=5):
    lines = [record for record in records(epochs=epochs) if record["kind"] == "epoch"]
    config = recipe("digits", policy=policy, epochs=of)
    return history(config, lines, config.fixed_policy())


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: baseline("none"), "correctly after 5 epochs, trained without a policy."),
        (lambda: baseline("trivial"), "correctly after 5 epochs, trained under the policy trivial."),
        (
            lambda: history(config_of(epochs=5), records(epochs=5), schedule(5, steps=1)),
            "correctly after 5 epochs, trained under a learned policy that ended at 0.70 ops per image.",
        ),
    ],
)
def test_the_verdict_of_a_finished_run(run, expected):
    assert verdict_of(run()) == f"The network classifies 84.00 % of the test images {expected}"


def test_the_verdict_of_a_run_that_has_not_finished():
    assert verdict_of(baseline("none", epochs=4, of=9)) == (
        "Not finished: 80.00 % of the test images are classified correctly after 4 of 9 epochs, trained "
        "without a policy."
    )


def test_the_page_begins_with_the_verdict():
    page = render(baseline("trivial"))
    check_self_contained(page)
    check_well_formed(page)
    start = page.index('<p class="verdict">The network classifies 84.00 %')
    assert start < page.index('<div class="cards">')


def test_accuracy_is_shown_from_the_first_epoch_on():
    run = history(config_of(), records(), schedule())
    assert run.epochs[0]["test_accuracy"] == 20.0
    assert {"20", "40", "60", "80", "100"} <= set(re.findall(r">(\d+)<", curves(run)))


def test_images_that_change_most_often_are_chosen():
    plain = torch.zeros(5, 3, 4, 4, dtype=torch.uint8)
    first, second = plain.clone(), plain.clone()
    first[[1, 3], 0, 2, 2] = 1
    second[[3, 4]] = 9
    assert most_changed(plain, [first, second], count=3).tolist() == [1, 3, 4]
    assert most_changed(plain, [first, second], count=1).tolist() == [3]


def shown(policy):
    parts = what_the_network_saw(baseline(policy), None)
    return str(parts[1]), re.findall(r"<span>(.*?)</span><img", str(parts[1]))


def test_labels_are_text_and_images_are_changed_ones():
    part, labels = shown("randaugment-n1-m9")
    assert labels == ["plain", "randaugment"]
    assert "10 of 60 training images, the ones that the policy changes most often" in part
    assert part.count("data:image/png") == 2


def test_a_policy_that_changes_nothing_shows_the_images_once():
    part, labels = shown("none")
    assert labels == ["plain"]
    assert "the policy does not change them" in part


def test_a_strip_holds_the_pixels():
    images = pa.data.load_digits().train_images[:2]
    strip = draw_strip(images, scale=1)
    height, width = images.shape[-2:]
    assert strip.size == (2 * width + 6, height)
    place = (width + 6 + 3, 4)
    assert strip.getpixel(place) == (*images[1, :, 4, 3].tolist(), 255)
    assert strip.getpixel((width + 2, 0))[3] == 0, "transparent between images"
