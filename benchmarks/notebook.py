"""Run the cells of examples/quickstart.ipynb in a folder of their own, and store what they print and show.

    python benchmarks/notebook.py

QUICKSTART_EPOCHS and QUICKSTART_SEEDS make it shorter; leave them alone for outputs that are committed.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell and return its outputs: what it prints, and the value of its last expression."""
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        shown = {"output_type": "execute_result", "execution_count": count, "data": _shown(value), "metadata": {}}
        outputs.append(shown)
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    if not hasattr(value, "save"):
        return {"text/plain": [repr(value)]}
    picture = io.BytesIO()
    value.save(picture, "PNG")
    text = f"<PIL.Image.Image size={value.width}x{value.height}>"
    return {"text/plain": [text], "image/png": base64.b64encode(picture.getvalue()).decode()}


def main() -> None:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for count, cell in enumerate(cells, 1):
            cell["outputs"], cell["execution_count"] = run_cell("".join(cell["source"]), names, count), count
            print(f"cell {count} of {len(cells)} is done", flush=True)
        os.chdir(NOTEBOOK.parent)
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
