"""Boxes and keypoints go where the pixels of masks go, for any ops and arguments."""

import math

import numpy as np
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import particleaugment as pa

HEIGHT, WIDTH = 40, 52
IMAGE = torch.zeros(1, 1, HEIGHT, WIDTH, dtype=torch.uint8)
RANGES = {"Rotate": 360.0, "ShearX": 2.0, "ShearY": 2.0, "TranslateX": 1.0, "TranslateY": 1.0}
EXAMPLES = settings(max_examples=400, deadline=None, derandomize=True)


def ops(strength=1.0):
    """Any op that moves pixels, with any argument up to a share of its range."""
    with_argument = [
        st.floats(-strength * end, strength * end).map(lambda value, name=name: (name, value))
        for name, end in RANGES.items()
    ]
    return st.one_of(st.sampled_from(["FlipX", "FlipY"]), *with_argument)


def allowed(row):
    """How far a mask's pixels may stick out of the hull of its box, after some ops.

    A pixel of the new mask has its centre's source in a pixel of the old one, so its centre is in the hull of where the
    old pixels go, and its square at most half a pixel outside. What stuck out before is stretched by the op.
    """
    excess = 0.0
    for op in row:
        stretch = 1.0
        if not isinstance(op, str) and op[0] == "Rotate":
            stretch = abs(math.cos(math.radians(op[1]))) + abs(math.sin(math.radians(op[1])))
        elif not isinstance(op, str) and op[0].startswith("Shear"):
            stretch = 1 + abs(op[1])
        excess = excess * stretch + 0.5
    return excess + 1e-3  # the 16.16 fixed point of Pillow's nearest neighbour


@st.composite
def rectangles(draw):
    left, top = draw(st.integers(0, WIDTH - 1)), draw(st.integers(0, HEIGHT - 1))
    return left, top, draw(st.integers(left + 1, WIDTH)), draw(st.integers(top + 1, HEIGHT))


def excess(row, rectangle):
    """How far the mask of a rectangle sticks out of its box after some ops; nothing if no pixel is left of it."""
    left, top, right, bottom = rectangle
    masks = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.uint8)
    masks[:, top:bottom, left:right] = 1
    boxes = [torch.tensor([rectangle], dtype=torch.float64)]
    moved = pa.apply(IMAGE, pa.Program.from_ops([row]), masks=masks, boxes=boxes, min_visible=None)
    y, x = np.nonzero(moved.masks[0].numpy() == 1)
    if not len(x):
        return -math.inf
    box = moved.boxes[0][0].tolist()
    return max(box[0] - x.min(), box[1] - y.min(), x.max() + 1 - box[2], y.max() + 1 - box[3])


@EXAMPLES
@given(ops(), rectangles())
@example(("Rotate", 45.0), (10, 10, 11, 11))
def test_a_box_contains_its_mask_within_a_pixel(op, rectangle):
    assert excess([op], rectangle) <= allowed([op]) < 1


@EXAMPLES
@given(st.lists(ops(), min_size=2, max_size=4), rectangles())
def test_after_several_ops_a_box_contains_its_mask_but_for_their_rounding(row, rectangle):
    assert excess(row, rectangle) <= allowed(row)


def distance(row, column, line):
    """How far a keypoint lands from the middle of a square of 7x7 pixels marked around it, which nothing cuts."""
    masks = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.uint8)
    masks[:, line - 3 : line + 4, column - 3 : column + 4] = 1
    points = [torch.tensor([[column, line]], dtype=torch.float64)]
    for end in range(1, len(row) + 1):
        moved = pa.apply(IMAGE, pa.Program.from_ops([row[:end]]), masks=masks, keypoints=points)
        y, x = np.nonzero(moved.masks[0].numpy() == 1)
        assume(len(x) and x.min() > 0 and y.min() > 0 and x.max() < WIDTH - 1 and y.max() < HEIGHT - 1)
    place_x, place_y, visible = moved.keypoints[0][0].tolist()
    assert visible == 1
    return max(abs(place_x - x.mean()), abs(place_y - y.mean()))


@EXAMPLES
@given(ops(0.5), st.integers(8, WIDTH - 9), st.integers(8, HEIGHT - 9))
def test_a_keypoint_lands_within_half_a_pixel_of_its_mark(op, column, line):
    assert distance([op], column, line) <= 0.5 + 1e-3


@EXAMPLES
@given(st.lists(ops(0.1), min_size=2, max_size=3), st.integers(15, WIDTH - 16), st.integers(15, HEIGHT - 16))
def test_after_several_ops_half_a_pixel_each(row, column, line):
    assert distance(row, column, line) <= allowed(row)


@EXAMPLES
@given(st.lists(ops(), min_size=1, max_size=4), st.integers(0, WIDTH - 1), st.integers(0, HEIGHT - 1), st.data())
def test_whole_pixels_are_followed_exactly(row, column, line, data):
    """Flips, half turns and translations by whole pixels move a mask's pixel exactly where its keypoint goes."""
    whole = []
    for op in row:
        name = op if isinstance(op, str) else op[0]
        if name.startswith("Flip"):
            whole.append(name)
        elif name == "Rotate":
            whole.append((name, data.draw(st.sampled_from([-180.0, 180.0, 360.0]))))
        else:
            side = WIDTH if name.endswith("X") else HEIGHT
            whole.append((f"Translate{name[-1]}", data.draw(st.integers(-side, side)) / side))
    masks = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.uint8)
    masks[0, line, column] = 1
    points, boxes = [torch.tensor([[column, line]])], [torch.tensor([[column, line, column + 1, line + 1]])]
    moved = pa.apply(IMAGE, pa.Program.from_ops([whole]), masks=masks, keypoints=points, boxes=boxes)
    found = (moved.masks[0] == 1).nonzero().tolist()
    place_x, place_y, visible = moved.keypoints[0][0].tolist()
    assert found == ([[place_y, place_x]] if visible else [])
    assert moved.boxes[0].tolist() == ([[place_x, place_y, place_x + 1, place_y + 1]] if visible else [])
