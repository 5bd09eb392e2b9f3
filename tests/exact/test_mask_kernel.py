"""The GPU kernel of masks, compiled for the CPU where there is a C++ compiler: its logic, tables and barriers.

tests/gpu compares it on a GPU.
"""

import shutil

import numpy as np
import oracle
import pytest
import torch
from cases import SIZES, chains, drawn_masks, names_for, singles
from kernel_on_cpu import KernelOnCpu

from particleaugment.executors.masks import as_bits, run_native
from particleaugment.executors.steps import Move, Steps

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler here")
COUNTS = dict(zip(SIZES, (200, 200, 200, 200, 40, 4)))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return KernelOnCpu(COMPILER, tmp_path_factory.mktemp("kernel"))


def compare(tally, kernel, case, with_tables=True):
    masks = drawn_masks(case)
    expected = oracle.run_masks(masks, case.names, case.args.tolist(), 9)
    output = kernel(torch.from_numpy(masks).unsqueeze(1), Steps.of(case.program()), 9, with_tables)[:, 0].numpy()
    differs = (output != expected).any((1, 2))
    tally.masks += len(masks)
    tally.differing += int(differs.sum())
    i = int(differs.argmax())
    shown = list(zip(case.names[i], case.args[i].tolist()))
    assert not differs.any(), f"the kernel differs from Pillow on {differs.sum()} masks, first after {shown}"


@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_one_op(tally, kernel, size):
    for name in names_for(*size):
        compare(tally, kernel, singles(name, 0, *size, COUNTS[size], seed=31))


@pytest.mark.parametrize("with_tables", [True, False])
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_chains(tally, kernel, size, with_tables):
    for slots in (1, 2, 4, 7):
        case = chains(*size, slots=slots, count=COUNTS[size], seed=32)
        compare(tally, kernel, case, with_tables)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.bool])
def test_moves_rectangles_types_and_several_masks(kernel, dtype):
    """Beside the executor ``native``, which the suite compares with Pillow."""
    case = chains(17, 23, slots=3, count=80, seed=33)
    rng = np.random.default_rng(34)
    masks = torch.from_numpy(rng.integers(0, 2 if dtype == torch.bool else 200, (80, 3, 17, 23))).to(dtype)
    matrix = torch.zeros(80, 6, dtype=torch.float64)
    matrix[:, 0], matrix[:, 4] = torch.from_numpy(rng.choice([-1.0, 0.3, 0.7, 1.0], (2, 80)))
    matrix[:, 2], matrix[:, 5] = torch.from_numpy(rng.uniform(-3, 20, (2, 80)))
    corners = rng.integers(-4, 15, (80, 2))
    rectangles = torch.from_numpy(np.concatenate([corners, corners + rng.integers(0, 12, (80, 2))], 1))
    moves = [Move(matrix), Move(erased=rectangles)], [Move(erased=rectangles.flip(0)), Move(matrix.flip(0))]
    fill = 1 if dtype == torch.bool else 201
    for erases in (True, False):
        steps = Steps.of(case.program(), *moves, erases=erases)
        bits, value = as_bits(masks, fill)
        expected = run_native(bits, steps.coefficients(17, 23), steps.erased, value)
        assert torch.equal(kernel(bits, steps, value), expected)
        assert torch.equal(kernel(bits, steps, value, with_tables=False), expected)
        assert (expected.view(dtype) == fill).any()


def test_negative_fills_of_wide_types(kernel):
    steps = Steps.of(chains(5, 4, slots=2, count=60, seed=35).program())
    for dtype in (torch.int16, torch.int32, torch.int64):
        masks = torch.zeros(60, 1, 5, 4, dtype=dtype)
        output = kernel(masks, steps, -100)
        assert torch.equal(output, run_native(masks, steps.coefficients(5, 4), None, -100))
        assert output.unique().tolist() == [-100, 0]
