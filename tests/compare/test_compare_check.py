"""What a comparison refuses before anything is started or written."""

import gc
import shutil
import weakref

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.compare import data_fit
from particleaugment.compare.arms import Base, parse_arms
from particleaugment.compare.command import compare
from particleaugment.compare.comparison import ComparisonFolder
from particleaugment.compare.data_fit import check_data
from particleaugment.recipes import get_recipe
from particleaugment.training.build import build, resolve
from particleaugment.training.config import ConfigError

PER_CLASS = 12


@pytest.fixture
def pictures(tmp_path):
    """A folder of two classes."""
    root = tmp_path / "pictures"
    values = np.random.default_rng(0).integers(0, 256, (2, PER_CLASS, 20, 24, 3), dtype=np.uint8)
    for name, arrays in zip(("lime", "plum"), values):
        (root / name).mkdir(parents=True)
        for number, array in enumerate(arrays):
            Image.fromarray(array).save(root / name / f"{number}.png")
    return root


def command(*arguments):
    outcome = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome


def refused(tmp_path, *arguments):
    """The sentence of a refused command, which must have written nothing."""
    out = tmp_path / "new" / "c"
    outcome = command(*arguments, "--out", out)
    assert outcome.exit_code == 2
    assert not out.parent.exists()
    assert outcome.stdout == ""
    assert outcome.stderr.count("\n") == 1
    return outcome.stderr.removeprefix("particleaugment: ").strip()


def base_of(recipe, *settings):
    return Base.of(get_recipe(recipe), settings)


@pytest.mark.parametrize("stream", ["auto", "true"])
def test_data_that_are_not_there(tmp_path, stream):
    several = ["--arms", "none,trivialaugment", "--seeds", "0-1", "--set", f"stream={stream}"]
    message = refused(tmp_path, "folder", *several, "--set", f"data_dir={tmp_path}/absent")
    assert message.startswith(f"there is no folder {tmp_path}/absent;")
    assert refused(tmp_path, "folder", *several).startswith("the data set 'folder' needs data_dir")
    message = refused(tmp_path, "cifar10-quick", "--set", f"data_dir={tmp_path}")
    assert message.startswith(f"{tmp_path} contains neither")


def test_a_file_that_is_damaged(tmp_path, pictures):
    (pictures / "plum" / "7.png").write_bytes(b"not a picture")
    message = refused(tmp_path, "folder", "--set", f"data_dir={pictures}")
    assert message == f"{pictures}/plum/7.png is not a readable JPEG, PNG or WebP image; repair it or remove it"


def test_settings_of_all_arms(tmp_path):
    assert refused(tmp_path, "digits", "--set", "validation=5000").startswith("validation=5000 does not fit the data")
    assert refused(tmp_path, "digits", "--set", "model=wrn-10-x").endswith("the form is wrn-DEPTH-WIDTH, like wrn-10-1")


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (
            "none,large:filter=paper,clone_size=4000,difficulty",
            "arm 'large': the search does not fit the data: clone_size and measure_size: ",
        ),
        ("none,large:measure_size=4000", "arm 'large': the search does not fit the data: "),
        ("none,far:data=folder,data_dir=/no/such", "arm 'far': there is no folder /no/such;"),
        ("none,odd:policy=none,model=wrn-11-1", "arm 'odd': depth must be 6k + 4"),
        ("large:measure_size=4000", "the search does not fit the data: "),
    ],
)
def test_an_arm_that_does_not_suit_the_data_is_named(tmp_path, arms, message):
    assert refused(tmp_path, "digits", "--arms", arms).startswith(message)


def test_measure_size_of_the_filters_alone(tmp_path):
    message = refused(tmp_path, "digits", "--arms", "none,difficulty,paper", "--set", "measure_size=5000")
    assert message.startswith("arm 'difficulty': the search does not fit the data")


@pytest.mark.parametrize("stream", ["false", "true"])
def test_data_are_loaded_once_and_dropped(pictures, monkeypatch, stream):
    built = []

    def watched(config, **options):
        parts = build(config, **options)
        built.append([weakref.ref(parts.model), weakref.ref(parts.trainee)])
        if stream == "false":
            built[-1].append(weakref.ref(parts.data.train_images))
        cycle = [parts]  # as the first imports of a process leave some
        cycle.append(cycle)
        return parts

    monkeypatch.setattr(data_fit, "build", watched)
    monkeypatch.setenv("XDG_CACHE_HOME", str(pictures.parent / "cache"))
    base = base_of("folder", f"data_dir={pictures}", "measure_size=4", f"stream={stream}")
    gc.disable()
    try:
        check_data(parse_arms("none,trivialaugment,paper,difficulty,mine:model=resnet-50"), base)
        kept = [reference() is not None for references in built for reference in references]
    finally:
        gc.enable()
    assert len(built) == 1
    assert not any(kept)


def test_a_request_for_what_the_machine_lacks(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^device=cuda was requested, but torch sees no CUDA device"):
        check_data(parse_arms("none,difficulty"), base_of("digits", "device=cuda"))


def test_a_comparison_whose_data_have_gone_stays_as_it_is(tmp_path, pictures):
    folder = ComparisonFolder(tmp_path / "c")
    base = base_of("folder", f"data_dir={pictures}")
    folder.path.mkdir()
    folder.write(folder.plan(base, parse_arms("none"), (0,)))
    before = folder.file.read_bytes()
    shutil.rmtree(pictures)
    outcome = command(
        "folder", "--arms", "none", "--seeds", "0-1", "--set", f"data_dir={pictures}", "--out", folder.path
    )
    assert outcome.exit_code == 2
    assert f"there is no folder {pictures}" in outcome.stderr
    assert folder.file.read_bytes() == before
    assert not folder.page.exists()


def test_a_folder_of_other_files_is_left_alone(tmp_path, pictures):
    before = sorted(tmp_path.rglob("*"))
    outcome = command("digits", "--out", pictures)
    assert outcome.exit_code == 2
    assert f"{pictures} contains files but no compare.json" in outcome.stderr
    assert "choose a new or an empty folder with --out" in outcome.stderr
    outcome = command("digits", "--out", pictures / "lime" / "0.png")
    assert outcome.exit_code == 2
    assert "0.png is a file, not a comparison folder" in outcome.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_that_are_free(tmp_path):
    ComparisonFolder(tmp_path / "absent").refuse_strangers()
    ComparisonFolder(tmp_path).refuse_strangers()
    (tmp_path / ".lock").touch()
    ComparisonFolder(tmp_path).refuse_strangers()
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=r"contains files but no compare\.json"):
        ComparisonFolder(tmp_path).refuse_strangers()
    (tmp_path / "compare.json").touch()
    ComparisonFolder(tmp_path).refuse_strangers()


def test_without_arms_the_filter_is_the_one_that_train_uses():
    *_, arm = parse_arms(compare.__defaults__[0])
    assert arm.config(base_of("digits"), seed=0) == resolve(get_recipe("digits").config)
    assert compare.__defaults__[1] == "0-2"
