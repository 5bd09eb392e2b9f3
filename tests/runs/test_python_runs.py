"""Whole runs from Python: what the command line calls."""

import signal

import pytest
from runs import StopAfter, command, config_of, result

import particleaugment as pa
from particleaugment.runs import train as running
from particleaugment.runs.train import Interrupted, RunFailed
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError


def test_a_run_from_python_is_the_commands(tiny, no_report, tmp_path):
    config = pa.recipe(
        "digits", filter="paper", epochs=2, batch_size=20, clone_size=20, measure_size=10, precision="fp32"
    )
    run = pa.train(config, tmp_path / "python", quiet=True)
    assert run.finished
    options = ["epochs=2", "batch_size=20", "clone_size=20", "measure_size=10", "precision=fp32"]
    settings = [part for option in options for part in ("--set", option)]
    assert command("train", "digits", "--set", "filter=paper", *settings, "--out", tmp_path / "command").exit_code == 0
    assert result(tmp_path / "python") == result(tmp_path / "command")
    assert pa.resume(run.path, quiet=True).finished, "a finished run is left as it is"


def test_a_stopped_run_says_so_and_resumes(tiny, no_report, tmp_path, monkeypatch, capsys):
    pa.train(config_of(), tmp_path / "whole", quiet=True)

    class StopsInTheMiddle(StopAfter):
        def __init__(self, ranks):
            super().__init__(6)
            self.signal_number = signal.SIGINT

    with monkeypatch.context() as patch:
        patch.setattr(running, "StopTogether", StopsInTheMiddle)
        with pytest.raises(Interrupted, match="stopped and saved; continue with: particleaugment resume ") as caught:
            pa.train(config_of(), tmp_path / "stopped")
    assert caught.value.exit_code == 130
    assert isinstance(caught.value, KeyboardInterrupt)
    assert "stopped and saved" in capsys.readouterr().out
    pa.resume(tmp_path / "stopped", quiet=True)
    assert result(tmp_path / "stopped") == result(tmp_path / "whole")


def test_errors_are_exceptions(tiny, no_report, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="did you mean epochs"):
        pa.recipe("digits", epoch=2)
    with pytest.raises(RunError, match="there is no folder"):
        pa.resume(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="does not fit the data"):
        pa.train(config_of("clone_size=1000"), tmp_path / "unfit", quiet=True)
    assert not (tmp_path / "unfit").exists(), "a request that does not fit leaves no folder"
    monkeypatch.setattr(running, "train_session", lambda session: int("x"))
    with pytest.raises(RunFailed, match=r"the run failed \(ValueError: invalid literal"):
        pa.train(config_of(), tmp_path / "failing", quiet=True)


def test_names_of_the_package():
    assert {"train", "resume", "recipe"} <= set(pa.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        pa.trian  # noqa: B018
