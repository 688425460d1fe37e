"""How a command ends: what it prints, and its exit code."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from nfd.core.answer import Answer, coloured, in_terminal
from nfd.core.errors import VERDICT, InputError
from nfd.core.options import option
from nfd.core.tables import visible


@dataclass
class AnsweringCommand:
    """What the commands share that end with an answer."""

    verbose: bool = option(False, "print every sentence and row of the answer", group="Results")
    quiet: bool = option(False, "print nothing: the exit code is the answer", group="Results")
    json: bool = option(
        False, "print result.json to standard output in place of the answer", group="Results"
    )

    def end(self, answer: Answer, page: Path, *remarks: str) -> int:
        """Print an answer as the options say; returns the exit code.

        It is 1 for an answer that says that something is wrong (✗), and 0 for the others.

        Args:
            answer: the answer.
            page: what it was written to, beside its ``result.json``.
            remarks: about this call, such as runs that were stored; only with ``--verbose``.
        """
        if self.json and self.quiet:
            raise InputError("--json and --quiet exclude each other. Leave one of them out.")
        if self.json:
            print(page.with_name("result.json").read_text("utf-8"), end="")
        elif not self.quiet:
            text = visible(in_terminal(answer, str(page), verbose=self.verbose))
            if sys.stdout is not None and sys.stdout.isatty():
                text = coloured(text, answer)
            print(text)
            if self.verbose:
                for remark in remarks:
                    print(remark)
        return VERDICT if answer.tone == "bad" else 0


def again(command: str, option_name: str, *values: object) -> str:
    """Write a command of the shell again, with other values of an option.

    Args:
        command: what the user typed, such as ``nfd transfer setup.py --seeds 3``.
        option_name: such as ``--seeds``; added where the command does not have it.
        values: the new values.
    """
    words = shlex.split(command)
    new = [option_name, *map(str, values)]
    if option_name not in words:
        return shlex.join([*words, *new])
    start = words.index(option_name)
    end = start + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    return shlex.join([*words[:start], *new, *words[end:]])
