"""``{nfd-help} COMMAND`` says what a command does and how it is called, describes the options that
are named, and folds all of its help.

They are what ``nfd COMMAND --help`` prints, asked of the command while the site is built.
"""

from __future__ import annotations

import contextlib
import io
import re
from html import escape
from typing import Any
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from nfd.cli import main

_WIDTH = "80"  # characters of a line of help: what fits the column of the page
# as nfd.cli.help_page lays it out
_OPTION = re.compile(r"(?m)^  (--.+?)(?:  +|\n +)(\S.*(?:\n {6,}\S.*)*)")


class Help(SphinxDirective):
    """The help of the command named by the argument; of ``nfd`` without one. The content names its
    main options.
    """

    optional_arguments = 2  # the command, such as check or paper study
    has_content = True

    def run(self) -> list[nodes.Node]:
        """What it does, its usage and a list of options before the block of text; that alone where
        none are named.
        """
        text = help_of(*self.arguments)
        block = nodes.container(
            "", nodes.literal_block(text, text, language="text"), classes=["help"]
        )
        names = " ".join(self.content).split()
        if not names:
            return [block]
        described = {
            shown.split()[0]: (shown, meant) for shown, meant in _OPTION.findall(text)
        }
        if lacking := [name for name in names if name not in described]:
            raise self.error(
                f"{' '.join(self.arguments)} has no {', '.join(lacking)}, but "
                f"{', '.join(described)}"
            )
        usage, about, *_ = text.removeprefix("usage: ").split("\n\n")
        options = nodes.definition_list()
        for shown, meant in (described[name] for name in names):
            term = nodes.term("", "", nodes.literal("", shown))
            meaning = nodes.definition("", nodes.paragraph("", " ".join(meant.split())))
            options += nodes.definition_list_item("", term, meaning)
        summary = (
            "<details><summary>All options of "
            f"<code>{escape('nfd ' + ' '.join(self.arguments))}</code></summary>"
        )
        return [
            nodes.paragraph("", " ".join(about.split())),
            nodes.paragraph(
                "", "", nodes.strong("", "Usage: "), nodes.literal("", usage)
            ),
            options,
            nodes.raw("", summary, format="html"),
            block,
            nodes.raw("", "</details>", format="html"),
        ]


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
