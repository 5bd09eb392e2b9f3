"""Ops that change nothing on the data are left out: Color, where all images are grey."""

import logging

import pytest
import torch
from PIL import Image
from runs import StopAfter, command, finish, result, session_of
from toy import IMAGES, LABELS

import particleaugment as pa
from particleaugment.core.op_table import NO_UP_OPS, OPS
from particleaugment.core.program import Program
from particleaugment.policies.trivial import TrivialAugment
from particleaugment.recipes import get_recipe
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.checkpoint_content import check_content
from particleaugment.training.run import RunFolder

GREY = IMAGES[:, :1].expand(-1, 3, -1, -1).contiguous()
LINE = "Color changes nothing on grey images and is left out"


def search_on(images, filter=None, **settings):
    said = []
    filter = filter or pa.PaperFilter(measure_size=12, clone_size=24, num_particles=4)
    search = pa.ParticleAugment((images, LABELS), epochs=4, filter=filter, say=said.append, **settings)
    return search, said


@pytest.mark.parametrize("executor", ["pil", "native", "batch"])
@pytest.mark.parametrize("argument", [0.0, 0.3, 1.9, 10.0])
def test_color_changes_nothing_on_grey_images(executor, argument):
    color = pa.OPS.index("Color")
    program = Program(
        op=torch.full((len(GREY), 1), color),
        arg=torch.full((len(GREY), 1), argument, dtype=torch.float64),
    )
    assert torch.equal(pa.apply(GREY, program, executor), GREY)
    assert not torch.equal(pa.apply(IMAGES, program, executor), IMAGES)


@pytest.mark.parametrize("op", sorted({*OPS, *TrivialAugment.ops, *NO_UP_OPS}))
def test_of_a_grey_image_every_op_makes_a_grey_one(op):
    program = pa.RandAugment(n=1, m=7, ops=(op,)).sample(torch.arange(len(GREY)), size=(8, 8))
    found = pa.apply(GREY, program)
    assert torch.equal(found, found[:, :1].expand_as(found))


def test_color_is_left_out_where_images_are_grey():
    search, said = search_on(GREY)
    assert said == [LINE]
    assert search.ops == search.policy.ops == tuple(name for name in OPS if name != "Color")
    assert search.state.particles.particles.shape == (4, 14)


def test_one_coloured_pixel_keeps_it():
    images = GREY.clone()
    images[17, 2, 3, 3] ^= 1
    search, said = search_on(images)
    assert (search.ops, said) == (OPS, [])


def test_one_channel_is_grey():
    search, said = search_on(GREY[:, :1])
    assert "Color" not in search.ops
    assert said == [LINE]


def test_a_filter_with_a_default_set_of_its_own_loses_color_from_that():
    search, said = search_on(GREY, pa.DifficultyFilter(measure_size=12))
    assert said == [LINE]
    assert search.policy.ops == tuple(name for name in TrivialAugment.ops if name != "Color")
    coloured, said = search_on(IMAGES, pa.DifficultyFilter(measure_size=12))
    assert (coloured.policy.ops, said) == (TrivialAugment.ops, [])


@pytest.mark.parametrize("ops", [("Rotate", "Color"), ("Color",)])
def test_ops_that_somebody_chose_are_kept(ops):
    search, said = search_on(GREY, pa.PaperFilter(measure_size=12, clone_size=24, num_particles=4, nonzero=1), ops=ops)
    assert (search.ops, said) == (ops, [])


def test_settings_for_each_of_fifteen_ops_keep_all_fifteen():
    filter = pa.PaperFilter(measure_size=12, clone_size=24, num_particles=4, velocity=(0.01,) * 15)
    search, said = search_on(GREY, filter)
    assert (search.ops, said) == (OPS, [])


class Pictures:
    """A data set of Pillow images that counts how often it is read."""

    targets = (torch.arange(200) % 4).tolist()

    def __init__(self, mode):
        self.mode, self.reads = mode, 0

    def __len__(self):
        return 200

    def __getitem__(self, index):
        self.reads += 1
        if self.mode == "float":
            return torch.zeros(3, 8, 8), index % 4
        colour = index if self.mode == "L" else (index, index, index + (self.mode == "coloured"))
        return Image.new("L" if self.mode == "L" else "RGB", (8, 8), colour), index % 4


