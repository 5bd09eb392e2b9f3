"""What random attacks have found, so that it stays mended; ``benchmarks/attacks.py`` makes them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mutations import payload_of, run_state, sealed
from runs import StopAfter, command, finish, leave_out_report, on_few, result

import particleaugment as pa
from particleaugment.runs.verify import verify
from particleaugment.training.checkpoint import (
    CheckpointError,
    find_checkpoints,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attacks.py"


def test_a_few_dozen_attacks_of_every_class(tmp_path):
    limits = ["--seconds", "8", "--most", "4", "--kinds", "memory", "--seed", "7", "--out", tmp_path]
    done = subprocess.run([sys.executable, SCRIPT, *limits], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    classes = json.loads((tmp_path / "attacks.json").read_text())["results"]["classes"]
    assert len(classes) == 13
    for name, found in classes.items():
        assert found["attacks"] >= 1, name
        assert found["findings"] == []


@pytest.fixture(scope="module")
def folders(tmp_path_factory, few_digits):
    """Runs with a learned policy and with one that was given in a file, stopped and left alone."""
    made = tmp_path_factory.mktemp("runs")
    pa.RandAugment(n=2, m=5).save(made / "policy.json")
    given = f"policy=file:{made / 'policy.json'}"
    with on_few(few_digits) as patch:
        leave_out_report(patch)
        finish(made / "learned", stop=StopAfter(18))
        finish(made / "given", given, stop=StopAfter(9))
        finish(made / "undisturbed", given)
    assert len(find_checkpoints(made / "given")) == 2
    return made


@pytest.fixture
def learned(folders, tmp_path):
    return shutil.copytree(folders / "learned", tmp_path / "run")


@pytest.fixture
def given(folders, tmp_path):
    return shutil.copytree(folders / "given", tmp_path / "run")


def refused_alike(run, *words):
    """Whether verify and resume both refuse a run, and name what is wrong; returns resume's sentence."""
    verdict, outcome = verify(run), command("resume", run, "-q")
    assert verdict.state == "broken"
    assert outcome.exit_code in (1, 2), outcome.output
    assert len(outcome.stderr.splitlines()) == 1
    wrong = " ".join(finding.text for finding in verdict.findings if not finding.sound)
    for word in words:
        assert word in outcome.stderr
        assert word in wrong
    return outcome.stderr


# Links and folders: verify and resume refuse the same, before anything is computed.


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "policy.json", "report.html", "checkpoint-00000007.pt"])
def test_a_folder_in_a_files_place(learned, tiny, name):
    (learned / name).unlink(missing_ok=True)
    (learned / name).mkdir()
    refused_alike(learned, f"{learned / name} is a folder, not a regular file")


