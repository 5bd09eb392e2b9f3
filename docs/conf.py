"""The documentation site. Build it with ``make docs``; a warning fails the build."""

import sys
from pathlib import Path

from docutils import nodes

import particleaugment

sys.path.append(str(Path(__file__).parent))

project = "ParticleAugment"
author = "the ParticleAugment authors"
version = release = particleaugment.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathtext"]
html_math_renderer = "mathtext"
myst_heading_anchors = 3

html_theme = "furo"
html_title = "ParticleAugment"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False

# References into other projects are not resolved, since the build uses no network; those into this one must be.
# Modules that users never import have no page.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!particleaugment).*"),
    (r"py:.*", r"particleaugment\.(core|util|trainee|training|search|data\.(decode|samples))\b.*"),
    (r"py:.*", r"particleaugment\.(augment\.one_image|policies\.(plan|tables))\b.*"),
    (r"py:.*", r"particleaugment\.policies\.schedule\.(P|EpochPolicies)\b.*"),
]


def fit_to_the_screen(app, doctree, name):
    """Put each picture into a box that scrolls on narrow screens, and mark names of tests, which are long.

    The rest is in ``_static/site.css``.
    """
    for picture in list(doctree.findall(nodes.image)):
        alone = picture.parent if len(picture.parent) == 1 else picture
        if isinstance(alone.parent, nodes.section):
            box = nodes.container(classes=["picture", *picture["classes"]])
            alone.replace_self(box)
            box += picture
    for literal in doctree.findall(nodes.literal):
        if literal.astext().startswith("tests/"):
            literal["classes"].append("test")


def setup(app):
    """Fit pages to narrow screens once their references are resolved."""
    app.connect("doctree-resolved", fit_to_the_screen)
