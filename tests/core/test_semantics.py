import dataclasses
from fractions import Fraction

import pytest
import torch

import particleaugment as pa
from particleaugment.core import semantics

# Worked out by hand from the sources that each semantics names: op, then level (negative for the sign -1): argument.
# Images are 32 pixels high and wide.
TIMM_GEOMETRY = {
    "Rotate": {0: 0, 1: 3, 4: 12, 9: 27, 10: 30, -5: -15, -10: -30},
    "ShearX": {0: 0, 1: 0.03, 5: 0.15, 10: 0.3, -4: -0.12},
    "ShearY": {2: 0.06, 9: 0.27, -10: -0.3},
    "TranslateX": {0: 0, 2: 0.09, 4: 0.18, 10: 0.45, -10: -0.45},
    "TranslateY": {1: 0.045, 6: 0.27, -3: -0.135},
    "SolarizeAdd": {0: 0, 0.5: 5, 1: 11, 2.5: 27, 3: 33, 7: 77, 9: 99, 10: 110},
    "Rotate90": {0: 90, 6: 90, -6: 270, 6.6: 90, 20 / 3: 180, -20 / 3: 180, 7: 180, -7: 180, 10: 180},
}
TIMM_FALLING = {
    "Color": {0: 0.1, 1: 0.28, 3: 0.64, 5: 1.0, 10: 1.9, -3: 0.64},
    "Contrast": {2: 0.46, 9: 1.72, -10: 1.9},
    "Brightness": {4: 0.82, 8: 1.54},
    "Sharpness": {0.5: 0.19, 7: 1.36},
    "Solarize": {0: 0, 1: 25, 3: 76, 5: 128, 7: 179, 9: 230, 10: 256},
}
TURNS_OF_30 = {"Rotate90": {0: 90, 1: 90, -1: 270, 19: 90, -19: 270, 20: 180, -20: 180, 30: 180, -30: 180}}
TORCHVISION = TURNS_OF_30 | {
    "Posterize": {0: 8, 3: 8, 4: 7, 9: 7, 11: 7, 12: 6, 15: 6, 18: 6, 19: 5, 26: 5, 27: 4, 30: 4},
    "Solarize": {0: 255, 9: 178.5, 15: 127.5, 29: 8.5, 30: 0},
    "Rotate": {0: 0, 1: 1, 9: 9, 30: 30, -15: -15},
    "ShearX": {0: 0, 9: 0.09, 10: 0.1, 30: 0.3, -30: -0.3},
    "ShearY": {3: 0.03, -20: -0.2},
    # 150 / 331 of 32 pixels are 14.5; the level takes its share of them, cut to whole pixels.
    "TranslateX": {0: 0, 2: 0, 3: 1 / 32, 9: 4 / 32, 15: 7 / 32, 30: 14 / 32, -30: -14 / 32},
    "TranslateY": {9: 4 / 32, 20: 9 / 32, -9: -4 / 32},
    "Color": {0: 1, 9: 1.27, -9: 0.73, 30: 1.9, -30: 0.1},
    "Contrast": {10: 1.3, -10: 0.7},
    "Brightness": {15: 1.45, -15: 0.55},
    "Sharpness": {20: 1.6, -20: 0.4},
}
TABLE = {
    "timm": TIMM_GEOMETRY | TIMM_FALLING | {"Posterize": {0: 0, 2: 0, 2.5: 1, 3: 1, 5: 2, 7: 2, 7.5: 3, 9: 3, 10: 4}},
    "timm-increasing": TIMM_GEOMETRY
    | {
        "Color": {0: 1, 1: 1.09, 3: 1.27, -3: 0.73, 10: 1.9, -10: 0.1},
        "Contrast": {5: 1.45, -5: 0.55},
        "Brightness": {2: 1.18, -2: 0.82},
        "Sharpness": {9: 1.81, -9: 0.19},
        "Posterize": {0: 4, 2: 4, 2.5: 3, 3: 3, 5: 2, 7: 2, 7.5: 1, 9: 1, 10: 0},
        "Solarize": {0: 256, 1: 231, 3: 180, 5: 128, 7: 77, 9: 26, 10: 0},
    },
    "timm-original": TIMM_GEOMETRY | TIMM_FALLING | {"Posterize": {0: 4, 2: 4, 3: 5, 5: 6, 7: 6, 8: 7, 9: 7, 10: 8}},
    "timm-research": TIMM_GEOMETRY | TIMM_FALLING | {"Posterize": {0: 4, 2: 4, 3: 3, 5: 2, 7: 2, 8: 1, 9: 1, 10: 0}},
    "torchvision": TORCHVISION,
    "torchvision-autoaugment": {
        "Rotate90": {0: 90, 5: 90, -5: 270, 5.9: 90, 6: 180, -6: 180, 9: 180},
        "Posterize": {0: 8, 1: 8, 2: 7, 3: 7, 4: 6, 5: 6, 6: 5, 7: 5, 8: 4, 9: 4},
        "Solarize": {0: 255, 2: 255 - 170 / 3, 3: 170, 6: 85, 8: 85 / 3, 9: 0},
        "Rotate": {0: 0, 3: 10, 9: 30, -6: -20},
        "ShearX": {3: 0.1, 6: 0.2, -9: -0.3},
        "ShearY": {1: 0.1 / 3, 9: 0.3},
        "TranslateX": {1: 1 / 32, 3: 4 / 32, 8: 12 / 32, 9: 14 / 32, -9: -14 / 32},
        "TranslateY": {2: 3 / 32, 6: 9 / 32},
        "Color": {0: 1, 3: 1.3, -3: 0.7, 8: 1.8, -9: 0.1},
        "Contrast": {6: 1.6, -6: 0.4},
        "Brightness": {9: 1.9},
        "Sharpness": {5: 1.5, -5: 0.5},
    },
    "trivial-wide": TURNS_OF_30
    | {
        "Posterize": {0: 8, 2: 8, 3: 7, 7: 7, 8: 6, 10: 6, 15: 5, 30: 2},
        "Solarize": {0: 255, 10: 170, 15: 127.5, 30: 0},
        "Rotate": {0: 0, 1: 4.5, 10: 45, 30: 135, -20: -90},
        "ShearX": {1: 0.033, 10: 0.33, 30: 0.99, -30: -0.99},
        "ShearY": {20: 0.66, -1: -0.033},
        "TranslateX": {0: 0, 1: 1 / 32, 10: 10 / 32, 15: 16 / 32, 29: 30 / 32, 30: 1, -30: -1},
        "TranslateY": {4: 4 / 32, 14: 14 / 32, -20: -21 / 32},
        "Color": {0: 1, 10: 1.33, -10: 0.67, 30: 1.99, -30: 0.01},
        "Contrast": {20: 1.66, -20: 0.34},
        "Brightness": {1: 1.033, -1: 0.967},
        "Sharpness": {30: 1.99},
    },
    "trivial-standard": TURNS_OF_30
    | {
        "Posterize": {0: 8, 7: 8, 8: 7, 14: 7, 15: 6, 22: 6, 23: 5, 29: 5, 30: 4},
        "Solarize": {0: 256, 1: 248, 10: 171, 15: 128, 30: 0},
        "Rotate": {0: 0, 7: 7, 30: 30, -29: -29},
        "ShearX": {10: 0.1, 30: 0.3, -30: -0.3},
        "ShearY": {1: 0.01},
        "TranslateX": {2: 0, 3: 1 / 32, 10: 3 / 32, 29: 9 / 32, 30: 10 / 32, -30: -10 / 32},
        "TranslateY": {20: 6 / 32, -5: -1 / 32},
        "Color": {0: 0.1, 10: 0.7, 15: 1.0, 30: 1.9, -10: 0.7},
        "Contrast": {5: 0.4},
        "Brightness": {25: 1.6},
        "Sharpness": {20: 1.3},
    },
    "autoaugment-original": {
        "Rotate90": {0: 90, 6: 90, -6: 270, 7: 180, -7: 180, 10: 180},
        "Posterize": {0: 4, 2: 4, 3: 3, 5: 2, 7: 2, 8: 1, 9: 1, 10: 0},
        "Solarize": {0: 256, 1: 231, 3: 180, 5: 128, 9: 26, 10: 0},
        "Rotate": {0: 0, 1: 3, 7: 21, 0.5: 1, -9: -27},
        "ShearX": {1: 0.03, 9: 0.27, -5: -0.15},
        "ShearY": {8: 0.24, -8: -0.24},
        "TranslateX": {0: 0, 1: 1 / 32, 9: 9 / 32, -9: -9 / 32, 0.9: 0},
        "TranslateY": {3: 3 / 32, -10: -10 / 32},
        "Color": {0: 0.1, 3: 0.64, 8: 1.54, -8: 1.54},
        "Contrast": {6: 1.18},
        "Brightness": {9: 1.72},
        "Sharpness": {5: 1.0},
        "Cutout": {0: 0, 1: 2 / 32, 4: 8 / 32, 4.4: 8 / 32, 10: 20 / 32},
    },
    "fast-autoaugment": {
        "Rotate90": {0: 90, 0.5: 90, -0.5: 270, 0.66: 90, -0.66: 270, 2 / 3: 180, 0.67: 180, -0.67: 180, 1: 180},
        "Posterize": {0: 4, 0.24: 4, 0.25: 5, 0.5: 6, 0.99: 7, 1: 8},
        "Solarize": {0: 0, 0.3: 76.8, 0.5: 128, 1: 256},
        "Rotate": {0: -30, 0.25: -15, 0.5: 0, 1: 30, -0.25: 15, -1: -30},
        "ShearX": {0: -0.3, 0.5: 0, 0.75: 0.15, -0.75: -0.15},
        "ShearY": {1: 0.3, -1: -0.3},
        "TranslateX": {0: -0.45, 0.5: 0, 1: 0.45, -1: -0.45},
        "TranslateY": {0.25: -0.225, -0.25: 0.225},
        "Color": {0: 0.1, 0.5: 1.0, 1: 1.9, -1: 1.9},
        "Contrast": {0.25: 0.55},
        "Brightness": {0.75: 1.45},
        "Sharpness": {0.1: 0.28},
        "Cutout": {0: 0, 0.5: 0.1, 1: 0.2},
    },
}  # fmt: skip


