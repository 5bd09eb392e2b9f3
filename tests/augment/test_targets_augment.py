"""Targets through Augment: always-on transforms, workers, single images, evaluation."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import particleaugment as pa
from particleaugment.augment.transforms import Transform
from particleaugment.data.decode import RandomResizedCrop
from particleaugment.executors import native

COUNT, HEIGHT, WIDTH = 24, 18, 26
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (COUNT, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=GENERATOR)
# Every pixel of a mask is another class, so that a mask says where each of its pixels came from.
MASKS = torch.arange(HEIGHT * WIDTH).view(1, HEIGHT, WIDTH).repeat(COUNT, 1, 1)
CORNERS = torch.rand(COUNT, 3, 2, generator=GENERATOR) * 8
BOXES = list(torch.cat([CORNERS, CORNERS + 3 + 6 * torch.rand(COUNT, 3, 2, generator=GENERATOR)], 2))
POINTS = torch.randint(0, HEIGHT, (COUNT, 5, 2), generator=GENERATOR)
LABELS = [torch.arange(3) for _ in range(COUNT)]
IDS = torch.arange(COUNT)
GIVEN = {"masks": MASKS, "boxes": BOXES, "keypoints": POINTS, "labels": LABELS}
MOVING = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "FlipX", "Color")


def full_augment(**settings):
    before = (pa.ResizedCrop((0.4, 1.0)), pa.PadCrop(3), pa.HorizontalFlip())
    after = (pa.RandomErasing(), pa.Normalize((0.5,) * 3, (0.25,) * 3))
    return pa.Augment(pa.RandAugment(n=2, m=5, ops=MOVING), seed=7, before=before, after=after, **settings)


def same(one, other):
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.masks, other.masks)
    for field in ("boxes", "keypoints", "labels"):
        assert all(torch.equal(*pair) for pair in zip(getattr(one, field), getattr(other, field)))


def of_one(transform, **options):
    """What one always-on transform does to every target, without a policy."""
    augment = pa.Augment(pa.Identity(), seed=3, before=(transform,), min_visible=None, **options)
    return augment(IMAGES, IDS, **GIVEN), transform.sample(IDS, 0, 3, (HEIGHT, WIDTH))


# One transform at a time.


def test_crops():
    result, draws = of_one(pa.PadCrop(5))
    padded = torch.nn.functional.pad(MASKS, (5,) * 4, value=255)
    for i, (down, right) in enumerate(draws.tolist()):
        assert torch.equal(result.masks[i], padded[i, down : down + HEIGHT, right : right + WIDTH])
        shift = torch.tensor([right - 5, down - 5], dtype=torch.float32)
        assert torch.allclose(result.keypoints[i, :, :2], POINTS[i] - shift)
        limits = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
        expected = (BOXES[i] - shift.repeat(2)).clamp(min=torch.zeros(4), max=limits)
        assert torch.allclose(result.boxes[i], expected, atol=1e-6)
    assert len(draws.unique(dim=0)) > 5


def test_flips():
    result, flipped = of_one(pa.HorizontalFlip())
    assert 3 < flipped.sum() < COUNT - 3
    assert torch.equal(result.masks, torch.where(flipped.view(-1, 1, 1), MASKS.flip(-1), MASKS))
    columns = torch.where(flipped.view(-1, 1), WIDTH - 1 - POINTS[..., 0], POINTS[..., 0])
    assert torch.equal(result.keypoints[..., 0], columns.float())
    for i in range(COUNT):
        left, top, right, bottom = BOXES[i].unbind(1)
        mirrored = torch.stack([WIDTH - right, top, WIDTH - left, bottom], 1)
        assert torch.allclose(result.boxes[i], mirrored if flipped[i] else BOXES[i], atol=1e-5)


def test_erasing_leaves_targets_alone_unless_asked():
    result, draws = of_one(pa.RandomErasing(p=1.0))
    assert torch.equal(result.masks, MASKS)
    assert torch.equal(result.keypoints[..., 2], torch.ones(COUNT, 5))
    erased, _ = of_one(pa.RandomErasing(p=1.0), erase_targets=True, mask_fill=-1)
    for i, (top, left, tall, wide) in enumerate(draws.tolist()):
        expected = MASKS[i].clone()
        expected[top : top + tall, left : left + wide] = -1
        assert torch.equal(erased.masks[i], expected)
        for (x, y), (_, _, visible) in zip(POINTS[i].tolist(), erased.keypoints[i].tolist()):
            assert visible == (not (left <= x < left + wide and top <= y < top + tall))
    assert all(torch.equal(*pair) for pair in zip(erased.boxes, result.boxes))


def test_colours_and_normalising_move_nothing():
    for transform in (pa.ColorJitter(), pa.Normalize((0.5,) * 3, (0.2,) * 3)):
        augment = pa.Augment(pa.Identity(), after=(transform,))
        result = augment(IMAGES, IDS, **GIVEN)
        assert torch.equal(result.masks, MASKS)
        assert all(torch.equal(*pair) for pair in zip(result.boxes, BOXES))
        assert torch.equal(result.images, augment(IMAGES, IDS))


# Random resized crops.


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("with_numba", [True, False])
def test_resized_crops_are_pillows(monkeypatch, resample, with_numba):
    if not with_numba:
        monkeypatch.setattr(native, "unavailable_reason", lambda: "Numba is not installed")
    crop = pa.ResizedCrop(resample=resample)
    draws = crop.sample(IDS, 1, 2, (HEIGHT, WIDTH))
    output = crop.run(IMAGES, draws)
    method = Image.Resampling[resample.upper()]
    for i, (left, top, wide, tall) in enumerate(draws.tolist()):
        picture = Image.fromarray(IMAGES[i].permute(1, 2, 0).contiguous().numpy())
        matrix = (wide / WIDTH, 0, left, 0, tall / HEIGHT, top)
        expected = picture.transform(picture.size, Image.Transform.AFFINE, matrix, method)
        assert np.array_equal(output[i].permute(1, 2, 0).numpy(), np.asarray(expected))


def test_resized_crops_cut_the_parts_that_files_are_cut_to():
    ids = torch.arange(2000)
    for size, settings in (((18, 26), {}), ((4, 60), {}), ((60, 4), {}), ((32, 32), {"area": (0.9, 1.0)})):
        height, width = size
        parts = pa.ResizedCrop(**settings).sample(ids, 5, 6, size)
        known = RandomResizedCrop(**settings)
        draws = known.sample(ids, 5, 6).tolist()
        expected = [known.box(row, width, height) for row in draws]
        found = [(left, top, left + wide, top + tall) for left, top, wide, tall in parts.tolist()]
        assert found == expected
        assert len(set(found)) > 1 or size != (18, 26)


def test_targets_follow_resized_crops():
    result, draws = of_one(pa.ResizedCrop())
    for i, (left, top, wide, tall) in enumerate(draws.tolist()):
        mask = Image.fromarray(MASKS[i].to(torch.int32).numpy())
        matrix = (wide / WIDTH, 0, left, 0, tall / HEIGHT, top)
        expected = mask.transform(mask.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=255)
        assert np.array_equal(result.masks[i].numpy(), np.asarray(expected))
        scale, corner = torch.tensor([WIDTH / wide, HEIGHT / tall]), torch.tensor([left, top])
        places = (POINTS[i] + 0.5 - corner) * scale - 0.5
        assert torch.allclose(result.keypoints[i, :, :2], places, atol=1e-5)
        limits = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
        boxes = ((BOXES[i] - corner.repeat(2)) * scale.repeat(2)).clamp(min=torch.zeros(4), max=limits)
        assert torch.allclose(result.boxes[i], boxes, atol=1e-5)


def test_bad_resized_crops():
    for settings, message in (
        ({"area": (0.0, 1.0)}, "area must be two fractions of the image in rising order"),
        ({"aspect": (2.0, 1.0)}, "aspect must be two positive ratios in rising order"),
        ({"resample": "cubic"}, "there is no resampling filter 'cubic'; did you mean bicubic"),
    ):
        with pytest.raises(ValueError, match=message):
            pa.ResizedCrop(**settings)


# All of them together.


def test_it_is_the_parts_in_order():
    """A mask of each pixel's number, moved by the whole augmentation, is that of the transforms one by one."""
    augment = full_augment(erase_targets=True)
    augment.set_epoch(4)
    result = augment(IMAGES, IDS, **GIVEN)
    one = pa.Augment(pa.Identity(), seed=7, before=augment.before[:1], min_visible=None)
    two = pa.Augment(pa.Identity(), seed=7, before=augment.before[1:], min_visible=None)
    last = pa.Augment(pa.Identity(), seed=7, after=augment.after, erase_targets=True, min_visible=None)
    for part in (one, two, last):
        part.set_epoch(4)
    program = augment.policy.sample(IDS, 4, 7, (HEIGHT, WIDTH))
    images, masks, points = IMAGES, MASKS, POINTS.double()
    for step in (one, two, None, last):
        if step is None:
            moved = pa.apply(images, program, masks=masks, keypoints=points)
        else:
            moved = step(images, IDS, masks=masks, keypoints=points)
        images, masks, points = moved.images, moved.masks, moved.keypoints
    assert torch.equal(result.images, images)
    assert torch.equal(result.masks, masks)
    assert torch.allclose(result.keypoints, points.float(), atol=1e-4)
    assert 0 < (result.keypoints[..., 2] == 0).sum() < result.keypoints[..., 2].numel()


