"""Cutout, and the two published semantics that use it, against Pillow and the published arithmetic written out."""

import numpy as np
import pytest
import torch
from cases import EXECUTORS, KINDS, draw_image
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

import particleaugment as pa
from particleaugment import executors
from particleaugment.augment.pipeline import FusedPipeline
from particleaugment.core.random import Stream, uniform

ENHANCERS = ("Color", "Contrast", "Brightness", "Sharpness")
ARGUMENTLESS = {"AutoContrast": ImageOps.autocontrast, "Invert": ImageOps.invert, "Equalize": ImageOps.equalize}


def images_of(count: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, height, width])
    return np.stack([draw_image(rng, KINDS[i % len(KINDS)], height, width) for i in range(count)])


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)  # Pillow's defaults: nearest, black


def geometric(image: Image.Image, name: str, value: float, pixels: float) -> Image.Image:
    match name:
        case "ShearX":
            return affine(image, 1, value, 0, 0, 1, 0)
        case "ShearY":
            return affine(image, 1, 0, 0, value, 1, 0)
        case "TranslateX":
            return affine(image, 1, 0, pixels, 0, 1, 0)
        case "TranslateY":
            return affine(image, 1, 0, 0, 0, 1, pixels)
    return image.rotate(value)


# Level 0 and 1 of Fast AutoAugment's ops.
FAST_RANGES = {"Rotate": (-30, 30), "Solarize": (0, 256), "Posterize": (4, 8), "Cutout": (0, 0.2)}
FAST_RANGES |= dict.fromkeys(("ShearX", "ShearY"), (-0.3, 0.3)) | dict.fromkeys(
    ("TranslateX", "TranslateY"), (-0.45, 0.45)
)
FAST_RANGES |= dict.fromkeys(ENHANCERS, (0.1, 1.9))


def fast_autoaugment(image: Image.Image, name: str, level: float, sign: float, place: np.ndarray) -> Image.Image:
    if name in ARGUMENTLESS:
        return ARGUMENTLESS[name](image)
    low, high = FAST_RANGES[name]
    value = level * (high - low) + low
    width, height = image.size
    if name in ENHANCERS:
        return getattr(ImageEnhance, name)(image).enhance(value)
    if name == "Solarize":
        return ImageOps.solarize(image, value)
    if name == "Posterize":
        return ImageOps.posterize(image, int(value))
    if name == "Cutout":
        if value <= 0:
            return image
        side = value * width
        # The centre is NumPy's uniform(side), whose argument is the lower end; the upper one is 1.
        corner = [int(max(0, n + (1 - n) * u - side / 2)) for n, u in zip((width, height), place)]
        far = [min(n, start + side) for n, start in zip((width, height), corner)]
        ImageDraw.Draw(image).rectangle((*corner, *far), (125, 123, 114))
        return image
    value *= sign
    return geometric(image, name, value, value * (width if name.endswith("X") else height))


