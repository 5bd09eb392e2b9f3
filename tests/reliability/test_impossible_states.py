"""Checkpoints whose values have the right types and cannot be: numbers that do not follow from the run's others."""

import hashlib
import re
import shutil

import pytest
from mutations import payload_of, sealed
from runs import StopAfter, command, finish, on_few, result

from particleaugment.runs.verify import verify
from particleaugment.training.checkpoint import CheckpointError, find_checkpoints, last_good, load_checkpoint

EMPTY = hashlib.sha256().hexdigest()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, few_digits):
    """A run that was stopped after two of the three batches of its third epoch, and one that was left alone."""
    made = tmp_path_factory.mktemp("runs")
    with on_few(few_digits) as patch:
        patch.setattr("particleaugment.report.page.write_report", lambda run: None)
        finish(made / "stopped", stop=StopAfter(16))
        finish(made / "undisturbed")
    state = load_checkpoint(find_checkpoints(made / "stopped")[-1])
    assert (state["position"]["epoch"], state["position"]["batch"], state["data"]["samples"]) == (3, 2, 60)
    return made


def of(part, **values):
    return lambda state, metrics: state[part].update(values)


def of_history(**values):
    return lambda state, metrics: state["search"]["history"].update(values)


def of_history_at(name, place, value):
    def change(state, metrics):
        state["search"]["history"][name][place] = value

    return change


def knowing(size):
    """Metrics up to there, with the checksum that they have."""

    def change(state, metrics):
        known = metrics[: size(metrics)]
        state["position"]["metrics_bytes"] = len(known)
        state["metrics_sha256"] = hashlib.sha256(known).hexdigest()

    return change


def first_particles_otherwise(state, metrics):
    state["search"]["history"]["particles"][0] = 0.5


def of_first_norm(name, value):
    def change(state, metrics):
        found = next(key for key in state["model"] if key.endswith(name))
        state["model"][found].fill_(value)

    return change


CHANGES = {
    "a batch after the last": of("position", batch=4),
    "a batch far after the last": of("position", batch=1 << 62),
    "losses below 0": of("position", loss_sum=-1.0),
    "losses that no network has": of("position", loss_sum=1e300),
    "losses before the first batch": of("position", batch=0, loss_sum=3.5),
    "evaluated before training was over": of("position", phase="evaluate"),
    "filtered before training was over": of("position", phase="filter"),
    "filtered without having been evaluated": of("position", phase="filter", batch=3),
    "an epoch that is not the metrics'": of("position", epoch=2),
    "after the last epoch with batches": of("position", epoch=4),
    "after the last epoch with a phase": of("position", epoch=4, phase="evaluate", batch=3),
    "after the last epoch without its metrics": of("position", epoch=4, batch=0, loss_sum=0.0),
    "no metrics": knowing(lambda metrics: 0),
    "metrics of the first epoch": knowing(lambda metrics: metrics.index(b"\n") + 1),
    "metrics without the last step": knowing(lambda metrics: metrics.rstrip().rindex(b"\n") + 1),
    "half a line of metrics": knowing(lambda metrics: len(metrics) - 10),
    "no metrics by another checksum": lambda state, metrics: state["position"].update(metrics_bytes=0),
    "fewer samples than were seen": of("data", samples=20),
    "a search that is over": of("search", frozen=True),
    "a search of another epoch": of("search", epoch=1),
    "a search of no epoch": of("search", epoch=0),
    "a search in the middle of an epoch": of("search", ended=False),
    "a search that was used": of("search", used=True),
    "a search that steps more seldom": lambda state, metrics: state["search"]["filter"].update(every=2),
    "losses that were observed": of("search", observed=((3.0, 2),)),
    "a policy before its time": of_history(starts=[1, 2, 4]),
    "a policy of the next epoch": of_history(starts=[1, 2, 3, 4]),
    "a step too few": lambda state, metrics: [column.__delitem__(2) for column in lists(state)],
    "steps in another order": of_history(steps=[0, 2, 1]),
    "a step that is skipped before the first": of_history_at("skipped", 0, 1),
    "a step that is skipped twice": of_history_at("skipped", 2, 3),
    "steps that are skipped no longer": of_history(skipped=[0, 1, 0]),
    "half a step skipped": of_history(skipped=[0, 0.5, 0.5]),
    "a first policy that nobody had": first_particles_otherwise,
    "a policy of a file that was not given": lambda state, metrics: state.update(policy="0" * 64),
    "a field that nobody knows": lambda state, metrics: state.update(more=1),
    "variances below 0": of_first_norm("running_var", -1.0),
    "batches below 0": of_first_norm("num_batches_tracked", -1),
    "steps of another device": lambda state, metrics: state["optimizer"]["param_groups"][0].update(fused=True),
    "a learning rate without bounds": lambda state, metrics: state["optimizer"]["param_groups"][0].update(lr=1e300),
}


