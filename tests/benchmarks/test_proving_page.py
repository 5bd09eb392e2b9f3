"""The proving ground's statistics, page and table, on runs that are made up."""

import doctest
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pages import check_self_contained, check_well_formed, outline
from proving import ARMS, TASKS, make_run, plausible_runs, runs_of
from scipy import stats

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import proving_page  # noqa: E402
import proving_plots  # noqa: E402
import proving_statistics  # noqa: E402
import proving_tasks  # noqa: E402
import proving_words  # noqa: E402
from proving_page import figures_of, render, write_page  # noqa: E402
from proving_results import save_runs  # noqa: E402
from proving_statistics import Figures, best_fixed, mean_difference, trap_counts  # noqa: E402
from proving_words import by_task_table, proving_table, trap_sentences, verdicts  # noqa: E402

PLAIN = "tasks without traps"


def figures(runs, measured_on="judge"):
    return Figures(runs, TASKS, ARMS, measured_on)


@pytest.mark.parametrize("module", [proving_statistics, proving_words])
def test_examples(module):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    outcome = doctest.testmod(module, optionflags=options)
    assert outcome.attempted > 2
    assert outcome.failed == 0


# best-fixed


def test_best_fixed_is_chosen_by_the_other_seeds():
    values = {"none": {0: 80.0, 1: 80.0, 2: 90.0}, "a": {0: 85.0, 1: 85.0, 2: 70.0}, "learned": {0: 99.0, 1: 99.0}}
    # Without seed 0: none 85, a 77.5. Without 1: the same. Without 2: none 80, a 85.
    assert best_fixed(values, ["none", "a"]) == {0: ("none", 80.0), 1: ("none", 80.0), 2: ("a", 70.0)}


def test_best_fixed_of_equals_is_the_first_in_the_table():
    values = {"b": {0: 80.0, 1: 80.0}, "a": {0: 80.0, 1: 80.0}}
    assert best_fixed(values, ["a", "b"])[0][0] == "a"
    assert best_fixed(values, ["b", "a"])[0][0] == "b"


def test_best_fixed_needs_the_seed_and_another():
    assert best_fixed({"none": {0: 80.0}, "a": {0: 85.0}}, ["none", "a"]) == {}
    values = {"none": {0: 80.0, 1: 81.0}, "a": {0: 99.0}, "b": {1: 70.0, 2: 99.0}}
    # a has no other seed; b has not seed 0, and is chosen for seed 1 by its seed 2.
    assert best_fixed(values, ["none", "a", "b"]) == {0: ("none", 80.0), 1: ("b", 70.0), 2: ("b", 99.0)}


def test_best_fixed_is_an_arm_like_others():
    found = figures(runs_of({"cifar10-4000": {"none": [80, 81], "trivialaugment": [84, 85], "difficulty": [83, 83]}}))
    assert found.values("cifar10-4000", "best-fixed") == {0: 84, 1: 85}
    assert found.difference("cifar10-4000", "difficulty", "best-fixed").mean == -1.5
    assert "best-fixed" not in found.arms


# Differences


def test_differences_by_task_are_paired():
    found = figures(runs_of({"cifar10-4000": {"none": [80, 81, 82], "difficulty": {1: 83, 2: 85, 7: 99}}}))
    each = found.difference("cifar10-4000", "difficulty", "none")
    assert (each.pairs, each.mean) == (2, 2.5)
    expected = stats.t.interval(0.95, 1, loc=2.5, scale=np.std([2, 3], ddof=1) / 2**0.5)
    assert (each.low, each.high) == pytest.approx(expected)
    assert found.difference("cifar10-4000", "difficulty", "paper") is None


def test_mean_over_tasks_weighs_tasks_alike_and_seeds_within_them():
    found = mean_difference({"a": [1.0, 1.0, 1.0, 1.0], "b": [3.0, 3.0], "single": [99.0]}, "x")
    assert (found.tasks, found.mean, found.low, found.high) == (2, 2.0, 2.0, 2.0)
    assert mean_difference({"single": [99.0]}, "x") is None
    assert mean_difference({}, "x") is None


def test_the_bootstrap_is_keyed():
    drawn = np.random.default_rng(0).normal(1.0, 0.5, (3, 6))
    values = {name: list(row) for name, row in zip("abc", drawn)}
    found = mean_difference(values, "x")
    assert found == mean_difference(dict(reversed(values.items())), "x")
    assert found.low != mean_difference(values, "y").low
    assert found.low < found.mean < found.high


