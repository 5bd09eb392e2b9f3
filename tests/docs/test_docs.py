"""Docs say what is so: their snippets run, their commands parse, their links lead somewhere, and every public name is
documented with an example that runs (doctests run with the suite)."""

import inspect
import re

import pytest
import typer
from documents import PAGES, ROOT, mentioned_commands, name, python_snippets, typed_commands

import particleaugment as pa
from particleaugment.cli.main import app
from particleaugment.recipes import get_recipe
from particleaugment.training.config import ConfigError

NAMES = [name for name in pa.__all__ if inspect.isclass(getattr(pa, name)) or inspect.isfunction(getattr(pa, name))]
DOCS = ROOT / "docs"
WITHDRAWN = {"filter=gap", "filter=gap-frozen"}


def texts(thing):
    yield thing.__doc__ or ""
    if inspect.isclass(thing):
        yield from ((member.__doc__ or "") for member in vars(thing).values() if callable(member))
        yield from (
            (member.__func__.__doc__ or "") for member in vars(thing).values() if isinstance(member, classmethod)
        )


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_examples(name):
    assert any(">>>" in text for text in texts(getattr(pa, name)))


# README's has names of the reader's own; test_readme.py gives it some.
SNIPPETS = [
    pytest.param(code, f"{name(page)}, snippet {number}", id=f"{name(page)}-{number}")
    for page in PAGES
    if page.name != "README.md"
    for number, code in enumerate(python_snippets(page), 1)
]


@pytest.mark.parametrize(("code", "place"), SNIPPETS)
def test_snippets_run(code, place):
    exec(compile(code, place, "exec"), {"__name__": "page"})


def check_command(words, may_be_partial=False):
    """Read a command as the command line would, without running it, and its settings as a run would."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands"):
        if not rest and may_be_partial:
            return
        command = command.commands[rest.pop(0)]
    if not rest and may_be_partial:
        return
    given = command.make_context(command.name, rest).params
    if command.name == "train":
        get_recipe(given["recipe"]).override(given["assignments"] or [])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    for words in typed_commands(text):
        check_command(words)
    for words in mentioned_commands(text):
        if WITHDRAWN.isdisjoint(words):
            check_command(words, may_be_partial=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_was_withdrawn_is_only_named_as_such(page):
    """Commands of result tables stay as they were run; no page may ask for what is gone."""
    text = page.read_text(encoding="utf-8")
    assert all(WITHDRAWN.isdisjoint(words) for words in typed_commands(text))
    for line in text.splitlines():
        if re.search(r"filter=gap|pa\.GapFilter", line):
            assert "(withdrawn)" in line or "is in the git history" in line, line


def test_commands_are_found_and_wrong_ones_noticed():
    found = typed_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert ["data", "cifar10", "~/data"] in found
    assert len(found) >= 5
    usage_error = typer.BadParameter.__bases__[0]
    for wrong, error in (
        (["train", "--epochs", "4"], usage_error),
        (["train", "digits", "--set", "epohcs=4"], ConfigError),
        (["policy", "export", "FILE", "--to", "keras"], usage_error),
        (["resume"], usage_error),
        (["trian"], KeyError),
    ):
        with pytest.raises(error):
            check_command(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert re.match(r"https?://", target) or (page.parent / target).exists(), target


def test_the_page_of_executors_has_a_row_for_each():
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "executors.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted({*pa.EXECUTORS} - {"auto"})


def test_the_page_of_ops_says_what_the_table_says():
    rows = re.findall(
        r"^\| (\w+) \| (.*?) \| (.*?) ?\| (.*?) ?\| (.*?) ?\|$", (DOCS / "ops.md").read_text(), re.MULTILINE
    )
    written = [row for row in rows if row[0] != "op"]
    expected = [
        (
            op.name,
            op.unit or "–",
            op.valid,
            "yes" if op.signed else "",
            "always" if op.name == "Identity" else "" if op.neutral is None else f"{op.neutral:g}",
        )
        for op in pa.ops.TABLE
    ]
    assert written == expected
