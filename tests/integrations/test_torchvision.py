"""Inside torchvision's Compose, on its tv_tensors, and before its CutMix and MixUp."""

import math

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from toy import IMAGES, preprocess, search_of

import particleaugment as pa

pytest.importorskip("torchvision", reason="needs torchvision: pip install 'particleaugment[torchvision]'")
from torchvision import transforms, tv_tensors
from torchvision.transforms import v2

POLICY = pa.RandAugment(n=2, m=8, ops=("Rotate", "Color", "Solarize"))


def test_tv_tensors_stay_tv_tensors():
    transform = pa.ImageTransform(POLICY)
    augmented = transform(tv_tensors.Image(IMAGES[3]), id=3)
    assert type(augmented) is tv_tensors.Image
    assert torch.equal(augmented.as_subclass(torch.Tensor), transform(IMAGES[3], id=3))


@pytest.mark.parametrize("package", [transforms, v2])
def test_inside_compose(package):
    to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)] if package is v2 else [transforms.ToTensor()]
    chain = package.Compose([package.RandomCrop(8, padding=1), pa.ImageTransform(POLICY), *to_float])
    image = chain(Image.fromarray(IMAGES[0].permute(1, 2, 0).contiguous().numpy()))
    assert image.shape == (3, 8, 8)
    assert image.dtype == torch.float32
    assert 0 <= float(image.min()) <= float(image.max()) <= 1


def test_compose_passes_the_label_on():
    image, label = v2.Compose([pa.ImageTransform(POLICY), v2.ToDtype(torch.float32, scale=True)])(
        tv_tensors.Image(IMAGES[0]), 2
    )
    assert (type(image), image.dtype, label) == (tv_tensors.Image, torch.float32, 2)


def test_ours_between_theirs_is_exactly_ours():
    plain = v2.Compose([v2.ToImage(), pa.ImageTransform(POLICY, seed=4)])
    picture = Image.fromarray(IMAGES[5].permute(1, 2, 0).contiguous().numpy())
    expected = pa.Augment(POLICY, seed=4)(IMAGES[5:6], torch.tensor([0]))[0]
    assert torch.equal(plain(picture).as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("mix", [v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)], ids=["CutMix", "MixUp"])
def test_cutmix_and_mixup_come_after_us(mix):
    search = search_of()
    search.begin_epoch(1)
    torch.manual_seed(0)
    changed = 0
    for images, labels, ids in DataLoader(search.training_set(), batch_size=12, collate_fn=default_collate):
        augmented = preprocess(search.augment(images, ids))
        mixed, soft = mix(augmented.clone(), labels)
        assert mixed.shape == augmented.shape
        assert soft.shape == (12, 3)
        torch.testing.assert_close(soft.sum(1), torch.ones(12))
        changed += not torch.equal(mixed, augmented)
        loss = torch.nn.functional.cross_entropy(mixed.flatten(1)[:, :3], soft)
        assert loss.isfinite()
    assert changed > 0


# Targets.

