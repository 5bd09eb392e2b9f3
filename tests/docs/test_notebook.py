"""The notebook has its outputs, and its cells run."""

import ast
import json
import os
import subprocess
import sys

import pytest
from documents import ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
CODE = "\n".join("".join(cell["source"]) for cell in CELLS)


def test_the_notebook_has_its_outputs():
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "execute_result"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))


def test_the_notebook_names_no_place_of_its_author():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/tmp/", "/work/", "/root/", "/Users/"))


def test_the_cells_are_plain_python():
    ast.parse(CODE)


@pytest.mark.site
def test_the_cells_run(tmp_path):
    short = {"QUICKSTART_EPOCHS": "2", "QUICKSTART_SEEDS": "0"}
    (tmp_path / "quickstart.py").write_text(CODE, encoding="utf-8")
    command, shorter = [sys.executable, "quickstart.py"], os.environ | short
    done = subprocess.run(command, cwd=tmp_path, env=shorter, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "quickstart" / "report.html").is_file()
    assert (tmp_path / "runs" / "quickstart-compare" / "compare.html").is_file()
