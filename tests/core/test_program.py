import dataclasses
import math
import re

import pytest
import torch

import particleaugment as pa
from particleaugment import ops


def program(op=((3,),), arg=((10.0,),), resample=None):
    codes = None if resample is None else torch.tensor(resample)
    return pa.Program(torch.tensor(op), torch.tensor(arg, dtype=torch.float64), codes)


# The op table.


def test_the_ops_and_their_order():
    assert pa.OPS == (
        "Identity", "AutoContrast", "Equalize", "Rotate", "Solarize", "SolarizeAdd", "Color", "Contrast", "Brightness",
        "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Posterize",
    )  # fmt: skip
    published = [*pa.OPS, "Invert", "Cutout", "FlipX", "FlipY", "Rotate90"]
    assert [op.name for op in ops.TABLE[: len(published)]] == published, "new ops go to the end of the table"
    assert [op.index for op in ops.TABLE] == list(range(len(ops.TABLE)))


@pytest.mark.parametrize(
    ("names", "low", "high"),
    [
        (["Rotate"], -360, 360),
        (["ShearX", "ShearY", "TranslateX", "TranslateY"], -2, 2),
        (["Color", "Contrast", "Brightness", "Sharpness"], 0, 10),
        (["Solarize"], 0, 256),
        (["SolarizeAdd"], 0, 255),
        (["Posterize"], 0, 8),
    ],
)
def test_ranges_of_arguments(names, low, high):
    for name in names:
        op = ops.lookup(name)
        assert ops.check_argument(op, low) == low
        assert ops.check_argument(op, high) == high
        for outside in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), low - 1, high + 1):
            with pytest.raises(ValueError, match=rf"{name} takes {low} to {high} \(.+\), got "):
                ops.check_argument(op, outside)


@pytest.mark.parametrize("value", [90, 180, 270])
def test_rotate_90_takes_quarter_turns(value):
    rotate_90 = ops.lookup("Rotate90")
    assert ops.check_argument(rotate_90, value) == value
    assert program([[rotate_90.index]], [[float(value)]]).describe(0) == [("Rotate90", float(value))]


@pytest.mark.parametrize(
    "value", [0.0, -90.0, 45.0, 135.0, 360.0, math.nextafter(90, 91), math.nextafter(180, 0), math.nextafter(270, 300)]
)
def test_rotate_90_takes_nothing_else(value):
    rotate_90 = ops.lookup("Rotate90")
    message = re.escape(f"Rotate90 takes 90, 180 or 270 (degrees, counter-clockwise), got {value!r}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        ops.check_argument(rotate_90, value)
    with pytest.raises(ValueError, match=f"^{message}$"):
        pa.Program.from_ops([[("Rotate90", value)]])
    with pytest.raises(ValueError, match=f"^image 1, slot 1: {message}$"):
        program([[3, 17], [18, rotate_90.index]], [[1.0, 0.0], [0.0, value]])


@pytest.mark.parametrize("op", [op for op in ops.TABLE if op.neutral is not None], ids=lambda op: op.name)
def test_a_neutral_argument_changes_nothing(op):
    images = torch.randint(0, 256, (1, 3, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for executor in ("native", "batch", "pil"):
        unchanged = pa.apply(images, pa.Program.from_ops([[(op.name, op.neutral)]]), executor)
        assert torch.equal(unchanged, images)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["Rotate", "Equalize"])
def test_arguments_must_be_finite(name, value):
    with pytest.raises(ValueError, match=f"the argument of {name} must be finite, got "):
        ops.check_argument(ops.lookup(name), value)


@pytest.mark.parametrize("value", ["x", None, [1], 10**400])
def test_arguments_must_be_numbers(value):
    with pytest.raises(ValueError, match="the argument of Color must be a number, got "):
        ops.check_argument(ops.lookup("Color"), value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("rotate", "; did you mean Rotate?"), ("Shear-X", "; did you mean ShearX?"), ("qqq", "; the ops are Identity, ")],
)
def test_unknown_op(name, hint):
    with pytest.raises(ValueError, match="there is no op named") as caught:
        ops.lookup(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", [3, None, ["Rotate"]])
def test_an_op_is_named_by_a_string(name):
    with pytest.raises(ValueError, match="there is no op named"):
        ops.lookup(name)


# Programs.


def test_from_ops():
    made = pa.Program.from_ops([[("Rotate", 12), ("Posterize", 4)], ["Equalize"], [], [("Invert", 7)]])
    assert made.op.tolist() == [[3, 14], [2, 0], [0, 0], [15, 0]]
    assert made.arg.tolist() == [[12, 4], [0, 0], [0, 0], [0, 0]]
    assert (made.op.dtype, made.arg.dtype, made.resample) == (torch.int64, torch.float64, None)
    assert [made.describe(i) for i in range(4)] == [
        [("Rotate", 12.0), ("Posterize", 4.0)],
        [("Equalize", 0.0)],
        [],
        [("Invert", 0.0)],
    ]
    assert repr(made) == "Program(4 images, 2 slots, cpu)"
    assert len(made) == 4
    assert pa.Program.from_ops([]).op.shape == (0, 0)
    assert pa.Program.from_ops([[], []]).op.shape == (2, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [["Rotate"]],
            r"Rotate of image 0 needs an argument \(degrees, counter-clockwise\): write \('Rotate', value\)",
        ),
        ([[], [("Rotate", 1, 2)]], r"image 1: expected \(op name, argument\), got \('Rotate', 1, 2\)"),
        ([[5]], r"image 0: expected \(op name, argument\), got 5"),
        ([[("Rotat", 5)]], "there is no op named 'Rotat'; did you mean Rotate"),
        ([["equalise"]], "there is no op named 'equalise'; did you mean Equalize"),
        ([[("Posterize", 9)]], r"Posterize takes 0 to 8 \(bits kept\), got 9"),
        ([[("Color", -0.1)]], r"Color takes 0 to 10 \(factor\), got -0.1"),
        ([[("Invert", math.nan)]], "the argument of Invert must be finite, got nan"),
    ],
)
def test_from_ops_refuses(rows, message):
    with pytest.raises(ValueError, match=message):
        pa.Program.from_ops(rows)


