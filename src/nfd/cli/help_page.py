"""The layout of ``--help``: titles of groups, and below them names with what they mean."""

from __future__ import annotations

import io
from textwrap import fill
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions

_WIDEST = 84
_INDENT = 24
_INDENT_OF_COMMANDS = 15


class HelpPage:
    """The formatter of all pages of help, as cyclopts calls it."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a group."""
        if panel.entries:
            indent = _INDENT_OF_COMMANDS if panel.format == "command" else _INDENT
            lines = [
                f"{_plain(panel.title)}:",
                *(_line(entry, indent, console) for entry in panel.entries),
            ]
            _print(console, "\n".join(lines))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Print how a command is called."""
        _print(console, f"usage: {_plain(usage).removeprefix('Usage: ').strip()}")

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """Print what a command does, every paragraph filled anew."""
        paragraphs = _plain(description).strip().split("\n\n")
        _print(console, "\n\n".join(_filled(paragraph, console) for paragraph in paragraphs))


def _line(entry: HelpEntry, indent: int, console: Console) -> str:
    """Return a name with what it means, which starts on the next line where the name is long."""
    if entry.positional_label:
        # The label of a place is upper case; its metavar is as it was written, such as SETUP.py.
        names = entry.metavar or entry.positional_label
    else:
        names = ", ".join(map(str, entry.display_labels_with_metavar))
    head = f"  {names}"
    meaning = _filled(_plain(entry.description), console, " " * indent)
    if len(head) < indent - 1:
        return f"{head}{meaning[len(head) :]}"
    return f"{head}\n{meaning}"


def _filled(text: str, console: Console, indent: str = "") -> str:
    """Break a paragraph into lines that fit on the console."""
    width = min(_WIDEST, console.width - 2)
    return fill(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent)


def _plain(text: Any) -> str:
    """Return a text of Rich as it would be printed in one line for every paragraph."""
    if isinstance(text, str) or text is None:
        return text or ""
    printed = io.StringIO()
    wide = Console(
        file=printed, width=10**4, color_system=None, highlight=False, emoji=False, markup=False
    )
    wide.print(text)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


def _print(console: Console, text: str) -> None:
    if text:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        console.print()