def lists(state):
    return [column for column in state["search"]["history"].values() if isinstance(column, list)]


def spoil(path, change):
    state = load_checkpoint(path)
    change(state, path.with_name("metrics.jsonl").read_bytes())
    path.write_bytes(sealed(payload_of(state)))


@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_is_found(name, folders, tmp_path):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    older, newest = find_checkpoints(run)
    spoil(newest, CHANGES[name])
    with pytest.raises(CheckpointError, match=re.escape(str(newest))) as caught:
        load_checkpoint(newest)
    assert "\n" not in str(caught.value)
    assert last_good(run) == f"the last good checkpoint is {older}"
    verdict = verify(run)
    [finding] = [finding for finding in verdict.findings if not finding.sound]
    assert finding.part == "checkpoint"
    assert str(newest) in finding.text
    assert verdict.state == "resumable"


@pytest.mark.parametrize("name", ["a batch after the last", "no metrics", "filtered without having been evaluated"])
def test_the_older_one_is_used(name, folders, tmp_path, tiny, no_report):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    newest = find_checkpoints(run)[-1]
    spoil(newest, CHANGES[name])
    outcome = command("resume", run)
    assert outcome.exit_code == 0
    assert f"{newest} does not hold a run's state: position." in outcome.stdout
    assert "; using the previous one" in outcome.stdout
    assert result(run) == result(folders / "undisturbed")


@pytest.mark.parametrize("name", ["a batch far after the last", "a search of another epoch", "variances below 0"])
def test_no_checkpoint_is_good(name, folders, tmp_path, tiny):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    for path in find_checkpoints(run):
        spoil(path, CHANGES[name])
    assert verify(run).state == "broken"
    outcome = command("resume", run, "-q")
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("particleaugment: no checkpoint can be used: ")
    assert len(outcome.stderr.splitlines()) == 1


OTHER_DATA = {
    "other images": of("data", hash="f" * 64),
    "more images": of("data", samples=61),
    "other classes": of("search", data="f" * 64),
}


@pytest.mark.parametrize("name", OTHER_DATA)
def test_a_checkpoint_that_names_other_data_is_passed_over(name, folders, tmp_path, tiny, no_report):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    newest = find_checkpoints(run)[-1]
    spoil(newest, OTHER_DATA[name])
    assert not verify(run).sound
    assert verify(run).state == "resumable"
    outcome = command("resume", run)
    assert outcome.exit_code == 0
    assert f"{newest} names different data than the run has; using the previous one" in outcome.stdout
    assert result(run) == result(folders / "undisturbed")


@pytest.mark.parametrize("name", OTHER_DATA)
def test_if_all_checkpoints_name_other_data_the_data_have_changed(name, folders, tmp_path, tiny):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    for path in find_checkpoints(run):
        spoil(path, OTHER_DATA[name])
    outcome = command("resume", run, "-q")
    assert outcome.exit_code == 1
    assert "the data differ from those that the run" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_a_place_between_two_epochs_that_are_evaluated(few_digits, tmp_path):
    """Not every epoch leaves a line of metrics, so that a place is judged by those that do."""
    with on_few(few_digits):
        finish(tmp_path / "run", "epochs=5", "evaluate_every=2", "every=3", "warmup=2", stop=StopAfter(15))
    newest = find_checkpoints(tmp_path / "run")[-1]
    state = load_checkpoint(newest)
    assert state["position"]["epoch"] == 4
    assert state["search"]["history"]["starts"] == [1, 4]
    assert verify(tmp_path / "run").sound
    spoil(newest, of("position", epoch=2))
    with pytest.raises(CheckpointError, match=r"search\.history\.starts"):
        load_checkpoint(newest)
