"""Programs drawn by hypothesis, and the inputs that are not plain RGB batches in the usual layout."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import (
    EXECUTORS,
    GEOMETRIC,
    KINDS,
    SIZES,
    Case,
    chains,
    draw_image,
    names_for,
    singles,
    special_arguments,
    value_range,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import particleaugment as pa


@st.composite
def cases_of_any_shape(draw):
    height = draw(st.integers(1, 40))
    width = draw(st.just(height) | st.integers(1, 40))
    channels, slots, count = draw(st.sampled_from([1, 3])), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    names, args = [], np.zeros((count, slots))
    for i in range(count):
        names.append(draw(st.lists(st.sampled_from(names_for(height, width)), min_size=slots, max_size=slots)))
        for k, name in enumerate(names[i]):
            special = st.sampled_from(special_arguments(name, height, width))
            args[i, k] = draw(special if name == "Rotate90" else st.floats(*value_range(name)) | special)
    codes = draw(st.lists(st.integers(0, 2), min_size=count * slots, max_size=count * slots))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    images = np.stack([draw_image(rng, draw(st.sampled_from(KINDS)), height, width) for _ in range(count)])
    fill = draw(st.tuples(*[st.integers(0, 255)] * 3))
    return Case(images[:, :channels], names, args, np.array(codes, dtype=np.int64).reshape(count, slots), fill)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(case=cases_of_any_shape())
def test_any_program_gives_pillows_pixels(tally, case):
    tally.check(case, *EXECUTORS)


@pytest.mark.parametrize("size", SIZES[:5], ids="{0[0]}x{0[1]}".format)
def test_grey_images_go_through_as_three_equal_channels(tally, size):
    for slots in (1, 3):
        tally.check(chains(*size, slots=slots, count=240, seed=5, channels=1), *EXECUTORS)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_grey_images_are_filled_with_the_luminance_of_the_colour(executor):
    images = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    program = pa.Program.from_ops([[("TranslateX", 1.0)]])
    # (19595 * 200 + 38470 * 100 + 7471 * 50 + 32768) / 65536 = 124.7
    assert pa.apply(images, program, executor, fill=(200, 100, 50)).unique().tolist() == [124]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_layouts_in_memory_do_not_matter(executor):
    case = chains(17, 23, slots=3, count=60, seed=6)
    program, expected = case.program(), torch.from_numpy(case.expected().copy())
    plain = torch.from_numpy(np.array(case.images))
    wide = torch.zeros(60, 3, 40, 60, dtype=torch.uint8)
    wide[:, :, 3:20, 5:51:2] = plain
    layouts = {
        "contiguous": plain,
        "channels last": plain.to(memory_format=torch.channels_last),
        "a strided view": wide[:, :, 3:20, 5:51:2],
        "transposed": plain.transpose(2, 3).contiguous().transpose(2, 3),
        "permuted from [B, H, W, C]": plain.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    }
    assert [layout.is_contiguous() for layout in layouts.values()] == [True, False, False, False, False]
    for name, images in layouts.items():
        before = images.clone()
        output = pa.apply(images, program, executor, fill=case.fill)
        assert torch.equal(output, expected), name
        assert torch.equal(images, before), "the input was changed"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_image_expanded_to_a_batch(executor):
    case = singles("Rotate", 1, 32, 32, 30)
    case.images = np.broadcast_to(case.images[:1], case.images.shape)
    expanded = torch.from_numpy(case.images[:1].copy()).expand(30, -1, -1, -1)
    assert np.array_equal(pa.apply(expanded, case.program(), executor).numpy(), case.expected())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_filters_come_from_the_slot_and_else_from_the_call(executor, name):
    base = singles(name, 0, 17, 23, 60)
    images = torch.from_numpy(np.array(base.images))
    program = base.program()
    without = pa.Program(program.op, program.arg)
    outputs = {}
    for code, filter_name in enumerate(oracle.FILTERS):
        expected = Case(base.images, base.names, base.args, np.full_like(base.codes, code)).expected()
        outputs[filter_name] = pa.apply(images, without, executor, resample=filter_name).numpy()
        assert np.array_equal(outputs[filter_name], expected)
        assert np.array_equal(pa.apply(images, program, executor, resample=filter_name).numpy(), base.expected())
    assert not np.array_equal(outputs["nearest"], outputs["bilinear"])
    assert not np.array_equal(outputs["bilinear"], outputs["bicubic"])
    mixed = pa.Program(program.op, program.arg, (torch.arange(60) % 4 - 1).unsqueeze(1))
    mixed_codes = np.where(np.arange(60) % 4 == 0, 2, np.arange(60) % 4 - 1)[:, None]
    expected = Case(base.images, base.names, base.args, mixed_codes).expected()
    assert np.array_equal(pa.apply(images, mixed, executor, resample="bicubic").numpy(), expected)


@pytest.mark.parametrize("shape", [(1, 8192), (8192, 1), (3, 8192), (2000, 2)], ids="{0[0]}x{0[1]}".format)
def test_the_longest_sides(tally, shape):
    for code in range(3):
        for name in GEOMETRIC:
            values = special_arguments(name, *shape)
            case = singles(name, code, *shape, 8, seed=7)
            case.args[:4, 0] = min(values), max(values), min(values) / 3, max(values) / 7
            tally.check(case, "native")
    tally.check(chains(*shape, slots=4, count=20, seed=8), *EXECUTORS)


@pytest.mark.parametrize("code", range(3))
@pytest.mark.parametrize("side", [3, 7, 10, 30, 49, 224])
def test_whole_pixels_given_as_inexact_fractions_stay_whole(tally, side, code):
    """0.1 * 3 is not 0.3: such a translation must move whole pixels, and mix none of them."""
    shifts = sorted({0, 1, 2, side // 3, side // 2, side - 1, side})
    fractions = [f for shift in shifts for f in (shift / side, shift * (1 / side), sum([1 / side] * shift))]
    fractions += [0.1 * 3, 0.7, 0.1 + 0.2, 1.1 - 0.4] if side in (10, 30) else []
    images = draw_image(np.random.default_rng(side), "random", side, side)
    for name, axis in (("TranslateX", 2), ("TranslateY", 1)):
        arguments = np.array([[sign * f] for f in fractions for sign in (1, -1)])
        count = len(arguments)
        stack = np.broadcast_to(images, (count, *images.shape))
        case = Case(stack, [[name]] * count, arguments, np.full((count, 1), code))
        tally.check(case, *EXECUTORS)
        for argument, output in zip(arguments[:, 0], pa.apply(torch.tensor(stack), case.program()).numpy()):
            expected = np.full_like(images, 128)
            pixels = round(argument * side)
            source, target = [slice(None)] * 3, [slice(None)] * 3
            source[axis] = slice(max(pixels, 0), side + min(pixels, 0))
            target[axis] = slice(max(-pixels, 0), side + min(-pixels, 0))
            expected[tuple(target)] = images[tuple(source)]
            assert np.array_equal(output, expected), (name, argument)


def test_translations_that_are_not_whole_are_not_snapped():
    images = np.array([[[[0, 200, 0, 200]] * 4] * 3], np.uint8)
    case = Case(images, [["TranslateX"]], np.array([[(1 - 2e-9) / 4]]), np.array([[1]]))
    # 1 - 2e-9 pixels mixes a trace of the darker neighbour into 200, and Pillow cuts 199.9999996 to 199.
    assert case.expected()[0, 0, 0].tolist()[:2] == [199, 0]
    for executor in EXECUTORS:
        output = pa.apply(torch.from_numpy(images), case.program(), executor)
        assert output[0, 0, 0].tolist()[:2] == [199, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_source_a_hair_left_of_the_first_pixel(executor):
    """The coordinate 0.5 - 2^-54 plus 0.5 rounds up to 1: taking it for pixel 0 would cut a 1 to 0."""
    images = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    images[..., 0], images[..., 1] = 1, 255
    output = pa.apply(images, pa.Program.from_ops([[("ShearX", -1e-16)]]), executor)
    assert output[0, 0, 0].tolist() == [1, 255, 0, 0]
    assert math.nextafter(0.5, 0) + 0.5 == 1.0
