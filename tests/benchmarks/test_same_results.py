"""What decides whether two versions give the same results: that it sees every difference, and nothing else."""

import doctest
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import same_results  # noqa: E402
import same_results_bench  # noqa: E402
import same_results_cases  # noqa: E402
import same_results_files  # noqa: E402
import same_results_versions  # noqa: E402
from same_results_bench import Row, compared, speeds  # noqa: E402
from same_results_cases import CASES, RENAMES, Case, respelled  # noqa: E402
from same_results_files import first_difference  # noqa: E402
from same_results_versions import Version, VersionError, checked_out, end_processes  # noqa: E402

EPOCH = {"kind": "epoch", "epoch": 1, "train_loss": 0.1, "seconds": {"train": 2.0}}
STEP = {"kind": "filter", "epoch": 1, "delta": [0.5, 0.25, None], "seconds": {"measure": 1.0}}


def metrics(folder, *records):
    folder.mkdir(exist_ok=True)
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def document(folder, name, content):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def weights(folder, **tensors):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.fixture
def places(tmp_path):
    return tmp_path / "old", tmp_path / "new"


@pytest.mark.parametrize("module", [same_results_bench, same_results_cases, same_results_files])
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_times_do_not_matter(places):
    old = metrics(places[0], EPOCH, STEP)
    new = metrics(places[1], EPOCH | {"seconds": {"train": 3.0, "resumes": 1}}, STEP | {"seconds": {}})
    assert first_difference(old, new) is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"delta": [0.5, 0.25000000000000006, None]}, "line 2, delta[1]: 0.25 in OLD, 0.25000000000000006 in NEW"),
        ({"delta": [0.5, 0.25, 0.0]}, "line 2, delta[2]: null in OLD, 0.0 in NEW"),
        ({"delta": [0.5, 0.25]}, "line 2, delta has 3 items in OLD and 2 in NEW"),
        ({"epoch": 1.0}, "line 2, epoch: 1 in OLD, 1.0 in NEW"),
        ({"wanted": 0.5}, "line 2, wanted is missing in OLD"),
    ],
)
def test_a_change_in_metrics_is_found_where_it_is(places, changed, told):
    old, new = metrics(places[0], EPOCH, STEP), metrics(places[1], EPOCH, STEP | changed)
    assert first_difference(old, new) == f"metrics.jsonl {told}"


def test_keys_and_lines_that_are_missing_are_found(places):
    old = metrics(places[0], EPOCH, STEP)
    without = {key: value for key, value in STEP.items() if key != "delta"}
    assert first_difference(old, metrics(places[1], EPOCH, without)) == (
        "metrics.jsonl line 2, delta is missing in NEW"
    )
    assert first_difference(old, metrics(places[1], EPOCH)) == "metrics.jsonl has 2 lines in OLD and 1 in NEW"


def test_zeros_have_signs_and_nan_is_nan(places):
    old = metrics(places[0], {"wanted": float("nan"), "delta": 0.0})
    assert first_difference(old, metrics(places[1], {"wanted": float("nan"), "delta": 0.0})) is None
    assert first_difference(old, metrics(places[1], {"wanted": float("nan"), "delta": -0.0})) is not None


def test_a_missing_file_is_a_difference_also_where_both_lack_it(places):
    old = metrics(places[0], EPOCH)
    assert first_difference(old, places[1] / "metrics.jsonl") == "metrics.jsonl is missing in NEW"
    assert first_difference(places[1] / "metrics.jsonl", old) == "metrics.jsonl is missing in OLD"
    assert first_difference(places[0] / "policy.json", places[1] / "policy.json") == (
        "policy.json is missing in OLD and NEW"
    )


def test_a_renamed_key_is_accepted_with_the_table_alone(places):
    old, new = (
        metrics(places[0], STEP),
        metrics(places[1], {"scores" if k == "delta" else k: v for k, v in STEP.items()}),
    )
    assert first_difference(old, new) == "metrics.jsonl line 1, delta is missing in NEW"
    assert first_difference(old, new, {"delta": "scores"}) is None
    changed = metrics(places[1], {"kind": "filter", "epoch": 1, "scores": [0.5, 0.5, None]})
    assert first_difference(old, changed, {"delta": "scores"}) == (
        "metrics.jsonl line 1, scores[1]: 0.25 in OLD, 0.5 in NEW"
    )


@pytest.mark.parametrize(("value", "same"), [(None, True), ([], True), (0.0, False), ([1.0], False), (False, False)])
def test_a_new_version_may_leave_out_what_was_empty(places, value, same):
    old, new = metrics(places[0], STEP | {"wanted": value}), metrics(places[1], STEP)
    assert first_difference(old, new) == "metrics.jsonl line 1, wanted is missing in NEW"
    assert (first_difference(old, new, left_out=frozenset({"wanted"})) is None) == same
    assert (
        first_difference(new, old, left_out=frozenset({"wanted"})) == "metrics.jsonl line 1, wanted is missing in OLD"
    )