@pytest.mark.parametrize(("mode", "left_out"), [("L", True), ("grey", True), ("coloured", False)])
def test_data_sets_are_judged_by_a_few_images(mode, left_out, caplog):
    data = Pictures(mode)
    with caplog.at_level(logging.WARNING, "particleaugment"):
        search = pa.ParticleAugment(data, epochs=4, filter=pa.PaperFilter(measure_size=12))
    assert ("Color" not in search.ops) == left_out
    assert [record.getMessage() for record in caplog.records] == [LINE] * left_out
    assert 1 <= data.reads <= 32


def test_images_that_cannot_be_read_are_not_refused_here():
    search = pa.ParticleAugment(Pictures("float"), epochs=4, filter=pa.PaperFilter(measure_size=12))
    assert search.ops == OPS


def test_a_search_goes_on_with_the_ops_it_has():
    search, _ = search_on(GREY)
    again, _ = search_on(GREY)
    again.load_state_dict(search.state_dict())
    assert again.state_dict()["ops"] == list(search.ops)
    coloured, _ = search_on(IMAGES)
    with pytest.raises(ValueError, match="the saved search has a different ops"):
        coloured.load_state_dict(search.state_dict())


# Runs.

OPTIONS = ["epochs=2", "train_size=60", "batch_size=20", "measure_size=10", "precision=fp32"]


def train(path, *settings):
    return command("train", "digits", *(word for each in settings for word in ("--set", each)), "--out", path)


@pytest.mark.parametrize("kind", ["paper", "difficulty"])
def test_a_run_on_digits_names_what_it_leaves_out(kind, tmp_path, no_report):
    few = ["clone_size=20"] if kind == "paper" else []
    outcome = train(tmp_path / "run", *OPTIONS, *few, f"filter={kind}")
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines().count(LINE) == 1
    assert "Color" not in pa.load_policy(tmp_path / "run" / "policy.json").ops
    verified = command("verify", tmp_path / "run").stdout.splitlines()
    assert next(line for line in verified if line.startswith("policy")).split()[1] != "WRONG"


@pytest.mark.parametrize("settings", [["ops=Rotate,Color", "filter=difficulty"], ["policy=trivial"]])
def test_a_run_whose_ops_or_policy_are_named_keeps_them(settings, tmp_path, no_report):
    outcome = train(tmp_path / "run", *OPTIONS, *settings)
    assert outcome.exit_code == 0
    assert LINE not in outcome.stdout
    assert "Color" in pa.load_policy(tmp_path / "run" / "policy.json").ops


@pytest.mark.parametrize("kind", ["paper", "difficulty"])
def test_a_stopped_run_ends_as_one_that_never_was(kind, tmp_path, tiny, no_report):
    def folder(name):
        return RunFolder.create(tmp_path / name, get_recipe("digits").override([*OPTIONS, *few, f"filter={kind}"])).path

    few = ["clone_size=20"] if kind == "paper" else []
    whole, path = folder("whole"), folder("run")
    assert finish(whole)[1]
    assert not finish(path, stop=StopAfter(7))[1]
    assert find_checkpoints(path)
    assert finish(path)[1]
    assert result(path) == result(whole)
    assert "Color" not in pa.load_policy(path / "policy.json").ops


def test_a_checkpoint_has_the_ops_of_its_run_or_those_without_colour(tmp_path, tiny, no_report):
    assert not finish(tmp_path / "run", "epochs=2", stop=StopAfter(7))[1]
    session = session_of(tmp_path / "run")
    state = session._read_checkpoint()
    check_content(state, 1 << 30)
    state["search"]["ops"] = state["search"]["ops"][1:]
    with pytest.raises(ValueError, match=r"search\.ops must be"):
        check_content(state, 1 << 30)


def grey_folder(path, mode="L"):
    for number in range(40):
        folder = path / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        colour = 6 * number if mode == "L" else (6 * number, 3 * number, 99 - number)
        Image.new(mode, (16, 16), colour).save(folder / f"{number}.png")
    return path


@pytest.mark.parametrize(("mode", "left_out"), [("L", True), ("RGB", False)])
@pytest.mark.parametrize("stream", ["true", "false"])
def test_folders_in_memory_and_streamed(mode, left_out, stream, tmp_path):
    place = grey_folder(tmp_path / "images", mode)
    settings = [f"data=folder:{place}", "image_size=16", f"stream={stream}", "workers=0", "filter=paper"]
    session = session_of(tmp_path / "run", *settings, "batch_size=8", "measure_size=8")
    assert ("Color" not in session.search.ops) == left_out
    session.close()