@pytest.mark.parametrize(("tasks", "seeds"), [(7, 2), (7, 3), (2, 3)])
def test_the_bootstrap_covers_as_often_as_it_says(tasks, seeds, monkeypatch):
    monkeypatch.setattr(proving_statistics, "DRAWS", 1000)
    covered = 0
    draws = np.random.default_rng(5).normal(0.4, 0.3, (600, tasks, seeds))
    for number, draw in enumerate(draws):
        found = mean_difference({str(task): list(values) for task, values in enumerate(draw)}, str(number))
        covered += found.low <= 0.4 <= found.high
    assert abs(covered / 600 - 0.945) < 4 * (0.945 * 0.055 / 600) ** 0.5


def test_means_keep_traps_and_the_final_apart():
    arms = {"none": [80.0, 80.5], "trivialaugment": [78.0, 78.0], "difficulty": [81.0, 82.0]}
    names = ("cifar10-4000", "cifar100-10000", "mnist-flips-1000", "digits-300")
    found = figures(runs_of(dict.fromkeys(names, arms)) + runs_of({"mnist-tints-2000": {"none": [80, 80]}}))
    assert found.groups == {
        PLAIN: ["cifar10-4000", "cifar100-10000"],
        "traps that count": ["mnist-flips-1000"],
        "tasks for the final": ["digits-300"],
    }
    assert found.mean_difference("difficulty", "none", PLAIN).tasks == 2
    assert found.mean_difference("difficulty", "none", PLAIN).mean == pytest.approx(1.25)
    assert found.mean_difference("paper", "none", PLAIN) is None
    assert found.mean_difference("difficulty", "none", "no such group") is None


def test_a_trap_counts_where_trivialaugment_loses_a_point():
    assert trap_counts({"none": {0: 97.0}, "trivialaugment": {0: 96.0}}) is True
    assert trap_counts({"none": {0: 97.0}, "trivialaugment": {0: 96.1}}) is False
    assert trap_counts({"none": {0: 97.0}, "trivialaugment": {1: 90.0}}) is None
    runs = runs_of(
        {
            "mnist-flips-1000": {"none": [97, 97], "trivialaugment": [95, 95]},
            "mnist-tints-2000": {"none": [97, 97], "trivialaugment": [96.9, 97]},
        }
    )
    counts, not_counts = trap_sentences(figures(runs))
    assert counts == (
        "MNIST with flips, 1,000 images counts: TrivialAugment minus none is -2.00 [-2.00, -2.00] (2 seeds)."
    )
    assert (
        "MNIST in three tints, 2,000 images does not count, since TrivialAugment loses less than a point" in not_counts
    )
    (unknown,) = trap_sentences(figures(runs_of({"mnist-flips-1000": {"none": [97]}})))
    assert "not known yet" in unknown


def test_cost_compares_runs_that_shared_a_device_alike():
    def run(arm, seconds, seed=0, **fields):
        return make_run(arm=arm, seed=seed, seconds={"total": seconds}, **fields)

    alone = {"shared_gpu": 1}
    runs = [
        run("none", 20.0),
        run("none", 10.0, seed=1, **alone),
        run("difficulty", 30.0),
        run("paper", 5.0, **alone),
    ]
    found = figures(runs)
    assert found.costs("difficulty") == {"cifar10-4000": 1.5}
    assert found.costs("paper") == {"cifar10-4000": 0.5}
    assert found.costs("none") == {"cifar10-4000": 1.0}
    elsewhere = figures([run("none", 20.0), run("difficulty", 5.0, machine={"gpu": None, "cpu": "another"})])
    assert elsewhere.costs("difficulty") == {}


# Which runs count


def test_other_versions_failures_and_images_are_left_out():
    runs = [
        make_run(accuracy=80.0),
        make_run(accuracy=10.0, task_version=2),
        make_run(accuracy=20.0, measured_on="test"),
    ]
    failed = make_run(arm="difficulty", accuracy=None, failed="the loss is nan")
    found = figures([*runs, failed])
    assert found.values("cifar10-4000", "none") == {0: 80.0}
    assert (found.outdated, found.measured_elsewhere, found.failed) == (1, 1, [failed])
    page = render(found)
    assert "cifar10-4000, difficulty, seed 0 failed: the loss is nan" in page
    assert "of other versions of their tasks: 1 run." in page
    assert "measured on test images: 1 run." in page
    assert figures(runs, "test").values("cifar10-4000", "none") == {0: 20.0}
    assert "on test images" in render(figures(runs, "test"))


def test_unknown_tasks_and_arms_are_plain_and_learned():
    runs = runs_of({"mine": {"none": [80, 81], "set-point": [83, 85]}})
    runs += runs_of({"mine": {"none": [90, 91], "set-point": [93, 95]}}, task_version=3)
    found = figures(runs)
    assert (found.tasks, found.arms, found.learned) == (["mine"], ["none", "set-point"], ["set-point"])
    assert found.values("mine", "none") == {0: 90, 1: 91}, "the newest version of a task that no table has"
    assert (found.title("mine"), found.is_trap("mine"), found.outdated) == ("mine", False, 4)