HEIGHT, WIDTH = 40, 60
MOVING = pa.RandAugment(n=2, m=5, ops=("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "FlipX", "Color"))
CANVAS = {"canvas_size": (HEIGHT, WIDTH)}
BOXES = torch.tensor([[2.0, 3, 12, 9], [40, 10, 60, 40], [25, 15, 35, 25]])
HAS_KEYPOINTS = hasattr(tv_tensors, "KeyPoints")


def tv_sample():
    """A detection sample as torchvision's data sets give them."""
    generator = torch.Generator().manual_seed(0)
    image = tv_tensors.Image(torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator))
    target = {
        "boxes": tv_tensors.BoundingBoxes(BOXES, format="XYXY", **CANVAS),
        "masks": tv_tensors.Mask(torch.arange(2 * HEIGHT * WIDTH).view(2, HEIGHT, WIDTH)),
        "labels": torch.tensor([4, 5, 6]),
        "name": "x.jpg",
    }
    if HAS_KEYPOINTS:
        target["points"] = tv_tensors.KeyPoints(torch.tensor([[2.0, 3.0], [30, 20]]), **CANVAS)
    return image, target


def test_tv_tensors_move_with_their_image():
    transform, augment = pa.ImageTransform(MOVING, seed=3), pa.Augment(MOVING, seed=3, min_visible=None)
    image, target = tv_sample()
    for i in range(20):
        result, moved = transform(image, target, id=i)
        plain = {name: value.as_subclass(torch.Tensor) for name, value in target.items() if name in ("boxes", "masks")}
        points = torch.tensor([[2.0, 3.0], [30, 20]])
        expected = augment(image.as_subclass(torch.Tensor), i, **plain, keypoints=points)
        assert [type(value) for value in moved.values()] == [type(value) for value in target.values()]
        assert torch.equal(result.as_subclass(torch.Tensor), expected.images)
        assert torch.equal(moved["masks"].as_subclass(torch.Tensor), expected.masks)
        assert torch.equal(moved["boxes"].as_subclass(torch.Tensor), expected.boxes)
        assert (moved["boxes"].format, moved["boxes"].canvas_size) == (target["boxes"].format, (HEIGHT, WIDTH))
        assert moved["labels"] is target["labels"]
        assert moved["name"] == "x.jpg"
        if HAS_KEYPOINTS:
            assert torch.equal(moved["points"].as_subclass(torch.Tensor), expected.keypoints[:, :2])
            assert moved["points"].canvas_size == (HEIGHT, WIDTH)


def test_between_theirs_in_compose():
    torch.manual_seed(0)
    chain = v2.Compose(
        [v2.RandomHorizontalFlip(), v2.RandomCrop((32, 48)), pa.ImageTransform(MOVING), v2.SanitizeBoundingBoxes(),
         v2.ToDtype(torch.float32, scale=True)]
    )  # fmt: skip
    for _ in range(30):
        image, target = chain(*tv_sample())
        assert (image.dtype, tuple(image.shape)) == (torch.float32, (3, 32, 48))
        assert tuple(target["masks"].shape) == (2, 32, 48)
        assert len(target["boxes"]) == len(target["labels"])
        if len(target["boxes"]):
            assert float(target["boxes"].min()) >= 0
            assert float(target["boxes"][:, 2].max()) <= 48
    sample = {"image": tv_sample()[0], "mask": tv_tensors.Mask(torch.zeros(HEIGHT, WIDTH, dtype=torch.bool))}
    moved = v2.Compose([pa.ImageTransform(MOVING)])(sample)
    assert (type(moved["mask"]), moved["mask"].dtype) == (tv_tensors.Mask, torch.bool)
    assert not moved["mask"].any()


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_formats_and_types_of_boxes(form, dtype):
    image, target = tv_sample()
    converted = v2.functional.convert_bounding_box_format(target["boxes"], new_format=form)
    boxes = tv_tensors.BoundingBoxes(converted.to(dtype), format=form, **CANVAS)
    transform = pa.ImageTransform(MOVING, seed=3)
    for i in range(10):
        moved = transform(image, boxes, id=i)[1]
        assert (moved.format, moved.dtype, moved.shape) == (boxes.format, dtype, boxes.shape)
        wanted = transform(image, target["boxes"], id=i)[1]
        back = v2.functional.convert_bounding_box_format(moved.float(), old_format=boxes.format, new_format="XYXY")
        assert torch.allclose(back, wanted.as_subclass(torch.Tensor), atol=1e-3 if dtype == torch.float32 else 1.01)


def theirs(boxes, op):
    """What torchvision makes of boxes under one op, in Pillow's convention: shears are about the corner."""
    name, arg = op if isinstance(op, tuple) else (op, 0.0)
    if name == "FlipX":
        return v2.functional.horizontal_flip(boxes)
    if name == "FlipY":
        return v2.functional.vertical_flip(boxes)
    if name == "Rotate":
        return v2.functional.rotate(boxes, arg)
    angle, translate, shear = 0.0, [0.0, 0.0], [0.0, 0.0]
    if name.startswith("Shear"):
        shear[name == "ShearY"] = math.degrees(math.atan(arg))
    else:
        translate[name == "TranslateY"] = -arg * (WIDTH if name == "TranslateX" else HEIGHT)
    return v2.functional.affine(boxes, angle, translate, 1.0, shear, center=[0.0, 0.0])


OPS = ["FlipX", "FlipY"]
OPS += [(name, value) for name in ("TranslateX", "TranslateY") for value in (-0.4, -0.1, 0.25, 0.45)]
OPS += [(name, value) for name in ("ShearX", "ShearY") for value in (-0.3, -0.05, 0.1, 0.3)]
OPS += [("Rotate", value) for value in (-135.0, -30.0, 5.0, 30.0, 90.0, 180.0)]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_boxes_are_theirs_within_a_pixel(op):
    image, target = tv_sample()
    program = pa.Program.from_ops([[op]])
    images = image.as_subclass(torch.Tensor)[None]
    ours = pa.apply(images, program, boxes=[BOXES], min_visible=None).boxes[0]
    expected = v2.functional.clamp_bounding_boxes(theirs(target["boxes"], op)).as_subclass(torch.Tensor)
    assert (ours - expected).abs().max() < 1


def test_what_is_wrong_with_a_sample():
    image, _ = tv_sample()
    transform = pa.ImageTransform(MOVING)
    small = tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8))
    with pytest.raises(ValueError, match=r"BoundingBoxes have a canvas of \(8, 8\), but the image is \(40, 60\)"):
        transform(image, small)
    with pytest.raises(ValueError, match=r"images of 40x60 pixels, got \(1, 1, 8, 8\)"):
        transform(image, tv_tensors.Mask(torch.zeros(8, 8, dtype=torch.uint8)))
    with pytest.raises(TypeError, match=r"classes as integers, or bool, got torch\.float32"):
        transform(image, tv_tensors.Mask(torch.zeros(HEIGHT, WIDTH)))
    with pytest.raises(TypeError, match="Video cannot be augmented with an image"):
        transform(image, tv_tensors.Video(torch.zeros(2, 3, HEIGHT, WIDTH, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="a sample has one image, got 2"):
        transform(image, tv_tensors.Image(torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8)))
    if hasattr(tv_tensors.BoundingBoxFormat, "CXCYWHR"):
        turned = tv_tensors.BoundingBoxes([[9.0, 9, 4, 4, 30]], format="CXCYWHR", **CANVAS)
        with pytest.raises(ValueError, match="boxes of format CXCYWHR are rotated, which is not supported; convert"):
            transform(image, turned)
