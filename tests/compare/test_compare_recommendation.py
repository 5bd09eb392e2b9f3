"""What a comparison advises, and how sure it says that it is."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_compare import MINE, SETTINGS, command, comparison_in

from particleaugment.compare.arms import ARMS, Base, parse_arms
from particleaugment.compare.comparison_page import render
from particleaugment.compare.recommendation import recommend
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.statistics import PairedDifference, paired_difference, seeds_to_settle
from particleaugment.recipes import get_recipe

STANDARD = ("none", "trivialaugment", "randaugment", "difficulty")


def records(accuracies, seconds=None, at_once=None):
    """Finished runs: accuracies by arm, each a list over seeds 0, 1, … or a mapping from seeds."""
    found = []
    for arm, values in accuracies.items():
        by_seed = values if isinstance(values, dict) else dict(enumerate(values))
        for seed, value in by_seed.items():
            run = RunRecord(
                arm=arm,
                seed=seed,
                epochs=2,
                finished=True,
                accuracy=(value + 1, value),
                seconds={"train": (seconds or {}).get(arm, 100.0)},
                at_once=(at_once or {}).get(arm, 1),
            )
            found.append(run)
    return found


def advice(accuracies, measured_on="validation", **options):
    return recommend([ARMS[name] for name in accuracies], records(accuracies, **options), measured_on)


def test_a_clear_winner():
    found = advice({"none": [81.8, 81.5, 82.0], "trivialaugment": [84.7, 84.5, 84.8], "difficulty": [83.7, 83.6, 83.7]})
    assert (found.arm, found.sureness, found.level) == ("trivialaugment", "clear", ())
    assert found.accuracy == pytest.approx(84.667, abs=1e-3)
    assert (found.over_none.against, found.over_none.points.pairs) == ("none", 3)
    assert (found.over_rival.against, found.over_rival.points.mean) == ("difficulty", pytest.approx(1.0))
    assert found.text == (
        "Recommendation: trivialaugment, 84.67 ± 0.15 % on validation images (3 seeds). It beats none by +2.90 "
        "[+2.65, +3.15] points. Its lead over the runner-up, difficulty, is +1.00 [+0.75, +1.25] points. This is "
        "clear: the 95 % interval of its lead over every other arm is above 0. The same runs picked the best of 3 "
        "arms, so its lead is slightly optimistic."
    )


def test_a_likely_winner():
    found = advice({"none": [81.0, 81.2, 80.9], "trivialaugment": [81.3, 82.2, 81.5]})
    assert (found.arm, found.sureness) == ("trivialaugment", "likely")
    low = found.over_none.points.low
    assert low < 0 < paired_difference({0: 81.3, 1: 82.2, 2: 81.5}, {0: 81.0, 1: 81.2, 2: 80.9}, 0.8).low
    assert f"It beats none, the runner-up, by +0.63 [{low:+.2f}, " in found.text
    assert "points: likely." in found.text
    assert "likely, not certain: the 95 % interval of its lead over none contains 0, the 80 % interval" in found.text
    assert "about 4 seeds in total would settle it" in found.text
    assert "optimistic" not in found.text, "of two arms nothing is picked"


def test_level_arms_give_way_to_the_simplest():
    found = advice(
        {
            "none": [81.0, 81.2, 80.9],
            "trivialaugment": [84.6, 84.4, 85.0],
            "difficulty": [84.5, 84.9, 84.8],
        }
    )
    assert (found.arm, found.sureness, found.level) == (
        "trivialaugment",
        "cannot tell",
        ("trivialaugment", "difficulty"),
    )
    assert found.over_rival.against == "difficulty"
    assert found.over_rival.points.mean < 0 < found.over_none.points.low
    assert "It beats none by +3.63 [" in found.text
    assert "cannot tell which arm is best: difficulty has the highest mean, 84.73 %, but leads by +0.07 [" in found.text
    assert "none before fixed policies before learned ones" in found.text
    assert "More than 50 seeds would be needed to separate them." in found.text


def test_no_policy_comes_before_any_policy():
    found = advice({name: [80.0 + 0.1 * place, 80.4, 80.1] for place, name in enumerate(STANDARD)})
    assert (found.arm, found.sureness, found.over_none) == ("none", "cannot tell", None)
    assert set(found.level) == set(STANDARD)


def test_a_level_choice_over_none_says_so():
    found = advice(
        {"difficulty": [80.4, 80.0, 80.5], "trivialaugment": [80.1, 80.3, 80.3], "none": [80.2, 80.1, 80.25]}
    )
    assert found.arm == "none"
    found = advice({"difficulty": [80.5, 80.3, 80.8], "trivialaugment": [80.1, 80.5, 80.3], "none": [80.2, 80.0, 80.5]})
    assert (found.arm, found.level) == ("trivialaugment", ("difficulty", "trivialaugment")), (
        "none is 0.3 below difficulty"
    )
    assert "Its difference from none is +0.07 [" in found.text
    assert "points: level." in found.text


def test_the_best_may_be_the_simplest_and_level():
    found = advice({"none": [80.2, 80.6, 80.4], "difficulty": [80.1, 80.7, 80.0]})
    assert (found.arm, found.sureness) == ("none", "cannot tell")
    assert "It has the highest mean, but these runs cannot tell whether it is the best arm" in found.text


def test_of_level_arms_of_a_kind_the_cheaper_then_the_better():
    level = {"trivialaugment": [84.0, 84.4, 84.5], "randaugment": [84.3, 84.5, 84.3]}
    assert advice(level).arm == "randaugment"
    assert advice(level, seconds={"randaugment": 109.0}).arm == "randaugment", "a difference in time that is noise"
    assert advice(level, seconds={"randaugment": 120.0}).arm == "trivialaugment"
    busy = {"randaugment": 4}
    assert advice(level, seconds={"randaugment": 120.0}, at_once=busy).arm == "randaugment", "times do not compare"


def test_of_arms_that_are_as_simple_it_says_what_decided():
    level = {"trivialaugment": [84.0, 84.4, 84.5], "randaugment": [84.3, 84.5, 84.3], "difficulty": [84.2, 84.5, 84.3]}
    better, cheaper = advice(level), advice(level, seconds={"randaugment": 120.0})
    names = "trivialaugment, randaugment and difficulty are level (3 seeds); "
    assert better.verdict == f"{names}of the simplest, randaugment has the highest mean."
    assert cheaper.verdict == f"{names}of the simplest, trivialaugment takes the least time."
    assert "before learned ones; of those that are as simple, trivialaugment takes the least time." in cheaper.text


def test_seeds_that_only_one_arm_has_decide_nothing():
    hard = {3: 70.0, 4: 70.2, 5: 69.9}
    runs = {"none": [80.0, 80.2, 80.1], "trivialaugment": {0: 82.0, 1: 82.3, 2: 82.0} | hard}
    found = advice(runs)
    assert (found.arm, found.sureness) == ("trivialaugment", "clear"), "it is 2 points above on every shared seed"
    assert found.verdict.endswith("points over none (3 seeds)."), "as many as the interval is over"
    level = advice(runs | {"difficulty": {0: 82.3, 1: 81.9, 2: 82.3, 3: 69.9, 4: 70.4, 5: 69.9}})
    assert "difficulty has the highest mean on the seeds that all arms have, 82.17 %, but leads by +0.0" in level.text
    assert "level (6 seeds)" in level.verdict


def test_arms_of_ones_own_are_judged_by_their_policy():
    arms = parse_arms("mine:sigma=0.01,steady:policy=trivial,learning_rate=0.2,slow:policy=none,epochs=3")
    level = {"mine": [84.3, 84.5, 84.4], "steady": [84.2, 84.5, 84.4], "slow": [84.1, 84.5, 84.4]}
    assert recommend(arms, records(level), "validation").arm == "slow"
    del level["slow"]
    assert recommend(arms[:2], records(level), "validation").arm == "steady"


def test_one_seed_is_too_few():
    found = advice({"none": {4: 65.6}, "trivialaugment": {4: 74.0}})
    assert (found.arm, found.sureness, found.accuracy) == (None, "cannot tell", None)
    assert found.text == (
        "No recommendation yet: one seed is too few: two runs of the same arm also differ. Train 3 or more: "
        "repeat the command with --seeds 4,5,6."
    )
    assert found.verdict == (
        "trivialaugment is ahead of none by 8.40 points (74.00 % against 65.60 %); one seed is too few for a verdict."
    )


def test_two_seeds_are_too_few_however_far_apart_the_arms_are():
    found = advice({"none": [65.6, 65.7], "trivialaugment": [74.0, 74.1], "difficulty": [70.0, 70.1]})
    assert found.arm is None
    assert "two seeds are too few: two runs of the same arm also differ. Train 3 or more" in found.text
    assert "--seeds 0,1,2." in found.text
    assert found.verdict == (
        "trivialaugment is ahead of difficulty by 4.00 points (74.05 % against 70.05 %); two seeds are too few for a "
        "verdict."
    )


def test_equal_means_have_nobody_ahead():
    found = advice({"none": [65.6], "trivialaugment": [65.6]})
    assert found.verdict == "none and trivialaugment are level at 65.60 %; one seed is too few for a verdict."


def test_arms_without_common_seeds():
    found = advice({"none": {0: 65.6, 1: 66.0, 2: 66.0}, "trivialaugment": {1: 74.0, 2: 73.0, 3: 73.0}})
    assert found.arm is None
    assert "fewer than 3 shared seeds are too few" in found.text
    assert "Train all arms with the same 3 seeds or more." in found.text


def test_an_arm_with_two_seeds_is_not_considered():
    found = advice({"none": [80.0, 80.1, 80.0], "trivialaugment": [84.0, 84.0, 84.1], "difficulty": [99.0, 99.0]})
    assert found.arm == "trivialaugment"
    assert "fewer than 3 finished seeds are shared with trivialaugment: difficulty." in found.text


def test_verdicts_in_one_sentence():
    clear = advice({"none": [81.8, 81.5, 82.0], "trivialaugment": [84.7, 84.5, 84.8]})
    assert clear.verdict == "trivialaugment is best: +2.90 [+2.65, +3.15] points over none (3 seeds)."
    likely = advice({"none": [81.0, 81.2, 80.9], "trivialaugment": [81.3, 82.2, 81.5]})
    assert likely.verdict.startswith("trivialaugment is likely best: +0.63 [-0.2")
    level = advice({"none": [80.2, 80.6, 80.4], "difficulty": [80.1, 80.7, 80.0]})
    assert level.verdict == "none and difficulty are level (3 seeds); none is the simplest."


def test_nothing_to_choose_between():
    assert advice({}) is None
    assert advice({"none": [80.0, 81.0]}) is None


def test_unfinished_runs_make_it_preliminary():
    runs = records({"none": [80.0, 80.1, 80.0], "trivialaugment": [84.0, 84.0, 84.1]})
    runs.append(RunRecord(arm="none", seed=3, epochs=2, accuracy=(99.0,)))
    found = recommend([ARMS["none"], ARMS["trivialaugment"]], runs, "validation")
    assert found.sentences[-1] == "This is preliminary: 1 of 7 runs has not finished."
    assert found.arm == "trivialaugment"


def test_a_choice_on_test_images_is_warned_of():
    runs = {"none": [80.0, 80.1], "trivialaugment": [84.0, 84.0]}
    assert "--set validation=0.2" in advice(runs, measured_on="test").sentences[-1]
    assert "test" not in advice(runs).text


def test_level_arms_are_hardly_ever_called_different():
    generator, sureness = np.random.default_rng(0), []
    for draw in generator.normal(80, 0.3, (600, len(STANDARD), 3)):
        sureness.append(advice(dict(zip(STANDARD, draw.tolist()))).sureness)
    assert sureness.count("clear") / 600 < 0.05
    assert sureness.count("likely") / 600 < 0.2
    assert sureness.count("cannot tell") / 600 > 0.9


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from(STANDARD),
        st.dictionaries(st.integers(0, 4), st.integers(0, 1000).map(lambda value: value / 10), max_size=5),
        min_size=2,
    )
)
def test_advice_holds_together(accuracies):
    found = advice(accuracies)
    if sum(map(bool, accuracies.values())) < 2:
        assert found is None
        return
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.text
    if found.arm is None:
        assert found.sureness == "cannot tell"
        return
    assert len(accuracies[found.arm]) >= 3
    assert (found.arm in found.level) == (found.sureness == "cannot tell")
    if found.sureness == "clear":
        assert found.over_rival.points.low > 0


@pytest.mark.parametrize("seed", range(5))
def test_seeds_to_settle_is_the_first_number_that_is_enough(seed):
    values = np.random.default_rng(seed).normal(0.3, 0.5, 4)
    found = seeds_to_settle(paired_difference(dict(enumerate(values)), dict.fromkeys(range(4), 0.0)), 1000)
    deviation = np.std(values, ddof=1)

    def half(n):
        return stats.t.ppf(0.975, n - 1) * deviation / n**0.5

    assert half(found) < abs(values.mean()) <= half(found - 1)


def test_seeds_that_never_settle():
    assert seeds_to_settle(PairedDifference(3, 0, 0.0, -1.0, 1.0)) is None
    assert seeds_to_settle(PairedDifference(1, 0, 1.0)) is None
    assert seeds_to_settle(PairedDifference(3, 0, 0.01, -1.0, 1.02)) is None


# In the command, its file and its page.


def test_it_ends_the_command_and_is_on_the_page_and_in_the_file(tmp_path):
    base = Base.of(get_recipe("digits"), [*SETTINGS, "validation=200"])
    folder, comparison = comparison_in(tmp_path / "c", base=base)
    outcome = command(folder.path, "--report")
    *_, text, _, verdict, page = outcome.stdout.splitlines()
    assert page.startswith("page to open")
    assert verdict == comparison.recommendation.verdict
    assert verdict == "trivialaugment is best: +0.60 [+0.35, +0.85] points over none (3 seeds)."
    assert text == comparison.recommendation.text
    assert text.startswith(
        "Recommendation: trivialaugment, 91.60 ± 1.10 % on validation images (3 seeds). It beats none"
    )
    shown = render(comparison)
    assert shown.index(f'<p class="verdict">{verdict}</p>') < shown.index("<h2>Recommendation</h2>")
    assert "<h2>Recommendation</h2>\n<p>Recommendation: trivialaugment" in shown
    kept = json.loads(folder.file.read_text())["recommendation"]
    assert (kept["arm"], kept["sureness"], kept["over_none"]["pairs"]) == ("trivialaugment", "clear", 3)


def test_one_arm_alone_gets_no_advice(tmp_path):
    folder, comparison = comparison_in(tmp_path / "c", arms="none")
    assert "ecommendation" not in command(folder.path, "--report").stdout + render(comparison)
    assert json.loads(folder.file.read_text())["recommendation"] is None


def test_a_test_set_that_chooses_is_named(tmp_path):
    folder, _ = comparison_in(tmp_path / "c", arms=f"none,{MINE}")
    assert "then use the test set once." in command(folder.path, "--report").stdout


def test_the_standard_arms(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "particleaugment.compare.execute.execute", lambda folder, plan, todo, *others: asked.extend(todo) or plan
    )
    command("digits", "--out", tmp_path / "c", "--seeds", "0")
    assert [run.arm for run in asked] == list(STANDARD)
