"""What is said: while a run goes on, and in the table that it ends with."""

import io
import re

import torch
from rich.console import Console
from runs import TINY_DIFFICULTY, command, config_of, epoch_record, filter_record, finish, result
from toy import search_of

import particleaugment as pa
from particleaugment.report.summary import filter_health, leading_ops, phase_seconds, print_summary
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session


def test_what_a_run_prints(tiny, tmp_path):
    path = tmp_path / "[bold]run [/x] :smile:"
    settings = [part for setting in TINY_DIFFICULTY for part in ("--set", setting)]
    outcome = command("train", *settings, "--out", path)
    assert outcome.exit_code == 0
    assert outcome.stderr == ""
    first, second, *lines = outcome.stdout.splitlines()
    assert first.startswith("only 10 images are held out for measuring, so measurements are noisy; train on more")
    assert second == "Color changes nothing on grey images and is left out"
    assert re.fullmatch(
        r"digits: wrn-10-1 on digits, 3 epochs, filter difficulty; \w+ executor, step by step, fp32",
        lines[0],
    )
    for number, line in enumerate(lines[1:4], start=1):
        left = r"  \d+ s left" if number < 3 else ""
        measured = r"( +difficulty \d+\.\d\d \(\d\.\d\d to \d\.\d\d is fine\))?"
        note = rf"loss \d\.\d+  accuracy \d+\.\d\d %  strength \d\.\d\d ops/image{measured}"
        assert re.fullmatch(rf"epoch {number}/3  {note}{left}", line)
    for row in (
        "test accuracy, last epoch",
        "best epoch (not a result)",
        "strength",
        "filter",
        "seconds",
    ):
        assert row in outcome.stdout
    assert lines[-2:] == [f"files: {path}", f"report to open: {path / 'report.html'}"]
    names = {file.name for file in path.iterdir() if file.is_file()}
    assert names >= {"config.json", "metrics.jsonl", "policy.json", "model.safetensors", "report.html"}
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}

    again = command("resume", path)
    assert again.exit_code == 0
    assert "is finished: there is nothing to resume." in again.stdout
    silent = command("resume", path, "--quiet")
    assert (silent.exit_code, silent.output) == (0, "")
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == kept


def test_the_time_left_is_that_of_the_epochs_since_the_run_began_or_resumed(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("particleaugment.training.display.time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=200)
    display = Display(console=console)
    with display.live(epochs=20, done=10):
        for number in (11, 12, 20):
            now[0] += 30.0
            display.epoch(number, 20, "note")
    assert console.file.getvalue().splitlines() == [
        "epoch 11/20  note  4.5 minutes left", "epoch 12/20  note  4.0 minutes left", "epoch 20/20  note",
    ]  # fmt: skip


def test_quiet_says_nothing(tiny, no_report, tmp_path):
    settings = [part for setting in [*TINY_DIFFICULTY, "epochs=1"] for part in ("--set", setting)]
    outcome = command("train", *settings, "--out", tmp_path / "run", "--quiet")
    assert (outcome.exit_code, outcome.output) == (0, "")
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_default_folder_and_the_seed(tiny, no_report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [part for setting in [*TINY_DIFFICULTY, "epochs=1", "policy=none"] for part in ("--set", setting)]
    assert command("train", *settings, "--seed", 3, "-q").exit_code == 0
    assert RunFolder.open(tmp_path / "runs" / "digits-3").config.seed == 3
    assert command("train", *settings, "--set", "seed=4", "-q").exit_code == 0
    assert RunFolder.open(tmp_path / "runs" / "digits-4").config.seed == 4


def test_resume_before_the_first_checkpoint_starts_at_the_beginning(tiny, no_report, tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    run.append_metrics({"kind": "epoch", "epoch": 1, "seconds": {"train": 1.0}})
    outcome = command("resume", run.path, "-q")
    assert outcome.exit_code == 0
    finish(tmp_path / "whole")
    assert result(run.path) == result(tmp_path / "whole")


def test_checkpoints_are_as_far_apart_as_asked(tiny, no_report, tmp_path, monkeypatch):
    saved = []
    save = Session.save
    monkeypatch.setattr(Session, "save", lambda self: (saved.append(self.position.epoch), save(self)))
    settings = [part for setting in TINY_DIFFICULTY for part in ("--set", setting)]
    for seconds, expected in ((0, [2, 3, 4]), (1000, [4])):
        saved.clear()
        command("train", *settings, "--out", tmp_path / str(seconds), "--checkpoint-seconds", seconds, "-q")
        assert saved == expected
    assert "Minimum seconds between checkpoints" in command("train", "--help").stdout
    assert "--checkpoint-seconds" in command("resume", "--help").stdout


# The summary.


def test_leading_ops_are_those_of_the_last_policy():
    low, high = torch.zeros(2, 15), torch.zeros(2, 15)
    low[:, 0], low[:, 3] = 1.0, 0.5
    high[:, 5], high[:, 7] = 0.25, 0.75
    steps = (
        pa.policies.schedule.ScheduleStep(1, low, torch.ones(2)),
        pa.policies.schedule.ScheduleStep(4, high, torch.ones(2)),
    )
    schedule = pa.Schedule(steps, epochs=4)
    for policy in (schedule, schedule.rescaled(4), schedule.rescaled(40), schedule.at(4)):
        assert leading_ops(policy, count=2) == [("Contrast", 0.75), ("SolarizeAdd", 0.25)]
    assert leading_ops(schedule.at(1), count=1) == [("Rotate", 0.5)], "Identity does not lead"
    assert leading_ops(pa.RandAugment(n=2, p=0.5, ops=("Rotate", "Identity"))) == [("Rotate", 0.5)]
    assert leading_ops(pa.parse("rand-m9-tweights")) == [], "drawn without replacement, with no closed form"


def test_summary_numbers(tmp_path):
    records = [
        epoch_record(1, test_accuracy=90.0, seconds={"train": 1.0, "resumes": 0}),
        filter_record(1, resampled=True, effective_sample_size=3.5, ops_per_image=1.25,
                      seconds={"clone": 0.5, "resumes": 0}),
        epoch_record(2, test_accuracy=80.0, seconds={"train": 2.0, "resumes": 1}),
        filter_record(2, skip_reason="d0", effective_sample_size=2.5, ops_per_image=1.5,
                      seconds={"clone": 0.25, "resumes": 1}),
    ]  # fmt: skip
    assert phase_seconds(records) == {"train": 3.0, "clone": 0.75}
    assert filter_health(records) == {
        "steps": 2, "skipped": 1, "resampled": 1, "effective_sample_size": 2.5, "ops_per_image": 1.5,
    }  # fmt: skip
    run = RunFolder.create(tmp_path / "run", config_of())
    for record in records:
        run.append_metrics(record)
    console = Console(file=io.StringIO(), width=200)
    print_summary(run, search_of().policy, console)
    text = console.file.getvalue()
    assert re.search(r"last epoch\D*80\.00 %", text)
    assert re.search(r"not a result\)\D*90\.00 % in epoch 1", text)
    assert "2 steps, 1 skipped, 1 resampled, N_eff 2.5 of 4" in text
    assert "3.8: train 3.0, clone 0.8" in text


def test_characters_that_the_output_lacks_do_not_stop_a_run():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Display(console=Console(file=file)).say("2 classes: ネコ, cat")
    file.flush()
    assert file.buffer.getvalue() == b"2 classes: ??, cat\n"
