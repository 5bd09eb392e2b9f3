"""Exported source with the libraries that it was written for, where they are installed."""

import numpy as np
import pytest
import torch
from PIL import Image
from policy_cases import sparse_particles

import particleaugment as pa
from particleaugment.core import semantics
from particleaugment.core.op_table import Kind, lookup
from particleaugment.policies.exports import export


@pytest.mark.parametrize("text", ["rand-m15-inc1", "rand-m12-mmax15", "rand-m9-p0.00001-mstd0.5-inc1"])
def test_timm_reads_what_was_exported(text):
    timm = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")
    policy = pa.parse(text)
    for op in timm.rand_augment_transform(export(policy, "timm").text.strip(), {}).ops:
        assert (op.magnitude, op.prob, op.magnitude_std) == (policy.m, policy.p, policy.m_std)
        assert op.magnitude_max == policy.m_max


def test_timm_runs_what_was_exported():
    timm = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")
    table = {op: semantics.get("timm-increasing").argument(op, 4.0) for op in pa.ops.AUTHORS_OPS}
    names = {}
    exec(export(sparse_particles(), "timm").text, names)
    assert isinstance(names["policy"], timm.AutoAugment)
    for op in {id(op): op for row in names["policy"].policy for op in row}.values():
        ours = op.name.removesuffix("Increasing").removesuffix("Rel")
        if op.level_fn is not None:
            (argument,) = op.level_fn(op.magnitude, op.hparams)
            reflected = 2 - argument if "Increasing" in op.name and ours not in ("Posterize", "Solarize") else -argument
            assert table[ours] == pytest.approx(argument) or table[ours] == pytest.approx(reflected)
    image = Image.new("RGB", (20, 20), (9, 90, 200))
    assert all(names["policy"](image).size == (20, 20) for _ in range(50))


def test_torchvision_runs_what_was_exported():
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    policies = [sparse_particles(), pa.AutoAugment("svhn"), pa.RandAugment(), pa.TrivialAugment(), pa.parse("v0")]
    image = torch.randint(0, 256, (3, 20, 20), dtype=torch.uint8)
    for policy in policies:
        names = {}
        exec(export(policy, "torchvision").text, names)
        results = [names["policy"](image) for _ in range(50)]
        assert all(result.shape == image.shape and result.dtype == torch.uint8 for result in results)
        assert any(not torch.equal(result, image) for result in results)


EXACT = (Kind.HISTOGRAM, Kind.POINTWISE, Kind.BLEND, Kind.NEIGHBOURHOOD)


@pytest.mark.parametrize("target", ["timm", "torchvision"])
@pytest.mark.parametrize("source", sorted(semantics.SEMANTICS))
def test_what_was_exported_runs_at_the_lowest_and_the_highest_levels(target, source):
    pytest.importorskip(target, reason=f"{target} is not installed")
    table = semantics.get(source)
    pixels = torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    for name in {*table.rules} & {*pa.ops.AUTHORS_OPS} - ({"SolarizeAdd"} if target == "torchvision" else set()):
        for level in (0.0, 0.001 * table.top, 0.999 * table.top, table.top):
            policy = pa.SubPolicies([[(name, 1.0, level)]], source)
            names = {}
            exec(export(policy, target).text, names)
            assert names["policy"](image).size == (24, 24)
            if target == "torchvision":
                assert names["policy"](pixels).shape == pixels.shape
            if lookup(name).kind in EXACT and not table.rule(name).signed:
                ours = pa.apply(pixels[None], policy.sample(torch.arange(1)), executor="pil")[0]
                assert np.array_equal(np.asarray(names["policy"](image)), ours.permute(1, 2, 0)), (name, level)


@pytest.mark.parametrize("level", [3, 9])
@pytest.mark.parametrize("name", ["FlipX", "FlipY", "Rotate90"])
def test_torchvision_flips_and_turns_as_we_do(name, level):
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    pixels = torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    policy = pa.SubPolicies([[(name, 1.0, level)]])
    results = pa.apply(pixels.expand(50, -1, -1, -1), policy.sample(torch.arange(50)))
    ours = {result.numpy().tobytes() for result in results}
    names = {}
    exec(export(policy, "torchvision").text, names)
    names["random"].seed(1)
    assert {names["policy"](pixels).contiguous().numpy().tobytes() for _ in range(50)} == ours
    from_pillow = (np.asarray(names["policy"](image)).transpose(2, 0, 1) for _ in range(50))
    assert {np.ascontiguousarray(array).tobytes() for array in from_pillow} == ours


def test_noise_on_the_level_in_timm():
    pytest.importorskip("timm", reason="timm is not installed")
    image = Image.new("RGB", (4, 4), "orange")
    for source in ("timm", "timm-increasing", "timm-original", "timm-research"):
        names = {}
        exec(export(pa.SubPolicies([[("Posterize", 1.0, 5)]], source, m_std=5), "timm").text, names)
        colours = {names["policy"](image).getpixel((0, 0)) for _ in range(300)}
        assert ((0, 0, 0) in colours) is (source != "timm-original")
