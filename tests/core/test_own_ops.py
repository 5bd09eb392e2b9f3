import json
import logging
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops
from toy import search_of

import particleaugment as pa
from particleaugment import executors
from particleaugment.core import semantics

RAISE = {"unit": "value added to every pixel", "low": -200, "high": 200}


def add(images, value):
    return (images.to(torch.int16) + value.to(torch.int16).view(-1, 1, 1, 1)).clamp(0, 255).to(torch.uint8)


def add_pillow(image, value):
    shift = Image.new("RGB", image.size, (abs(int(value)),) * 3)
    return ImageChops.add(image, shift) if value >= 0 else ImageChops.subtract(image, shift)


@pytest.fixture
def lift():
    """A signed op with an argument and a Pillow function."""
    return pa.ops.register("Lift", add, **RAISE, signed=True, neutral=0, pillow=add_pillow)


@pytest.fixture
def swap():
    """An op without an argument, and without a Pillow function."""
    return pa.ops.register("Swap", lambda images, _: images.flip(1))


def some_images(count=24, channels=3):
    return torch.randint(
        0, 256, (count, channels, 12, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def test_it_runs_on_batch_and_pil_with_the_same_pixels(lift, swap):
    images = some_images()
    program = pa.Program.from_ops([[("Rotate", 10), ("Lift", 7 * i - 80), "Invert"] for i in range(24)])
    batch = pa.apply(images, program, "batch")
    assert torch.equal(batch, pa.apply(images, program, "pil"))
    rotated = pa.apply(images, pa.Program.from_ops([[("Rotate", 10)]] * 24), "native")
    assert torch.equal(batch, 255 - add(rotated, torch.arange(24) * 7 - 80))
    assert torch.equal(pa.apply(images, pa.Program.from_ops([["Swap"]] * 24)), images.flip(1))
    assert program.describe(0) == [("Rotate", 10.0), ("Lift", -80.0), ("Invert", 0.0)]


@pytest.mark.parametrize("executor", ["batch", "pil"])
def test_grey_images_go_through_as_three_channels(lift, executor):
    images = some_images(channels=1)
    output = pa.apply(images, pa.Program.from_ops([[("Lift", 30)]] * 24), executor)
    assert torch.equal(output, add(images, torch.full((24,), 30)))


def test_auto_takes_batch_and_says_so_once(swap, caplog):
    executors._say_once.cache_clear()
    for _ in range(2):
        pa.apply(some_images(1), pa.Program.from_ops([["Swap"]]))
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == [
        "augmenting with executor 'batch': Swap is registered, and the faster executors run only built-in ops"
    ]
    caplog.clear()
    pa.apply(some_images(1), pa.Program.from_ops([["Invert"]]))
    assert not caplog.records, "a program of built-in ops is not held back"


def test_executors_that_cannot_run_it_say_so(swap):
    program = pa.Program.from_ops([["Swap"]])
    message = "executor 'native' runs only built-in ops, but Swap is registered; use 'batch' or 'auto'"
    with pytest.raises(ValueError, match=message):
        pa.apply(some_images(1), program, "native")
    with pytest.raises(ValueError, match="Swap has no Pillow function; register it with pillow="):
        pa.apply(some_images(1), program, "pil")
    with pytest.raises(ValueError, match="Swap has no Pillow function"):
        pa.ops.check("Swap")


def test_policies_draw_it_with_its_levels_and_sign(lift, swap):
    ops = ("Rotate", "Lift", "Swap")
    ids = torch.arange(3000)
    policies = [
        pa.RandAugment(n=2, m=5, ops=ops),
        pa.ParticlePolicy(torch.full((2, 3), 0.5), torch.ones(2), 5, "timm-increasing", "random", ops),
        pa.SubPolicies([[("Lift", 0.5, 5)], [("Swap", 1, 0), ("Lift", 1, 5)]]),
    ]
    for policy in policies:
        program = policy.sample(ids)
        arguments = program.arg[program.op == lift.index]
        # The top level is 200, so level 5 of 10 is 100, in both directions.
        assert set(arguments.tolist()) == {100.0, -100.0}
        assert abs(float(arguments.mean())) < 10
        assert bool((program.op == swap.index).any())
    trivial = pa.TrivialAugment(ops=ops).sample(ids)
    assert set(trivial.op.unique().tolist()) == set(pa.ops.op_indices(ops))
    assert len(trivial.arg[trivial.op == lift.index].abs().unique()) == 31


def test_the_search_learns_it(lift):
    paper = pa.PaperFilter(num_particles=6, nonzero=1, m=4, unit_vectors=True, start_value=1.0, measure_size=4)
    data = (some_images(), torch.arange(24) % 2)
    search = pa.ParticleAugment(data, epochs=3, filter=paper, ops=("Lift", "Invert"))
    search.begin_epoch(1)
    out = search.augment(some_images(), torch.arange(24))
    assert out.shape == (24, 3, 12, 9)
    assert search.schedule(3).ops == ("Lift", "Invert")


def test_levels_for_one_semantics():
    rule = semantics.LevelRule(100.0, base=50.0, whole="truncate", maximum=140.0)
    pa.ops.register("Lift", add, **RAISE, levels={"timm": (0, 30), "torchvision": rule})
    assert semantics.get("timm").argument("Lift", 5) == 15
    assert semantics.get("torchvision").argument("Lift", 10) == 50 + 33
    assert semantics.get("torchvision").argument("Lift", 30) == 140, "the rule's maximum is below the op's 200"
    with pytest.raises(ValueError, match="'trivial-wide' does not define Lift; these do: timm, torchvision"):
        pa.TrivialAugment(ops=("Lift",))
    pa.ops.register("Lift", add, **RAISE, levels={})
    with pytest.raises(ValueError, match=r"'timm' does not define Lift; give it levels in pa\.ops\.register"):
        semantics.get("timm").rule("Lift")


def test_registering_again_replaces_the_op(lift):
    before = semantics.get("timm").argument("Lift", 10)
    again = pa.ops.register("Lift", lambda images, _: 255 - images, unit="of another kind", low=0, high=1)
    assert (again.index, before, semantics.get("timm").argument("Lift", 10)) == (lift.index, 200, 1)
    with pytest.raises(ValueError, match=r"Lift takes 0 to 1 \(of another kind\), got 5"):
        pa.Program.from_ops([[("Lift", 5)]])
    images = some_images(1)
    assert torch.equal(pa.apply(images, pa.Program.from_ops([[("Lift", 1)]])), 255 - images)


def test_a_policy_file_carries_its_name(lift, tmp_path):
    policies = [
        pa.RandAugment(n=2, m=5, ops=("Lift", "Rotate")),
        pa.TrivialAugment(ops=("Lift", "Rotate")),
        pa.SubPolicies([[("Lift", 0.5, 5)]]),
        search_of(num_particles=2, nonzero=1, ops=("Lift", "Invert")).schedule(3),
    ]
    for number, policy in enumerate(policies):
        path = tmp_path / f"{number}.json"
        policy.save(path)
        assert pa.load_policy(path) == policy
        path.write_text(path.read_text().replace("Lift", "Unheard"))
        with pytest.raises(ValueError, match="there is no op named 'Unheard'") as caught:
            pa.load_policy(path)
        assert str(caught.value).endswith("; register your own ops with pa.ops.register first")
    assert "ops" not in json.loads(json.dumps(pa.TrivialAugment().to_dict())), "the usual file stays as it was"


def test_check_counts_and_passes(lift):
    assert pa.ops.check("Lift", images=50) == pa.ops.OpCheck(50, 0, 0)


def test_check_names_the_first_difference():
    def off_by_one(images, value):
        raised = add(images, value).clone()
        raised[:, 1, -1, -1] = raised[:, 1, -1, -1].clamp(max=254) + 1
        return raised

    pa.ops.register("Lift", off_by_one, **RAISE, pillow=add_pillow)
    with pytest.raises(AssertionError) as caught:
        pa.ops.check("Lift", images=9)
    message = str(caught.value)
    assert message.startswith("Lift differs from its Pillow function on ")
    assert "of 9 images, by up to 1; first at channel, row, column (1, 31, 31) of an image of 32x32 pixels" in message
    comparison = pa.ops.check("Lift", images=9, tolerance=1)
    assert (comparison.images, comparison.largest) == (9, 1)
    assert comparison.differing > 0


def test_check_is_for_registered_ops(lift):
    with pytest.raises(ValueError, match="Rotate is built in"):
        pa.ops.check("Rotate")
    with pytest.raises(ValueError, match="at least one image must be compared, got 0"):
        pa.ops.check("Lift", images=0)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda images, _: images.float(), r"must return uint8 \(1, 3, 12, 9\), got torch.float32 \(1, 3, 12, 9\)"),
        (lambda images, _: images[:, :1], r"must return uint8 \(1, 3, 12, 9\), got torch.uint8 \(1, 1, 12, 9\)"),
        (lambda images, _: None, "got NoneType"),
    ],
)
def test_a_batch_function_that_returns_something_else(result, message):
    pa.ops.register("Lift", result)
    with pytest.raises(TypeError, match=f"the batch function of Lift {message}|{message}"):
        pa.apply(some_images(1), pa.Program.from_ops([["Lift"]]), "batch")