def test_a_key_left_out_by_the_table_is_left_out_in_both(places):
    old, new = metrics(places[0], STEP | {"d0": 1.0}), metrics(places[1], STEP | {"fresh": 2.0})
    assert first_difference(old, new, {"d0": None, "fresh": None}) is None
    assert first_difference(old, new, {"d0": None}) == "metrics.jsonl line 1, fresh is missing in OLD"


def test_times_stay_out_under_a_table(places):
    old, new = metrics(places[0], STEP), metrics(places[1], STEP | {"seconds": {"measure": 7.0}})
    assert first_difference(old, new, {"d0": "plain"}) is None


def test_added_keys_may_lack_in_the_old_version_only(places):
    run = {"arm": "none", "accuracy": [90.0]}
    old = document(places[0], "compare.json", {"runs": [run]})
    new = document(places[1], "compare.json", {"runs": [run | {"evaluated": []}]})
    added = frozenset({"evaluated"})
    assert first_difference(old, new) == "compare.json runs[0].evaluated is missing in OLD"
    assert first_difference(old, new, added=added) is None
    assert first_difference(new, old, added=added) == "compare.json runs[0].evaluated is missing in NEW"
    other = document(places[0], "compare.json", {"runs": [run | {"evaluated": [2]}]})
    assert first_difference(other, new, added=added) == "compare.json runs[0].evaluated has 1 items in OLD and 0 in NEW"


def test_comparisons_are_compared_without_times_and_with_renamed_arms(places):
    old = {
        "against": "none",
        "summary": [{"arm": "particles", "mean": 90.0, "seconds": 1.0, "overhead": {"filter": 2}}],
    }
    new = {"against": "none", "summary": [{"arm": "paper", "mean": 90.0, "seconds": 2.0, "overhead": {"filter": 3}}]}
    files = document(places[0], "compare.json", old), document(places[1], "compare.json", new)
    assert first_difference(*files) == 'compare.json summary[0].arm: "particles" in OLD, "paper" in NEW'
    assert first_difference(*files, {"arm=particles": "arm=paper"}) is None
    new["summary"][0]["mean"] = 90.00000000000001
    document(places[1], "compare.json", new)
    assert first_difference(*files, {"arm=particles": "arm=paper"}) == (
        "compare.json summary[0].mean: 90.0 in OLD, 90.00000000000001 in NEW"
    )


def test_one_bit_of_a_tensor_is_found(places):
    values = torch.linspace(-1, 1, 12).reshape(3, 4)
    changed = values.clone()
    changed.view(torch.int32)[1, 2] ^= 1
    old = weights(places[0], head=values, count=torch.tensor(3))
    assert first_difference(old, weights(places[1], head=values.clone(), count=torch.tensor(3))) is None
    told = first_difference(old, weights(places[1], head=changed, count=torch.tensor(3)))
    assert told == (
        f"model.safetensors head[1, 2]: {float(values[1, 2])!r} in OLD, {float(changed[1, 2])!r} in NEW; "
        "1 of 12 values differ"
    )
    assert first_difference(old, weights(places[1], head=values, count=torch.tensor(4))) == (
        "model.safetensors count: 3 in OLD, 4 in NEW; 1 of 1 values differ"
    )


def test_tensors_of_other_bits_types_shapes_and_names_are_found(places):
    old = weights(places[0], bias=torch.zeros(2))
    minus = first_difference(old, weights(places[1], bias=-torch.zeros(2)))
    assert minus == "model.safetensors bias[0]: 0.0 in OLD, -0.0 in NEW; 2 of 2 values differ"
    kinds = "model.safetensors bias: torch.float32 of shape (2,) in OLD, torch.{} in NEW"
    wider = first_difference(old, weights(places[1], bias=torch.zeros(2, dtype=torch.float64)))
    assert wider == kinds.format("float64 of shape (2,)")
    assert first_difference(old, weights(places[1], bias=torch.zeros(2, 1))) == kinds.format("float32 of shape (2, 1)")
    renamed = weights(places[1], offset=torch.zeros(2))
    assert first_difference(old, renamed) == "model.safetensors bias is missing in NEW"
    assert first_difference(old, renamed, {"bias": "offset"}) is None


def test_the_table_has_what_is_compared_and_commands_change_by_it(monkeypatch):
    compared_files = {Path(file).name for case in CASES for file in case.files}
    assert compared_files | {"command", "bench"} == set(RENAMES)
    case = Case(name="x", command="train folder --preset paper --set data_dir={digits}")
    monkeypatch.setitem(same_results_cases.RENAMES, "command", {"--preset paper": "--set filter=paper"})
    assert case.words("/a b", new_names=False)[2:] == ["--preset", "paper", "--set", "data_dir=/a b"]
    assert case.words("/a b", new_names=True)[2:] == ["--set", "filter=paper", "--set", "data_dir=/a b"]
    assert respelled(["a", "a"], {"a": "b c", "b c b": "d"}) == ["d", "c"]


