"""Inside torchvision's Compose, on its tv_tensors, and before its CutMix and MixUp."""

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


def test_boxes_and_masks_are_refused():
    image = tv_tensors.Image(IMAGES[0])
    box = tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8))
    for other in (box, tv_tensors.Mask(torch.zeros(8, 8, dtype=torch.uint8))):
        with pytest.raises(TypeError, match=f"{type(other).__name__} would have to move with the image"):
            v2.Compose([pa.ImageTransform(POLICY)])(image, other)


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