def test_a_pillow_function_that_returns_something_else():
    pa.ops.register("Lift", lambda images, _: images, pillow=lambda image, _: image.convert("L"))
    with pytest.raises(TypeError, match=r"Pillow function of Lift must return an RGB image of size \(9, 12\), got L"):
        pa.apply(some_images(1), pa.Program.from_ops([["Lift"]]), "pil")


def test_functions_cannot_change_their_input():
    def spoil(images, _):
        return images.fill_(0)

    pa.ops.register("Lift", spoil)
    images = some_images(2)
    before = images.clone()
    pa.apply(images, pa.Program.from_ops([["Lift"], []]), "batch")
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Rotate"}, "Rotate is built in; choose another name for your op"),
        ({"name": "my op"}, "an op's name is a word of letters, digits and underscores, got 'my op'"),
        ({"name": ""}, "an op's name is a word"),
        ({"low": 1, "high": 2}, "has a range or a sign but no unit"),
        ({"unit": "pixels", "low": 2, "high": 2}, "must be finite with low below high, got 2 to 2"),
        ({"unit": "pixels", "low": 0, "high": np.inf}, "must be finite with low below high"),
        ({"unit": "pixels", "low": 0, "high": 5, "signed": True}, "is signed, so its range must contain 0, got 0"),
        ({"unit": "pixels", "low": 0, "high": 5, "neutral": 6}, "neutral of Bad must be in its range 0 to 5, got 6"),
        ({"unit": "pixels", "low": 0, "high": 5, "levels": {"tim": (0, 1)}}, "no semantics named 'tim'; did you mean"),
        (
            {"unit": "pixels", "low": 0, "high": 5, "levels": {"timm": 3}},
            "levels of Bad in timm must be the arguments at",
        ),
    ],
)
def test_registrations_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pa.ops.register(**({"name": "Bad", "batch": add} | arguments))
    with pytest.raises(ValueError, match="no op named 'Bad'"):
        pa.ops.lookup("Bad")


