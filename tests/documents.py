"""What the tests of README and docs share: the pages, their Python, and the commands that they name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(page):
    return str(page.relative_to(ROOT))


def python_snippets(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def typed_commands(text):
    """Return the ``particleaugment`` commands in a page's code blocks, as the words after the name.

    >>> typed_commands("```\\nparticleaugment policy export FILE --to timm|json [--out PATH]   # as you like\\n```")
    [['policy', 'export', 'FILE', '--to', 'timm', '--out', 'PATH']]
    """
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return _commands(line for block in blocks for line in block.replace("\\\n", " ").splitlines())


def mentioned_commands(text):
    """Return those in a page's inline code, which may be a command's name alone.

    >>> mentioned_commands("See `particleaugment list`, or `particleaugment report`.")
    [['list'], ['report']]
    """
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return _commands(" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose))


def _commands(lines):
    found = []
    for line in lines:
        match = re.match(r"(?:\$ |\S*torchrun .*-m )?(?:\S*/)?particleaugment ([a-z].*)", line.strip())
        if match is not None:
            words = re.sub(r"\s#.*|[\[\]]", " ", match[1]).split()
            found.append([word.split("|")[0] for word in words])
    return found
