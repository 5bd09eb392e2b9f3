"""Masks, boxes, keypoints and labels through pa.apply: what comes back, and what is refused."""

import math

import numpy as np
import pytest
import torch
from test_executors import EXECUTORS

import particleaugment as pa
from particleaugment.executors.points import BOX_FORMATS

IMAGES = torch.randint(0, 256, (3, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
MASKS = torch.arange(3 * 20 * 30).view(3, 20, 30) % 7
BOXES = [torch.tensor([[2.0, 3, 12, 9], [20, 10, 30, 20]]), torch.zeros(0, 4), torch.tensor([[0.0, 0, 30, 20]])]
LABELS = [torch.tensor([4, 5]), torch.zeros(0, dtype=torch.int64), torch.tensor([6])]
POINTS = [torch.tensor([[2.0, 3.0], [29, 19]]), torch.zeros(0, 2), torch.tensor([[15.0, 10.0]])]
NOTHING = pa.Program.from_ops([["Invert"]] * 3)


def one(*ops, count=1):
    return pa.Program.from_ops([list(ops)] * count)


def moved(op, boxes, **options):
    """The boxes of a blank image of 20x30 pixels after one op."""
    return pa.apply(IMAGES[:1], one(op), boxes=[torch.tensor(boxes)], **options).boxes[0].tolist()


def moved_points(op, points, **options):
    return pa.apply(IMAGES[:1], one(op), keypoints=[torch.tensor(points)], **options).keypoints[0].tolist()


# What comes back.


def test_images_alone_come_back_alone_and_with_targets_a_named_tuple():
    assert isinstance(pa.apply(IMAGES, NOTHING), torch.Tensor)
    result = pa.apply(IMAGES, NOTHING, masks=MASKS)
    assert isinstance(result, pa.Augmented)
    assert result._fields == ("images", "masks", "boxes", "keypoints", "labels")
    assert result[2:] == (None, None, None)
    assert torch.equal(result.images, pa.apply(IMAGES, NOTHING))
    result = pa.apply(IMAGES, NOTHING, boxes=BOXES, labels=LABELS, keypoints=POINTS)
    assert result.masks is None
    assert [len(result.boxes), len(result.labels), len(result.keypoints)] == [3, 3, 3]


def test_ops_that_move_nothing_leave_targets_alone():
    still = [op for op in pa.ops.TABLE if op.kind.name in ("NONE", "POINTWISE", "HISTOGRAM", "BLEND", "NEIGHBOURHOOD")]
    assert len(still) == 11
    program = pa.Program.from_ops([[(op.name, 0.5) if op.takes_argument else op.name for op in still]] * 3)
    for executor in EXECUTORS:
        result = pa.apply(IMAGES, program, executor, masks=MASKS, boxes=BOXES, keypoints=POINTS, labels=LABELS)
        assert torch.equal(result.masks, MASKS)
        assert result.masks.data_ptr() != MASKS.data_ptr()
        assert all(torch.equal(*pair) for pair in zip(result.boxes, BOXES))
        assert all(torch.equal(*pair) for pair in zip(result.labels, LABELS))
        assert all(torch.equal(new[:, :2], old) for new, old in zip(result.keypoints, POINTS))
        assert [points[:, 2].tolist() for points in result.keypoints] == [[1, 1], [], [1]]


def test_programs_without_slots_and_empty_batches():
    result = pa.apply(IMAGES, pa.Program.from_ops([[], [], []]), masks=MASKS, boxes=BOXES, keypoints=POINTS)
    assert torch.equal(result.masks, MASKS)
    assert torch.equal(result.boxes[0], BOXES[0])
    empty = pa.apply(IMAGES[:0], NOTHING[:0], masks=MASKS[:0], boxes=[], keypoints=[], labels=[])
    assert (empty.masks.shape, empty.boxes, empty.keypoints, empty.labels) == ((0, 20, 30), [], [], [])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_targets_do_not_depend_on_the_batch(executor):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (24, 3, 19, 26), dtype=torch.uint8, generator=generator)
    masks = torch.randint(0, 9, (24, 19, 26), generator=generator)
    corner = torch.rand(24, 5, 2, generator=generator) * 10
    boxes = list(torch.cat([corner, corner + 2 + 6 * torch.rand(24, 5, 2, generator=generator)], 2))
    points = list(torch.rand(24, 4, 2, generator=generator) * 18)
    program = pa.RandAugment(n=3, m=8, ops=("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "FlipX")).sample(
        torch.arange(24), size=(19, 26)
    )
    labels = [torch.arange(5)] * 24
    whole = pa.apply(images, program, executor, masks=masks, boxes=boxes, keypoints=points, labels=labels)
    assert min(len(part) for part in whole.boxes) < 5
    for i in range(24):
        alone = pa.apply(
            images[i : i + 1], program[i : i + 1], executor, masks=masks[i : i + 1], boxes=boxes[i : i + 1],
            keypoints=points[i : i + 1], labels=labels[:1],
        )  # fmt: skip
        assert torch.equal(alone.masks[0], whole.masks[i])
        for field in ("boxes", "keypoints", "labels"):
            assert torch.equal(getattr(alone, field)[0], getattr(whole, field)[i])


# Boxes.


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("FlipX", [[18, 3, 28, 9]]),
        ("FlipY", [[2, 11, 12, 17]]),
        (("TranslateX", 0.1), [[0, 3, 9, 9]]),
        (("TranslateX", -0.1), [[5, 3, 15, 9]]),
        (("TranslateY", -0.5), [[2, 13, 12, 19]]),
        (("Rotate", 180), [[18, 11, 28, 17]]),
        (("ShearX", 0.5), [[0, 3, 10.5, 9]]),
        (("ShearY", -1), [[2, 5, 12, 20]]),
        (("TranslateX", 1), []),
    ],
)
def test_boxes_by_hand(op, expected):
    assert moved(op, [[2.0, 3, 12, 9]]) == expected


