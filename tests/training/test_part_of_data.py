"""Runs on part of their data, and on data whose groups must not be split."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from runs import StopAfter, command, config_of, finish, result, session_of

from particleaugment.data.identity import data_identity
from particleaugment.recipes import get_recipe
from particleaugment.training.build import build
from particleaugment.training.config import Config, ConfigError
from particleaugment.training.settings import DataSettings

SMALL = ["epochs=2", "train_size=60", "batch_size=20", "clone_size=20", "measure_size=10"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def digits_of(*assignments):
    said = []
    parts = build(config_of(*assignments), said.append)
    return parts.data, said


# A subset.


def test_a_run_on_300_digits(tmp_path):
    path = tmp_path / "run"
    settings = ["train_size=300", "data_seed=4", "epochs=1", "policy=trivial", "precision=fp32"]
    outcome = command("train", "digits", *(word for setting in settings for word in ("--set", setting)), "--out", path)
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines()[0] == "300 training images (train_size=300), 360 test images"
    page = (path / "report.html").read_text()
    assert "wrn-10-1 on digits (train_size=300), 1 of 1 epochs" in page
    assert "--set train_size=300 --set data_seed=4 " in page
    saved = json.loads((path / "config.json").read_text())["data"]
    assert (saved["train_size"], saved["data_seed"], saved["groups"]) == (300, 4, "none")


def test_the_images_depend_on_the_data_seed_alone():
    common = ("train_size=300", "validation=100")
    first, said = digits_of("seed=0", *common)
    assert said == ["300 training images (train_size=300), 100 test images"]
    for seed in (1, 7):
        again, _ = digits_of(f"seed={seed}", *common)
        assert torch.equal(again.train_images, first.train_images)
        assert torch.equal(again.test_images, first.test_images)
    other, _ = digits_of("seed=0", "data_seed=1", *common)
    assert len(other.train_images) == 300
    assert not torch.equal(other.train_images, first.train_images)
    assert not torch.equal(other.test_images, first.test_images)
    judged, said = digits_of("validation=100")
    assert torch.equal(judged.test_images, first.test_images), "whatever the size of the training set"
    assert said == []


def test_a_run_on_part_of_the_data_is_resumed(tmp_path, no_report):
    straight, path = tmp_path / "straight", tmp_path / "stopped"
    session, ended = finish(straight, *SMALL)
    assert ended
    assert len(session.samples) == 60
    assert not finish(path, *SMALL, stop=StopAfter(9))[1]

    saved = (path / "config.json").read_text()
    for change in ('"train_size": 61', '"train_size": 0.5', '"data_seed": 1'):
        name = change.partition(":")[0]
        (path / "config.json").write_text(re.sub(f"{name}: [0-9.]+", change, saved))
        outcome = command("resume", path, "--quiet")
        assert outcome.exit_code == 1
        assert "does not belong to the run's config.json" in outcome.stderr
    (path / "config.json").write_text(saved)
    assert finish(path)[1]
    assert result(path) == result(straight)


def test_settings_that_a_configuration_does_not_name_are_the_usual_ones():
    text = config_of().to_json()
    old = json.loads(text)
    for name in ("train_size", "data_seed", "groups"):
        del old["data"][name]
    config = Config.from_json(json.dumps(old))
    assert config == config_of()
    assert (config.data.train_size, config.data.data_seed, config.data.groups) == (1.0, 0, "none")
    assert config.to_json() == text


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train_size=0", "train_size must be a number of images above 0, or a fraction from 0.0 to 1.0, got 0"),
        ("train_size=-3", "train_size must be a number of images above 0"),
        ("train_size=1.5", "got 1.5; 1.0 is all of them"),
        ("train_size=true", "train_size takes a whole number or a number, got 'true'"),
        ("data_seed=-1", "data_seed must not be negative, got -1"),
        ("data_seed=9223372036854775808", "data_seed must be at most 9223372036854775807"),
        ("groups=folder", "groups must be one of none, prefix, class-prefix, got 'folder'"),
        ("groups=prefix", "groups is for image files, and 'digits' has none; set groups=none"),
    ],
)
def test_settings_that_cannot_be(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_recipe("digits").override([assignment])


def test_a_size_that_is_no_number():
    with pytest.raises(ConfigError, match="train_size must be a number of images or a fraction, got True"):
        DataSettings(train_size=True)
    with pytest.raises(ConfigError, match=r"data\.train_size takes a whole number or a number, got True"):
        Config.from_json('{"version": 2, "recipe": "x", "data": {"train_size": true}}')


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train_size=2000"], "train_size=2000 is more than the 1,437 training images; use at most that many"),
        (["train_size=9"], "each of the 10 classes needs an image, so the smallest is 10"),
        (["train_size=1"], "for all images use train_size=1.0"),
    ],
)
def test_sizes_that_do_not_suit_the_data_leave_nothing_behind(settings, message, tmp_path):
    words = [word for setting in settings for word in ("--set", setting)]
    for request in (["train", "digits"], ["compare", "digits", "--arms", "none,difficulty"]):
        outcome = command(*request, *words, "--out", tmp_path / "new")
        assert outcome.exit_code == 2
        assert message in outcome.stderr
        assert len(outcome.stderr.splitlines()) == 1
        assert not (tmp_path / "new").exists()


def test_a_comparison_keeps_to_its_part_of_the_data(tmp_path):
    common = ["digits", "--arms", "none", "--seeds", "0", "--set", "epochs=1", "--out", tmp_path / "c"]
    assert command("compare", *common, "--set", "train_size=60").exit_code == 0
    assert "wrn-10-1 on digits (train_size=60), 1 epochs" in (tmp_path / "c" / "compare.html").read_text()
    outcome = command("compare", *common, "--set", "train_size=70")
    assert outcome.exit_code == 2
    assert "was started with train_size=60, and now train_size=70 is requested" in outcome.stderr


# Groups.

GROUPED = [
    "model=wrn-10-1", "image_size=16", "epochs=3", "batch_size=8", "precision=fp32", "device=cpu",
    "measure_size=12", "validation=0.2", "train_size=0.8", "workers=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def signs(tmp_path_factory):
    """Three classes of five tracks, each of 4 to 6 pictures."""
    root = tmp_path_factory.mktemp("signs")
    for label, name in enumerate(("stop", "turn", "yield")):
        for folder in ("train", "val"):
            (root / folder / name).mkdir(parents=True)
        for track in range(6):
            folder = "train" if track < 5 else "val"
            for number in range(4 + (track + label) % 3):
                coarse = np.random.default_rng([label, track, number]).integers(0, 256, (4, 5, 3), dtype=np.uint8)
                picture = Image.fromarray(coarse).resize((24, 20), Image.Resampling.BICUBIC)
                picture.save(root / folder / name / f"{track}_{number}.png")
    return root


@pytest.mark.parametrize("grouping", ["prefix", "class-prefix"])
def test_runs_on_whole_tracks_in_memory_and_streamed(signs, grouping, tmp_path, no_report, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = []
    for stream in ("false", "true"):
        path = tmp_path / stream
        settings = [f"data_dir={signs}", *GROUPED, f"groups={grouping}", f"stream={stream}"]
        config = get_recipe("folder").override([*settings, "crop=2"])
        assert config.filter.held_out_of(100) == 12
        words = [word for setting in [*settings, "crop=2"] for word in ("--set", setting)]
        outcome = command("train", "folder", *words, "--out", path)
        assert outcome.exit_code == 0
        session = session_of(path)
        groups, samples = session.data.train_groups, len(session.samples)
        assert len(groups) == samples
        trained = session.search.division.ids_in(1)
        held_out = torch.ones(samples, dtype=torch.bool)
        held_out[trained] = False
        assert 0 < len(trained) < samples
        assert set(groups[trained].tolist()).isdisjoint(groups[held_out].tolist())
        said = outcome.stdout.splitlines()
        assert said[0].startswith(f"{samples} training images in {len(groups.unique())} groups (train_size=0.8 of ")
        assert said[1] == f"{int(held_out.sum())} images are held out for measuring, in whole groups (measure_size=12)"
        results.append(result(path))
        session.close()
    assert results[0] == results[1]


def test_renamed_files_are_other_data(signs, tmp_path, monkeypatch):
    """In memory nothing else would tell that the groups have changed, which decide what is held out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = [f"data_dir={signs}", *GROUPED, "validation=0", "train_size=1.0", "stream=false"]
    identities = []
    for grouping in ("none", "prefix", "class-prefix"):
        config = get_recipe("folder").override([*settings, f"groups={grouping}"])
        identities.append(data_identity(build(config, say=lambda sentence: None).data, seed=0))
    assert len(set(identities)) == 3