def test_tables_decide_the_order():
    names = ("difficulty", "another", "trivialaugment", "none")
    tasks = ("zzz", "cifar100-10000", "cifar10-1280")
    found = figures(runs_of({task: {name: [80] for name in names} for task in tasks}))
    assert found.arms == ["none", "trivialaugment", "difficulty", "another"]
    assert found.tasks == ["cifar10-1280", "cifar100-10000", "zzz"]


# In words


def test_words_name_every_loss_with_its_interval_and_seeds():
    runs = runs_of(
        {
            "cifar10-1280": {"none": [65, 66], "trivialaugment": [74, 75], "difficulty": [73, 74.01]},
            "cifar10-4000": {"none": [81, 82], "trivialaugment": [85, 85], "difficulty": [84.9, 84.0]},
            "cifar100-10000": {"none": [62], "trivialaugment": [64], "difficulty": [63]},
        }
    )
    to_none, to_trivial = verdicts(figures(runs), "difficulty")
    assert to_none.summary.endswith("Of 3 tasks it loses on 0 and wins on 1; 2 cannot tell.")
    assert to_none.details == ()
    assert re.match(r"Against TrivialAugment: -0\.77 \[.*\] points over 2 tasks without traps\. ", to_trivial.summary)
    assert to_trivial.summary.endswith("Of 3 tasks it loses on 1 and wins on 0; 2 cannot tell.")
    lost, behind = to_trivial.details
    assert lost == "It loses on CIFAR-10, 1,280 images: -0.99 [-1.06, -0.93] (2 seeds)."
    assert "CIFAR-10, 4,000 images: -0.55 [-6.27, +5.17] (2 seeds); CIFAR-100" in behind
    assert behind.endswith("CIFAR-100, 10,000 images: -1.00, no interval (1 seed).")


def test_words_compare_with_the_frozen_control_and_say_what_is_missing():
    arms = {"none": [80, 81], "difficulty": [82, 83], "difficulty-frozen": {5: 84}}
    found = figures(runs_of({"cifar10-4000": arms}))
    to_none, to_frozen = verdicts(found, "difficulty")
    assert to_none.summary.startswith("Against none: +2.00 [+2.00, +2.00] points over 1 task without traps. ")
    assert to_frozen.summary == (
        "Against its frozen control, difficulty-frozen: no task has runs of both with the same seed."
    )
    assert [each.summary.split(":")[0] for each in verdicts(found, "difficulty-frozen")] == ["Against none"]


# The page and the table of the docs


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    save_runs(folder / "runs.json", plausible_runs())
    candidates = [make_run(arm="set <point>", seed=seed, accuracy=85.0 + seed / 8) for seed in range(2)]
    save_runs(folder / "research.json", candidates)
    written = write_page(
        [folder / "runs.json", folder / "research.json"], folder / "new" / "page.html", "judge", TASKS, ARMS
    )
    assert written == folder / "new" / "page.html"
    return written.read_text(encoding="utf-8")


def test_page_is_self_contained_and_well_formed(page):
    check_self_contained(page)
    check_well_formed(page)


def test_page_has_every_part(page):
    parsed = outline(page)
    for heading in ("Mean over tasks", "Where learned arms lose", "Tasks", "Differences by task", "Cost", "Arms"):
        assert heading in parsed.headings
    assert parsed.figures == 3
    assert "182 runs of 11 arms on 9 tasks" in page
    for task in tuple(TASKS.values())[:9]:
        assert page.count(task.title) >= 4, "in the figure of tasks, that of difficulty, words and a table"
    for arm in ARMS:
        assert f"<td>{arm}</td>" in page
    assert "set &lt;point&gt;" in page
    assert "set <point>" not in page
    assert "its frozen control, difficulty-frozen" in page
    assert "MNIST with flips, 1,000 images counts" in page
    assert "python benchmarks/proving_ground.py --data DIR" in page


def test_the_page_of_no_runs(tmp_path):
    page = write_page(tmp_path / "none.json", tmp_path / "page.html").read_text()
    assert "No runs yet." in page
    check_well_formed(page)


