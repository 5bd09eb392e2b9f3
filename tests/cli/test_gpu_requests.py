"""What the command line does with requests that concern a GPU, wherever it runs."""

import json

import pytest
import torch
from typer.testing import CliRunner

from particleaugment.cli import main as cli


def test_the_flag_reaches_the_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr("particleaugment.runs.train._carry_out", lambda request, *_: request())
    for name, flags in (("plain", []), ("deterministic", ["--deterministic"])):
        done = CliRunner().invoke(cli.app, ["train", "--out", str(tmp_path / name), *flags])
        assert done.exit_code == 0, done.output
        assert json.loads((tmp_path / name / "config.json").read_text())["training"]["deterministic"] is bool(flags)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_gpu_that_is_not_there_is_refused(tmp_path):
    done = CliRunner().invoke(cli.app, ["train", "--out", str(tmp_path / "run"), "--set", "device=cuda"])
    assert done.exit_code == 2
    assert "device=cuda was requested, but torch sees no CUDA device; set device=cpu" in done.stderr
    assert not (tmp_path / "run").exists()