def test_quarter_turns():
    images = torch.zeros(1, 3, 20, 20, dtype=torch.uint8)
    boxes = [torch.tensor([[2, 3, 12, 9]])]
    for degrees, expected in ((90, [3, 8, 9, 18]), (180, [8, 11, 18, 17]), (270, [11, 2, 17, 12])):
        for op in ("Rotate", "Rotate90"):
            result = pa.apply(images, one((op, degrees)), boxes=boxes)
            assert result.boxes[0].tolist() == [expected]
            assert result.boxes[0].dtype == torch.float32


def test_a_rotated_box_is_the_hull_of_its_corners():
    box = moved(("Rotate", 30), [[10.0, 5, 20, 15]])[0]
    half = 5 * (math.cos(math.pi / 6) + math.sin(math.pi / 6))
    assert box == pytest.approx([15 - half, 10 - half, 15 + half, 10 + half], abs=1e-5)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("box_format", BOX_FORMATS)
def test_every_format_says_the_same(box_format, normalized):
    program = one(("Rotate", 20), ("ShearX", 0.2), "FlipX", count=3)
    expected = pa.apply(IMAGES, program, boxes=BOXES).boxes
    sides = torch.tensor([30, 20, 30, 20])

    def written(boxes):
        first, last = boxes[:, :2], boxes[:, 2:]
        boxes = {
            "xyxy": boxes,
            "xywh": torch.cat([first, last - first], 1),
            "cxcywh": torch.cat([(first + last) / 2, last - first], 1),
        }[box_format]
        return boxes / sides if normalized else boxes

    given = [written(part) for part in BOXES]
    result = pa.apply(IMAGES, program, boxes=given, box_format=box_format, normalized=normalized).boxes
    for got, want in zip(result, expected):
        assert torch.allclose(got, written(want), atol=1e-5)
    unmoved = pa.apply(IMAGES, NOTHING, boxes=given, box_format=box_format, normalized=normalized).boxes
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(unmoved, given))


def test_boxes_that_leave_are_dropped_with_their_labels():
    boxes = [torch.tensor([[0.0, 0, 10, 10], [20, 0, 30, 10], [5, 0, 15, 10]])] * 3
    labels = [torch.tensor([[1, 1], [2, 2], [3, 3]])] * 3
    # Moved left by 9 pixels, a tenth of the first box is left, and 6 tenths of the third.
    program = one(("TranslateX", 0.3), count=3)
    for share, expected in ((0.0, [1, 2, 3]), (0.1, [1, 2, 3]), (0.11, [2, 3]), (0.7, [2]), (None, [1, 2, 3])):
        result = pa.apply(IMAGES, program, boxes=boxes, labels=labels, min_visible=share)
        assert [part[:, 0].tolist() for part in result.labels] == [expected] * 3
        assert [len(part) for part in result.boxes] == [len(expected)] * 3
    gone = pa.apply(IMAGES, one(("TranslateX", 1), count=3), boxes=boxes, labels=labels, min_visible=0.0)
    assert [len(part) for part in (*gone.boxes, *gone.labels)] == [0] * 6
    kept = pa.apply(IMAGES, one(("TranslateX", 1), count=3), boxes=boxes, min_visible=None)
    assert [part.shape for part in kept.boxes] == [(3, 4)] * 3


