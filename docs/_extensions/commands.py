"""What commands and configurations say of themselves, asked of them while the site is built.

``{nfd-help} COMMAND`` shows what ``nfd COMMAND --help`` prints, ``{nfd-settings} module.Class`` a table of the settings
of a configuration with their defaults.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import Any
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from nfd.cli.main import main

_WIDTH = "80"  # characters of a line of help: what fits the column of the page


class Help(SphinxDirective):
    """The help of the command named by the argument; of ``nfd`` without one."""

    optional_arguments = 2  # the command, and a constructor for the form that takes one

    def run(self) -> list[nodes.Node]:
        """A block of text."""
        text = help_of(*self.arguments)
        block = nodes.literal_block(text, text, language="text")
        return [nodes.container("", block, classes=["help"])]


class Settings(SphinxDirective):
    """The settings of the configuration named by the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A definition list: setting and default, meaning."""
        found = nodes.definition_list()
        for name, default, meaning in settings_of(self.arguments[0]):
            literal = nodes.literal("", f"{name} = {default!r}")
            text = nodes.definition("", nodes.paragraph("", meaning))
            found += nodes.definition_list_item("", nodes.term("", "", literal), text)
        return [found]


def help_of(*command: str) -> str:
    """What is printed, without colours."""
    printed = io.StringIO()
    with (
        patch.dict("os.environ", COLUMNS=_WIDTH, NO_COLOR="1", TERM="dumb"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    return printed.getvalue().strip()


def settings_of(path: str) -> list[tuple[str, object, str]]:
    """Name, default and meaning of every field of ``module.Class``; the meaning is the string that follows it."""
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("nfd."):
            documented = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
            meanings |= {field: " ".join(text) for (owner, field), text in documented.items() if owner == base.__name__}
    return [(field, info.default, meanings[field].strip()) for field, info in kind.model_fields.items()]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("nfd-help", Help)
    app.add_directive("nfd-settings", Settings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