@pytest.mark.parametrize(
    ("op", "arg", "resample", "message"),
    [
        ([[1 << 40]], [[0.0]], None, "there is no op number 1099511627776; ops are numbered 0 to "),
        ([[-1]], [[0.0]], None, "there is no op number -1; ops are numbered 0 to "),
        ([[16]], [[0.5]], None, "Cutout paints a rectangle: give the program its patch, or draw it with a policy"),
        ([[0, 3], [3, 3]], [[0.0, 1.0], [2.0, 400.0]], None, r"image 1, slot 1: Rotate takes -360 to 360 .*, got 400"),
        ([[0, 3]], [[0.0, math.nan]], None, "image 0, slot 1: the argument of Rotate must be finite, got nan"),
        ([[1]], [[math.inf]], None, "image 0, slot 0: the argument of AutoContrast must be finite, got inf"),
        ([[3]], [[1.0]], [[3]], "there is no resampling filter number 3; filters are numbered 0 to 2, and -1 leaves"),
        ([[3]], [[1.0]], [[-2]], "there is no resampling filter number -2"),
    ],
)
def test_values_are_checked(op, arg, resample, message):
    with pytest.raises(ValueError, match=message):
        program(op, arg, resample)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"op": [[3]]}, TypeError, r"Program.op must be a torch.int64 tensor, got list"),
        ({"op": torch.zeros(1, 1)}, TypeError, "Program.op must be a torch.int64 tensor, got torch.float32"),
        ({"arg": torch.zeros(1, 1)}, TypeError, "Program.arg must be a torch.float64 tensor, got torch.float32"),
        (
            {"resample": torch.zeros(1, 1)},
            TypeError,
            "Program.resample must be a torch.int64 tensor, got torch.float32",
        ),
        (
            {"op": torch.zeros(1).long()},
            ValueError,
            r"Program.op must have shape \[images, slots\] .* got \(1,\) on cpu",
        ),
        (
            {"arg": torch.zeros(1, 2).double()},
            ValueError,
            r"Program.arg must have shape .* \(1, 2\) .* beside \(1, 1\)",
        ),
        ({"resample": torch.zeros(2, 1).long()}, ValueError, r"Program.resample must have shape .* got \(2, 1\)"),
    ],
)
def test_layout_is_checked(fields, error, message):
    valid = {"op": torch.zeros(1, 1).long(), "arg": torch.zeros(1, 1).double()}
    with pytest.raises(error, match=message):
        pa.Program(**(valid | fields))


def test_ops_without_an_argument_store_0():
    assert program([[0, 1, 15, 3]], [[5.0, -7.0, 1e9, 5.0]]).arg.tolist() == [[0, 0, 0, 5]]


def test_empty_programs_are_programs():
    for shape in ((0, 0), (0, 3), (4, 0)):
        made = pa.Program(
            torch.zeros(shape, dtype=torch.int64), torch.zeros(shape).double(), torch.zeros(shape, dtype=torch.int64)
        )
        assert (len(made), made.op.shape) == (shape[0], shape)


def test_joining_and_indexing():
    first, second = program([[3], [1]], [[5.0], [0.0]]), program([[6]], [[0.5]], [[2]])
    joined = pa.Program.cat([first, second])
    assert joined.op.tolist() == [[3], [1], [6]]
    assert joined.arg.tolist() == [[5], [0], [0.5]]
    assert joined.resample.tolist() == [[-1], [-1], [2]]
    assert pa.Program.cat([first, first]).resample is None
    assert joined[:2].equal(first)
    assert joined[torch.tensor([2])].equal(second)
    assert joined[torch.tensor([2, 0, 2])].describe(0) == [("Color", 0.5)]
    assert joined[torch.tensor([False, True, False])].describe(0) == [("AutoContrast", 0.0)]
    with pytest.raises(TypeError, match="a program is indexed by a slice or a tensor, got int"):
        joined[0]


def test_equality_looks_at_every_field():
    base = program([[3, 0]], [[5.0, 0.0]], [[1, -1]])
    assert base.equal(program([[3, 0]], [[5.0, 0.0]], [[1, -1]]))
    assert not base.equal(program([[3, 1]], [[5.0, 0.0]], [[1, -1]]))
    assert not base.equal(program([[3, 0]], [[5.000001, 0.0]], [[1, -1]]))
    assert not base.equal(program([[3, 0]], [[5.0, 0.0]], [[2, -1]]))
    assert not base.equal(program([[3, 0]], [[5.0, 0.0]]))
    assert program([[3]], [[5.0]]).equal(program([[3]], [[5.0]], [[-1]]))


def test_programs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        program().op = torch.zeros(1, 1)


def test_to_keeps_the_values():
    base = program([[3]], [[5.0]], [[2]])
    assert base.to("cpu").equal(base)
