"""Every public name is documented with an example that runs (doctests run with the suite)."""

import inspect
import re
from pathlib import Path

import pytest

import particleaugment as pa

NAMES = [name for name in pa.__all__ if inspect.isclass(getattr(pa, name)) or inspect.isfunction(getattr(pa, name))]


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


DOCS = Path(__file__).parents[1] / "docs"
SNIPPETS = [
    (page, number, code)
    for page in ("ops.md", "policies-travel.md")
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))
]


@pytest.mark.parametrize(("page", "number", "code"), SNIPPETS, ids=lambda value: str(value)[:20].split("\n")[0])
def test_snippets_run(page, number, code):
    exec(compile(code, f"{page}, snippet {number}", "exec"), {"__name__": "page"})


def test_the_page_of_ops_says_what_the_table_says():
    rows = re.findall(
        r"^\| (\w+) \| (.*?) \| (.*?) ?\| (.*?) ?\| (.*?) ?\|$", (DOCS / "ops.md").read_text(), re.MULTILINE
    )
    written = [row for row in rows if row[0] != "op"]
    expected = [
        (
            op.name,
            op.unit or "–",
            f"{op.low:g} to {op.high:g}" if op.takes_argument else "",
            "yes" if op.signed else "",
            "always" if op.name == "Identity" else "" if op.neutral is None else f"{op.neutral:g}",
        )
        for op in pa.ops.TABLE
    ]
    assert written == expected