@pytest.mark.parametrize("arms", [("none",), ("difficulty",), ("none", "difficulty")])
def test_pages_of_few_runs(arms):
    runs = [make_run(arm=arm, difficulty=None) for arm in arms]
    check_well_formed(render(figures(runs)))
    failed = make_run(accuracy=None, failed="it broke")
    check_well_formed(render(figures([failed])))


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "proving_tasks", SimpleNamespace(TASKS=TASKS, ARMS=ARMS, WITHDRAWN={}))
    path = tmp_path / "runs.json"
    assert proving_page.main([str(path)]) == 2
    assert capsys.readouterr().err == f"there is no file {path}; proving_ground.py writes files of runs\n"
    path.write_text("{}")
    assert proving_page.main([str(path)]) == 2
    assert "is not a file of runs" in capsys.readouterr().err
    save_runs(path, [make_run()])
    assert proving_page.main([str(path)]) == 0
    assert capsys.readouterr().out == f"page to open: {tmp_path / 'runs.html'}\n"
    assert "CIFAR-10, 4,000 images" in (tmp_path / "runs.html").read_text()
    assert proving_page.main([str(path), "--out", str(tmp_path / "x.html"), "--measured-on", "test"]) == 0
    assert "No runs yet." in (tmp_path / "x.html").read_text()


def test_the_table_of_the_docs(tmp_path):
    assert proving_table(figures_of([tmp_path / "none.json"])) == "No runs yet."
    save_runs(tmp_path / "empty.json", [])
    assert proving_table(figures_of([tmp_path / "empty.json"])) == "No runs yet."
    runs = runs_of(
        {
            "cifar10-4000": {"none": [81, 82], "trivialaugment": [84, 85], "difficulty": [83, 84]},
            "mnist-flips-1000": {"none": [97, 97], "trivialaugment": [95, 95], "difficulty": [97, 97]},
        }
    )
    text = proving_table(figures(runs))
    assert "| accuracy, % | CIFAR-10, 4,000 images | MNIST with flips, 1,000 images (trap) |" in text
    assert "| **difficulty** | 83.50 ± 0.71 (2) | 97.00 ± 0.00 (2) |" in text
    assert "| best-fixed | 84.50 ± 0.71 (2) | 97.00 ± 0.00 (2) |" in text
    assert "| **difficulty** | +2.00 [+2.00, +2.00] (1 task) | -1.00 [-1.00, -1.00] (1 task) |" in text
    assert "MNIST with flips, 1,000 images counts" in text
    assert "12 runs on NVIDIA H200." in text


def test_withdrawn_arms_keep_their_results_and_cannot_be_run():
    found = figures_of([proving_page.RESULT_FILE])
    assert found.arms[-2:] == ["gap", "gap-frozen"] == found.learned[-2:]
    assert found.meaning("gap").startswith("withdrawn: ")
    assert proving_tasks.WITHDRAWN.keys().isdisjoint(proving_tasks.ARMS)


def test_intervals_of_many_tasks_are_wider():
    ours, none = {0: 83.0, 1: 84.0, 2: 87.0}, {0: 81.0, 1: 83.0, 2: 83.0}
    both = {"none": [*none.values()], "difficulty": [*ours.values()]}
    text = by_task_table(
        figures(runs_of({"cifar10-4000": both, "mnist-flips-1000": {"none": [97], "difficulty": [96]}})), "difficulty"
    )
    differences = [ours[seed] - none[seed] for seed in ours]
    half = stats.t.ppf(1 - 0.05 / 2 / 2, df=2) * stats.sem(differences)  # two tasks, two ends
    centre = np.mean(differences)
    assert f"| CIFAR-10, 4,000 images | {centre:+.2f} [{centre - half:+.2f}, {centre + half:+.2f}] (3) |" in text
    assert "| MNIST with flips, 1,000 images (trap) | -1.00, no interval (1) |" in text
    assert "corrected for 2 tasks" in text


def test_short_tasks_have_a_mean_of_their_own():
    short = {"cifar10-4000": {"none": [81, 83], "difficulty": [80, 81]}}
    shorter = {"fashion-1000": {"none": [90, 90], "difficulty": [91, 91]}}
    trap = {"mnist-flips-1000": {"none": [97, 97], "difficulty": [90, 90]}}
    long = {"cifar100-10000": {"none": [60, 60], "difficulty": [70, 70]}}
    few = [*runs_of(short, epochs=99), *runs_of(trap, epochs=40), *runs_of(long, epochs=100)]
    assert "mean of those" not in by_task_table(figures(few), "difficulty")
    text = by_task_table(figures([*few, *runs_of(shorter, epochs=40)]), "difficulty")
    assert re.search(r"mean of those with fewer than 100 epochs \| -0\.25 \[-[\d.]+, \+[\d.]+\] \(2 tasks\) \|", text)


def test_no_two_of_many_arms_look_the_same():
    arms = [*ARMS, *(f"candidate-{number}" for number in range(8))]
    found = figures(runs_of({"cifar10-4000": {arm: [80] for arm in arms}}))
    marks = {tuple(sorted(proving_plots._mark(found, arm).items())) for arm in found.arms}
    assert len(marks) == len(arms)
