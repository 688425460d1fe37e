"""What a person reads first: a state, the decision, its evidence, and what to run next."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nfd.core.errors import VERDICT, InputError
from nfd.core.notices import OldName
from nfd.core.tables import visible

Tone = Literal["good", "bad", "open"]
SYMBOLS: dict[Tone, str] = {"good": "✓", "bad": "✗", "open": "?"}
NOT_DECIDED = "Not decided yet"

# Lines of an answer in a terminal, and characters of a line.
MOST_LINES = 15
WIDTH = 80
# Rows of a table that are shown, however long the sentences are.
_LEAST_ROWS = 1
_STYLES: dict[Tone, str] = {"good": "bold blue", "bad": "bold dark_orange", "open": "bold"}


@dataclass(frozen=True)
class Next:
    """What to run next: a label such as ``Run next: 8 seeds``, and code or a command to paste."""

    label: str
    code: str


@dataclass(frozen=True)
class Answer:
    """The answer to a question, as every page, terminal and notebook begins.

    Attributes:
        tone: ``good`` (✓), ``bad`` (✗: wrong, or costs) or ``open`` (?: not decided).
        state: the state in two or three words, such as ``Transfers``.
        title: the decision, in a sentence without a full stop and without intervals.
        because: the evidence, in a sentence with its interval.
        but: what speaks against the decision, a sentence that continues "But"; may be empty.
        next: what to run next.
        about: model, sizes and seeds, for the line above the answer.
        table: rows of texts by the names of their columns, the most important first.
        details: further sentences, which ``--verbose`` prints and pages fold.
    """

    tone: Tone
    state: str
    title: str
    because: str = ""
    but: str = ""
    next: Next | None = None
    about: str = ""
    table: Sequence[Mapping[str, str]] = ()
    details: Sequence[str] = ()

    # The answer is what ``lead`` returns, whose sentence 0.3 called so.
    verdict = OldName("write title", attrgetter("title"))

    @property
    def chip(self) -> str:
        """The state behind its symbol."""
        return f"{SYMBOLS[self.tone]} {self.state}"

    @property
    def brief(self) -> str:
        """The state and the decision on one line."""
        return f"{self.chip}: {self.title}"

    @property
    def sentences(self) -> list[str]:
        """The answer and its details, a text each."""
        but = f"But {self.but}" if self.but else ""
        return [text for text in (self.title, self.because, but, *self.details) if text]

    @property
    def lead(self) -> dict[str, str]:
        """``lead`` of ``result.json``, which goes in 0.5: ``answer`` says all of it."""
        return {"verdict": self.title, "tone": self.tone}

    def with_next(self, label: str, code: str) -> Answer:
        """The same answer with something else to run next."""
        return replace(self, next=Next(label, code))

    def plain(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        return asdict(self)


# ---- in a terminal


def in_terminal(answer: Answer, page: str = "", *, verbose: bool = False) -> str:
    """Write an answer in at most 15 lines.

    Rows of the table that do not fit are counted; ``verbose`` writes all of it.

    Args:
        answer: what is written.
        page: the path of the page that holds all numbers.
        verbose: whether details and all rows are written.
    """
    head = _head(answer)
    foot = _foot(answer, page, verbose=verbose)
    body = _table(answer.table)
    # An empty line stands before the table and before the foot.
    space = MOST_LINES - len(head) - len(foot) - bool(body) - bool(foot)
    is_cut = len(body) > space and not verbose
    if is_cut:
        # One line is the table's head, one says how many rows follow.
        rows = max(_LEAST_ROWS, space - 2)
        left_out = len(body) - 1 - rows
        # One row takes no more room than the line that counts it. What no command printed has no
        # option that shows the others.
        if left_out > 1:
            hint = " (--verbose shows them)" if page else ""
            body = [*body[: rows + 1], f"  … and {left_out} more{hint}"]
    details = list[str]()
    for detail in answer.details if verbose else ():
        details += _lines(detail, "")
    parts = [head, body, details, foot]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def print_answer(
    answer: Answer,
    page: Path | None,
    *remarks: str,
    verbose: bool = False,
    quiet: bool = False,
    json_only: bool = False,
    stdout: TextIO | None = None,
) -> int:
    """Print the answer of a command; returns the exit code.

    It is 1 for an answer that says that something is wrong (✗), and 0 for the others.

    Args:
        answer: the answer.
        page: the file with all numbers, beside its ``result.json``; None where none was written.
        remarks: about this call, such as runs that were stored; only with ``verbose``.
        verbose: print every sentence and row.
        quiet: print nothing.
        json_only: print ``result.json`` in place of the answer.
        stdout: where that is printed; None for ``sys.stdout``.
    """
    if json_only and quiet:
        raise InputError("--json and --quiet exclude each other. Leave one of them out.")
    if json_only and page is not None:
        print(page.with_name("result.json").read_text("utf-8"), end="", file=stdout)
    elif json_only:
        print(json.dumps({"answer": answer.plain()}, indent=1), file=stdout)
    elif not quiet:
        text = visible(in_terminal(answer, str(page or ""), verbose=verbose))
        if sys.stdout is not None and sys.stdout.isatty():
            text = coloured(text, answer)
        print(text)
        if verbose:
            for remark in remarks:
                print(remark)
    return VERDICT if answer.tone == "bad" else 0


def coloured(text: str, answer: Answer) -> str:
    """Give the state of a written answer its colour, as an ANSI terminal shows it."""
    styled = Text(text)
    chip = answer.chip.upper()
    styled.stylize(_STYLES[answer.tone], 0, len(chip))
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, emoji=False)
    console.print(styled, soft_wrap=True, end="")
    return shown.getvalue()


def _head(answer: Answer) -> list[str]:
    """The state and the decision, the evidence, and what speaks against it."""
    first = _lines(answer.title, f"{answer.chip.upper()}  ")
    texts = [answer.because]
    if answer.but:
        texts.append(f"But {answer.but}")
    for text in texts:
        first += _lines(text, "  ")
    return first


def _foot(answer: Answer, page: str, *, verbose: bool) -> list[str]:
    """What to run next, and where all numbers are."""
    lines = []
    if answer.next is not None:
        lines += _lines(f"{answer.next.label}:", "")
        # To be pasted, so it is not wrapped.
        lines += [f"  {line}" for line in answer.next.code.splitlines()]
    if page:
        hint = "" if verbose else " (--verbose prints them)"
        lines.append(f"All numbers: {page}{hint}")
    return lines


def _lines(text: str, begin: str) -> list[str]:
    if not text:
        return []
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    # A terminal of no columns is none.
    width = min(columns, WIDTH) if columns > 20 else WIDTH
    # A number stays on one line with its unit.
    unbroken = re.sub(r"(?<=\d) (?=%|nats\b)", "\u00a0", text)
    lines = wrap(
        unbroken,
        width,
        initial_indent=begin,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Write rows in columns, a line each, below the names of the columns."""
    if not rows:
        return []
    names = dict[str, None]()
    for row in rows:
        names |= dict.fromkeys(row)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_edge=False)
    for name in names:
        table.add_column(Text(name), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(row.get(name, ""))) for name in names))
    text = io.StringIO()
    console = Console(file=text, width=200, color_system=None, force_jupyter=False, emoji=False)
    console.print(table)
    return [f"  {line.rstrip()}" for line in text.getvalue().splitlines()]