def test_every_semantics_has_its_table():
    assert set(TABLE) == set(semantics.SEMANTICS)
    for name, table in TABLE.items():
        assert set(table) == {op for op in semantics.get(name).rules if pa.ops.lookup(op).takes_argument}


@pytest.mark.parametrize(("name", "op"), [(name, op) for name, table in TABLE.items() for op in table])
def test_hand_computed_arguments(name, op):
    for level, expected in TABLE[name][op].items():
        argument = semantics.get(name).argument(op, abs(level), sign=-1 if level < 0 else 1)
        assert argument == pytest.approx(expected, rel=1e-14, abs=1e-15), level


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("op", ["Identity", "AutoContrast", "Equalize", "Invert", "FlipX", "FlipY"])
def test_ops_without_an_argument_have_0(name, op):
    assert semantics.get(name).argument(op, 7, sign=-1) == 0


@pytest.mark.parametrize(
    ("name", "op", "level", "size", "expected"),
    [
        # torchvision: int(150 / 331 * 64) = 29 pixels of the width, int(150 / 331 * 48) = 21 of the height.
        ("torchvision", "TranslateX", 30, (48, 64), 29 / 64),
        ("torchvision", "TranslateY", 30, (48, 64), 21 / 48),
        ("torchvision", "TranslateX", 10, (224, 224), 33 / 224),
        ("trivial-wide", "TranslateX", 30, (48, 64), 32 / 64),
        ("trivial-wide", "TranslateY", 30, (48, 64), 32 / 48),
        ("trivial-wide", "TranslateX", 10, (224, 224), 10 / 224),
        ("trivial-standard", "TranslateY", 30, (224, 100), 10 / 224),
        # timm's share of the side does not depend on the size.
        ("timm", "TranslateX", 10, (48, 64), 0.45),
        # 32 pixels of 8 are 4 widths, cut to the valid 2: the image is gone either way.
        ("trivial-wide", "TranslateX", 30, (8, 8), 2.0),
    ],
)
def test_translations_in_pixels_depend_on_the_size(name, op, level, size, expected):
    assert semantics.get(name).argument(op, level, size=size) == pytest.approx(expected, rel=1e-14)


