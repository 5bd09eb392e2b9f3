"""The file of the proving ground's runs."""

import doctest
import json
import sys
from pathlib import Path

import pytest
from forked import Forked
from proving import make_run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import proving_results  # noqa: E402
from proving_results import ResultsError, add_run, key, load_runs, merge_runs, save_runs, validate  # noqa: E402


def failed_run(**fields):
    identity = {"task": "a", "task_version": 1, "arm": "none", "seed": 0, "measured_on": "judge"}
    return identity | {"accuracy": None, "failed": "the loss is nan in epoch 3"} | fields


def test_examples():
    assert doctest.testmod(proving_results, optionflags=doctest.ELLIPSIS).failed == 0


def test_runs_survive_the_file_one_per_line_and_in_order(tmp_path):
    runs = [make_run(arm=arm, seed=seed) for arm in ("none", "difficulty") for seed in (1, 0)]
    save_runs(tmp_path / "deep" / "runs.json", [*runs, failed_run()])
    found = load_runs(tmp_path / "deep" / "runs.json")
    assert found == sorted([*runs, failed_run()], key=key)
    lines = (tmp_path / "deep" / "runs.json").read_text().splitlines()
    assert (lines[0], lines[-1]) == ('{"version": 1, "runs": [', "]}")
    assert [json.loads(line.rstrip(",")) for line in lines[1:-1]] == found


def test_no_file_and_an_empty_file(tmp_path):
    assert load_runs(tmp_path / "none.json") == []
    save_runs(tmp_path / "empty.json", [])
    assert load_runs(tmp_path / "empty.json") == []


def test_a_run_replaces_the_one_with_its_key(tmp_path):
    path = tmp_path / "runs.json"
    add_run(path, make_run(accuracy=80.0))
    add_run(path, make_run(accuracy=81.0, settings={"renamed": 1}))
    others = [{"seed": 1}, {"arm": "difficulty"}, {"task": "other"}, {"task_version": 2}, {"measured_on": "test"}]
    for other in others:
        add_run(path, make_run(accuracy=82.0) | other)
    found = load_runs(path)
    assert len(found) == 1 + len(others)
    assert [run["accuracy"] for run in found if key(run) == key(make_run())] == [81.0]
    assert merge_runs(found, []) == merge_runs([], found) == found


def test_processes_may_add_runs_at_the_same_time(tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path\nfrom proving import make_run\nfrom proving_results import add_run\n"
        "for seed in range(8): add_run(Path(sys.argv[3]), make_run(arm=sys.argv[4], seed=seed))"
    )
    words = ["-c", code, ROOT / "benchmarks", ROOT / "tests", tmp_path / "runs.json"]
    started = [Forked(*words, arm) for arm in ("a", "b")]
    assert [process.communicate()[1] for process in started] == ["", ""]
    assert len(load_runs(tmp_path / "runs.json")) == 16
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "runs.json"
    add_run(path, make_run())
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="loss must be a number from 0, or null, got nan"):
        add_run(path, make_run(seed=1, loss=float("nan")))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": ""}, "a run's task must be a task's name, got ''"),
        ({"task_version": True}, "a run's task_version must be a whole number from 1, got True"),
        ({"seed": -1}, "a run's seed must be a whole number from 0, got -1"),
        ({"measured_on": "train"}, "a run's measured_on must be 'judge' or 'test', got 'train'"),
        ({"accuracy": 100.5}, "cifar10-4000, none, seed 0: accuracy must be the last epoch's accuracy in percent"),
        ({"accuracy": None}, "accuracy must be the last epoch's accuracy in percent, got None"),
        ({"difficulty": "high"}, "difficulty must be a number from 0, or null, got 'high'"),
        ({"difficulty": float("inf")}, "difficulty must be a number from 0, or null, got inf"),
        ({"curve": [[1, 2.0, 3.0]]}, "curve must be a list of [epoch, training loss, held-out loss, accuracy], got"),
        ({"seconds": {"train": 3.0}}, "seconds must be seconds by phase, 'total' among them, got"),
        ({"shared_gpu": 0}, "shared_gpu must be how many processes shared the device, from 1, got 0"),
        ({"failed": "broke"}, "a run that failed has no accuracy, got 80.0"),
        ({"failed": "", "accuracy": None}, "failed must be a sentence, got ''"),
    ],
)
def test_runs_that_are_refused(change, said):
    validate(make_run())
    with pytest.raises(ResultsError) as caught:
        validate(make_run() | change)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*proving_results.IDENTITY, *proving_results.FIELDS])
def test_no_field_may_be_missing(name):
    run = make_run()
    del run[name]
    with pytest.raises(ResultsError, match=f"{name} is missing: it must be "):
        validate(run)


def test_a_run_may_have_more_fields_and_a_failed_one_fewer():
    validate(make_run(images=4000, difficulty=None, loss=None))
    validate(failed_run())
    with pytest.raises(ResultsError, match="a run must be an object, got 3"):
        validate(3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a file of runs: not valid JSON"),
        ('{"version": 1, "runs": [', "is not a file of runs: not valid JSON"),
        ("[]", 'is not a file of runs: {"version": 1, "runs": [...]} is expected'),
        ('{"version": 2, "runs": []}', 'is not a file of runs: {"version": 1, "runs": [...]} is expected'),
        ('{"version": 1, "runs": {}}', 'is not a file of runs: {"version": 1, "runs": [...]} is expected'),
        ('{"version": 1, "runs": [4]}', "a run must be an object, got 4"),
        ('{"version": 1, "runs": [{"task": "a"}]}', "a run's task_version is missing"),
        ('{"version": 1, "runs": [{"seed": NaN}]}', "runs[0].seed must be a finite number, got nan"),
    ],
)
def test_files_that_are_refused(tmp_path, content, said):
    path = tmp_path / "runs.json"
    path.write_text(content)
    with pytest.raises(ResultsError) as caught:
        load_runs(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    with pytest.raises(ResultsError):
        add_run(path, make_run())
    assert path.read_text() == content, "a file that cannot be read is not replaced"


def test_a_run_that_is_there_twice_is_named(tmp_path):
    path, line = tmp_path / "runs.json", json.dumps(make_run())
    path.write_text(f'{{"version": 1, "runs": [{line}, {line}]}}')
    with pytest.raises(ResultsError, match=r"holds the run \('cifar10-4000', 1, 'none', 0, 'judge'\) twice"):
        load_runs(path)
