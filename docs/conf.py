"""The documentation site: ``make docs``. Nothing is fetched, neither while it is built nor by its readers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import nfd

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "nfd"
author = "The nfd authors"
project_copyright = author
version = release = nfd.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "commands", "claims"]
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

html_theme = "furo"
html_title = "nfd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_use_index = False


def linked(_app: Sphinx, _what: str, _name: str, _of: object, _options: Any, lines: list[str]) -> None:
    """Make links of the pages that a docstring names."""
    lines[:] = [re.sub(r"docs/([\w/-]+)\.md", r":doc:`/\1`", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", linked)
