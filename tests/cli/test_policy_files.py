"""Runs that are given a policy file keep it, and op sets have names."""

import json
from dataclasses import replace

import pytest
import torch
from runs import StopAfter, leave_out_report
from toy import search_of
from typer.testing import CliRunner

import particleaugment as pa
from particleaugment.cli.main import app
from particleaugment.data import load_digits
from particleaugment.policies.schedule import ScheduleStep
from particleaugment.recipes import get_recipe
from particleaugment.training import loop
from particleaugment.training.config import ConfigError
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop


@pytest.fixture(autouse=True)
def small_runs(monkeypatch):
    """60 digits, one thread, no report."""
    data = load_digits()
    few = {name: getattr(data, name)[:60] for name in ("train_images", "train_labels", "test_images", "test_labels")}
    monkeypatch.setattr("particleaugment.training.build.load_data", lambda *_, **__: replace(data, **few))
    leave_out_report(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(*assignments):
    return get_recipe("digits").override(["filter=paper", "epochs=2", "batch_size=20", "precision=fp32", *assignments])


def finish(path, *assignments, stop=None):
    """Start or continue a run; returns the session, and whether it came to its end."""
    run = RunFolder.open(path) if path.exists() else RunFolder.create(path, config_of(*assignments))
    session = Session(run, Display(quiet=True), stop or Stop(), 0.0)
    session.restore()
    return session, loop.train(session)


def result(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), records


@pytest.mark.parametrize("prefix", ["schedule", "file"])
def test_a_run_keeps_the_policy_file_it_was_given(tmp_path, monkeypatch, prefix):
    """Another network replays the schedule, and goes on after the recording is gone and from another folder."""
    source = tmp_path / "recorded.json"
    search_of(num_particles=3, nonzero=3, start_value=0.9, seed=0, m=3).schedule(2).save(source)
    settings = ["model=wrn-10-2", f"policy={prefix}:recorded.json"]
    monkeypatch.chdir(tmp_path)
    finish(tmp_path / "whole", *settings)
    _, ended = finish(tmp_path / "parted", *settings, stop=StopAfter(3))
    assert not ended
    assert (tmp_path / "parted" / "given-policy.json").read_bytes() == source.read_bytes()
    source.unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "parted").rename(tmp_path / "moved")
    _, ended = finish(tmp_path / "moved")
    assert ended
    assert result(tmp_path / "moved") == result(tmp_path / "whole")
    (tmp_path / "moved" / "given-policy.json").unlink()
    with pytest.raises(ConfigError, match=r"there is no policy file recorded\.json"):
        finish(tmp_path / "moved")


def test_any_policy_file_trains_a_network(tmp_path):
    policy = pa.SubPolicies([[("Cutout", 1.0, 0.9), ("Rotate", 0.5, 0.7)]], "fast-autoaugment")
    policy.save(tmp_path / "cut.json")
    session, ended = finish(tmp_path / "run", f"policy=file:{tmp_path / 'cut.json'}", "epochs=1")
    assert ended
    assert session.current_policy() == policy


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("schedule:{}/list.json", "holds a policy of kind 'sub-policies', not a schedule"),
        ("file:{}/nowhere.json", "there is no policy file .*nowhere"),
        ("file:{}/damaged.json", "damaged.json"),
    ],
)
def test_a_policy_file_is_read_before_the_folder_is_made(tmp_path, policy, message):
    pa.SubPolicies([[("Invert", 1.0, 0)]]).save(tmp_path / "list.json")
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(ConfigError, match=message):
        RunFolder.create(tmp_path / "run", config_of(f"policy={policy.format(tmp_path)}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.json", "list.json"]


@pytest.mark.parametrize(("name", "semantics"), [("autoaugment", "autoaugment-original"), ("no-up", "timm-increasing")])
def test_a_run_learns_from_another_op_set(tmp_path, name, semantics):
    settings = [f"ops={name}", f"semantics={semantics}", "m=3", "num_particles=3"]
    session, ended = finish(tmp_path / "run", *settings, "clone_size=20", "measure_size=10")
    assert ended
    assert session.search.steps_taken == 1
    assert pa.Schedule.load(tmp_path / "run" / "policy.json").ops == pa.ops.OP_SETS[name]


def test_op_sets_by_name():
    assert config_of("ops=authors").ops == pa.ops.AUTHORS_OPS
    assert config_of("ops=autoaugment", "semantics=autoaugment-original", "m=3").ops == pa.ops.AUTOAUGMENT_OPS
    assert config_of("ops=paper").ops == pa.OPS
    assert config_of("ops=no-up").ops == (*pa.OPS, "FlipX", "FlipY", "Rotate90")
    with pytest.raises(ConfigError, match="does not define Cutout; these do: autoaugment-original, fast-autoaugment"):
        config_of("ops=autoaugment")


def test_show_takes_a_runs_folder_and_an_epoch(tmp_path):
    high, low = torch.full((2, 15), 0.6), torch.full((2, 15), 0.1)
    steps = (ScheduleStep(1, high, torch.ones(2)), ScheduleStep(4, low, torch.ones(2)))
    pa.Schedule(steps, epochs=5).save(tmp_path / "policy.json")

    def shown(*arguments):
        return CliRunner().invoke(app, ["policy", "show", str(tmp_path), *arguments])

    assert "1.40 ops per image" in " ".join(shown().output.split())
    assert "8.40 ops per image" in " ".join(shown("--epoch", "3").output.split())
    outcome = shown("--epoch", "6")
    assert (outcome.exit_code, outcome.stderr) == (2, "particleaugment: the schedule has the epochs 1 to 5, got 6\n")


def test_commands_take_a_run_folder_for_its_policy(tmp_path):
    pa.MixtureSchedule(((1, 0.0, (0.0, 0.0)), (5, 1.0, (1.0, 1.0))), epochs=9).save(tmp_path / "policy.json")
    picture = tmp_path / "gallery.png"

    def drawn(*options):
        outcome = CliRunner().invoke(app, ["policy", "gallery", *map(str, options), "--out", str(picture)])
        assert outcome.exit_code == 0, outcome.output
        return picture.read_bytes()

    last = drawn(tmp_path)
    assert last == drawn(tmp_path / "policy.json", "--epoch", 9) != drawn(tmp_path, "--epoch", 4), "as show does"
    exported = CliRunner().invoke(app, ["policy", "export", str(tmp_path), "--to", "json"])
    assert exported.exit_code == 0, exported.output
    outcome = CliRunner().invoke(app, ["policy", "gallery", "--epoch", "3"])
    assert (outcome.exit_code, "name the file too" in outcome.output) == (2, True)
