"""FlipX, FlipY and Rotate90, for images without an up, beside Pillow's transposes; and what is not square."""

import numpy as np
import pytest
import torch
from cases import EXECUTORS, KINDS, draw_image
from PIL import Image

import particleaugment as pa
from particleaugment import executors
from particleaugment.augment.pipeline import FusedPipeline

FLIPS = {"FlipX": Image.Transpose.FLIP_LEFT_RIGHT, "FlipY": Image.Transpose.FLIP_TOP_BOTTOM}
TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
NOT_SQUARE = r"^Rotate90 takes square images, got 6x7 pixels; crop or resize them, or omit Rotate90$"


def images_of(height: int, width: int, channels: int) -> torch.Tensor:
    rng = np.random.default_rng([height, width])
    images = np.stack([draw_image(rng, kind, height, width) for kind in KINDS])
    return torch.from_numpy(images[:, :channels].copy())


def transposed(images: torch.Tensor, how: Image.Transpose) -> torch.Tensor:
    """Every channel as a Pillow image of its own."""
    planes = [Image.fromarray(plane.numpy()).transpose(how) for plane in images.flatten(0, 1)]
    return torch.from_numpy(np.stack([np.asarray(plane) for plane in planes])).view_as(images)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 1), (2, 2), (6, 7), (7, 6), (7, 7), (33, 32), (64, 64)])
@pytest.mark.parametrize("name", FLIPS)
def test_flips(name, size, channels):
    images = images_of(*size, channels)
    expected = transposed(images, FLIPS[name])
    program = pa.Program.from_ops([[name]] * len(images))
    for executor in EXECUTORS:
        assert torch.equal(pa.apply(images, program, executor), expected), executor


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [1, 2, 3, 7, 32, 33, 64])
@pytest.mark.parametrize("degrees", TURNS)
def test_turns(degrees, side, channels):
    images = images_of(side, side, channels)
    expected = transposed(images, TURNS[degrees])
    program = pa.Program.from_ops([[("Rotate90", degrees)]] * len(images))
    for executor in EXECUTORS:
        for resample in ("nearest", "bilinear", "bicubic"):
            assert torch.equal(pa.apply(images, program, executor, resample), expected), (executor, resample)


def test_which_way_they_go():
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).expand(5, 3, 2, 2)
    rows = [["FlipX"], ["FlipY"], [("Rotate90", 90)], [("Rotate90", 180)], [("Rotate90", 270)]]
    output = pa.apply(image, pa.Program.from_ops(rows))[:, 0]
    assert output.tolist() == [
        [[2, 1], [4, 3]],
        [[3, 4], [1, 2]],
        [[2, 4], [1, 3]],
        [[4, 3], [2, 1]],
        [[3, 1], [4, 2]],
    ]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_eight_ways_to_lay_down_a_square(executor):
    """Flips and turns are the symmetries of a square: two flips are half a turn, four quarter turns are nothing."""
    images = images_of(9, 9, 3)[:1]
    same = [
        (["FlipX", "FlipX"], []),
        (["FlipX", "FlipY"], [("Rotate90", 180)]),
        ([("Rotate90", 90)] * 4, []),
        ([("Rotate90", 90), ("Rotate90", 180)], [("Rotate90", 270)]),
        (["FlipX", ("Rotate90", 90)], [("Rotate90", 270), "FlipX"]),
        (["FlipY", ("Rotate90", 270)], ["FlipX", ("Rotate90", 90)]),
    ]
    for left, right in same:
        pair = pa.apply(images.expand(2, -1, -1, -1), pa.Program.from_ops([left, right]), executor)
        assert torch.equal(pair[0], pair[1]), (left, right)
    rows = [[*flip, *turn] for flip in ([], ["FlipX"]) for turn in ([], *([("Rotate90", d)] for d in TURNS))]
    assert len(pa.apply(images.expand(8, -1, -1, -1), pa.Program.from_ops(rows), executor).unique(dim=0)) == 8


# Images that are not square.


