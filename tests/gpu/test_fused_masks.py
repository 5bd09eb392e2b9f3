"""Masks, boxes and keypoints on a GPU: pytest -m gpu tests/gpu (skipped with a reason where there is none)."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import particleaugment as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "exact"))
import cases
import oracle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
SIZES = [(1, 1), (2, 3), (17, 23), (32, 32), (64, 48), (96, 96), (224, 224)]
COUNTS = dict(zip(SIZES, (1500, 1500, 1500, 1500, 300, 200, 40)))
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "FlipX", "FlipY")


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_masks_are_pillows(size, slots):
    case = cases.chains(*size, slots=slots, count=COUNTS[size], seed=41)
    masks = cases.drawn_masks(case)
    expected = oracle.run_masks(masks, case.names, case.args.tolist(), 7)
    images, given = torch.from_numpy(np.array(case.images)).cuda(), torch.from_numpy(masks).cuda()
    for executor in ("fused", "batch"):
        result = pa.apply(images, case.program(), executor, masks=given, mask_fill=7)
        assert (result.masks.cpu().numpy() == expected).all(), executor
        assert torch.equal(result.images, pa.apply(images, case.program(), executor))


@pytest.mark.parametrize("name", [name for name in cases.NAMES if pa.ops.lookup(name).kind.name == "GEOMETRIC"])
def test_special_arguments_of_one_op(name):
    for size in ((32, 32), (33, 33)):
        case = cases.singles(name, 0, *size, 400, seed=42)
        masks = cases.drawn_masks(case)
        expected = oracle.run_masks(masks, case.names, case.args.tolist())
        images = torch.from_numpy(np.array(case.images)).cuda()
        result = pa.apply(images, case.program(), "fused", masks=torch.from_numpy(masks).cuda()).masks
        assert (result.cpu().numpy() == expected).all()


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.bool], ids=str
)
def test_types_and_several_masks_equal_the_cpu(dtype):
    case = cases.chains(40, 24, slots=3, count=100, seed=43)
    images, program = torch.from_numpy(np.array(case.images)), case.program()
    masks = (torch.arange(100 * 3 * 40 * 24).view(100, 3, 40, 24) % (2 if dtype == torch.bool else 120)).to(dtype)
    expected = pa.apply(images, program, masks=masks).masks
    result = pa.apply(images.cuda(), program, "fused", masks=masks.cuda()).masks
    assert result.dtype == dtype
    assert torch.equal(result.cpu(), expected)
    layout = masks.cuda().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(pa.apply(images.cuda(), program, "fused", masks=layout).masks.cpu(), expected)


# Tables in shared memory, more of it than a block has by default, and none: 64 steps of 1024 columns and lines.
@pytest.mark.parametrize(("size", "slots"), [((300, 500), 3), ((1024, 1024), 10), ((1024, 1024), 60)])
def test_large_masks_and_many_slots(size, slots):
    rows = [
        [("TranslateX", 0.013 * (k % 3)) if k % 2 else ("TranslateY", -0.0071) for k in range(slots)],
        [("Rotate", 11.0), "FlipX"] + ["Identity"] * (slots - 2),
    ]
    images = torch.zeros(2, 1, *size, dtype=torch.uint8)
    masks = torch.arange(size[0] * size[1]).view(1, *size).repeat(2, 1, 1)
    expected = pa.apply(images, pa.Program.from_ops(rows), masks=masks).masks
    result = pa.apply(images.cuda(), pa.Program.from_ops(rows), "fused", masks=masks.cuda()).masks
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("erase_targets", [False, True])
def test_every_target_through_augment_equals_the_cpu(erase_targets):
    generator = torch.Generator().manual_seed(5)
    count, size = 200, (48, 64)
    images = torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=generator)
    masks = torch.arange(size[0] * size[1]).view(1, *size).repeat(count, 1, 1)
    corner = torch.rand(count, 4, 2, generator=generator) * 20
    boxes = list(torch.cat([corner, corner + 5 + 20 * torch.rand(count, 4, 2, generator=generator)], 2))
    points = torch.rand(count, 6, 2, generator=generator) * 40
    labels = [torch.arange(4)] * count
    before = (pa.ResizedCrop((0.3, 1.0)), pa.PadCrop(6), pa.HorizontalFlip())
    results = []
    for device in ("cpu", "cuda"):
        augment = pa.Augment(
            pa.RandAugment(n=3, m=6, ops=(*GEOMETRIC, "Color")), seed=2, before=before, after=(pa.RandomErasing(),),
            erase_targets=erase_targets,
        )  # fmt: skip
        augment.set_epoch(3)
        moved = augment(
            images.to(device), torch.arange(count, device=device), masks=masks.to(device),
            boxes=[part.to(device) for part in boxes], keypoints=points.to(device),
            labels=[part.to(device) for part in labels],
        )  # fmt: skip
        assert moved.boxes[0].device.type == moved.keypoints.device.type == moved.labels[0].device.type == device
        results.append(moved)
    on_cpu, on_gpu = results
    assert torch.equal(on_gpu.images.cpu(), on_cpu.images)
    assert torch.equal(on_gpu.masks.cpu(), on_cpu.masks)
    assert torch.equal(on_gpu.keypoints.cpu(), on_cpu.keypoints)
    for field in ("boxes", "labels"):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(getattr(on_gpu, field), getattr(on_cpu, field)))


def test_cutout_erases_masks_on_the_gpu_too():
    rows = [[("Rotate", 30.0), ("Cutout", 0.5, (2, -3, 9, 5), (1, 2, 3)), ("TranslateY", 0.25), "FlipX"]] * 2
    program, images = pa.Program.from_ops(rows), torch.zeros(2, 3, 12, 16, dtype=torch.uint8)
    masks = torch.arange(2 * 12 * 16).view(2, 12, 16)
    for erases in (True, False):
        expected = pa.apply(images, program, masks=masks, erase_targets=erases).masks
        result = pa.apply(images.cuda(), program, masks=masks.cuda(), erase_targets=erases).masks
        assert torch.equal(result.cpu(), expected)


def test_masks_alone_do_not_wait_for_the_gpu():
    images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8, device="cuda")
    masks = torch.zeros(8, 32, 32, dtype=torch.int64, device="cuda")
    program = pa.RandAugment(n=3, m=6, ops=GEOMETRIC).sample(torch.arange(8)).to("cuda")
    expected = pa.apply(images, program, masks=masks).masks
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = pa.apply(images, program, masks=masks).masks
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(result, expected)


def test_masks_must_be_where_their_images_are():
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match="masks are on cpu but their images on cuda:0; move them there"):
        pa.apply(images, pa.Program.from_ops([["FlipX"]]), masks=torch.zeros(1, 8, 8, dtype=torch.uint8))
