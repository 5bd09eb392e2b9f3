"""The difficulty filter's state in a checkpoint with a right checksum: whatever is wrong in it is found."""

import shutil

import pytest
from mutations import payload_of, sealed
from runs import StopAfter, command, finish, leave_out_report, on_few, result

from particleaugment.runs.verify import verify
from particleaugment.training.checkpoint import find_checkpoints, load_checkpoint

FILTER = ("filter=difficulty", "every=1", "filter.start=2")  # from 0, these few epochs might change nothing


@pytest.fixture(scope="module")
def folders(tmp_path_factory, few_digits):
    made = tmp_path_factory.mktemp("runs")
    with on_few(few_digits) as patch:
        leave_out_report(patch)
        finish(made / "stopped", *FILTER, stop=StopAfter(12))
        finish(made / "whole", *FILTER)
    return made


def history_of(state):
    return state["search"]["history"]


def all_set(name, value):
    return lambda state: history_of(state).update({name: [value] * len(history_of(state)[name])})


CHANGES = {
    "more ops than there are slots": all_set("strength", 100.0),
    "fewer ops than none": all_set("strength", -1.0),
    "a strength that is a text": all_set("strength", "1"),
    "a loss that is not a number": all_set("held_out_loss", float("nan")),
    "a loss below 0": lambda state: history_of(state)["held_out_loss"].__setitem__(-1, -0.5),
    "a loss that is infinite": lambda state: history_of(state)["held_out_loss"].__setitem__(-1, float("inf")),
    "steps below 0": all_set("steps", -5),
    "steps that are not whole": all_set("steps", 0.5),
    "steps that stand still": all_set("steps", 0),
    "more steps skipped than taken": all_set("skipped", 9),
    "losses that ranks observed": lambda state: state["search"].update(observed=((1.0, 2), None)),
    "losses that are no number": lambda state: state["search"].update(observed=((float("inf"), 2),)),
    "a policy that begins late": lambda state: history_of(state).update(
        starts=[start + 1 for start in history_of(state)["starts"]]
    ),
    "a step too few": lambda state: history_of(state)["starts"].pop(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_wrong_states_are_found(folders, tiny, tmp_path, change):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    for path in find_checkpoints(run):
        state = load_checkpoint(path)
        change(state)
        path.write_bytes(sealed(payload_of(state)))
    assert verify(run).state == "broken"
    outcome = command("resume", run, "-q")
    assert outcome.exit_code == 1
    assert len(outcome.stderr.splitlines()) == 1
    assert "search." in outcome.stderr or "finite" in outcome.stderr


def test_a_sound_state_goes_on(folders, tiny, tmp_path):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    assert len(history_of(load_checkpoint(find_checkpoints(run)[-1]))["strength"]) > 1
    assert_sound(run, "resumable")
    finish(run)
    assert result(run) == result(folders / "whole")
    assert_sound(run, "finished")


def assert_sound(run, state):
    """The policy has fewer ops than the configuration, since the filter chooses among them."""
    verdict = verify(run)
    assert verdict.state == state
    assert [finding.text for finding in verdict.findings if not finding.sound] == []
