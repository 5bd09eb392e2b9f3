"""Single samples by name, as albumentations takes them, and in any nesting."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from PIL import Image

import particleaugment as pa
from particleaugment.augment.structures import leaves, mapped

HEIGHT, WIDTH = 20, 30
POLICY = pa.RandAugment(n=2, m=6, ops=("Rotate", "ShearX", "TranslateX", "TranslateY", "FlipX", "Color"))
RNG = np.random.default_rng(0)
ARRAY = RNG.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
IMAGE = torch.from_numpy(ARRAY).permute(2, 0, 1).contiguous()
MASK = np.arange(HEIGHT * WIDTH, dtype=np.int32).reshape(HEIGHT, WIDTH)
BOXES = [(2, 3, 12, 9), (20, 10, 30, 20), (0, 0, 30, 20)]
POINTS = [(2, 3), (29, 19)]


def expected(i, **options):
    """What Augment makes of the same sample."""
    augment = pa.Augment(POLICY, seed=5, **options)
    return augment(
        IMAGE, i, masks=torch.from_numpy(MASK), boxes=torch.tensor(BOXES, dtype=torch.float64),
        keypoints=torch.tensor(POINTS, dtype=torch.float64), labels=torch.arange(3),
    )  # fmt: skip


def test_by_name_everything_moves_and_keeps_its_kind():
    transform = pa.ImageTransform(POLICY, seed=5)
    dropped = 0
    for i in range(40):
        wanted = expected(i)
        result = transform(
            image=ARRAY, mask=MASK, masks=[MASK, MASK + 1], bboxes=BOXES, class_labels=["a", "b", "c"],
            keypoints=POINTS, name="x", id=i,
        )  # fmt: skip
        assert sorted(result) == ["bboxes", "class_labels", "image", "keypoints", "mask", "masks", "name"]
        assert np.array_equal(result["image"], wanted.images.permute(1, 2, 0).numpy())
        assert np.array_equal(result["mask"], wanted.masks.numpy())
        assert result["mask"].dtype == np.int32
        assert np.array_equal(
            result["masks"][1], np.where(result["mask"] == 255, result["masks"][1], result["mask"] + 1)
        )
        assert result["bboxes"] == [tuple(row) for row in wanted.boxes.tolist()]
        assert result["class_labels"] == ["abc"[n] for n in wanted.labels]
        assert result["keypoints"] == [tuple(row) for row in wanted.keypoints.tolist()]
        assert result["name"] == "x"
        dropped += 3 - len(result["bboxes"])
    assert dropped > 0


def test_arrays_tensors_and_pictures():
    transform, wanted = pa.ImageTransform(POLICY, seed=5), expected(3)
    for kind in (np.asarray, torch.tensor):
        result = transform(image=ARRAY, bboxes=kind(BOXES), labels=kind([7, 8, 9]), keypoints=kind(POINTS), id=3)
        for name, value in (("bboxes", wanted.boxes), ("keypoints", wanted.keypoints), ("labels", wanted.labels + 7)):
            assert isinstance(result[name], type(kind(BOXES)))
            assert np.array_equal(np.asarray(result[name]), value.numpy())
    picture = transform(image=Image.fromarray(ARRAY), mask=Image.fromarray((MASK % 7).astype(np.uint8)), id=3)
    assert np.array_equal(np.asarray(picture["image"]), wanted.images.permute(1, 2, 0).numpy())
    moved = wanted.masks.numpy()
    numbers = np.asarray(picture["mask"])
    assert picture["mask"].mode == "L"
    assert np.array_equal(numbers[numbers != 255], moved[numbers != 255] % 7)
    tensor = transform(image=IMAGE, mask=torch.from_numpy(MASK), id=3)
    assert torch.equal(tensor["image"], wanted.images)
    assert torch.equal(tensor["mask"], wanted.masks)
    palette = Image.fromarray((MASK % 3).astype(np.uint8)).convert("P")
    palette.putpalette([9, 8, 7, 6, 5, 4, 3, 2, 1])
    coloured = transform(image=ARRAY, mask=palette, id=3)["mask"]
    assert (coloured.mode, coloured.getpalette()[:9]) == ("P", [9, 8, 7, 6, 5, 4, 3, 2, 1])


def test_grey_arrays_come_back_as_they_were():
    transform = pa.ImageTransform(POLICY, seed=5)
    flat, column = transform(ARRAY[..., 0], id=1), transform(ARRAY[..., :1], id=1)
    assert (flat.shape, column.shape) == ((HEIGHT, WIDTH), (HEIGHT, WIDTH, 1))
    assert np.array_equal(flat, column[..., 0])


@pytest.mark.parametrize("executor", ["native", "pil", "batch"])
def test_arrays_with_their_channels_first_come_back_as_they_were(executor):
    transform = pa.ImageTransform(pa.Augment(POLICY, seed=5, executor=executor))
    for i in range(4):
        result = transform(IMAGE.numpy(), id=i)
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, expected(i).images.numpy())


def test_columns_behind_a_box_stay_with_it():
    transform = pa.ImageTransform(POLICY, seed=5)
    for i in range(40):
        rows = [(*box, 10 + n, -1) for n, box in enumerate(BOXES)]
        result, wanted = transform(image=ARRAY, bboxes=rows, id=i)["bboxes"], expected(i)
        assert [row[:4] for row in result] == [tuple(row) for row in wanted.boxes.tolist()]
        assert [row[4:] for row in result] == [(10 + n, -1) for n in wanted.labels.tolist()]


def test_options_reach_targets():
    boxes = [(2, 3, 10, 6)]
    transform = pa.ImageTransform(pa.parse("none"), box_format="xywh", mask_fill=3)
    assert transform(image=ARRAY, bboxes=boxes)["bboxes"] == boxes
    everything = pa.ImageTransform(pa.Augment(POLICY, seed=5, min_visible=1.0))
    assert len(everything(image=ARRAY, bboxes=BOXES, id=3)["bboxes"]) < 3
    with pytest.raises(ValueError, match="the box_format belongs to the Augment; set it there"):
        pa.ImageTransform(pa.Augment("trivial"), box_format="xywh")


def test_no_boxes_and_only_an_image():
    transform = pa.ImageTransform(POLICY, seed=5)
    result = transform(image=ARRAY, bboxes=[], labels=[], id=0)
    assert (result["bboxes"], result["labels"]) == ([], [])
    assert transform(image=ARRAY, bboxes=np.zeros((0, 4)), id=0)["bboxes"].shape == (0, 4)
    assert transform(image=ARRAY, bboxes=np.zeros((0, 5)), id=0)["bboxes"].shape == (0, 5)
    alone = transform(image=ARRAY, id=3)
    assert list(alone) == ["image"]
    assert np.array_equal(alone["image"], transform(ARRAY, id=3))
    assert transform(image=ARRAY, labels=4)["labels"] == 4


def test_a_label_by_name_is_no_target():
    pa.ops.register("Drift", lambda images, _: images.roll(1, -1))
    transform = pa.ImageTransform(pa.RandAugment(n=1, m=1, ops=("Drift",)))
    result = transform(image=ARRAY, label=3, mask=None)
    assert np.array_equal(result["image"], np.roll(ARRAY, 1, 1))
    assert {name: value for name, value in result.items() if name != "image"} == {"label": 3, "mask": None}
    with pytest.raises(ValueError, match="Drift is a registered op, which masks, boxes and keypoints cannot follow"):
        transform(image=ARRAY, label=3, mask=MASK)


def test_evaluation_changes_nothing():
    transform = pa.ImageTransform(POLICY, seed=5).eval()
    result = transform(image=ARRAY, mask=MASK, bboxes=BOXES)
    assert np.array_equal(result["image"], ARRAY)
    assert np.array_equal(result["mask"], MASK)
    assert result["bboxes"] == BOXES


Pair = namedtuple("Pair", ["image", "rest"])


def test_samples_of_any_nesting():
    transform = pa.ImageTransform(POLICY, seed=5)
    augmented = transform(IMAGE, id=2)
    for sample in (
        (IMAGE, {"label": 3, "weights": torch.ones(2)}),
        [{"label": 3}, IMAGE],
        {"picture": IMAGE, "label": 3},
        Pair(IMAGE, [1, 2]),
        OrderedDict(a=1, b=(2, IMAGE)),
    ):
        result = transform(sample, id=2)
        assert type(result) is type(sample)
        for before, after in zip(leaves(sample), leaves(result)):
            assert torch.equal(after, augmented) if before is IMAGE else after is before
    two = transform(IMAGE, {"label": 3}, id=2)
    assert torch.equal(two[0], augmented)
    assert two[1] == {"label": 3}


def test_mapping_leaves_the_sample_alone():
    sample = {"a": [1, 2]}
    assert mapped(sample, str) == {"a": ["1", "2"]}
    assert sample == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ({"mask": MASK}, TypeError, r"by keyword, with image=...; got 0 positional arguments and the keywords mask"),
        ({"image": ARRAY, "mask": MASK[1:]}, ValueError, r"images of 20x30 pixels, got \(1, 1, 19, 30\)"),
        ({"image": ARRAY, "mask": "m.png"}, TypeError, "a mask must be an array, a tensor or a Pillow image, got str"),
        ({"image": ARRAY, "mask": MASK / 2}, TypeError, "classes as integers, or bool, got torch.float64"),
        ({"image": ARRAY, "bboxes": [(1, 2, 3)]}, ValueError, r"bboxes must be rows of at least 4 numbers, got \[\(1"),
        ({"image": ARRAY, "bboxes": ["a"]}, ValueError, "bboxes must be rows of at least 4 numbers, got"),
        ({"image": ARRAY, "bboxes": [(1, 2, 3, 99)]}, ValueError, "box 0 of image 0, .* is outside its image of 20x30"),
        (
            {"image": ARRAY, "bboxes": BOXES, "labels": [1]},
            ValueError,
            "there are 3 bboxes but 1 labels; give one label per box",
        ),
        ({"image": ARRAY, "bboxes": BOXES, "class_labels": 4}, ValueError, "3 bboxes but int class_labels; give one"),
        ({"image": ARRAY, "keypoints": [1, 2]}, ValueError, "keypoints must be rows of at least 2 numbers"),
        ({"image": "x.png", "bboxes": BOXES}, TypeError, "got str"),
    ],
)
def test_bad_samples(named, error, message):
    with pytest.raises(error, match=message):
        pa.ImageTransform(POLICY)(**named)


def test_samples_are_given_in_one_way():
    with pytest.raises(
        TypeError, match=r"pass a sample by position, .* got 1 positional arguments and the keywords mask"
    ):
        pa.ImageTransform(POLICY)(ARRAY, mask=MASK)
    with pytest.raises(TypeError, match="there is no sample: pass an image"):
        pa.ImageTransform(POLICY)()
