"""What a policy is exported as, and what is said to be lost."""

import ast
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from policy_cases import sparse_particles
from typer.testing import CliRunner

import particleaugment as pa
from particleaugment.cli.main import app
from particleaugment.core import semantics
from particleaugment.policies.exports import _repetitions, _timm_step, _torchvision_step, export
from particleaugment.policies.schedule import ScheduleStep
from particleaugment.report.summary import leading_ops

NOTHING = "Nothing is lost."


def lists_in(text):
    """The literal lists of exported Python source, which is compiled but not run."""
    compile(text, "exported", "exec")
    statements = [statement for statement in ast.parse(text).body if isinstance(statement, ast.Assign)]
    values = {statement.targets[0].id: statement.value for statement in statements}
    return {name: ast.literal_eval(value) for name, value in values.items() if isinstance(value, ast.List)}


# As a list of our own.


def test_particles_become_weighted_sub_policies_exactly():
    policy = sparse_particles()
    exported, lost = policy.static()
    assert lost == []
    assert exported.weights == tuple(policy.weights.tolist())
    assert len(exported.sub_policies) == 6
    ids = torch.arange(200_000)
    program = exported.sample(ids)
    drawn = np.bincount(program.op.flatten().numpy(), minlength=17)[1:15] / len(ids)
    expected = np.array(list(policy.inclusion.values()))[1:]
    assert np.abs(drawn - expected).max() < 5 * 0.5 / np.sqrt(len(ids))
    assert exported.inclusion == pytest.approx({name: policy.inclusion[name] for name in exported.ops})
    assert [name for name, _ in leading_ops(exported)] == [name for name, _ in leading_ops(policy)]
    assert repr(exported).startswith("SubPolicies(6 sub-policies, semantics='timm-increasing', ")
    assert repr(exported).endswith(f" {policy.ops_per_image:.2f} ops per image)")
    levels = {name: level for row in exported.sub_policies for name, _, level in row}
    assert {level for name, level in levels.items() if pa.ops.lookup(name).takes_argument} == {4.0}


def test_json_is_a_policy_file(tmp_path):
    policies = {
        "particles": sparse_particles(),
        "auto": pa.AutoAugment("svhn"),
        "list": pa.SubPolicies([[("Cutout", 0.5, 0.2)], []], "fast-autoaugment", weights=(1, 3)),
        "no up": pa.SubPolicies([[("FlipX", 0.5, 0), ("Rotate90", 1.0, 3)], [("FlipY", 1.0, 0)]], "torchvision"),
        "rand": pa.RandAugment(n=2, m=5, m_std=float("inf")),
        "trivial": pa.TrivialAugment("standard"),
        "none": pa.parse("none"),
    }
    for name, policy in policies.items():
        exported = export(policy, "json")
        assert exported.lost == NOTHING
        (tmp_path / name).write_text(exported.text)
        assert pa.load_policy(tmp_path / name) == policy.static()[0]
        again = export(pa.load_policy(tmp_path / name), "json")
        assert again.text == exported.text, "what is exported once is exported the same again"


def test_of_a_schedule_the_last_policy_is_kept():
    low, high = torch.full((2, 15), 0.25), torch.full((2, 15), 0.75)
    steps = (ScheduleStep(1, low, torch.ones(2)), ScheduleStep(4, high, torch.ones(2)))
    for schedule in (pa.Schedule(steps, epochs=5), pa.Schedule(steps, epochs=5).rescaled(50)):
        policy, lost = schedule.static()
        assert {p for row in policy.sub_policies for _, p, _ in row} == {0.75}
        assert lost == ["the schedule (2 policies over the epochs; this is the last)"]
    assert pa.Schedule(steps[:1], epochs=5).static()[1] == []


def test_of_a_schedule_any_epochs_policy_can_be_had():
    high, low = torch.full((2, 15), 0.75), torch.full((2, 15), 0.05)
    steps = (ScheduleStep(1, high, torch.ones(2)), ScheduleStep(4, low, torch.ones(2)))
    for schedule, early in ((pa.Schedule(steps, epochs=5), 3), (pa.Schedule(steps, epochs=5).rescaled(50), 30)):
        policy, lost = schedule.static(early)
        assert {p for row in policy.sub_policies for _, p, _ in row} == {0.75}
        assert lost == [f"the schedule (2 policies over the epochs; this is that of epoch {early})"]
        said = "this is the last, with 0.70 ops per image; epoch 1 had 10.50"
        assert schedule.static()[1] == [f"the schedule (2 policies over the epochs; {said})"]
    with pytest.raises(ValueError, match="the schedule has the epochs 1 to 5, got 6"):
        pa.Schedule(steps, epochs=5).static(6)
    with pytest.raises(ValueError, match="this policy is the same in every epoch; omit the epoch"):
        export(pa.parse("trivial"), "timm", 3)