@pytest.mark.parametrize("name", ["report.html", "metrics.jsonl", "policy.json", ".lock"])
def test_a_link_to_itself_in_a_finished_run(folders, tmp_path, name):
    run = shutil.copytree(folders / "undisturbed", tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(run / name)
    verdict = verify(run)
    assert verdict.state == "broken"
    assert f"{run / name} is not a regular file: Too many levels" in " ".join(each.text for each in verdict.findings)


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_second_name_of_a_file_that_grows(learned, tmp_path, tiny, name):
    (learned / name).touch()
    os.link(learned / name, tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    refused_alike(learned, f"{learned / name} is the same file as another one (a hard link)")
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_folder_of_events_that_is_none(learned, tmp_path, tiny, kind):
    shutil.rmtree(learned / "tensorboard", ignore_errors=True)
    (tmp_path / "elsewhere").mkdir()
    if kind == "link":
        (learned / "tensorboard").symlink_to(tmp_path / "elsewhere")
    else:
        (learned / "tensorboard").touch()
    refused_alike(learned, f"{learned / 'tensorboard'} is a link or a file, not a folder")
    assert list((tmp_path / "elsewhere").iterdir()) == []


# A policy file that the run was given.


def test_a_given_policy_that_cannot_be_read(given, tiny):
    (given / "given-policy.json").write_text("{}")
    refused_alike(given, "given-policy.json is not a policy file")
    (given / "given-policy.json").unlink()
    os.mkfifo(given / "given-policy.json")
    refused_alike(given, "given-policy.json cannot be read: it is a pipe or a device")


def test_another_given_policy(given, folders, tiny, no_report):
    before = (given / "given-policy.json").read_bytes()
    pa.RandAugment(n=2, m=6).save(given / "given-policy.json")
    refused_alike(given, "given-policy.json is not the policy that the run was started with")
    (given / "given-policy.json").write_text(json.dumps(json.loads(before), indent=3))
    assert verify(given).state == "resumable", "how it is written does not matter"
    assert command("resume", given, "-q").exit_code == 0
    assert result(given) == result(folders / "undisturbed")


def test_the_file_that_was_copied_may_go_and_the_copy_may_go_with_it(folders, tmp_path):
    run = shutil.copytree(folders / "undisturbed", tmp_path / "run")
    (run / "report.html").write_text("<!doctype html></body></html>\n")
    assert verify(run).sound
    (run / "given-policy.json").unlink()
    findings = {finding.part: finding.text for finding in verify(run).findings}
    assert findings["given"] == "missing, but no longer needed"


def test_another_policy_in_a_finished_run(folders, tmp_path):
    run = shutil.copytree(folders / "undisturbed", tmp_path / "run")
    pa.RandAugment(n=2, m=6).save(run / "policy.json")
    [wrong] = [finding for finding in verify(run).findings if finding.part == "policy"]
    assert not wrong.sound
    assert wrong.text == f"{run / 'policy.json'} differs from the policy that the run was started with"


# Checkpoints.


def test_a_checkpoint_that_was_passed_over_goes_away(learned, tiny):
    older, newest = find_checkpoints(learned)
    newest.write_bytes(newest.read_bytes()[:-1])
    assert command("resume", learned, "-q").exit_code == 0
    kept = find_checkpoints(learned)
    assert newest not in kept
    assert len(kept) == 2 or older not in kept
    assert verify(learned).sound, "of a run that was just finished"


def test_useless_checkpoints_do_not_push_out_sound_ones(tmp_path):
    paths = [save_checkpoint(tmp_path, run_state()) for _ in range(2)]
    third = save_checkpoint(tmp_path, run_state(), useless=paths[1:])
    assert find_checkpoints(tmp_path) == [paths[0], third]


def test_more_checkpoints_than_eight_digits_count(tmp_path):
    last = save_checkpoint(tmp_path, run_state()).rename(tmp_path / "checkpoint-99999999.pt")
    for resumes in (1, 2):
        save_checkpoint(tmp_path, run_state() | {"resumes": resumes})
        assert load_latest(tmp_path)[0]["resumes"] == resumes
    assert last not in find_checkpoints(tmp_path)
    assert len(find_checkpoints(tmp_path)) == 2


@pytest.mark.parametrize("value", [torch.zeros(3), [torch.zeros(3)] * 43, torch.zeros(())])
@pytest.mark.parametrize("name", ["params", "momentum", "nesterov"])
def test_tensors_where_plain_values_belong(tmp_path, name, value):
    state = run_state()
    count = len(state["optimizer"]["param_groups"][0]["params"])
    state["optimizer"]["param_groups"][0][name] = value[:1] * count if isinstance(value, list) else value
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload_of(state)))
    with pytest.raises(CheckpointError, match="optimizer"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["ops", "epochs", "seed", "filter"])
def test_tensors_where_a_search_has_plain_values(tmp_path, name):
    state = run_state()
    state["search"][name] = torch.zeros(2)
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload_of(state)))
    with pytest.raises(CheckpointError, match=f"search.{name} must be"):
        load_checkpoint(path)


# Terminals.


@pytest.mark.parametrize("arguments", [("bench", "{}"), ("verify", "x", "{}"), ("--{}",), ("policy", "{}"), ("{}",)])
def test_errors_about_the_command_line(arguments):
    outcome = command(*(word.format("n\x1b[2J\u2028ame") for word in arguments))
    assert outcome.exit_code == 2
    assert "ame" in outcome.stderr
    assert all(line.isprintable() for line in outcome.stderr.split("\n"))


# The engine.

IMAGES = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize("epoch", [torch.tensor(True), torch.tensor(1, device="meta")])
def test_an_epoch_that_is_not_whole(epoch):
    with pytest.raises(TypeError, match="the epoch must be a whole number"):
        pa.Augment("trivial").set_epoch(epoch)


@pytest.mark.parametrize("number", [{}, object(), 10**30, "x", torch.tensor([[1]]).to_sparse()])
def test_an_id_that_is_not_whole(number):
    with pytest.raises(TypeError, match="the id of an image must be a whole number"):
        pa.Augment("trivial")(IMAGES[0], number)
    with pytest.raises(TypeError, match="the id of an image must be a whole number"):
        pa.ImageTransform("trivial")(IMAGES[0], id=number)


@pytest.mark.parametrize("ids", [torch.arange(2).to("meta"), torch.arange(2).to_sparse()])
def test_ids_without_numbers(ids):
    with pytest.raises(TypeError, match="sample ids must be an ordinary tensor"):
        pa.Augment("trivial")(IMAGES, ids)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of tensors in beta
@pytest.mark.parametrize(
    "images",
    [
        IMAGES.to("meta"),
        IMAGES.to_sparse(),
        IMAGES[0].to_sparse(),
        torch.nested.nested_tensor([IMAGES[0], IMAGES[1]]),
        torch.nested.nested_tensor([IMAGES[0, 0], IMAGES[1, 0]]),
    ],
)
def test_images_without_pixels(images):
    with pytest.raises(TypeError, match="images must be an ordinary tensor"):
        pa.Augment("trivial")(images)