def test_a_name_without_a_group_stops_a_run_before_it_starts(signs, tmp_path):
    root = tmp_path / "pictures"
    for file in signs.glob("*/*/*.png"):
        copy = root / file.relative_to(signs)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (root / "train" / "stop" / "0_0.png").rename(root / "train" / "stop" / "first.png")
    words = [word for setting in [f"data_dir={root}", *GROUPED, "groups=prefix"] for word in ("--set", setting)]
    for request in (["train", "folder"], ["compare", "folder", "--arms", "none,difficulty"]):
        outcome = command(*request, *words, "--out", tmp_path / "new")
        assert outcome.exit_code == 2
        assert f"{root}/train/stop/first.png has no group in its name: groups=prefix reads" in outcome.stderr
        assert len(outcome.stderr.splitlines()) == 1
        assert not (tmp_path / "new").exists()


# The ops of fixed policies.


@pytest.mark.parametrize("policy", ["trivial", "trivial-standard", "randaugment-n2-m5", "rand-m9-n3-mstd0.5-inc1"])
def test_fixed_policies_draw_from_the_ops_of_the_configuration(policy):
    changed = config_of(f"policy={policy}", "ops=Rotate,ShearX,Color").fixed_policy()
    assert changed.ops == ("Rotate", "ShearX", "Color")
    names = {
        name for program in [changed.sample(torch.arange(200))] for n in range(200) for name, _ in program.describe(n)
    }
    assert names == {"Rotate", "ShearX", "Color"}
    published = config_of(f"policy={policy}").fixed_policy()
    assert len(published.ops) > 3, "the default leaves a policy its own ops"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("autoaugment-cifar10", "policy=autoaugment-cifar10 cannot draw from these ops: it names its own ops"),
        ("v0r-mstd0.5", "policy=v0r-mstd0.5 cannot draw from these ops: it names its own ops"),
        ("rand-m9-tweights", "policy=rand-m9-tweights cannot draw from these ops: it has weights for timm's ops"),
        ("schedule:a.json", "ops cannot be changed for policy=schedule:a.json: its file names them; omit ops"),
        ("file:a.json", "ops cannot be changed for policy=file:a.json: its file names them; omit ops"),
    ],
)
def test_policies_whose_ops_cannot_be_changed(policy, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        config_of(f"policy={policy}", "ops=Rotate,ShearX,Color")
    assert config_of(f"policy={policy}").policy == policy


def test_ops_that_a_policy_cannot_use():
    with pytest.raises(
        ConfigError, match="policy=trivial cannot draw from these ops: semantics 'trivial-wide' does not"
    ):
        config_of("policy=trivial", "ops=Rotate,SolarizeAdd")
    with pytest.raises(ConfigError, match="did you mean Rotate"):
        config_of("policy=trivial", "ops=Rotat")
    assert config_of("policy=none", "ops=Rotate,ShearX,Color").fixed_policy().ops == ()


def test_a_run_with_other_ops_saves_them(tmp_path, no_report):
    path = tmp_path / "run"
    finish(path, *SMALL, "epochs=1", "policy=trivial", "ops=Rotate,Color")
    assert json.loads((path / "policy.json").read_text())["ops"] == ["Rotate", "Color"]