def test_timm_keeps_the_enhance_factors_at_a_tenth_or_more_beyond_the_top_level():
    increasing = semantics.get("timm-increasing")
    assert increasing.argument("Color", 12, sign=-1) == 0.1
    assert increasing.argument("Color", 12, sign=1) == pytest.approx(2.08)
    assert increasing.argument("Posterize", 20) == 0
    assert increasing.argument("Solarize", 20) == 0
    assert semantics.get("timm").argument("Solarize", 20) == 256


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("timm")])
def test_timm_adds_at_most_128_beyond_the_top_level(name):
    arguments = {level: semantics.get(name).argument("SolarizeAdd", level) for level in (11, 11.7, 12, 15, 30)}
    assert arguments == {11: 121, 11.7: 128, 12: 128, 15: 128, 30: 128}


def test_every_way_of_drawing_keeps_to_the_maximum():
    policy = pa.parse("rand-m15-n2-mmax20-p1-inc1")
    program, add = policy.sample(torch.arange(500)), pa.ops.lookup("SolarizeAdd").index
    assert program.arg[program.op == add].unique().tolist() == [128]
    plan = policy.tables((32, 32))
    assert plan.table_arg[plan.table_op == add].unique().tolist() == [128]
    images = torch.randint(0, 256, (500, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    pillow = pa.apply(images, program, executor="pil")
    assert all(torch.equal(pa.apply(images, program, executor=name), pillow) for name in ("native", "batch"))


@pytest.mark.parametrize(
    ("name", "op"),
    [(name, op) for name in TABLE if name.startswith("timm") for op in ("Posterize", "Solarize", "SolarizeAdd")]
    + [("trivial-standard", "Posterize"), ("trivial-standard", "Solarize")],
)
def test_truncation_is_that_of_exact_arithmetic(name, op):
    """level / top rounds, and must not make a whole product fall short of itself."""
    table = semantics.get(name)
    rule = table.rules[op]
    for step in range(int(table.top) * 40 + 1):
        level = Fraction(step, 40)
        scaled = abs(int(rule.scale)) * level / int(table.top)
        expected = rule.base + (1 if rule.scale > 0 else -1) * (scaled.numerator // scaled.denominator)
        assert table.argument(op, step / 40) == expected, step / 40


def test_a_level_that_is_itself_rounded_still_reaches_its_whole_number():
    """A level of 7 / 11, say, is a hair below 7 steps of 110 / 10, and int() alone would give 6."""
    assert [semantics.get("timm").argument("SolarizeAdd", k / 11) for k in range(111)] == list(range(111))
    assert [semantics.get("timm").argument("Solarize", k / 25.6) for k in range(257)] == list(range(257))


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (32, 32), (48, 64), (8192, 3)])
def test_a_batch_of_arguments_is_valid_and_equals_single_ones(name, size):
    table = semantics.get(name)
    ops = tuple(op for op in table.rules if op != "Rotate90" or size[0] == size[1])
    levels = torch.linspace(0, table.top, 31, dtype=torch.float64)
    choice = torch.arange(len(ops)).repeat_interleave(31 * 2)
    levels, signs = levels.repeat(2 * len(ops)), torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(31 * len(ops))
    arguments = table.arguments(ops, choice, levels, signs, size)
    assert arguments.dtype == torch.float64
    single = [table.argument(ops[c], level, int(s), size) for c, level, s in zip(choice, levels.tolist(), signs)]
    assert arguments.tolist() == single
    index = torch.tensor(pa.ops.op_indices(ops))[choice].unsqueeze(1)
    patch = torch.zeros(*index.shape, 5, dtype=torch.int64)
    pa.Program(index, arguments.unsqueeze(1), patch=patch)  # refuses an argument out of range


@pytest.mark.parametrize("name", TABLE)
def test_every_semantics_defines_flips_and_turns(name):
    assert {"FlipX", "FlipY", "Rotate90"} <= set(semantics.get(name).rules)


def test_turns_stay_half_turns_beyond_the_top_level():
    assert [semantics.get("timm").argument("Rotate90", level, sign) for level in (15, 30) for sign in (1, -1)] == [
        180
    ] * 4


def test_turns_need_square_images():
    with pytest.raises(ValueError, match="Rotate90 takes square images, got 32x48 pixels"):
        semantics.get("timm").argument("Rotate90", 3, size=(32, 48))


def test_the_three_turns_are_about_equally_likely_under_trivial_augment():
    program = pa.TrivialAugment(ops=("Rotate90",)).sample(torch.arange(31_000))
    turns, counts = program.arg.unique(return_counts=True)
    assert turns.tolist() == [90, 180, 270]
    # 20 of the 31 levels are quarter turns, half of them in each direction; the deviations are under 100.
    for count, levels in zip(counts.tolist(), (10, 11, 10)):
        assert abs(count - 1000 * levels) < 400


def test_the_kernels_tables_hold_both_directions():
    plan = pa.RandAugment(n=2, m=5, ops=("FlipX", "Rotate90", "FlipY")).tables((32, 32))
    assert plan.table_op.tolist() == [17, 19, 18]
    assert plan.table_arg.tolist() == [[0, 0], [90, 270], [0, 0]]


def test_a_semantics_does_not_define_every_op():
    with pytest.raises(
        ValueError, match="semantics 'torchvision' does not define SolarizeAdd; these do: timm, timm-incr"
    ):
        semantics.get("torchvision").rule("SolarizeAdd")
    with pytest.raises(ValueError, match="there is no op named 'Rotat'; did you mean Rotate"):
        semantics.get("timm").argument("Rotat", 3)


def test_unknown_names():
    with pytest.raises(ValueError, match="there is no semantics named 'tim'; did you mean timm"):
        semantics.get("tim")
    with pytest.raises(ValueError, match="there is no semantics named 'x'; the semantics are timm, "):
        semantics.get("x")


def test_semantics_are_immutable_values():
    table = semantics.get("timm")
    assert semantics.get(table) is table
    assert repr(table) == "Semantics(name='timm', top=10)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.top = 5
    with pytest.raises(TypeError):
        table.rules["Rotate"] = semantics.LevelRule()
    with pytest.raises(TypeError):
        semantics.SEMANTICS["timm"] = table