def test_the_random_order_is_lost():
    assert sparse_particles("random").static()[1] == ["the random order of the ops (theirs is fixed)"]


# For timm.


@pytest.mark.parametrize(
    "text",
    ["rand-m9-n3-mstd0.5-inc1", "rand-m7", "rand-m5-n1-p1-inc1", "rand-m12-n2-mmax15-inc1", "rand-m20", "rand-m15-inc1"]
    + ["rand-m9-p0.00001-mstd0.000035", "original-mstd0.00001"]
    + ["rand-m9-tweights", "rand-m9-mstd101-inc1", "original", "originalr-mstd0.5", "v0", "v0r-mstd1"],
)  # fmt: skip
def test_timms_own_policies_go_there_and_back(text):
    policy = pa.parse(text)
    exported = export(policy, "timm")
    assert exported.lost == NOTHING
    assert pa.parse(exported.text.strip()) == policy


@pytest.mark.parametrize(
    ("policy", "text", "lost"),
    [
        (
            pa.RandAugment(n=3, m=4, ops=pa.ops.AUTHORS_OPS),
            "rand-m4-n3-p1-inc1",
            ["the one resampling filter (timm draws bilinear or bicubic)"],
        ),
        (
            pa.RandAugment(n=2, m=9, semantics="torchvision", ops=("Rotate", "Color")),
            "rand-m3-n2-p1-inc1",
            ["the level 9 of 30, which becomes 3 of timm's 10", "'torchvision'", "the op set", "resampling filter"],
        ),
        (
            pa.RandAugment(m=9, p=0.5, m_std=150, m_max=8.6, ops=pa.ops.AUTHORS_OPS, resample="random"),
            "rand-m9-n2-p0.5-mstd100-mmax9-inc1",
            [
                "the noise of 150 on levels of 10, which becomes 100",
                "the highest level 8.6 of 10, which becomes 9 of timm's",
            ],
        ),
        (
            pa.RandAugment(
                m=27, m_std=3, m_max=36, semantics="torchvision", ops=pa.TrivialAugment().ops, resample="random"
            ),
            "rand-m9-n2-p1-mstd1-mmax12-inc1",
            ["the level 27", "'torchvision'", "the op set", "noise of 3 on levels of 30, which becomes 1", "36 of 30"],
        ),
        (pa.TrivialAugment(), "rand-m10-n1-p1-mstd101-inc1", ["Identity", "31 steps", "wide ranges"]),
    ],
)
def test_the_closest_string(policy, text, lost):
    exported = export(policy, "timm")
    assert exported.text == text + "\n"
    assert pa.parse(text)
    assert exported.lost.startswith("Lost: ")
    assert all(part in exported.lost for part in lost)
    assert exported.lost.count(";") == len(lost) - 1


def test_the_highest_level_is_written_as_the_whole_number_that_timm_reads():
    assert export(pa.parse("rand-m15-inc1"), "timm").text == "rand-m15-n2-p0.5-mmax10-inc1\n"


def test_a_policy_that_does_nothing():
    with pytest.raises(ValueError, match="the policy does nothing to an image: leave timm's --aa out"):
        export(pa.parse("none"), "timm")
    assert "v2.Identity()" in export(pa.parse("none"), "torchvision").text


def test_particles_as_timms_sub_policies():
    policy = sparse_particles()
    exported = export(policy, "timm")
    lists = lists_in(exported.text)
    assert sum(lists["COUNTS"]) == 1000
    assert np.abs(np.array(lists["COUNTS"]) / 1000 - policy.weights.numpy()).max() <= 0.0005
    named = [name for row in lists["SUB_POLICIES"] for name, _, _ in row]
    assert {"PosterizeIncreasing", "TranslateXRel", "ColorIncreasing", "Rotate", "SolarizeAdd"} <= set(named)
    assert "Identity" not in named
    expected = [[round(p, 6) for p in row[1:] if p > 0] for row in policy.particles.tolist()]
    assert [[p for _, p, _ in row] for row in lists["SUB_POLICIES"]] == [
        pytest.approx(row, rel=1e-5) for row in expected
    ]
    assert "# The closest --aa string, with every op alike: rand-m4-n" in exported.text
    assert '"interpolation": Image.Resampling.BILINEAR' in exported.text
    assert "weights finer than 1 in 1000" in exported.lost
    assert "--aa rand-m4-n" in exported.lost


VARIANTS = {"Increasing": "timm-increasing", "Original": "timm-original", "": "timm"}


