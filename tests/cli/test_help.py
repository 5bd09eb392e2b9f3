"""Help texts: every command and parameter has one, and they read well at 80 columns."""

import pytest
import typer
from typer.testing import CliRunner

from particleaugment.cli.main import app


def every_command(command, path=()):
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, (*path, name))


COMMANDS = list(every_command(typer.main.get_command(app)))


def test_all_commands_are_found():
    paths = {" ".join(path) for path, _ in COMMANDS}
    assert {"", "train", "resume", "report", "compare", "data", "bench", "list", "policy", "policy import"} <= paths


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=lambda value: " ".join(value) or "all" if isinstance(value, tuple) else ""
)
def test_help_reads_well(path, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    # On a terminal of 80 columns click takes 78; its runner would take 80.
    shown = CliRunner().invoke(app, [*path, "--help"], prog_name="particleaugment", terminal_width=78)
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "..." not in shown.output.replace("[ARGS]...", ""), "a command's first line does not fit"
    assert (command.help or "").strip()
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=lambda value: " ".join(value) or "all" if isinstance(value, tuple) else ""
)
def test_options_are_in_small_letters(path, command):
    """Some versions of typer take an option's metavar for its name where the two differ in case alone."""
    for parameter in command.params:
        assert parameter.param_type_name == "argument" or all(name == name.lower() for name in parameter.opts)