def test_what_left_does_not_come_back():
    there_and_back = [("TranslateX", 0.6), ("TranslateX", -0.6)]
    boxes, points = [torch.tensor([[0.0, 0, 10, 10], [18, 0, 30, 10]])], [torch.tensor([[5.0, 5], [25, 5]])]
    result = pa.apply(IMAGES[:1], one(*there_and_back), boxes=boxes, keypoints=points)
    assert result.boxes[0].tolist() == [[18, 0, 30, 10]]
    assert result.keypoints[0].tolist() == [[5, 5, 0], [25, 5, 1]]


def test_the_visible_shares_of_steps_multiply():
    # Half of the box leaves to the left; half of the rest leaves at the top.
    program = one(("TranslateX", 0.5), ("TranslateY", 0.5))
    boxes = [torch.tensor([[10.0, 0, 20, 20]])]
    for share, count in ((0.25, 1), (0.26, 0)):
        assert len(pa.apply(IMAGES[:1], program, boxes=boxes, min_visible=share).boxes[0]) == count


def test_types_are_kept_and_whole_numbers_become_floats():
    for dtype, expected in (
        (torch.float64, torch.float64),
        (torch.float16, torch.float16),
        (torch.int64, torch.float32),
    ):
        boxes, points = [BOXES[0].to(dtype)], [POINTS[0].to(dtype)]
        result = pa.apply(IMAGES[:1], one("FlipX"), boxes=boxes, keypoints=points)
        assert (result.boxes[0].dtype, result.keypoints[0].dtype) == (expected, expected)
        assert result.boxes[0].tolist() == [[18, 3, 28, 9], [0, 10, 10, 20]]


def test_a_box_that_overhangs_by_a_rounded_pixel_is_clipped():
    assert moved("Invert", [[-0.5, -1.0, 30.5, 21.0]]) == [[0, 0, 30, 20]]
    assert moved("Invert", [[-0.9, 0.0, -0.1, 5.0], [1, 1, 2, 2]]) == [[1, 1, 2, 2]]


# Keypoints.


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("FlipX", [27, 3, 1]),
        ("FlipY", [2, 16, 1]),
        (("Rotate", 180), [27, 16, 1]),
        (("TranslateX", 0.1), [-1, 3, 0]),
        (("TranslateY", -0.5), [2, 13, 1]),
        (("ShearX", -0.5), [3.75, 3, 1]),
    ],
)
def test_keypoints_by_hand(op, expected):
    assert moved_points(op, [[2.0, 3.0]]) == [expected]


def test_visibility_is_kept_until_a_point_leaves():
    points = [[2.0, 3.0, 2.0], [20, 3, 1], [20, 3, 2], [25, 10, 0]]
    assert moved_points(("TranslateX", 0.1), points) == [[-1, 3, 0], [17, 3, 1], [17, 3, 2], [22, 10, 0]]
    assert moved_points("Invert", [[-1.0, 0.0, 2.0], [29.4, 19.4, 2.0]]) == [
        [-1, 0, 0],
        pytest.approx([29.4, 19.4, 2], abs=1e-6),
    ]


def test_groups_of_keypoints_and_tensors_keep_their_shape():
    points = torch.rand(3, 4, 17, 3, generator=torch.Generator().manual_seed(2)) * 19
    program = one(("Rotate", 10), count=3)
    together = pa.apply(IMAGES, program, keypoints=points).keypoints
    assert together.shape == (3, 4, 17, 3)
    listed = pa.apply(IMAGES, program, keypoints=list(points)).keypoints
    assert torch.equal(torch.stack(listed), together)
    flat = pa.apply(IMAGES, program, keypoints=[part.flatten(0, 1) for part in points]).keypoints
    assert torch.equal(torch.stack(flat).view_as(together), together)
    pairs = pa.apply(IMAGES, program, keypoints=points[..., :2]).keypoints
    assert pairs.shape == (3, 4, 17, 3)
    assert torch.equal(pairs[..., :2], together[..., :2])


