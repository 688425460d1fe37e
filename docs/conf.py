"""The documentation site: ``make docs``. Nothing is fetched, neither while it is built nor by its
readers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import nfd

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "nfd"
author = "The nfd authors"
project_copyright = author
version = release = nfd.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "commands",
    "claims",
]
exclude_patterns = ["_extensions"]
smartquotes = False  # they would turn -- of options into dashes

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["math"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 60
napoleon_use_rtype = False

pygments_dark_style = "github-dark"
html_theme = "furo"
# Beside the search on a wide window, and on top of a phone: every page shows its version.
html_title = f"nfd {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(Path(__file__).parent / "_static/scorer.js")
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_use_index = False


def linked(
    _app: Sphinx, what: str, _name: str, _of: object, _options: Any, lines: list[str]
) -> None:
    """Make links of the pages that a docstring names; a colon in the first line of a property
    begins no description.
    """
    lines[:] = [re.sub(r"docs/([\w/-]+)\.md", r":doc:`/\1`", line) for line in lines]
    for split in [
        line for line in lines if what == "property" and line.startswith(":type: ")
    ]:
        lines.remove(split)
        lines[0] = f"{split.removeprefix(':type: ')}: {lines[0]}"


def written(_app: Sphinx, *about: Any) -> tuple[str, str] | None:
    """A default that a factory makes, as dots: the parser of signatures reads them."""
    signature, returned = about[-2:]
    return (signature.replace("<factory>", "..."), returned) if signature else None


def dashed(_app: Sphinx, page: nodes.document) -> None:
    """A dash between a field and its description."""
    for text in page.findall(nodes.Text):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", linked)
    app.connect("autodoc-process-signature", written)
    app.connect("doctree-read", dashed)
