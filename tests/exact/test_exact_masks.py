"""Masks: Pillow's pixels by nearest neighbour, for every op, size and executor, and for every type of mask."""

import numpy as np
import oracle
import pytest
import torch
from cases import EXECUTORS, NAMES, SIZES, Case, chains, drawn_masks, names_for, singles

import particleaugment as pa

SINGLES = dict(zip(SIZES, (200, 200, 200, 200, 60, 8)))
CHAINS = dict(zip(SIZES, (500, 500, 1500, 1500, 120, 12)))
ALONE = [(name, size) for size in SIZES for name in names_for(*size)]
TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
TYPES += (torch.uint16, torch.uint32, torch.uint64)


def compare(tally, case: Case, *executors: str, fill: int = 255) -> None:
    """Compare executors with Pillow, and fail if a pixel of any mask differs."""
    masks = drawn_masks(case)
    expected = oracle.run_masks(masks, case.names, case.args.tolist(), fill)
    images, given = torch.from_numpy(np.array(case.images)), torch.from_numpy(masks)
    tally.masks += len(masks)
    for executor in executors:
        output = pa.apply(images, case.program(), executor, masks=given, mask_fill=fill).masks.numpy()
        differs = (output != expected).any((1, 2))
        tally.differing += int(differs.sum())
        i = int(differs.argmax())
        shown = list(zip(case.names[i], case.args[i].tolist()))
        assert not differs.any(), f"{executor} differs from Pillow on {differs.sum()} masks, first after {shown}"


def test_the_plan_is_large():
    assert {name for name, _ in ALONE} == set(NAMES)
    assert sum(SINGLES[size] for _, size in ALONE) + 4 * sum(CHAINS.values()) >= 20_000


@pytest.mark.parametrize(("name", "size"), ALONE, ids=lambda value: str(value).replace(", ", "x"))
def test_one_op_moves_masks_as_pillow_does(tally, name, size):
    compare(tally, singles(name, 0, *size, SINGLES[size], seed=21), *EXECUTORS)


@pytest.mark.parametrize("slots", range(1, 5))
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_chains_move_masks_as_pillow_does(tally, size, slots):
    compare(tally, chains(*size, slots=slots, count=CHAINS[size], seed=22), *EXECUTORS, fill=slots)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_of_mask(executor, dtype):
    case = chains(17, 23, slots=3, count=60, seed=23)
    program, images = case.program(), torch.from_numpy(np.array(case.images))
    narrow = drawn_masks(case) // (255 if dtype == torch.bool else 2)
    fill = 1 if dtype == torch.bool else 127
    expected = oracle.run_masks(narrow, case.names, case.args.tolist(), fill)
    masks = torch.from_numpy(narrow).to(dtype)
    moved = pa.apply(images, program, executor, masks=masks, mask_fill=fill).masks
    assert (moved.dtype, moved.shape) == (dtype, masks.shape)
    assert np.array_equal(moved.to(torch.int64).numpy(), expected)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("dtype", "fill"), [(torch.int64, -100), (torch.uint16, 65535), (torch.int32, -(2**31))])
def test_fills_of_wide_types(executor, dtype, fill):
    images, masks = torch.zeros(1, 3, 4, 6, dtype=torch.uint8), torch.full((1, 4, 6), 300, dtype=dtype)
    program = pa.Program.from_ops([[("TranslateX", 0.5)]])
    moved = pa.apply(images, program, executor, masks=masks, mask_fill=fill).masks.to(torch.int64)
    assert moved[0, 0].tolist() == [300, 300, 300, fill, fill, fill]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_several_masks_per_image_move_alike(executor):
    case = chains(32, 32, slots=3, count=50, seed=24)
    images, masks = torch.from_numpy(np.array(case.images)), torch.from_numpy(drawn_masks(case))
    stacked = torch.stack([masks, 255 - masks, masks.flip(0)], 1)
    together = pa.apply(images, case.program(), executor, masks=stacked, mask_fill=9).masks
    for m in range(3):
        alone = pa.apply(images, case.program(), executor, masks=stacked[:, m], mask_fill=9).masks
        assert torch.equal(together[:, m], alone)
    layout = stacked.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(pa.apply(images, case.program(), executor, masks=layout, mask_fill=9).masks, together)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_cut_out_is_erased_if_asked_for(executor):
    rows = [[("Rotate", 30.0), ("Cutout", 0.5, (2, -3, 9, 5), (1, 2, 3)), ("TranslateY", 0.25), "FlipX"]] * 2
    program, images = pa.Program.from_ops(rows), torch.zeros(2, 3, 12, 16, dtype=torch.uint8)
    masks = torch.arange(2 * 12 * 16).view(2, 12, 16)
    plain = pa.apply(images, pa.Program.from_ops([[row[0], *row[2:]] for row in rows]), executor, masks=masks).masks
    assert torch.equal(pa.apply(images, program, executor, masks=masks).masks, plain)
    erased = pa.apply(images, program, executor, masks=masks, erase_targets=True).masks
    # The rectangle's lines 0 to 4 move up by 3 pixels, and its columns 2 to 8 are mirrored to 7 to 13.
    expected = plain.clone()
    expected[:, :2, 7:14] = 255
    assert torch.equal(erased, expected)