def test_normalized_keypoints_are_pixels_over_sides():
    sides = torch.tensor([30.0, 20.0])
    result = pa.apply(IMAGES, one(("Rotate", 33), count=3), keypoints=POINTS).keypoints
    fractions = [points / sides for points in POINTS]
    again = pa.apply(IMAGES, one(("Rotate", 33), count=3), keypoints=fractions, normalized=True).keypoints
    for got, want in zip(again, result):
        assert torch.allclose(got[:, :2] * sides, want[:, :2], atol=1e-5)
        assert torch.equal(got[:, 2], want[:, 2])


def test_what_is_cut_out_hides_keypoints_if_asked_for():
    program = one(("Cutout", 0.5, (5, 5, 15, 15), (0, 0, 0)), "FlipX")
    points, boxes = [torch.tensor([[5.0, 5.0, 2.0], [14, 14, 2], [15, 15, 2]])], [torch.tensor([[6.0, 6, 9, 9]])]
    plain = pa.apply(IMAGES[:1], program, keypoints=points, boxes=boxes)
    assert plain.keypoints[0].tolist() == [[24, 5, 2], [15, 14, 2], [14, 15, 2]]
    hidden = pa.apply(IMAGES[:1], program, keypoints=points, boxes=boxes, erase_targets=True)
    assert hidden.keypoints[0].tolist() == [[24, 5, 0], [15, 14, 0], [14, 15, 2]]
    assert hidden.boxes[0].tolist() == plain.boxes[0].tolist() == [[21, 6, 24, 9]]


# Registered ops.


def test_registered_ops_say_whether_targets_can_follow():
    pa.ops.register("Roll", lambda images, _: images.roll(3, -1))
    with pytest.raises(
        ValueError, match="Roll is a registered op, which masks, boxes and keypoints cannot follow; if it"
    ):
        pa.apply(IMAGES, one("Roll", count=3), masks=MASKS)
    pa.ops.register("Swap", lambda images, _: images.flip(1), keeps_places=True)
    program = one("Swap", "FlipX", count=3)
    result = pa.apply(IMAGES, program, masks=MASKS, boxes=BOXES)
    assert torch.equal(result.images, IMAGES.flip(1, 3))
    assert torch.equal(result.masks, MASKS.flip(2))
    assert result.boxes[0][0].tolist() == [18, 3, 28, 9]


# Bad input.