@pytest.mark.parametrize(
    "source", ["autoaugment-original", "fast-autoaugment", "torchvision-autoaugment", "timm-research"]
)
def test_levels_are_translated_into_timms(source):
    """timm's mappings are our tables 'timm...', so a translated level must give the same argument there."""
    table = semantics.get(source)
    for name in set(table.rules) & set(pa.ops.AUTHORS_OPS):
        for step in range(21):
            level = table.top * step / 20
            named, _, magnitude = _timm_step((name, 0.5, level), source)
            suffix = next(s for s in VARIANTS if s in named)
            mapping = semantics.get(VARIANTS[suffix] if named.removesuffix(suffix) == name else "timm")
            assert named.removesuffix(suffix).removesuffix("Rel") == name
            expected, got = (abs(m.argument(name, x)) for m, x in ((table, level), (mapping, magnitude)))
            if name == "Solarize":
                expected = np.ceil(expected)
            # timm's translation ends at 0.45 of the side, torchvision's at 150 / 331.
            expected = min(expected, 0.45) if name.startswith("Translate") else expected
            assert got == pytest.approx(expected, rel=1e-5, abs=1e-6), (name, level)


def test_ops_that_timm_lacks_are_named():
    policy = pa.SubPolicies([[("Cutout", 0.5, 0.2), ("Rotate", 0.5, 1.0)]], "fast-autoaugment")
    exported = export(policy, "timm")
    assert lists_in(exported.text)["SUB_POLICIES"] == [[("Rotate", 0.5, 10.0)]]
    assert "Cutout (it has no such op)" in exported.lost
    assert "comes closest" not in exported.lost, "levels of another kind have no mean on timm's scale"
    pixels = export(pa.SubPolicies([[("TranslateX", 0.5, 8)]], "autoaugment-original"), "timm")
    assert "translations in pixels, which become their part of 32" in pixels.lost
    noisy = export(pa.SubPolicies([[("Rotate", 0.5, 8)]], m_std=float("inf"), resample="random"), "timm").text
    compile(noisy, "exported", "exec")
    assert "import math" in noisy
    assert '"magnitude_std": math.inf' in noisy
    assert "interpolation" not in noisy


NO_UP = (*pa.OPS, "FlipX", "FlipY", "Rotate90")


@pytest.mark.parametrize("to", ["timm", "torchvision"])
@pytest.mark.parametrize(
    "policy",
    [
        pa.RandAugment(n=2, m=5, ops=NO_UP),
        pa.TrivialAugment(ops=("Rotate", "FlipX", "FlipY", "Rotate90")),
    ],
    ids=lambda policy: policy.kind,
)
def test_flips_and_turns_are_not_in_the_op_sets_of_others(policy, to):
    assert "; FlipX, FlipY, Rotate90 (not in its op set)" in export(policy, to).lost


def test_timm_has_no_flips_and_turns_in_its_lists():
    policy = pa.SubPolicies([[("FlipX", 0.5, 0), ("Rotate", 0.5, 5)], [("Rotate90", 1.0, 3), ("FlipY", 0.2, 0)]])
    exported = export(policy, "timm")
    assert lists_in(exported.text)["SUB_POLICIES"] == [[("Rotate", 0.5, 5.0)], []]
    assert "FlipX, FlipY, Rotate90 (it has no such op)" in exported.lost


def test_torchvision_flips_and_turns_in_its_lists():
    policy = pa.SubPolicies([[("FlipX", 0.5, 0), ("FlipY", 0.2, 0)], [("Rotate90", 1.0, 3)], [("Rotate90", 1.0, 9)]])
    exported = export(policy, "torchvision")
    assert "no such op" not in exported.lost
    assert lists_in(exported.text)["SUB_POLICIES"] == [
        [("FlipX", 0.5, 0.0, 0.0), ("FlipY", 0.2, 0.0, 0.0)],
        [("Rotate90", 1.0, 90.0, 270.0)],
        [("Rotate90", 1.0, 180.0, 180.0)],
    ]


@pytest.mark.parametrize("op", pa.ops.TABLE[1:], ids=lambda op: op.name)
def test_an_op_that_the_source_cannot_apply_is_named_as_lost(op):
    found = next(table for table in semantics.SEMANTICS.values() if op.name in table.rules)
    exported = export(pa.SubPolicies([[(op.name, 1.0, found.top / 2)]], found.name), "torchvision")
    (steps,) = lists_in(exported.text)["SUB_POLICIES"]
    assert all(f'"{step[0]}": lambda image' in exported.text for step in steps)
    assert (f"{op.name} (it has no such op)" in exported.lost) == (steps == [])


