"""Real comparisons in real processes: killed, stopped, continued, extended, and with an arm that fails."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from particleaugment.compare.arms import ARMS, Base, parse_arms
from particleaugment.compare.comparison import ComparisonFolder
from particleaugment.compare.comparison_progress import ComparisonProgress
from particleaugment.compare.execute import execute
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.runner import LocalChild, LocalPlace, run_children
from particleaugment.recipes import get_recipe
from particleaugment.training.build import resolve
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.stop import Stop

SETTINGS = ["epochs=3", "batch_size=256", "clone_size=128", "measure_size=20", "num_particles=4"]
LIMIT = 300


def compare(path, *arguments, settings=SETTINGS):
    words = [word for setting in settings for word in ("--set", setting)]
    return started("digits", "--out", path, *words, *arguments)


def started(*arguments):
    command = [sys.executable, "-m", "particleaugment", "compare", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process):
    output, errors = process.communicate(timeout=LIMIT)
    return process.returncode, output, errors


def wait_until(condition):
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def is_free(path):
    try:
        with RunFolder.open(path).locked():
            return True
    except RunError:
        return False


@pytest.mark.slow
def test_killed_extended_stopped_and_continued(tmp_path):
    folder = ComparisonFolder(tmp_path / "c")
    runs = {arm: folder.path / "runs" / f"{arm}-0" for arm in ("paper", "none")}

    process = compare(folder.path, "--arms", "paper", "--seeds", "0")
    wait_until((runs["paper"] / "metrics.jsonl").exists)
    process.kill()
    process.communicate()
    wait_until(lambda: is_free(runs["paper"]))
    assert find_checkpoints(runs["paper"]), "without its parent a child saves and ends"
    assert not RunFolder.open(runs["paper"]).finished
    assert [(run.arm, run.finished) for run in folder.read().runs] == [("paper", False)]

    both = ["--arms", "paper,none", "--seeds", "0", "--jobs", "2"]
    process = compare(folder.path, *both)
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == "2 of 2 runs to do, 2 at a time\n"
    assert lines[1].startswith("[1/2] paper, seed 0: started from epoch ")
    assert lines[2] == "[2/2] none, seed 0: started\n"
    process.send_signal(signal.SIGINT)
    code, output, errors = end(process)
    assert (code, errors) == (130, "")
    assert "stopped and saved; rerun the command to resume" in output
    assert "paper, seed 0: epoch " in output, "unfinished runs are named"
    assert all(is_free(path) for path in runs.values())

    code, output, errors = end(compare(folder.path, *both))
    assert (code, errors) == (0, "")
    assert "±" not in output, "one seed has no deviation"
    comparison = folder.read()
    paper, none = comparison.runs
    assert (paper.arm, none.arm) == ("paper", "none")
    assert all(run.finished and len(run.accuracy) == 3 and run.at_once == 2 for run in comparison.runs)
    assert paper.filter["steps"] == 2
    assert set(paper.seconds) >= {"train", "evaluate", "clone", "measure", "filter"}
    assert set(none.seconds) == {"train", "evaluate"}
    commands = [made_by["command"] for made_by in comparison.commands]
    assert [command.split(" --seeds")[0] for command in commands] == [
        "particleaugment compare digits --arms paper",
        "particleaugment compare digits --arms paper,none",
    ], "the same command is noted once"
    assert folder.page.exists()
    wanted = get_recipe("digits").override(["filter=paper", *SETTINGS, "seed=0"])
    assert RunFolder.open(runs["paper"]).config == resolve(wanted)


def test_a_closed_output_saves_all_runs(tmp_path):
    folder = ComparisonFolder(tmp_path / "c")
    settings = ["epochs=1000", "evaluate_every=1", "train_size=200"]
    process = compare(folder.path, "--arms", "none,trivialaugment", "--seeds", "0", settings=settings)
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(LIMIT) == 141
    assert errors == "particleaugment: the output was closed: stopped and saved; rerun the command to resume\n"
    assert is_free(folder.path / "runs" / "none-0")
    assert [run.problem for run in folder.read().runs] == [None, None]
    assert "trivialaugment" in folder.page.read_text()

    process = started(folder.path, "--report")
    process.stdout.close()
    assert (process.stderr.read(), process.wait(LIMIT)) == ("", 141)


def test_a_failing_arm_is_reported_and_the_others_go_on(tmp_path):
    folder = ComparisonFolder(tmp_path / "c")
    arguments = ["--arms", "steep:policy=none,learning_rate=1e30,none", "--seeds", "0", "--jobs", "2"]
    settings = ["epochs=1", "batch_size=256", "train_size=512"]
    code, output, errors = end(compare(folder.path, *arguments, settings=settings))
    assert (code, errors) == (1, "")
    steep, none = folder.read().runs
    assert none.finished
    assert "try a lower learning_rate" in steep.problem
    log = folder.log_path(steep)
    assert steep.problem in log.read_text()
    assert "steep, seed 0: failed, exit code 1" in output
    assert output.count(steep.problem) == 1
    assert f"steep, seed 0: failed: {steep.problem}; excluded; log: {log}.\n" in output


def test_runs_are_not_made_elsewhere_through_links(tmp_path):
    base, elsewhere = Base.of(get_recipe("digits"), ["epochs=1"]), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (arm,) = parse_arms("none")
    record, config = RunRecord(arm="none", seed=0, epochs=1), resolve(arm.config(base, 0))
    folder = ComparisonFolder(tmp_path / "all")
    folder.path.mkdir()
    (folder.path / "runs").symlink_to(elsewhere)
    with pytest.raises(OSError, match="it is a link, not a folder"):
        folder.open_run(record, config)
    assert list(elsewhere.iterdir()) == []
    folder = ComparisonFolder(tmp_path / "one")
    RunFolder.create(elsewhere / "run", config)
    (folder.path / "runs").mkdir(parents=True)
    (folder.path / "runs" / "none-0").symlink_to(elsewhere / "run")
    with pytest.raises(RunError, match="is a link, so the run would be written elsewhere"):
        folder.open_run(record, config)


def test_a_request_that_was_refused_leaves_no_run_behind(tmp_path):
    """Data may go, or be damaged, after they were checked."""
    folder = ComparisonFolder(tmp_path / "c")
    base = Base.of(get_recipe("folder"), [f"data_dir={tmp_path}/gone"])
    plan = folder.plan(base, parse_arms("none"), (0,))
    folder.path.mkdir()
    with Stop() as stop:
        plan = execute(folder, plan, plan.runs, LocalPlace(), stop, Console(quiet=True))
    (record,) = plan.runs
    assert record.problem.startswith(f"there is no folder {tmp_path}/gone")
    assert not folder.run_path(record).exists()


def test_a_run_that_is_stopped_early_is_not_called_not_started(tmp_path):
    folder, stop, shown = ComparisonFolder(tmp_path / "c"), Stop(), io.StringIO()
    plan = folder.plan(Base.of(get_recipe("digits"), SETTINGS[:2]), parse_arms("none"), (0,))
    folder.path.mkdir()

    class Sleeping(LocalPlace):
        def start(self, record, run, log):
            code = "import time; time.sleep(60)"
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
            stop.close_output()
            return LocalChild(record, run, log, process)

    execute(folder, plan, plan.runs, Sleeping(), stop, Console(file=shown, width=100))
    assert shown.getvalue().splitlines()[-1] == "[1/1] none, seed 0: stopped and saved, before its first evaluation"


@pytest.fixture
def sleepers(tmp_path):
    """Records, and a way to start each as a process that only sleeps."""
    base = Base.of(get_recipe("digits"), ["epochs=4"])
    folder = ComparisonFolder(tmp_path / "c")
    records = [RunRecord(arm="none", seed=seed, epochs=4) for seed in range(5)]

    def start(record, seconds=0.2):
        run = folder.open_run(record, ARMS["none"].config(base, record.seed))
        said, code = f"line of {record.seed}", record.seed % 2
        code = f"import time; print('{said}', flush=True); time.sleep({seconds}); raise SystemExit({code})"
        log = tmp_path / f"{record.seed}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=output)
        return LocalChild(record, run, log, process)

    return records, start


def test_jobs_run_at_a_time_and_in_order(sleepers):
    records, start = sleepers
    together, ends = [], {}
    run_children(
        records,
        lambda: 2,
        Stop(),
        start=start,
        ended=lambda child, code: ends.update({child.record.seed: (code, child.last_line)}),
        watch=lambda running: together.append([child.record.seed for child in running]),
    )
    assert ends == {seed: (seed % 2, f"line of {seed}") for seed in range(5)}
    assert max(map(len, together)) == 2
    first_seen = list(dict.fromkeys(seed for seeds in together for seed in seeds))
    assert first_seen == sorted(first_seen)


def test_an_error_leaves_no_process_behind(sleepers):
    records, start = sleepers
    children = []

    def start_and_note(record):
        children.append(start(record, seconds=LIMIT))
        return children[-1]

    def fail(running):
        if len(running) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_children(records, lambda: 3, Stop(), start=start_and_note, ended=lambda child, code: None, watch=fail)
    assert len(children) == 3
    assert all(child.process.poll() is not None for child in children)


def test_progress_on_a_terminal(sleepers):
    records, start = sleepers
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    progress = ComparisonProgress(records, console)
    with progress.live():
        child = start(records[0])
        progress.started(child.record)
        for epoch in (1, 2, 3):
            child.run.append_metrics({"kind": "epoch", "epoch": epoch})
        progress.watch([child])
        progress._bars.refresh()
        child.process.wait()
        child.process.stdin.close()
        progress.ended(replace(child.record, accuracy=(1.0, 2.0, 3.0, 4.0)), "4.00 %, 1 s")
    shown = console.file.getvalue()
    assert "none, seed 0" in shown
    assert "3/4 epochs" in shown
    assert "3/20 epochs 0 of 5 runs ended  about " in shown
    assert "[1/5] none, seed 0: 4.00 %, 1 s; about " in shown
