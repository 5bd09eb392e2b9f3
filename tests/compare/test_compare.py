"""Comparisons without training: what a folder of runs becomes, and what is refused."""

import io
import json
import re
import shutil
from dataclasses import replace

import pytest
from pages import check_self_contained, check_well_formed, outline
from rich.console import Console
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.compare.arm_summary import arm_summaries, differences, print_comparison, remarks
from particleaugment.compare.arms import Base, parse_arms, parse_seeds
from particleaugment.compare.command import _command_text
from particleaugment.compare.comparison import Comparison, ComparisonFolder
from particleaugment.compare.comparison_page import render
from particleaugment.compare.run_record import RunRecord
from particleaugment.recipes import get_recipe
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError, locked_folder

EPOCHS = 4
SETTINGS = [f"epochs={EPOCHS}", "num_particles=4"]
BASE = Base.of(get_recipe("digits"), SETTINGS)
MINE = "mine:filter=paper,sigma=0.01"


def write_run(folder, record, config, accuracies, finished=True):
    """A run folder as training leaves it."""
    run = folder.open_run(record, config)
    for epoch, accuracy in enumerate(accuracies, 1):
        line = {"kind": "epoch", "epoch": epoch, "train_loss": 2.0 / epoch, "test_accuracy": accuracy}
        line |= {"test_loss": 1.0 / epoch, "learning_rate": 0.1}
        if config.searches:
            line["ops_per_image"] = 0.7
        run.append_metrics(line | {"seconds": {"train": 10.0, "evaluate": 1.0, "resumes": 0}})
        if config.searches and epoch < config.training.epochs:
            step = {"kind": "filter", "epoch": epoch, "step": epoch, "skip_reason": None, "resampled": False}
            step |= {"d0": 1.0, "delta": [1.0], "standard_error": [0.1]}
            step |= {"effective_sample_size": 4.0, "ops_per_image": 0.7}
            run.append_metrics(step | {"seconds": {"clone": 3.0, "measure": 2.0, "filter": 0.5, "resumes": 0}})
    if finished:
        run.model.touch()


def curve(last):
    return [last - 30, last - 10, last + 0.25, last]


def comparison_in(path, arms=f"none,trivialaugment,{MINE}", seeds="0-2", accuracy=None, base=BASE):
    """A folder whose runs are finished where ``accuracy`` (arm, seed) has a value."""
    folder = ComparisonFolder(path)
    path.mkdir(exist_ok=True)
    plan = folder.plan(base, parse_arms(arms), parse_seeds(seeds))
    for record in plan.runs:
        last = (accuracy or standard_accuracy)(record.arm, record.seed)
        if last is not None:
            write_run(folder, record, plan.arm(record.arm).config(base, record.seed), curve(last))
    plan = folder.refresh(plan)
    folder.write(plan)
    return folder, plan


def standard_accuracy(arm, seed):
    return 90.0 + seed + {"none": 0.0, "trivialaugment": 0.5 + 0.1 * seed, "mine": -1.0}[arm]


def command(*arguments):
    outcome = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome


def printed(comparison, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_comparison(comparison, console)
    return console.file.getvalue()


def test_figures(tmp_path):
    _, comparison = comparison_in(tmp_path / "c")
    none, trivial, mine = arm_summaries(comparison.arms, comparison.runs)
    assert (none.arm, none.runs, none.mean, none.standard_deviation) == ("none", 3, 91.0, 1.0)
    assert none.best_epoch_mean == 91.25
    assert (none.seconds, none.search_overhead) == (44.0, 0.0)
    assert trivial.overhead == {"evaluate": 10.0}
    # Three filter steps, of 3, 2 and 0.5 seconds, in a run that trains for 40.
    assert mine.overhead == {"evaluate": 10.0, "clone": 22.5, "measure": 15.0, "filter": 3.75}
    assert mine.search_overhead == 41.25
    above, below = differences(comparison.arms, comparison.runs, "none")
    assert (above.arm, above.points.pairs, round(above.points.mean, 6)) == ("trivialaugment", 3, 0.6)
    # The differences are 0.5, 0.6 and 0.7: deviation 0.1, t 4.3027, so 0.2484 on either side.
    assert above.points.low == pytest.approx(0.3516, abs=1e-4)
    assert above.points.high == pytest.approx(0.8484, abs=1e-4)
    assert (below.points.low, below.points.mean, below.points.high) == pytest.approx((-1.0, -1.0, -1.0))


def test_file_holds_everything(tmp_path):
    folder, comparison = comparison_in(tmp_path / "c")
    assert folder.read() == comparison
    document = json.loads(folder.file.read_text())
    assert document["recipe"] == "digits"
    assert document["config"]["training"]["epochs"] == EPOCHS
    assert document["summary"][0]["best_epoch_mean"] == 91.25
    assert document["differences"][0]["pairs"] == 3
    assert document["runs"][0]["accuracy"] == curve(90.0)
    shutil.rmtree(tmp_path / "c" / "runs")
    assert folder.refresh(comparison) == comparison, "finished runs keep their figures without their folders"


def test_table(tmp_path):
    _, comparison = comparison_in(tmp_path / "c")
    text = printed(comparison)
    assert "91.00 ± 1.00" in text
    assert "+0.60 [+0.35, +0.85] " in text
    assert "not a result" in text
    assert max(map(len, printed(comparison, width=80).splitlines())) <= 80
    assert "-0.60 [-0.85, -0.35] " in printed(comparison.compared_with("trivialaugment"))


def test_one_seed_has_no_interval(tmp_path):
    _, comparison = comparison_in(tmp_path / "c", seeds="7")
    text = printed(comparison)
    assert "+1.20, no interval" in text
    assert "±" not in text.replace("(± deviation", "")
    assert any("Only one finished run" in remark for remark in remarks(comparison))
    page = render(comparison)
    check_well_formed(page)
    assert "+1.20, no interval" in page


def test_unpaired_and_unfinished_runs_are_named(tmp_path):
    def accuracy(arm, seed):
        return None if (arm, seed) in {("trivialaugment", 1), ("mine", 0), ("mine", 1), ("mine", 2)} else 90.0 + seed

    folder, comparison = comparison_in(tmp_path / "c", accuracy=accuracy)
    record = next(run for run in comparison.unfinished if run.arm == "mine")
    write_run(folder, record, comparison.arm("mine").config(BASE, 0), curve(80.0)[:2], finished=False)
    comparison = folder.refresh(comparison)
    assert [summary.arm for summary in arm_summaries(comparison.arms, comparison.runs)] == ["none", "trivialaugment"]
    (difference,) = differences(comparison.arms, comparison.runs, "none")
    assert (difference.points.pairs, difference.points.left_out) == (2, 1)
    for text in (printed(comparison), render(comparison)):
        assert "trivialaugment, seed 1: not started; excluded." in text
        assert "mine, seed 0: epoch 2 of 4; excluded." in text
        assert "minus none: 1 run without a partner of the same seed is left out; 2 pairs remain." in text
    assert "5 of 9 runs finished" in render(comparison)


def test_a_failed_run_is_told_once_with_its_log(tmp_path, monkeypatch):
    folder, problem = ComparisonFolder(tmp_path / "c"), "the loss is nan in epoch 1"

    def fail(folder, plan, todo, *others):
        folder.log_path(todo[1]).parent.mkdir()
        folder.log_path(todo[1]).write_text(problem)
        return plan.with_runs([replace(run, problem=problem) for run in todo])

    monkeypatch.setattr("particleaugment.compare.execute.execute", fail)
    arguments = ["digits", "--arms", "none", "--seeds", "0-1", "--out", folder.path]
    log = folder.log_path(RunRecord(arm="none", seed=1, epochs=1))
    with_log = f"none, seed 1: failed: {problem}; excluded; log: {log}."
    outcome = command(*arguments)
    assert (outcome.exit_code, outcome.stderr) == (1, "")
    told = [line for line in outcome.stdout.splitlines() if problem in line]
    assert told == [f"none, seed 0: failed: {problem}; excluded.", with_log]
    assert "excluded" in render(folder.read())
    assert str(tmp_path) not in render(folder.read())
    shutil.rmtree(folder.path)
    outcome = command(*arguments, "--quiet")
    assert (outcome.exit_code, outcome.stdout) == (1, ""), "quiet keeps errors alone"
    assert outcome.stderr.splitlines() == [f"particleaugment: {line}" for line in told]


def test_nothing_finished_yet(tmp_path):
    _, comparison = comparison_in(tmp_path / "c", accuracy=lambda arm, seed: None)
    assert "none, seed 0: not started" in printed(comparison)
    check_well_formed(render(comparison))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    _, comparison = comparison_in(tmp_path_factory.mktemp("page") / "c")
    machine = {"cpu": "a <fast> one", "gpu": None, "cores": 2, "python": "3.12", "versions": {"torch": "2.9"}}
    made_by = {"command": "particleaugment compare digits --arms 'a & b'", "machine": machine}
    return render(Comparison(**vars(comparison) | {"commands": (made_by,)}))


def test_page_is_self_contained_and_well_formed(page):
    check_self_contained(page)
    check_well_formed(page)


def test_page_tells_everything(page):
    parsed = outline(page)
    for heading in ("Accuracy", "Differences from none", "Training", "Time", "Runs", "How this was made"):
        assert heading in parsed.headings
    assert parsed.figures == 4
    assert "91.00 ± 1.00" in page
    assert "best epoch, %: not a result" in page
    assert "+0.60 [+0.35, +0.85]" in page
    assert "<td>22.5</td><td>15.0</td><td>3.8</td><td>41.2</td>" in page, "overhead per phase and in all"
    assert "a &lt;fast&gt; one" in page
    assert "--arms &#39;a &amp; b&#39;" in page
    assert "sigma=0.01" in page


def test_validation_images_are_named_as_such(tmp_path):
    base = Base.of(get_recipe("digits"), [*SETTINGS, "validation=200"])
    _, comparison = comparison_in(tmp_path / "c", base=base)
    assert "accuracy on validation images" in printed(comparison)
    assert "accuracy on validation images" in render(comparison)
    assert "test accuracy" not in render(comparison)


# The command, where it has nothing to train.


def test_report_from_the_folder(tmp_path):
    folder, _ = comparison_in(tmp_path / "c")
    outcome = command(folder.path, "--report", "--against", "trivialaugment")
    assert outcome.exit_code == 0
    assert "minus trivialaugment" in outcome.output
    check_self_contained(folder.page.read_text())
    assert folder.read().against == "trivialaugment"
    with locked_folder(folder.path):
        before = folder.file.read_bytes()
        assert command(folder.path, "--report", "--against", "none").exit_code == 0
        assert folder.file.read_bytes() == before, "whoever trains writes the file"
    assert "Differences from none" in folder.page.read_text()


SAME = ["--set", f"epochs={EPOCHS}", "--set", "num_particles=4"]


def test_finished_runs_are_kept(tmp_path):
    folder, comparison = comparison_in(tmp_path / "c")
    outcome = command("digits", "--arms", f"none,trivialaugment,{MINE}", "--seeds", "0-2", "--out", folder.path, *SAME)
    assert outcome.exit_code == 0
    assert "all 9 runs are finished" in outcome.output
    assert folder.read() == comparison


def test_runs_are_found_again_without_the_file(tmp_path):
    folder, comparison = comparison_in(tmp_path / "c")
    folder.file.unlink()
    assert folder.plan(BASE, comparison.arms, (0, 1, 2)) == comparison


def test_arms_and_seeds_are_added_in_order(tmp_path):
    folder, _ = comparison_in(tmp_path / "c", seeds="1")
    plan = folder.plan(BASE, parse_arms("randaugment,none"), parse_seeds("0-1"))
    assert [arm.name for arm in plan.arms] == ["none", "trivialaugment", "mine", "randaugment"]
    keys = [(run.seed, run.arm, run.finished) for run in plan.runs]
    assert keys == [
        (0, "none", False),
        (0, "randaugment", False),
        (1, "none", True),
        (1, "trivialaugment", True),
        (1, "mine", True),
        (1, "randaugment", False),
    ]


def test_settings_must_agree(tmp_path):
    folder, _ = comparison_in(tmp_path / "c")
    outcome = command("digits", "--arms", "none", "--out", folder.path, "--set", "epochs=9", "--set", "num_particles=4")
    assert outcome.exit_code == 2
    assert "was started with epochs=4, and now epochs=9 is requested; repeat its original settings" in outcome.stderr
    outcome = command("digits", "--arms", "mine:filter=paper,sigma=0.02", "--out", folder.path, *SAME)
    assert outcome.exit_code == 2
    assert re.search(r"the arm 'mine' was started with .* sigma=0.01, and now is .* sigma=0.02;", outcome.stderr)
    config_file = folder.path / "runs" / "none-0" / "config.json"
    config_file.write_text(config_file.read_text().replace('"batch_size": 64', '"batch_size": 65'))
    outcome = command("digits", "--arms", "none", "--out", folder.path, *SAME)
    assert outcome.exit_code == 2
    assert "none-0 was started with batch_size=65, and now batch_size=64 is requested" in outcome.stderr


def test_a_comparison_may_move_to_where_the_data_lie_elsewhere(tmp_path):
    def at(directory):
        return Base.of(get_recipe("digits"), [*SETTINGS, f"data_dir={tmp_path / directory}"])

    folder, comparison = comparison_in(tmp_path / "c", arms="none", seeds="0", base=at("here"))
    assert comparison.base.config.data.data_dir == str(tmp_path / "here")
    assert str(tmp_path) not in folder.file.read_text() + render(comparison)
    assert folder.plan(at("there"), parse_arms("none"), (0, 1)).base.config.data.data_dir == str(tmp_path / "there")
    unfinished = folder.plan(at("here"), parse_arms("none"), (1,)).runs[1]
    write_run(folder, unfinished, comparison.arm("none").config(at("here"), 1), curve(80)[:1], finished=False)
    with pytest.raises(ConfigError, match=r"none-1 was started with data_dir=.*here, and now data_dir=.*there"):
        folder.plan(at("there"), parse_arms("none"), (0, 1))


def test_a_folder_behind_a_colon_is_a_place_like_any_other(tmp_path, monkeypatch):
    def at(setting):
        return Base.of(get_recipe("digits"), [*SETTINGS, "data=folder", setting])

    for cwd in ("here", "there"):
        (tmp_path / cwd).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder, comparison = comparison_in(tmp_path / "c", arms="none", seeds="0", base=at("data=folder:images"))
    assert str(tmp_path) not in folder.file.read_text() + render(comparison)
    assert folder.read().base.config.data.name == "folder"
    unfinished = folder.plan(comparison.base, parse_arms("none"), (1,)).runs[1]
    write_run(folder, unfinished, comparison.arm("none").config(comparison.base, 1), curve(80)[:1], finished=False)

    monkeypatch.chdir(tmp_path / "there")
    for setting in (f"data=folder:{tmp_path}/here/images", f"data_dir={tmp_path}/here/images"):
        plan = folder.plan(at(setting), parse_arms("none"), (0, 1))
        assert [run.finished for run in plan.runs] == [True, False]
    assert folder.plan(comparison.base, parse_arms("none"), (0, 1)).base == comparison.base
    with pytest.raises(ConfigError, match=r"none-1 was started with data_dir=.*here/images, and now data_dir=.*there"):
        folder.plan(at("data=folder:images"), parse_arms("none"), (0, 1))


@pytest.mark.parametrize(
    ("given", "told"),
    [("data_dir=/here", "data_dir=DIR"), ("data=folder:/here", "data=folder:DIR"), ("data=digits", "data=digits")],
)
def test_the_command_as_it_would_be_given_on_any_machine(given, told):
    assert _command_text("folder", "none", "0", [given], 1).endswith(f"--out FOLDER --set {told}")


def test_a_line_that_a_crash_has_torn_does_not_stand_in_the_way(tmp_path):
    folder, comparison = comparison_in(tmp_path / "c", arms="none", seeds="0")
    (record,) = comparison.runs
    path = folder.run_path(record)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "epo')
    with pytest.raises(RunError, match="damaged"):
        folder.refresh(comparison)
    (path / "model.safetensors").unlink()
    assert folder.refresh(comparison).runs[0].state == "not started"


def test_settings_may_change_while_nothing_has_started(tmp_path):
    folder, _ = comparison_in(tmp_path / "c", accuracy=lambda arm, seed: None)
    base = Base.of(get_recipe("digits"), ["epochs=9", "num_particles=4"])
    plan = folder.plan(base, parse_arms("none"), (3,))
    assert [(run.arm, run.seed, run.epochs) for run in plan.runs] == [("none", 3, 9)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--arms", "papr"], "there is no arm 'papr'; did you mean paper?"),
        (["digits", "--seeds", "5-2"], "'5-2' is not a seed or a range of seeds; write them as 0-11 or 0,3,7"),
        (["digitz"], "there is no recipe 'digitz'; did you mean digits?"),
        (["digits", "--set", "epocs=3"], "there is no setting 'epocs'; did you mean epochs?"),
        (["digits", "--set", "seed=3"], "use --seeds"),
        (["digits", "--set", "filter=paper"], "--set filter is not for comparisons: set it per arm"),
        (
            ["digits", "--arms", "none,difficulty", "--set", "eta=1"],
            "none of the filters compared, difficulty, has a setting eta",
        ),
        (["digits", "--arms", "none", "--against", "nune"], "--against names 'nune', which is not an arm"),
        (["digits", "--arms", "mine:policy=schedule:absent.json"], "there is no policy file"),
    ],
)
def test_requests_that_are_refused(tmp_path, arguments, message):
    outcome = command(*arguments, "--out", tmp_path / "c")
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert not (tmp_path / "c" / "runs").exists()


def test_folders_that_are_no_comparison(tmp_path):
    outcome = command(tmp_path, "--report")
    assert outcome.exit_code == 1
    assert "is not a comparison folder: it has no compare.json" in outcome.stderr
    folder, _ = comparison_in(tmp_path / "c", arms="none", seeds="0")
    outcome = command(folder.path)
    assert outcome.exit_code == 2
    assert "add --report to rewrite its table and page" in outcome.stderr
    for content in ("{}", "[]", "nothing", '{"format": "particleaugment comparison", "version": 2, "config": 3}'):
        folder.file.write_text(content)
        with pytest.raises(RunError, match="is not a valid comparison file"):
            folder.read()


def test_a_folder_in_use_is_left_alone(tmp_path):
    folder, _ = comparison_in(tmp_path / "c", arms="none", seeds="0")
    with locked_folder(folder.path):
        outcome = command("digits", "--arms", "none", "--out", folder.path, *SAME)
    assert outcome.exit_code == 1
    assert "is in use by process" in outcome.stderr


def test_unknown_arm_to_compare_with(tmp_path):
    _, comparison = comparison_in(tmp_path / "c")
    with pytest.raises(ConfigError, match="did you mean trivialaugment"):
        comparison.compared_with("trivialaugmen")