def test_images_are_the_same_with_and_without_targets():
    augment = full_augment()
    assert torch.equal(augment(IMAGES, IDS), augment(IMAGES, IDS, **GIVEN).images)


@pytest.mark.parametrize("executor", ["native", "batch", "pil"])
def test_executor_batch_size_and_order_do_not_matter(executor):
    expected = full_augment()(IMAGES, IDS, **GIVEN)
    augment = full_augment(executor=executor)
    same(augment(IMAGES, IDS, **GIVEN), expected)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    for part in (order[:5], order[5:6], order[6:]):
        chosen = {
            name: value[part] if isinstance(value, torch.Tensor) else [value[i] for i in part]
            for name, value in GIVEN.items()
        }
        result = augment(IMAGES[part], IDS[part], **chosen)
        assert torch.equal(result.masks, expected.masks[part])
        for field in ("boxes", "keypoints", "labels"):
            assert all(torch.equal(new, getattr(expected, field)[i]) for new, i in zip(getattr(result, field), part))


def test_one_image():
    augment = full_augment()
    expected = augment(IMAGES, IDS, **GIVEN)
    for i in (0, 9):
        result = augment(IMAGES[i], i, masks=MASKS[i], boxes=BOXES[i], keypoints=POINTS[i], labels=LABELS[i])
        assert isinstance(result, pa.Augmented)
        for field in result._fields:
            assert torch.equal(getattr(result, field), getattr(expected, field)[i])
    several = augment(IMAGES[0], 0, masks=torch.stack([MASKS[0], MASKS[0]]))
    assert torch.equal(several.masks, expected.masks[:1].repeat(2, 1, 1))
    assert several.boxes is None


