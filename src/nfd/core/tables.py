"""What people see in a terminal: tables and progress."""

from __future__ import annotations

import io
import math
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from textwrap import fill
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table


def said(*parts: str) -> str:
    """Join the parts as lines, in a terminal none longer than it is wide."""
    width = shutil.get_terminal_size((0, 0)).columns
    wrapped = partial(
        fill, width=width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    lines = "\n".join(parts).split("\n")
    return "\n".join(wrapped(line) if 0 < width < len(line) else line for line in lines)


# ---- Tables as text


Row = dict[str, Any]
"""A row of a table: values by the names of its columns."""


def table_of(*columns: Column | str) -> Table:
    """Make an empty table with these columns."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def rows_as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of a result for people; ``value``, ``low`` and ``high`` stand in one column."""
    columns = dict[str, None]()
    for row in rows:
        columns |= dict.fromkeys(row)
    names = [name for name in columns if name not in ("low", "high")]
    titles = {"value": "value [95 % interval]"}
    table = table_of(*(titles.get(name, name) for name in names))
    for row in rows:
        cells = [_interval(row) if name == "value" else _cell(row.get(name)) for name in names]
        table.add_row(*cells)
    return as_text(table, 200)


def _interval(row: Mapping[str, Any]) -> str:
    value = _cell(row.get("value"))
    low = _cell(row.get("low"))
    high = _cell(row.get("high"))
    if not low or not high:
        return value
    return f"{value} [{low}, {high}]"


def _cell(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return short(value)


def as_text(table: Table, width: int) -> str:
    """Return what Rich would print, without colours.

    That holds in a notebook too, where Rich would display it instead.

    In a terminal that is too narrow every row becomes a paragraph.
    """
    text = io.StringIO()
    terminal = shutil.get_terminal_size((0, 0)).columns
    console = Console(
        file=text,
        width=width,
        color_system=None,
        highlight=False,
        emoji=False,
        markup=False,
        force_jupyter=False,
    )
    if 0 < terminal < console.measure(table).maximum:
        names = [str(column.header) for column in table.columns]
        for first, *cells in zip(*(column.cells for column in table.columns), strict=True):
            values = [
                f"{name} {cell}" for name, cell in zip(names[1:], cells, strict=True) if cell != ""
            ]
            print(said(f"{first}: {'; '.join(values)}"), file=text)
    else:
        console.print(table)
    return text.getvalue().rstrip()


# ---- Text from outside, as people are shown it.


# controls, those that turn text around among them, and separators of lines
_UNSEEN = ("Cc", "Cf", "Zl", "Zp")
# soft hyphens and joiners belong to words
_KEPT = "\n\t\u00ad\u200c\u200d"


def short(value: object) -> str:
    """Write a value in a cell of a table: four digits of a number, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def visible(text: str) -> str:
    """Replace invisible characters, and those that reorder text, by their code points."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _UNSEEN:
        return character
    return f"⟨U+{ord(character):04X}⟩"


# ---- Progress: a bar on a terminal, a line a minute in a log


Advance = Callable[[float, str], None]
# Seconds from one line of a log to the next.
_LINE_EVERY = 60.0


@contextmanager
def bar(work: float, label: str, enabled: bool, clock: LogClock) -> Iterator[Advance]:
    """A context that shows progress on stderr: a bar on a terminal, a line a minute elsewhere.

    It gives a function that counts work as done and says what is done. Works that follow each other
    share a clock.
    """
    # pythonw has no stderr.
    if not enabled or sys.stderr is None:
        yield lambda done, text: None
    elif sys.stderr.isatty():
        with _bar_on_terminal(work, label) as advance:
            yield advance
    else:
        yield _LinesOfLog(work, clock).advance


@dataclass
class LogClock:
    """When the last line was printed, or the first work began."""

    printed: float = field(default_factory=lambda: time.monotonic())


class _LinesOfLog:
    """Progress in a log: a line a minute with the time left, none of what takes less."""

    def __init__(self, work: float, clock: LogClock) -> None:
        self.work = work
        self.clock = clock
        self.done = 0.0
        self.started = time.monotonic()

    def advance(self, done: float, text: str) -> None:
        """Count work as done, and print a line if the last one is a minute old."""
        self.done += done
        now = time.monotonic()
        is_due = now - self.clock.printed >= _LINE_EVERY
        if not is_due or self.done >= self.work:
            return
        self.clock.printed = now
        left = (now - self.started) * (self.work / self.done - 1)
        # The log may be full, or closed.
        with suppress(OSError):
            print(f"nfd: {visible(text)}, {time_left(left)}", file=sys.stderr, flush=True)


@dataclass
class Remarks:
    """What is known while something runs, on stderr: at once on a terminal, else once a minute."""

    enabled: bool
    last: str = ""
    printed: float = field(default_factory=lambda: time.monotonic())

    def say(self, text: str, state: str = "") -> None:
        """Print a text that is new; in a log only if the last one is a minute old.

        ``state`` is printed after it. A log has it also where only the state is new.
        """
        # pythonw has no stderr.
        if not self.enabled or sys.stderr is None:
            return
        is_log = not sys.stderr.isatty()
        whole = f"{text}{state}"
        news = whole if is_log else text
        now = time.monotonic()
        if news == self.last or (is_log and now - self.printed < _LINE_EVERY):
            return
        self.last = news
        self.printed = now
        # The log may be full, or closed.
        with suppress(OSError):
            print(said(f"nfd: {visible(whole)}"), file=sys.stderr, flush=True)


def time_left(seconds: float) -> str:
    """Write ``about 4 min left``."""
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute left"
    if minutes < 90:
        return f"about {minutes:.0f} min left"
    return f"about {minutes / 60:.0f} h left"


@contextmanager
def _bar_on_terminal(work: float, label: str) -> Iterator[Advance]:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # a long description is cut before the times
    whole = Column(no_wrap=True, min_width=len("0:00:00"))
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(whole),
        TextColumn("gone,"),
        TimeRemainingColumn(table_column=whole.copy()),
        TextColumn("left"),
        console=Console(stderr=True),
        # one step of a sweep can take hours, and rich forgets what is older than 30 seconds
        speed_estimate_period=1e9,
        # what the user's code prints goes above the bar, but not out of the file it goes to
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
    with progress:
        task = progress.add_task(label, total=work)
        # a first sample: what is left is estimated as soon as there is a second
        progress.advance(task, 0)
        yield lambda done, text: progress.update(task, advance=done, description=text)
