"""Every example is short, has its page, and runs."""

import ast
import importlib.util
import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted((ROOT / "docs" / "integrations").glob("*.md"))
OPTIONAL = ("lightning", "transformers", "accelerate", "timm", "torchvision", "tensorboard")


def imports(path):
    """The packages that an example imports, ``torch.utils.tensorboard`` counted as tensorboard."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        yield from (part for name in names for part in name.split("."))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example, tmp_path, monkeypatch, capsys):
    for package in set(imports(example)) & set(OPTIONAL):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip(), "it says what it did"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short_and_say_how_they_are_run(example):
    text = example.read_text()
    assert len(text.splitlines()) <= 40
    assert f"Run: python examples/{example.name}" in text.splitlines()[0]


def test_every_example_stands_on_a_page_and_every_page_shows_one():
    shown = {page.name: re.findall(r"```\{literalinclude\} (\S+)", page.read_text()) for page in PAGES}
    included = {(ROOT / "docs" / "integrations" / path).resolve() for paths in shown.values() for path in paths}
    assert included == {example.resolve() for example in EXAMPLES}
    assert all(paths for name, paths in shown.items() if name != "index.md")