def test_evaluation_changes_nothing():
    augment = full_augment()
    augment.eval()
    result = augment(IMAGES, IDS, **GIVEN)
    assert torch.equal(result.images, augment(IMAGES))
    assert torch.equal(result.masks, MASKS)
    assert all(torch.equal(*pair) for pair in zip(result.boxes, BOXES))
    assert torch.equal(result.keypoints[..., :2], POINTS.float())
    assert all(torch.equal(*pair) for pair in zip(result.labels, LABELS))


class Segmented(Dataset):
    """Augments images with their masks and boxes in the workers."""

    def __init__(self, augment):
        self.augment = augment

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        result = self.augment(IMAGES[i], i, masks=MASKS[i], boxes=BOXES[i], keypoints=POINTS[i], labels=LABELS[i])
        return result.images, result.masks, result.boxes, result.keypoints, result.labels


def listed(samples):
    return [list(part) for part in zip(*samples)]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_do_not_matter(workers):
    augment = full_augment()
    augment.set_epoch(2)
    expected = augment(IMAGES, IDS, **GIVEN)
    loader = DataLoader(
        Segmented(augment),
        batch_size=5,
        num_workers=workers,
        collate_fn=listed,
        multiprocessing_context="fork" if workers else None,
    )
    parts = [[value for batch in part for value in batch] for part in zip(*loader)]
    for found, wanted in zip(parts, expected):
        assert len(found) == COUNT
        assert all(torch.equal(*pair) for pair in zip(found, wanted))