def test_names_are_a_matter_of_the_marker_where_there_is_one(monkeypatch, tmp_path):
    old, new = (Version(label, "", tmp_path / label, tmp_path) for label in ("OLD", "NEW"))
    monkeypatch.setattr(same_results_versions, "NEW_NAMES_SINCE", None)
    assert [old.new_names, new.new_names] == [False, True]
    monkeypatch.setattr(same_results_versions, "NEW_NAMES_SINCE", "src/search.py")
    assert [old.new_names, new.new_names] == [False, False]
    (tmp_path / "OLD" / "src").mkdir(parents=True)
    (tmp_path / "OLD" / "src" / "search.py").write_text("train_size: int")
    assert [old.new_names, new.new_names] == [True, False]
    assert old.has_word("train_size")
    assert not old.has_word("groups")


def test_processes_get_the_versions_environment_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    version = Version("OLD", "", tmp_path / "old", tmp_path)
    printed = version.run(["-c", "import os; print(sorted(os.environ.items()))"], tmp_path / "run")
    assert "PYTHONWARNINGS" not in printed
    assert f"('PYTHONPATH', '{tmp_path}/old/src')" in printed
    assert "('OMP_NUM_THREADS', '1')" in printed
    with pytest.raises(VersionError, match="OLD failed with code 1: ValueError: no"):
        version.run(["-c", "raise ValueError('no')"], tmp_path / "failing")


def test_nothing_is_left_running(tmp_path):
    process = Version("OLD", "", tmp_path / "old", tmp_path).start(
        ["-c", "import time; time.sleep(60)"], tmp_path / "run"
    )
    end_processes()
    assert process.wait(timeout=55) == -signal.SIGTERM


def test_what_cannot_be_checked_out_is_refused(tmp_path):
    with pytest.raises(VersionError, match="'nothing' is neither a commit"), checked_out("OLD", "nothing", tmp_path):
        pass


def test_a_copy_is_of_the_sources_and_is_what_python_imports(tmp_path):
    package = tmp_path / "mine" / "src" / "particleaugment"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    with checked_out("OLD", str(tmp_path / "mine"), tmp_path) as version:
        version.check_sources()
        assert (version.root / "src" / "particleaugment" / "__init__.py").exists()
        shutil.rmtree(version.root)
        with pytest.raises(VersionError, match="OLD"):
            version.check_sources()


def test_cases_are_chosen_by_name():
    assert [case.name for case in same_results.chosen_cases(["ranks", "paper"], gpu=False)] == ["ranks", "paper"]
    assert not any(case.gpu for case in same_results.chosen_cases([], gpu=False))
    with pytest.raises(SystemExit, match="there is no case 'rank'"):
        same_results.chosen_cases(["rank"], gpu=False)


def test_speeds_are_compared_row_by_row():
    document = {
        "results": {
            "cpu": [{"name": "native", "size": 32, "threads": 1, "median": 100.0}],
            "gpu": None,
            "training": [{"policy": "randaugment", "seconds_per_epoch": 0.5}],
        }
    }
    found = speeds(document)
    assert found == {"native, 32x32, threads: 1": 100.0, "epochs, randaugment": 2.0}
    rows = compared([found, found], [found | {"epochs, randaugment": 1.8}, found | {"epochs, randaugment": 1.9}])
    assert [row.verdict for row in rows] == ["agrees", "slower"]
    assert rows[1].best == 1.9 / 2.0
    assert Row("a", (1.0, 1.0), (1.04, 1.05)).verdict == "faster"
    with pytest.raises(ValueError, match="only one of the versions times 'epochs, randaugment'"):
        compared([found], [{"native, 32x32, threads: 1": 100.0}])


@pytest.mark.slow
def test_a_version_is_the_same_as_itself_and_differs_from_a_changed_one(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "changed" / "src")
    recipe = tmp_path / "changed" / "src" / "particleaugment" / "recipes" / "digits.py"
    text = recipe.read_text()
    assert "batch_size=64" in text
    recipe.write_text(text.replace("batch_size=64", "batch_size=63"))
    script = [sys.executable, str(ROOT / "benchmarks" / "same_results.py"), "--only", "no-policy"]
    same = subprocess.run([*script, str(ROOT), str(ROOT)], capture_output=True, text=True, check=False)
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.splitlines()[-1].split()[:2] == ["same", "no-policy"]
    changed = subprocess.run(
        [*script, str(ROOT), str(tmp_path / "changed")], capture_output=True, text=True, check=False
    )
    assert (changed.returncode, changed.stderr) == (1, "")
    assert "run/metrics.jsonl line 1, train_loss: " in changed.stdout