def original_autoaugment(image: Image.Image, name: str, level: float, sign: float, place: np.ndarray) -> Image.Image:
    if name in ARGUMENTLESS:
        return ARGUMENTLESS[name](image)
    if name in ENHANCERS:
        return getattr(ImageEnhance, name)(image).enhance(level * 1.8 / 10 + 0.1)
    if name == "Solarize":
        return ImageOps.solarize(image, 256 - int(level * 256 / 10))
    if name == "Posterize":
        bits = 4 - int(level * 4 / 10)
        return ImageOps.posterize(image, bits) if bits else Image.new("RGB", image.size)
    if name == "Cutout":
        size = int(level * 20 / 10)
        pixels = np.array(image)
        centre = [int(u * n) for u, n in zip(place, image.size)]
        across, down = (slice(max(0, c - size // 2), min(n, c + size // 2)) for c, n in zip(centre, image.size))
        pixels[down, across] = (125, 122, 113)
        return Image.fromarray(pixels)
    if name.startswith("Shear"):
        return geometric(image, name, sign * level * 0.3 / 10, 0)
    return geometric(image, name, sign * int(level * 30 / 10), sign * int(level * 10 / 10))


def random_sub_policies(rng: np.random.Generator, count: int, draw_level) -> list:
    return [
        [
            (name, round(float(rng.uniform(0.3, 1)), 2), draw_level(rng))
            for name in rng.choice(pa.ops.AUTOAUGMENT_OPS, 2)
        ]
        for _ in range(count)
    ]


SEMANTICS = {
    "fast-autoaugment": (fast_autoaugment, lambda rng: float(rng.choice([0.0, 0.5, 1.0, rng.uniform()]))),
    "autoaugment-original": (original_autoaugment, lambda rng: int(rng.integers(0, 11))),
}


@pytest.mark.parametrize("size", [(32, 32), (17, 23), (48, 40)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_complete_sub_policies_give_pillows_pixels(semantics, size):
    one_op, draw_level = SEMANTICS[semantics]
    rng = np.random.default_rng(len(semantics))
    sub_policies = random_sub_policies(rng, 60, draw_level) + [
        [("Cutout", 1.0, draw_level(rng))] * 2 for _ in range(20)
    ]
    policy = pa.SubPolicies(sub_policies, semantics)
    ids, epoch, seed = torch.arange(400), 3, 11
    program = policy.sample(ids, epoch, seed, size)
    pixels = images_of(len(ids), *size)
    drawn = (uniform(seed, Stream.OP, epoch, ids, 1) * len(sub_policies)).long().flatten().tolist()
    gates, signs = (uniform(seed, stream, epoch, ids, 2).numpy() for stream in (Stream.GATE, Stream.SIGN))
    places = uniform(seed, Stream.PLACE, epoch, ids, 4).numpy().reshape(-1, 2, 2)
    expected, cut = np.empty_like(pixels), 0
    for i, chosen in enumerate(drawn):
        image = Image.fromarray(np.ascontiguousarray(pixels[i].transpose(1, 2, 0)))
        for k, (name, probability, level) in enumerate(sub_policies[chosen]):
            if gates[i, k] < probability:
                cut += name == "Cutout"
                image = one_op(image, name, level, 1.0 if signs[i, k] < 0.5 else -1.0, places[i, k])
        expected[i] = np.asarray(image).transpose(2, 0, 1)
    assert cut > 100
    images = torch.from_numpy(pixels)
    for executor in EXECUTORS:
        output = pa.apply(images, program, executor, resample="nearest", fill=(0, 0, 0)).numpy()
        assert [i for i in ids.tolist() if (output[i] != expected[i]).any()] == [], executor


@pytest.mark.parametrize("channels", [3, 1])
def test_any_rectangle_is_painted_as_pillow_paints_it(channels):
    rng = np.random.default_rng(5)
    pixels = images_of(300, 19, 14)[:, :channels]
    boxes = rng.integers(-6, 26, (300, 4))
    colours = rng.integers(0, 256, (300, 3))
    program = pa.Program.from_ops(
        [[("Rotate", 20), ("Cutout", 0.5, box, colour)] for box, colour in zip(boxes.tolist(), colours.tolist())]
    )
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    expected = pa.apply(images, pa.Program.from_ops([[("Rotate", 20)]] * 300), "pil").numpy().copy()
    for i, ((left, top, right, bottom), colour) in enumerate(zip(boxes.tolist(), colours.tolist())):
        image = Image.fromarray(np.ascontiguousarray(np.broadcast_to(expected[i], (3, 19, 14)).transpose(1, 2, 0)))
        if channels == 1:
            colour = [Image.new("RGB", (1, 1), tuple(colour)).convert("L").getpixel((0, 0))] * 3
        if left < right and top < bottom:
            ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), fill=tuple(colour))
        expected[i] = np.asarray(image).transpose(2, 0, 1)[:channels]
    for executor in EXECUTORS:
        assert np.array_equal(pa.apply(images, program, executor).numpy(), expected), executor


def test_cutout_in_every_policy_that_takes_ops():
    ops, ids = pa.ops.AUTOAUGMENT_OPS, torch.arange(2000)
    particles = torch.full((3, 15), 0.4)
    policies = [
        pa.RandAugment(n=2, m=0.8, semantics="fast-autoaugment", ops=ops),
        pa.ParticlePolicy(particles, torch.ones(3), 0.8, "fast-autoaugment", "fixed", ops),
        pa.ParticlePolicy(particles, torch.ones(3), 8, "autoaugment-original", "random", ops),
        pa.SubPolicies([[("Cutout", 0.5, 7), ("Rotate", 1, 3)], [("Invert", 1, 0)]], "autoaugment-original"),
    ]
    cutout = pa.ops.lookup("Cutout").index
    for policy in policies:
        program = policy.sample(ids, epoch=1, seed=2, size=(20, 30))
        left, top, right, bottom, colour = program.patch.unbind(-1)
        chosen = program.op == cutout
        assert 100 < int(chosen.sum()) < chosen.numel()
        assert bool((program.patch[~chosen] == 0).all()), "what is not Cutout paints nothing"
        assert bool(((left >= 0) & (left <= right) & (right <= 30) & (top >= 0) & (bottom <= 20)).all())
        assert len(set(left[chosen].tolist())) > 10
        assert set(colour[chosen].tolist()) == {0x7D7B72 if "fast" in policy.semantics else 0x7D7A71}
        # A sample's rectangle depends on nothing but its key.
        assert policy.sample(ids[7:9], epoch=1, seed=2, size=(20, 30)).equal(program[7:9])


def test_other_programs_carry_no_rectangles():
    policy = pa.RandAugment(n=2, m=0.8, semantics="fast-autoaugment", ops=pa.ops.AUTOAUGMENT_OPS[:-1])
    assert policy.sample(torch.arange(3)).patch is None
    assert pa.Program.from_ops([["Invert"]]).patch is None


def test_a_program_keeps_its_rectangles():
    with_cutout = pa.Program.from_ops([[("Cutout", 0.5, (1, 2, 5, 6), (9, 8, 7))], ["Invert"]])
    without = pa.Program.from_ops([["Invert"]])
    joined = pa.Program.cat([without, with_cutout]).to("cpu")
    assert joined[1:].equal(with_cutout)
    assert joined[:1].equal(without)
    assert joined.patch[1, 0].tolist() == [1, 2, 5, 6, 0x090807]
    moved = pa.Program.from_ops([[("Cutout", 0.5, (1, 2, 5, 7), (9, 8, 7))], ["Invert"]])
    assert not moved.equal(with_cutout)
    assert joined.describe(1) == [("Cutout", 0.5)]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (("Cutout", 0.5), r"image 0: expected \('Cutout', side, rectangle, colour\), got"),
        (("Rotate", 5, (0, 0, 1, 1), (0, 0, 0)), r"image 0: expected \('Rotate', argument\), got"),
        (("Cutout", 0.5, (0, 0, 1), (0, 0, 0)), r"Cutout needs \(left, top, right, bottom\) and \(red, green, blue\)"),
        (("Cutout", 0.5, (0, 0, 1, 1), (0, 0, 256)), "a colour is three whole numbers from 0 to 255"),
        (("Cutout", 1.5, (0, 0, 1, 1), (0, 0, 0)), "Cutout takes 0 to 1"),
        (("Cutout", 0.5, (0, 0, 2**24 + 1, 1), (0, 0, 0)), "edges of a rectangle must lie within 16,777,216 pixels"),
        (("Cutout", 0.5, (0, 0, float("inf"), 1), (0, 0, 0)), r"Cutout needs \(left, top, right, bottom\)"),
    ],
)
def test_bad_rectangles(step, message):
    with pytest.raises(ValueError, match=message):
        pa.Program.from_ops([[step]])


def test_a_patch_must_fit_its_program():
    op, arg = torch.tensor([[16]]), torch.tensor([[0.5]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Program.patch must have shape \[images, slots, 5\] like op"):
        pa.Program(op, arg, patch=torch.zeros(1, 1, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"Program.patch must be a torch.int64 tensor, got torch.float32"):
        pa.Program(op, arg, patch=torch.zeros(1, 1, 5))
    for place, value in ((0, -(2**24) - 1), (2, 2**33)):
        patch = torch.tensor([[[1, 1, 4, 4, 0x010203]]])
        patch[..., place] = value
        with pytest.raises(ValueError, match=f"a rectangle must lie within 16,777,216 pixels of 0, got {value}"):
            pa.Program(op, arg, patch=patch)
    for colour in (-1, 0x1000000):
        with pytest.raises(ValueError, match=f"colour of a rectangle must be 0xRRGGBB, .* got {colour:#x}"):
            pa.Program(op, arg, patch=torch.tensor([[[1, 1, 4, 4, colour]]]))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rectangles_that_reach_far_beyond_the_image(executor):
    far = 2**24
    program = pa.Program.from_ops([[("Cutout", 0.5, (-far, 2, 3, far), (9, 8, 7))]])
    images, masks = torch.zeros(1, 3, 6, 5, dtype=torch.uint8), torch.zeros(1, 6, 5, dtype=torch.uint8)
    result = pa.apply(images, program, executor, masks=masks, erase_targets=True)
    expected = torch.zeros(6, 5, dtype=torch.bool)
    expected[2:, :3] = True
    assert torch.equal(result.images[0, 0] == 9, expected)
    assert torch.equal(result.masks[0] == 255, expected)


def test_the_fused_executor_hands_cutout_to_batch_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(executors, "choose_executor", lambda *_: "fused")
    executors._say_once.cache_clear()
    images = torch.from_numpy(images_of(2, 9, 9))
    program = pa.Program.from_ops([[("Cutout", 0.5, (1, 2, 5, 6), (9, 8, 7))]] * 2)
    outputs = [pa.apply(images, program) for _ in range(2)]
    assert torch.equal(outputs[0][:, :, 2:6, 1:5], torch.tensor([9, 8, 7]).view(1, 3, 1, 1).expand(2, 3, 4, 4))
    said = "augmenting with executor 'batch' instead of 'fused': its kernel does not support Cutout"
    assert [record.message for record in caplog.records] == [said]


def test_the_fused_kernel_is_given_no_policy_with_cutout():
    policy = pa.RandAugment(n=1, m=1, ops=pa.ops.AUTOAUGMENT_OPS, semantics="fast-autoaugment")
    with pytest.raises(ValueError, match="the fused kernel does not do Cutout; augment with executor 'batch'"):
        FusedPipeline(policy, (8, 8), torch.device("cpu"), 0)


def test_a_semantics_without_cutout_says_which_have_it():
    with pytest.raises(
        ValueError, match="'timm-increasing' does not define Cutout; these do: autoaugment-original, fa"
    ):
        pa.RandAugment(ops=pa.ops.AUTOAUGMENT_OPS)
