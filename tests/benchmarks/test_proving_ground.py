"""The proving ground's tables and its runner: real runs on the digits, in processes of their own."""

import doctest
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from forked import Forked

from particleaugment.training.build import resolve
from particleaugment.training.config import Config
from particleaugment.training.override import override
from particleaugment.training.shared import SharedParts
from particleaugment.util.stop import Stop

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import proving_worker  # noqa: E402
from proving_ground import Job, _next_job  # noqa: E402
from proving_results import load_runs  # noqa: E402
from proving_tasks import ARMS, TASKS  # noqa: E402

SHORT = ("--set", "model=wrn-10-1", "--set", "epochs=3", "--set", "evaluate_every=1")


def start(tmp_path, *options):
    places = ["--data", tmp_path / "data", "--results", tmp_path / "runs.json", "--runs", tmp_path / "runs"]
    return Forked(ROOT / "benchmarks" / "proving_ground.py", *places, *options)


def finish(tmp_path, *options):
    process = start(tmp_path, *options)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output + errors


def test_examples():
    assert doctest.testmod(proving_worker).failed == 0


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("final", [False, True])
def test_every_task_and_arm_is_a_sound_configuration(name, final):
    task = TASKS[name]
    for arm in ARMS.values():
        if task.trap and arm.own_ops:
            continue
        config = resolve(task.config(arm.settings(task.size), 7, "/data", final=final))
        assert config.seed == 7
        assert config.training.epochs == task.epochs
        assert (config.data.measured_on == "test") == final
        if arm.measured:
            assert config.filter.measure_size == min(arm.measured, task.size // 10)
        if task.trap and arm.name != "none":
            drawn = config.ops if config.searches else config.fixed_policy().ops
            assert drawn == resolve(task.config(ARMS["paper"].settings(task.size), 0, "/data")).ops


def test_workers_keep_to_their_task_but_not_beyond_a_seed():
    waiting = [Job(task, arm, seed, False) for seed in (0, 1) for task in ("fashion-1000", "cifar10-1280")
               for arm in ("none", "trivialaugment")]  # fmt: skip
    last = Job("cifar10-1280", "difficulty", 0, False)
    order = []
    while waiting:
        last = _next_job(waiting, last)
        order.append((last.task, last.seed))
    assert order == [(task, 0) for task in ("cifar10-1280",) * 2 + ("fashion-1000",) * 2] + [
        (task, 1) for task in ("fashion-1000",) * 2 + ("cifar10-1280",) * 2
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tasks", "cifar10-400"), "there is no task 'cifar10-400'; did you mean cifar10-4000?"),
        (("--arms", "trivial"), "there is no arm 'trivial'; did you mean trivialaugment?"),
        (("--seeds", "x"), "'x' is not a seed or a range of seeds"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path, options, message):
    code, output = finish(tmp_path, *options)
    assert code == 1
    assert message in output
    assert not (tmp_path / "runs.json").exists()


def test_runs_are_trained_once_and_a_failure_stops_no_other(tmp_path):
    options = ("--tasks", "cifar10-1280,digits-300", "--arms", "none,difficulty", "--seeds", "0", "--no-page", *SHORT)
    code, output = finish(tmp_path, *options)
    assert code == 1
    runs = {(run["task"], run["arm"]): run for run in load_runs(tmp_path / "runs.json")}
    assert len(runs) == 4, output
    for arm in ("none", "difficulty"):
        assert "there is no folder" in runs["cifar10-1280", arm]["failed"]
        done = runs["digits-300", arm]
        assert [row[0] for row in done["curve"]] == [1, 2, 3]
        assert done["accuracy"] == done["curve"][-1][3]
        assert done["images"] == 300
        assert done["settings"]["train_size"] == 300
        assert str(tmp_path) not in json.dumps(done).replace(str(tmp_path / "runs"), "")
    assert not any((tmp_path / "runs").glob("digits*")), "finished runs leave no folder"
    code, output = finish(tmp_path, "--tasks", "digits-300", "--arms", "none,difficulty", "--seeds", "0", *SHORT)
    assert code == 0
    assert "to train" not in output
    assert "page to open" in output


@pytest.mark.slow
def test_a_stopped_ground_resumes_to_the_same_result(tmp_path):
    settings = ("epochs=12", "evaluate_every=1")
    changes = [part for setting in settings for part in ("--set", setting)]
    long = ("--tasks", "digits-300", "--arms", "trivialaugment", "--seeds", "0", "--no-page", *changes)
    stopped = start(tmp_path, *long)
    metrics = tmp_path / "runs" / "digits-300-v1-trivialaugment-0" / "metrics.jsonl"
    limit = time.monotonic() + 200
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 2:
        assert stopped.poll() is None, stopped.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.kill(stopped.pid, signal.SIGTERM)
    stopped.communicate(timeout=100)
    assert load_runs(tmp_path / "runs.json") == []
    assert finish(tmp_path, *long)[0] == 0
    (resumed,) = load_runs(tmp_path / "runs.json")
    job = {"task": "digits-300", "arm": "trivialaugment", "seed": 0, "final": False}
    config = resolve(override(TASKS["digits-300"].config(ARMS["trivialaugment"].settings(300), 0, ""), settings))
    straight = proving_worker.run_job(job, config, tmp_path / "straight", SharedParts(), Stop())
    assert {name: resumed[name] for name in straight if name != "seconds"} == {
        name: value for name, value in straight.items() if name != "seconds"
    }


def test_settings_are_kept_without_defaults_and_places():
    config = override(Config(recipe="proving-ground"), ["data=mnist", "data_dir=/somewhere", "epochs=7", "speed=30"])
    assert proving_worker._changed(config) == {"recipe": "proving-ground", "data": "mnist", "epochs": 7, "speed": 30.0}
    other = override(config, ["filter=paper", "eta=0.5"])
    assert proving_worker._changed(other) == {
        "recipe": "proving-ground", "data": "mnist", "epochs": 7, "filter": "paper", "eta": 0.5,
    }  # fmt: skip