def test_posterize_of_timms_source_takes_0_bits():
    """Pillow 13 refuses them, and noise on the level brings them about at any level."""
    text = export(sparse_particles(m=10.0), "timm").text
    (function,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "posterize")
    names = {"ImageOps": ImageOps}
    exec(ast.unparse(function), names)
    image = Image.new("RGB", (2, 2), (255, 165, 77))
    pixels = {bits: names["posterize"](image, bits, fillcolor=(1, 2, 3)).getpixel((0, 0)) for bits in (0, 1, 4, 8, 9)}
    assert pixels == {0: (0, 0, 0), 1: (128, 128, 0), 4: (240, 160, 64), 8: (255, 165, 77), 9: (255, 165, 77)}


def test_repetitions_add_up():
    assert _repetitions(None, 3) == [1, 1, 1]
    assert _repetitions((0.5, 0.5), 2) == [1, 1]
    assert _repetitions((1.0, 2.0), 2) == [333, 667]
    weights = tuple(np.random.default_rng(0).dirichlet(np.ones(50)).tolist())
    assert sum(_repetitions(weights, 50)) == 1000


# For torchvision.


@pytest.mark.parametrize(
    ("policy", "call"),
    [
        (pa.TrivialAugment(), "v2.TrivialAugmentWide("),
        (pa.AutoAugment("cifar10"), "v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10,"),
        (pa.AutoAugment("imagenet"), "v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET,"),
        (
            pa.RandAugment(n=2, m=9, semantics="torchvision", ops=pa.TrivialAugment().ops),
            "v2.RandAugment(num_ops=2, magnitude=9,",
        ),
    ],
)
def test_torchvisions_own_policies(policy, call):
    exported = export(policy, "torchvision")
    compile(exported.text, "exported", "exec")
    assert exported.lost == NOTHING
    assert call in exported.text


def test_the_closest_rand_augment_of_torchvision():
    exported = export(pa.RandAugment(n=3, m=4.1, p=0.5, m_std=1, resample="random"), "torchvision")
    assert "v2.RandAugment(num_ops=3, magnitude=12," in exported.text
    for part in ("4.1 of 10, which becomes 12 of 30", "'timm-increasing'", "op set", "0.5", "noise", "filter"):
        assert part in exported.lost


def test_particles_as_torchvision_source():
    policy = sparse_particles()
    exported = export(policy, "torchvision")
    lists = lists_in(exported.text)
    assert lists["WEIGHTS"] == pytest.approx(policy.weights.tolist(), rel=1e-5)
    assert "SolarizeAdd (it has no such op)" in exported.lost
    steps = {name: (plus, minus) for row in lists["SUB_POLICIES"] for name, _, plus, minus in row}
    assert steps["Rotate"] == (12.0, -12.0)
    assert steps["Contrast"] == (1.36, 0.64)
    assert steps["Posterize"] == (3.0, 3.0)
    assert "SolarizeAdd" not in steps


@pytest.mark.parametrize(
    ("source", "level"),
    [("timm", 2.4), ("timm-increasing", 10), ("timm-research", 10), ("autoaugment-original", 10)],
)
def test_torchvision_blackens_where_no_bits_are_kept(source, level):
    assert semantics.get(source).argument("Posterize", level) == 0
    assert _torchvision_step(("Posterize", 0.25, level), source) == ("Brightness", 0.25, 0.0, 0.0)


def test_torchvision_posterizes_where_bits_are_kept():
    assert _torchvision_step(("Posterize", 0.25, 9.9), "timm-increasing") == ("Posterize", 0.25, 1.0, 1.0)
    assert _torchvision_step(("Posterize", 0.25, 0), "torchvision") == ("Posterize", 0.25, 8.0, 8.0)


def test_unknown_targets():
    with pytest.raises(ValueError, match="a policy cannot be exported to 'tim'; did you mean timm"):
        export(pa.TrivialAugment(), "tim")


# The command.


def test_the_command(tmp_path):
    file, out = tmp_path / "policy.json", tmp_path / "new" / "policy.py"
    sparse_particles().save(file)
    written = CliRunner().invoke(app, ["policy", "export", str(file), "--to", "timm", "--out", str(out)])
    assert written.exit_code == 0
    assert written.stdout.startswith(f"wrote {out}\nLost: the form of an --aa string")
    printed = CliRunner().invoke(app, ["policy", "export", str(file), "--to", "json"])
    assert json.loads(printed.stdout)["kind"] == "sub-policies"
    assert printed.stderr == NOTHING + "\n"
    refused = CliRunner().invoke(app, ["policy", "export", str(tmp_path / "none.json"), "--to", "json"])
    assert refused.exit_code == 2
    assert "there is no policy file" in refused.stderr