def test_the_default_dtype_does_not_matter(another_default_dtype):
    images = torch.randint(0, 256, (8, 3, 7, 301), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    masks = torch.arange(7 * 301).view(1, 7, 301).repeat(8, 1, 1)
    given = {"masks": masks, "boxes": list(torch.tensor([[[200.0, 1, 299, 6]]] * 8)), "keypoints": POINTS[:8].float()}
    expected = full_augment()(images, IDS[:8], **given)
    with another_default_dtype():
        found = full_augment()(images, IDS[:8], **given)
    assert torch.equal(found.masks, expected.masks)
    assert torch.equal(found.keypoints, expected.keypoints)
    assert all(torch.equal(*pair) for pair in zip(found.boxes, expected.boxes))


# What is refused.


class Shrink(Transform):
    """A transform of somebody's own."""

    def sample(self, ids, epoch, seed, size):
        return ids

    def run(self, images, draws):
        return images[..., ::2, ::2]


class Halved(Shrink):
    def move(self, draws, size):
        return None


def test_transforms_that_targets_cannot_follow():
    assert pa.Augment("trivial", before=(Shrink(),))(IMAGES, IDS).shape == (COUNT, 3, HEIGHT // 2, WIDTH // 2)
    with pytest.raises(TypeError, match=r"Shrink does not say how masks, .* follow it; define its move\(draws, size\)"):
        pa.Augment("trivial", before=(Shrink(),))(IMAGES, IDS, masks=MASKS)
    with pytest.raises(ValueError, match="Halved changes the size of the images, which their targets cannot follow"):
        pa.Augment("trivial", after=(Halved(),))(IMAGES, IDS, masks=MASKS)
    pa.ops.register("Drift", lambda images, _: images.roll(1, -1))
    with pytest.raises(ValueError, match="Drift is a registered op, which masks, boxes and keypoints cannot follow"):
        pa.Augment(pa.RandAugment(n=1, m=1, ops=("Drift",)))(IMAGES, IDS, masks=MASKS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"masks": MASKS[:, 1:]}, r"like their 24 images of 18x26 pixels, got \(24, 17, 26\)"),
        ({"boxes": BOXES[:3]}, "one tensor of boxes per image, got 3 for 24 images"),
        ({"boxes": BOXES, "labels": [LABELS[0][:2], *LABELS[1:]]}, "image 0 has 3 boxes but 2 labels"),
    ],
)
def test_bad_targets(given, message):
    for augment in (full_augment(), full_augment().eval()):
        with pytest.raises(ValueError, match=message):
            augment(IMAGES, IDS, **given)


def test_bad_options():
    with pytest.raises(TypeError, match="there is no option 'box_fromat' for targets; did you mean box_format"):
        pa.Augment("trivial", box_fromat="xywh")
    with pytest.raises(ValueError, match="there is no box format 'xyhw'; did you mean"):
        pa.Augment("trivial", box_format="xyhw")
