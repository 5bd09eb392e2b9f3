"""Arms and seeds, as they are written on the command line."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import search_of
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.compare.arms import ARMS, Arm, Base, parse_arms, parse_seeds
from particleaugment.compare.comparison import Comparison
from particleaugment.policies.parse import TIMM_OPS
from particleaugment.recipes import get_recipe
from particleaugment.search.filters import filter_settings
from particleaugment.training.config import ConfigError

DIGITS = Base.of(get_recipe("digits"))


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_fits_every_kind_of_recipe(name):
    for recipe in ("digits", "cifar10-wrn28-2", "cifar100-wrn28-10"):
        config = ARMS[name].config(Base.of(get_recipe(recipe)), seed=5)
        assert config.seed == 5
        if config.searches:
            config.filter.check(config.ops, config.training.epochs)
        else:
            assert config.fixed_policy()


def test_no_two_arms_are_the_same():
    configs = [arm.config(DIGITS, seed=0) for arm in ARMS.values()]
    assert len(set(configs)) == len(configs)


def test_the_controls_differ_from_their_filter_in_kind_alone():
    base = Base.of(get_recipe("cifar10-wrn28-2"))

    def settings(name):
        return filter_settings(ARMS[name].config(base, seed=0).filter)

    def changed(one, other):
        return {key for key in settings(one) if settings(one)[key] != settings(other)[key]}

    assert changed("paper", "paper-frozen") == {"kind"}
    assert changed("paper", "paper-shuffled") == {"kind"}
    assert changed("paper", "paper-unskipped") == {"kind"}
    assert changed("difficulty", "difficulty-frozen") == {"kind"}
    assert changed("paper", "paper-authors") == {"kind", "m", "start_value", "resampling"}
    assert ARMS["paper-authors"].config(base, seed=0).ops == TIMM_OPS


def test_the_documentation_names_every_arm():
    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    assert [name for name in ARMS if f"`{name}`" not in text] == []


def test_arms_of_ones_own():
    arms = parse_arms("none, mine:speed=20,start=1,fill=(1,2,3),paper,other:policy=rand-m9-n3-inc1")
    assert [arm.name for arm in arms] == ["none", "mine", "paper", "other"]
    config = arms[1].config(DIGITS, seed=1)
    assert (config.filter.speed, config.filter.start, config.transforms.fill) == (20.0, 1.0, (1, 2, 3))
    assert (config.policy, config.filter.kind) == ("learned", "difficulty"), "as train has it"
    (literal,) = parse_arms("mine:filter=paper,eta=0.5")
    config = literal.config(DIGITS, seed=1)
    assert (config.filter.kind, config.filter.alpha, config.filter.eta) == ("paper", 0.8, 0.5)
    assert (arms[3].policy, arms[3].settings) == ("rand-m9-n3-inc1", ())
    assert arms[3].config(DIGITS, seed=1).policy == "rand-m9-n3-inc1"
    assert parse_arms("none,none") == (ARMS["none"],)


def test_trivialaugment_by_either_name():
    assert parse_arms("trivial,trivialaugment") == (ARMS["trivialaugment"],)
    with pytest.raises(ConfigError, match="the arm 'trivial' is built in"):
        parse_arms("trivial:m=4")
    comparison = Comparison(DIGITS, parse_arms("none,trivial"), "none")
    assert comparison.compared_with("trivial").against == "trivialaugment"


def test_a_schedule_is_named_after_its_run(tmp_path):
    file = tmp_path / "my run" / "policy.json"
    file.parent.mkdir()
    search_of().schedule(3).save(file)
    (arm,) = parse_arms(f"schedule:{file}")
    assert arm.name == "schedule-my-run"
    assert arm.config(DIGITS, seed=0).fixed_policy().epochs == 3
    with pytest.raises(ConfigError, match=r"there is no policy file .*other\.json"):
        parse_arms(f"schedule:{tmp_path}/other.json")


def test_a_schedule_of_a_long_name_can_be_read_again(tmp_path):
    file = tmp_path / f"{'lr-0.1-' * 30}.json"
    search_of().schedule(3).save(file)
    arms = parse_arms(f"none,schedule:{file}")
    again = Comparison.from_json(Comparison(DIGITS, arms, "none").to_json())
    assert again.arms == arms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trivialaugmnt", "there is no arm 'trivialaugmnt'; did you mean trivialaugment?"),
        ("zzz", "there is no arm 'zzz'; the arms are none, randaugment"),
        ("", "no arm was given"),
        ("none,m=4", "the setting 'm=4' does not belong to an arm"),
        ("none:m=4", "the arm 'none' is built in"),
        ("a/b:m=4", "'a/b' cannot be an arm's name"),
        ("mine:", "the arm 'mine' has no settings"),
        ("mine:filter=papr,m=4", "there is no filter 'papr'; did you mean paper?"),
        ("mine:m=4,seed=3", "the arm 'mine' sets a seed"),
        ("mine:m=4,mine:m=5", "two different arms are called 'mine'"),
    ],
)
def test_arms_that_are_none(text, message):
    with pytest.raises(ConfigError) as error:
        parse_arms(text)
    assert message in str(error.value)


def test_errors_in_an_arms_settings_name_the_arm():
    (arm,) = parse_arms("mine:filter=paper,sgima=0.1")
    with pytest.raises(ConfigError, match="arm 'mine': there is no setting 'sgima'; did you mean sigma"):
        arm.config(DIGITS, seed=0)


def test_an_arm_does_not_leave_its_epochs_to_the_data():
    (arm,) = parse_arms("mine:epochs=0")
    with pytest.raises(ConfigError, match="arm 'mine': epochs must be at least 1; to leave it to the data"):
        arm.config(DIGITS, seed=0)
    everywhere = Base.of(get_recipe("folder"), ["data_dir=/images"])
    assert arm.config(everywhere, seed=0).training.epochs == 0


def test_what_a_comparison_sets_counts_more_than_a_filters_own_settings():
    base = Base.of(get_recipe("cifar10-wrn28-2"), ["m=7", "eta=0.5", "sigma=0.01", "epochs=3"])
    found = {
        arm.name: arm.config(base, seed=0) for arm in parse_arms("none,paper,paper-authors,mine:filter=paper,sigma=0.3")
    }
    assert {config.training.epochs for config in found.values()} == {3}
    filters = {name: config.filter for name, config in found.items() if config.searches}
    assert {name: (filter.m, filter.sigma) for name, filter in filters.items()} == {
        "paper": (7.0, 0.01),
        "paper-authors": (7.0, 0.01),
        "mine": (7.0, 0.3),
    }
    assert filters["paper"].eta == filters["paper-authors"].eta == 0.5
    assert filters["paper"].clone_size == 25600, "what nobody sets is the recipe's"


def test_ops_that_a_comparison_sets_are_those_of_all_arms():
    base = Base.of(get_recipe("digits"), ["ops=Rotate,Invert", "nonzero=1"])
    for arm in parse_arms("difficulty,paper,paper-authors,trivialaugment"):
        assert arm.config(base, seed=0).ops == ("Rotate", "Invert")
    (own,) = parse_arms("mine:ops=(Color,Invert)")
    assert own.config(base, seed=0).ops == ("Color", "Invert")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=3", "--set seed is not for comparisons: use --seeds"),
        ("filter=paper", "--set filter is not for comparisons: set it per arm, as in --arms name:filter=paper"),
        ("policy=trivial", "--set policy is not for comparisons: set it per arm, as in --arms name:policy=trivial"),
        ("epoch=3", "there is no setting 'epoch'; did you mean epochs?"),
    ],
)
def test_settings_that_are_not_for_all_arms(setting, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Base.of(get_recipe("digits"), [setting])


@pytest.mark.parametrize("text", ["none", "paper-authors", "mine:filter=paper,sigma=0.02", "own:policy=trivial,m=3"])
def test_an_arm_survives_its_file(text):
    (arm,) = parse_arms(text)
    again = Arm.from_dict(json.loads(json.dumps(arm.to_dict())))
    assert (again, again.meaning) == (arm, arm.meaning)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("mine:filter=paper,sigma=0.02", "filter=paper, sigma=0.02"),
        ("fixed:policy=trivial", "policy=trivial"),
        ("fast:speed=60", "filter=difficulty, speed=60"),
    ],
)
def test_pages_say_what_an_arm_of_ones_own_is(text, meaning):
    assert parse_arms(text)[0].meaning == meaning


def test_seeds():
    assert parse_seeds("0-11") == tuple(range(12))
    assert parse_seeds(" 3, 1-2,2 ") == (3, 1, 2)


@pytest.mark.parametrize("text", ["", ",", "3-1", "-1", "a", "1-2-3", "0-x", "1.5", "0-99999999"])
def test_seeds_that_are_none(text):
    with pytest.raises(ConfigError, match="seed"):
        parse_seeds(text)


@given(st.lists(st.integers(0, 500), min_size=1, unique=True))
def test_seeds_one_by_one(seeds):
    assert parse_seeds(",".join(map(str, seeds))) == tuple(seeds)


def test_arms_are_listed():
    output = CliRunner().invoke(app, ["list"]).output
    assert all(arm.meaning in output for arm in ARMS.values())
