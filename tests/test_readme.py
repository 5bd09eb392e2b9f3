"""README's snippets run, and its tables say what the result files say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_there_are_snippets():
    assert len(SNIPPETS) >= 2


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_runs(number):
    exec(compile(SNIPPETS[number], f"README.md, snippet {number}", "exec"), {"__name__": "readme"})


def test_search_loop_is_short():
    loop = next(snippet for snippet in SNIPPETS if "ParticleAugment(" in snippet)
    assert len([line for line in loop.splitlines() if line.strip()]) < 25
    body = loop[loop.index("search =") :]
    assert len([line for line in body.splitlines() if line.strip()]) < 20


def test_tables_are_up_to_date():
    check = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python benchmarks/tables.py"
