"""What people see in a terminal: tables and progress."""

from __future__ import annotations

import io
import math
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# ---- Tables as text


Row = dict[str, Any]
"""A row of a table: values by the names of its columns."""


def table_of(*columns: Column | str) -> Table:
    """An empty table with these columns."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def rows_as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a result for people; ``value``, ``low`` and ``high`` stand in one column."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("low", "high")]
    table = table_of(*("value [95 % interval]" if name == "value" else name for name in names))
    for row in rows:
        table.add_row(*(_interval(row) if name == "value" else _cell(row.get(name)) for name in names))
    return as_text(table, 200)


def _interval(row: Mapping[str, Any]) -> str:
    value, low, high = (_cell(row.get(name)) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]" if low and high else value


def _cell(value: object) -> str:
    return "" if isinstance(value, float) and not math.isfinite(value) else short(value)


def as_text(table: Table, width: int) -> str:
    """What Rich would print, without colours; in a notebook, too, where it would display it instead."""
    text = io.StringIO()
    console = Console(
        file=text, width=width, color_system=None, highlight=False, emoji=False, markup=False, force_jupyter=False
    )
    console.print(table)
    return text.getvalue().rstrip()


# ---- Text from outside, as people are shown it.


_UNSEEN = ("Cc", "Cf", "Zl", "Zp")  # controls, those that turn text around among them, and separators of lines
_KEPT = "\n\t\u00ad\u200c\u200d"  # soft hyphens and joiners belong to words


def short(value: object) -> str:
    """A value in a cell of a table: four digits of a number, nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def visible(text: str) -> str:
    """The text with invisible characters, and those that reorder text, replaced by their code points."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in _UNSEEN and c not in _KEPT else c for c in text)


# ---- A progress bar on a terminal; in a log or a notebook a line now and then


_EVERY = 30.0  # seconds between two lines, at least


class Bar:
    """Work planned and done, in any unit; shown when it has a screen."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress, self._task = progress, task
        self._planned = 0.0

    def plan(self, work: float, label: str | None = None) -> None:
        """Add work to be done, and say what it is."""
        self._planned += work
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=self._planned, description=label)
            if work:  # a first sample: what is left is estimated as soon as there is a second
                self._progress.advance(self._task, 0)

    def advance(self, work: float) -> None:
        """Count work as done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, work)


class Lines(Bar):
    """Progress as lines on stderr, the first one after half a minute."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label, self._done = label, 0.0
        self._begun = self._printed = time.monotonic()

    def plan(self, work: float, label: str | None = None) -> None:
        super().plan(work, label)
        self._label = label or self._label

    def advance(self, work: float) -> None:
        self._done += work
        now = time.monotonic()
        if now - self._printed < _EVERY:
            return
        self._printed, gone = now, now - self._begun
        left = gone * max(0.0, self._planned / self._done - 1)
        times = " after {}, about {} left".format(*(timedelta(seconds=round(part)) for part in (gone, left)))
        print(f"{self._label}: {min(1.0, self._done / self._planned):.0%}{times}", file=sys.stderr, flush=True)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # pythonw has None


@contextmanager
def bar(label: str, *, enabled: bool | None = True) -> Iterator[Bar]:
    """A ``Bar`` on stderr when that is a terminal, ``Lines`` otherwise, and a silent one unless ``enabled``.

    ``enabled`` None is the default of functions: a bar for a person at a terminal, and nothing in logs.
    """
    if enabled is False or not _is_terminal(sys.stderr):
        yield Lines(label) if enabled else Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    whole = Column(no_wrap=True, min_width=len("0:00:00"))  # a long description is cut before the times
    times = (
        TimeElapsedColumn(whole),
        TextColumn("gone,"),
        TimeRemainingColumn(table_column=whole.copy()),
        TextColumn("left"),
    )
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), *times)
    # One step of a sweep can take hours, and rich forgets what is older than 30 seconds. What the user's code prints
    # goes above the bar, but not out of the file that it is written to.
    on_screen, console = _is_terminal(sys.stdout), Console(stderr=True)
    with Progress(*columns, console=console, speed_estimate_period=1e9, redirect_stdout=on_screen) as progress:
        yield Bar(progress, progress.add_task(label, total=None))
