"""The site builds without a warning and holds every page and every public name."""

import re
import runpy
import subprocess
import sys

import pytest
from documents import PAGES, ROOT
from sphinx.util.inventory import InventoryFile

import particleaugment as pa
from particleaugment import data, filter, models, ops, policies

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet", "--doctree-dir", str(out / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(out / "html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_page_is_there(site):
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()


def test_every_page_is_in_the_contents(site):
    contents = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f'href="{page.stem}.html"' in contents


def test_every_public_name_has_its_reference(site):
    with open(site / "objects.inv", "rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    wanted = {f"{module.__name__}.{name}" for module in (data, filter, models, ops) for name in module.__all__}
    wanted |= {f"particleaugment.{name}" for name in (*pa.__all__, *policies.__all__)}
    # Documented as pa.policy_from_dict, pa.load_policy and by the module's own name.
    wanted -= {"particleaugment.__version__", "particleaugment.from_dict", "particleaugment.load"}
    wanted = wanted - {"particleaugment.semantics"} | {"particleaugment.core.semantics"}
    assert wanted - known == set()


def test_pictures_are_there(site):
    text = (site / "how-it-works.html").read_text(encoding="utf-8")
    assert "_images/literal-run.svg" in text
    assert all((site / "_images" / name).stat().st_size > 5000 for name in ("literal-run.svg", "gallery.png"))


def test_formulas_are_drawn(site):
    text = (site / "difficulty.html").read_text(encoding="utf-8")
    drawn = re.findall(r'<svg role="img" aria-label="([^"]+)"', text)
    assert r"d_t = \dfrac{\ell_t}{\bar h_t}" in drawn
    assert len(drawn) >= 10
    assert "\\dfrac" not in re.sub(r'aria-label="[^"]+"', "", text), "no formula is left as it is written"
    ids = re.findall(r'\bid="(m[0-9a-f]+-[^"]+)"', text)
    used = set(re.findall(r'xlink:href="#(m[^"]+)"', text))
    assert used
    assert used <= set(ids)


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text
        assert '<link rel="stylesheet" type="text/css" href="http' not in text


def test_pictures_are_drawn_from_the_result_files(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pictures = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))
    (risen,) = re.findall(r"plain images rose \| (\d+) ", (ROOT / "docs" / "results.md").read_text())
    assert f"the loss rose: {risen} steps" in pictures["literal_run"]()
    assert pictures["applied_ops"]()[-1] > 6