@pytest.mark.parametrize("degrees", TURNS)
@pytest.mark.parametrize("executor", ["auto", *EXECUTORS])
def test_apply_refuses_to_turn_what_is_not_square(executor, degrees, monkeypatch):
    program = pa.Program.from_ops([["Invert"], ["FlipX", ("Rotate90", degrees)]])
    monkeypatch.setattr(executors, "choose_executor", lambda *_: pytest.fail("work began"))
    with pytest.raises(ValueError, match=NOT_SQUARE):
        pa.apply(torch.zeros(2, 3, 6, 7, dtype=torch.uint8), program, executor)


def test_other_ops_take_any_size():
    images = images_of(6, 7, 3)
    program = pa.Program.from_ops([["FlipX", "FlipY", ("Rotate", 90)]] * len(images))
    outputs = [pa.apply(images, program, executor) for executor in EXECUTORS]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


POLICIES = {
    "rand": pa.RandAugment(n=3, m=6, ops=pa.ops.NO_UP_OPS),
    "noisy": pa.RandAugment(n=3, m=6, m_std=3, p=0.7, ops=pa.ops.NO_UP_OPS, resample="random"),
    "trivial": pa.TrivialAugment(ops=("FlipX", "FlipY", "Rotate90", "Rotate", "Color")),
    "sub-policies": pa.SubPolicies([[("Rotate90", 0.8, 3), ("FlipX", 0.5, 0)], [("FlipY", 1, 0), ("Rotate90", 1, 9)]]),
    "particles": pa.ParticlePolicy(torch.full((3, 18), 0.3), torch.ones(3), m=6, ops=pa.ops.NO_UP_OPS),
    "random order": pa.ParticlePolicy(torch.full((3, 18), 0.3), torch.ones(3), 6, "timm", "random", pa.ops.NO_UP_OPS),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_give_the_same_pixels_on_every_executor(name):
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (400, 3, 21, 21), dtype=torch.uint8, generator=generator)
    drawn = {op for i in range(400) for op in POLICIES[name].sample(torch.arange(400), 2, 5, (21, 21)).describe(i)}
    assert {("FlipX", 0.0), ("FlipY", 0.0), ("Rotate90", 90.0), ("Rotate90", 270.0)} <= drawn
    outputs = []
    for executor in EXECUTORS:
        augment = pa.Augment(POLICIES[name], seed=5, before=[pa.PadCrop(2)], executor=executor)
        augment.set_epoch(2)
        outputs.append(augment(images, torch.arange(400)))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


class MustNotRun(pa.HorizontalFlip):
    """A transform after the policy, for calls that end before it."""

    def sample(self, *_):
        pytest.fail("the images were augmented")


@pytest.mark.parametrize("name", POLICIES)
def test_policies_refuse_images_that_are_not_square(name):
    with pytest.raises(ValueError, match=NOT_SQUARE):
        POLICIES[name].sample(torch.arange(4), size=(6, 7))
    with pytest.raises(ValueError, match=NOT_SQUARE):
        pa.Augment(POLICIES[name], after=[MustNotRun()])(torch.zeros(4, 3, 6, 7, dtype=torch.uint8))
    # Tables are made on any device; only a launch needs a GPU.
    with pytest.raises(ValueError, match=NOT_SQUARE):
        FusedPipeline(POLICIES[name], (6, 7), torch.device("cpu"), 0)
    pipeline = FusedPipeline(pa.RandAugment(), (6, 7), torch.device("cpu"), 0)
    with pytest.raises(ValueError, match=NOT_SQUARE):
        pipeline.set_policy(POLICIES[name])
    assert pipeline.policy == pa.RandAugment()


def test_policies_with_flips_alone_take_any_size():
    policy = pa.RandAugment(n=2, m=5, ops=("FlipX", "FlipY"))
    images = images_of(6, 7, 1)
    augmented = pa.Augment(policy)(images, torch.arange(len(images)))
    program = policy.sample(torch.arange(len(images)), size=(6, 7))
    assert torch.equal(augmented, pa.apply(images, program, "pil"))