def boxes_of(*rows):
    return [torch.tensor([[1.0, 1, 2, 2]]), torch.zeros(0, 4), torch.tensor([[3.0, 3, 9, 9], *rows])]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"masks": MASKS.numpy()}, TypeError, r"masks must be an integer tensor \[batch, height, width\], got ndarray"),
        ({"masks": MASKS.float()}, TypeError, r"classes as integers, or bool, got torch.float32; convert them"),
        ({"masks": MASKS[:2]}, ValueError, r"like their 3 images of 20x30 pixels, got \(2, 20, 30\)"),
        ({"masks": MASKS[:, :19]}, ValueError, r"like their 3 images of 20x30 pixels, got \(3, 19, 30\)"),
        ({"masks": MASKS[0]}, ValueError, r"like their 3 images of 20x30 pixels, got \(20, 30\)"),
        (
            {"masks": MASKS.to(torch.int8)},
            ValueError,
            "torch.int8 cannot contain the fill value 255; set mask_fill to -128 t",
        ),
        (
            {"masks": MASKS.bool(), "mask_fill": 7},
            ValueError,
            "torch.bool cannot contain the fill value 7; set mask_fill to 0",
        ),
        ({"masks": MASKS.to("meta")}, ValueError, "masks are on meta but their images on cpu; move them there"),
        ({"masks": MASKS, "mask_fill": 0.5}, ValueError, "mask_fill must be a whole number, a class, got 0.5"),
        ({"boxes": BOXES[0]}, ValueError, "one tensor of boxes per image, got 2 for 3 images"),
        ({"boxes": BOXES[:2]}, ValueError, "one tensor of boxes per image, got 2 for 3 images"),
        ({"boxes": "boxes"}, TypeError, r"boxes must be a list with one tensor \[n, 4\] per image, got str"),
        ({"boxes": [[[1, 2, 3, 4]]] * 3}, TypeError, r"boxes must be a list .* per image, got list of list"),
        ({"boxes": [torch.zeros(2, 5)] * 3}, ValueError, r"boxes of image 0 must have shape \[n, 4\], got \(2, 5\)"),
        (
            {"boxes": boxes_of([0, math.nan, 1, 1])},
            ValueError,
            r"box 1 of image 2, \(0, nan, 1, 1\), has a non-finite number; remove it or repair it",
        ),
        (
            {"boxes": boxes_of([9, 9, 3, 12])},
            ValueError,
            r"box 1 of image 2, \(9, 9, 3, 12\), has no area when it is read as xyxy; remove it, or set box_format",
        ),
        (
            {"boxes": boxes_of([9, 9, 31.5, 12])},
            ValueError,
            r"box 1 of image 2, \(9, 9, 31.5, 12\), is outside its image of 20x30 pixels when it is read as xyxy; clip",
        ),
        (
            {"boxes": boxes_of(), "normalized": True},
            ValueError,
            r"box 0 of image 0, \(1, 1, 2, 2\), is outside .* when it is read as normalized xyxy; .* normalized",
        ),
        ({"boxes": BOXES, "box_format": "yxyx"}, ValueError, "there is no box format 'yxyx'; did you mean xyxy"),
        ({"boxes": BOXES, "box_format": "coco"}, ValueError, "'coco'; the formats are xyxy, xywh, cxcywh"),
        ({"boxes": BOXES, "min_visible": 1.5}, ValueError, "min_visible must be a share from 0 to 1, or None, got 1.5"),
        ({"boxes": BOXES, "min_visible": "a"}, ValueError, "min_visible must be a share from 0 to 1, or None, got 'a'"),
        ({"boxes": BOXES, "normalized": 1}, ValueError, "normalized must be True or False, got 1"),
        ({"boxes": BOXES, "min_visibel": 0.5}, TypeError, "no option 'min_visibel' for targets; did you mean min_visi"),
        ({"boxes": BOXES, "labels": LABELS[:2]}, ValueError, "one tensor of labels per image, got 2 for 3 images"),
        (
            {"boxes": BOXES, "labels": [LABELS[0][:1], *LABELS[1:]]},
            ValueError,
            "image 0 has 2 boxes but 1 labels; give one label per box",
        ),
        (
            {"boxes": BOXES, "labels": [torch.tensor(1)] * 3},
            ValueError,
            "image 0 has 2 boxes but a single number as labels; give one label per box",
        ),
        ({"labels": LABELS}, ValueError, "labels belong to boxes; pass boxes too"),
        (
            {"keypoints": [torch.zeros(2, 4)] * 3},
            ValueError,
            r"keypoints of image 0 must have shape \[..., 2\] or \[..., 3\] \(column, row, visibility\), got \(2, 4\)",
        ),
        (
            {"keypoints": [torch.zeros(1, 2), torch.tensor([[1.0, math.inf]]), torch.zeros(1, 2)]},
            ValueError,
            "a keypoint of image 1 has a non-finite number; remove it or repair it",
        ),
    ],
)
def test_bad_targets(given, error, message):
    with pytest.raises(error, match=message):
        pa.apply(IMAGES, NOTHING, **given)


def test_the_default_device_and_type_do_not_matter(another_default_dtype):
    program = one(("Rotate", 21), ("ShearY", 0.2), "FlipX", count=3)
    given = {"masks": MASKS, "boxes": BOXES, "keypoints": POINTS, "labels": LABELS}
    for executor in EXECUTORS:
        expected = pa.apply(IMAGES, program, executor, **given)
        with another_default_dtype():
            again = pa.apply(IMAGES, program, executor, **given)
        with torch.device("meta"):
            elsewhere = pa.apply(IMAGES, program, executor, **given)
        for result in (again, elsewhere):
            assert torch.equal(result.masks, expected.masks)
            for field in ("boxes", "keypoints", "labels"):
                for got, want in zip(getattr(result, field), getattr(expected, field)):
                    assert np.array_equal(got.numpy(), want.numpy())
