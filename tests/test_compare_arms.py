"""Arms and seeds, as they are written on the command line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import search_of
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.compare.arms import ARMS, parse_arms, parse_seeds
from particleaugment.policies.parse import TIMM_OPS
from particleaugment.recipes import get_recipe
from particleaugment.search.filters import filter_settings
from particleaugment.training.config import ConfigError


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_fits_every_kind_of_recipe(name):
    for recipe in ("digits", "cifar10-wrn28-2", "cifar100-wrn28-10"):
        config = ARMS[name].config(get_recipe(recipe, "paper"), seed=5)
        assert config.seed == 5
        if config.searches:
            config.filter().check(config.ops, config.epochs)
        else:
            assert config.fixed_policy()


def test_no_two_arms_are_the_same():
    configs = [arm.config(get_recipe("digits", "paper"), seed=0) for arm in ARMS.values()]
    assert len(set(configs)) == len(configs)


def test_the_controls_differ_from_their_filter_in_kind_alone():
    base = get_recipe("cifar10-wrn28-2", "paper")

    def settings(name):
        return filter_settings(ARMS[name].config(base, seed=0).filter())

    def changed(one, other):
        return {key for key in settings(one) if settings(one)[key] != settings(other)[key]}

    assert changed("particles", "particles-frozen") == {"kind"}
    assert changed("particles", "particles-shuffled") == {"kind"}
    assert changed("improved", "improved-frozen") == {"kind"}
    assert changed("particles", "particles-authors") == {"kind", "m", "start_value", "resampling"}
    assert ARMS["particles-authors"].config(base, seed=0).ops == TIMM_OPS


def test_the_documentation_names_every_arm():
    text = (Path(__file__).parents[1] / "docs" / "compare.md").read_text()
    assert [name for name in ARMS if f"`{name}`" not in text] == []


def test_arms_of_ones_own():
    arms = parse_arms("none, mine:sigma=0.02,m=4,fill=(1,2,3),particles,other:policy=rand-m9-n3-inc1")
    assert [arm.name for arm in arms] == ["none", "mine", "particles", "other"]
    config = arms[1].config(get_recipe("digits", "paper"), seed=1)
    assert (config.sigma, config.m, config.fill, config.policy) == (0.02, 4.0, (1, 2, 3), "particles")
    assert (config.measure, config.alpha) == ("loss", 0.5), "a filter of one's own starts from the improved one"
    (literal,) = parse_arms("mine:preset=paper,eta=0.5")
    config = literal.config(get_recipe("digits", "paper"), seed=1)
    assert (config.measure, config.alpha, config.eta) == ("clone", 0.8, 0.5)
    assert arms[3].settings == ("policy=rand-m9-n3-inc1",)
    assert arms[3].config(get_recipe("digits", "paper"), seed=1).policy == "rand-m9-n3-inc1"
    assert parse_arms("none,none") == (ARMS["none"],)


def test_a_schedule_is_named_after_its_run(tmp_path):
    file = tmp_path / "my run" / "policy.json"
    file.parent.mkdir()
    search_of().schedule(3).save(file)
    (arm,) = parse_arms(f"schedule:{file}")
    assert arm.name == "schedule-my-run"
    assert arm.config(get_recipe("digits", "paper"), seed=0).fixed_policy().epochs == 3
    with pytest.raises(ConfigError, match=r"there is no policy file .*other\.json"):
        parse_arms(f"schedule:{tmp_path}/other.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trivialaugmnt", "there is no arm 'trivialaugmnt'; did you mean trivialaugment?"),
        ("zzz", "there is no arm 'zzz'; the arms are none, randaugment"),
        ("", "no arm was given"),
        ("none,m=4", "the setting 'm=4' belongs to no arm"),
        ("none:m=4", "the arm 'none' has its own settings"),
        ("a/b:m=4", "'a/b' cannot be an arm's name"),
        ("mine:", "the arm 'mine' has no settings"),
        ("mine:preset=papr,m=4", "there is no preset 'papr'; did you mean paper?"),
        ("mine:m=4,seed=3", "the arm 'mine' sets a seed"),
        ("mine:m=4,mine:m=5", "two different arms are called 'mine'"),
    ],
)
def test_arms_that_are_none(text, message):
    with pytest.raises(ConfigError) as error:
        parse_arms(text)
    assert message in str(error.value)


def test_errors_in_an_arms_settings_name_the_arm():
    (arm,) = parse_arms("mine:sgima=0.1")
    with pytest.raises(ConfigError, match="arm 'mine': there is no setting 'sgima'; did you mean sigma"):
        arm.config(get_recipe("digits", "paper"), seed=0)


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
