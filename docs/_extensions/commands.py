"""``{nfd-help} COMMAND`` shows what ``nfd COMMAND --help`` prints, asked of the command while the site is built."""

from __future__ import annotations

import contextlib
import io
from typing import Any
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from nfd.cli import main

_WIDTH = "80"  # characters of a line of help: what fits the column of the page


class Help(SphinxDirective):
    """The help of the command named by the argument; of ``nfd`` without one."""

    optional_arguments = 2  # the command, such as check or paper study

    def run(self) -> list[nodes.Node]:
        """A block of text."""
        text = help_of(*self.arguments)
        block = nodes.literal_block(text, text, language="text")
        return [nodes.container("", block, classes=["help"])]


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


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("nfd-help", Help)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