def test_functions_are_needed():
    with pytest.raises(TypeError, match="batch of Bad must be a function, got int"):
        pa.ops.register("Bad", 3)
    with pytest.raises(TypeError, match="pillow of Bad must be a function, got int"):
        pa.ops.register("Bad", add, pillow=3)


@pytest.mark.parametrize(
    ("function", "signature"), [(lambda images: images, "images"), (lambda images, value, more: images, "more")]
)
def test_functions_that_take_other_arguments(function, signature):
    with pytest.raises(TypeError, match=rf"batch of Bad is called with images, uint8 .* but takes \(.*{signature}\); "):
        pa.ops.register("Bad", function)
    with pytest.raises(TypeError, match=r"pillow of Bad is called with a Pillow image and an argument, but takes"):
        pa.ops.register("Bad", add, pillow=function)
    with pytest.raises(ValueError, match="there is no op named 'Bad'"):
        pa.ops.lookup("Bad")


def test_functions_that_take_what_they_are_given():
    class Own:
        def __call__(self, images, *arguments, strength=1):
            return images

    for function in (Own(), add, torch.add):
        pa.ops.register("Lift", function)


MODULE = """
import torch
import particleaugment as pa
{register}

class Samples(torch.utils.data.Dataset):
    def __init__(self, policy):
        self.augment = pa.Augment(policy)
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return self.augment(torch.full((3, 4, 4), 40 * i, dtype=torch.uint8), torch.tensor(i))
"""


@pytest.mark.parametrize("registers", [True, False])
def test_workers_started_by_spawn(registers, tmp_path, monkeypatch):
    """A worker knows what the modules it imports register, and says what is missing otherwise."""
    line = "pa.ops.register('Negate', lambda images, _: 255 - images)"
    name = f"module_that_{'registers' if registers else 'does_not'}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(register=line if registers else ""))
    monkeypatch.syspath_prepend(tmp_path)
    pa.ops.register("Negate", lambda images, _: 255 - images)
    module = __import__(name)
    monkeypatch.setitem(sys.modules, name, module)
    samples = module.Samples(pa.RandAugment(n=1, m=1, ops=("Negate",)))
    loader = torch.utils.data.DataLoader(samples, 2, num_workers=1, multiprocessing_context="spawn")
    if not registers:
        with pytest.raises(ValueError, match=r"no op named 'Negate'.*register your own ops with pa.ops.register first"):
            list(loader)
        return
    batches = torch.cat(list(loader))
    assert batches[:, 0, 0, 0].tolist() == [255, 215, 175, 135]


# Op sets.


def test_the_named_op_sets():
    assert set(pa.ops.AUTHORS_OPS) == {*pa.OPS, "Invert"} - {"Identity"}
    assert set(pa.ops.AUTOAUGMENT_OPS) == {*pa.OPS, "Invert", "Cutout"} - {"Identity", "SolarizeAdd"}
    assert pa.parse("rand-m9").ops == pa.ops.AUTHORS_OPS
    assert pa.ops.OP_SETS["paper"] == pa.OPS
    assert pa.ops.OP_SETS["no-up"] == (*pa.OPS, "FlipX", "FlipY", "Rotate90")
    with pytest.raises(TypeError):
        pa.ops.OP_SETS["mine"] = ("Rotate",)
