"""Rows of a log that are in it twice: a copy of a run shows no noise of seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from nfd.core.errors import InputError
from nfd.core.words import plural
from nfd.laws.log_columns import usual_field
from nfd.laws.logged_runs import LoggedRun
from nfd.laws.rows import Line

# Columns of the number of a row, as pandas writes them.
_ROW_NUMBERS = ("", "Unnamed: 0", "index", "level_0")
# Losses of two seeds agree in so many digits in less than one of a thousand pairs: they differ by
# about a thousandth of the loss.
_EXACT = 7
# Losses with so many digits agree in a share of pairs below the other.
_ROUNDED = 4
_COPIED = 0.5
# What a cell of a row holds, by its column.
Cells = tuple[tuple[str, str], ...]


def note_on_copies(table: Sequence[Line], runs: Sequence[LoggedRun], loss: str) -> list[str]:
    """Say which rows are the same as others in every column but the name of the run.

    Of histories a step that is there twice counts once, and diverged runs are alike.

    Args:
        table, runs: the rows, and what was read from each.
        loss: the column of the loss.

    Raises:
        ValueError: where losses agree in more digits, or more often, than those of seeds do.
    """
    if any(run.step is not None for run in runs):
        return []
    settings = list[Cells]()
    losses = list[float]()
    places = list[int]()
    for place, (line, run) in enumerate(zip(table, runs, strict=True), 1):
        if run.loss is not None and math.isfinite(run.loss):
            settings.append(_setting(line, loss))
            losses.append(run.loss)
            places.append(place)
    rows = list(zip(settings, losses, strict=True))
    # The loss of several settings stands for something else, such as divergence, but for those of
    # a table that is there twice.
    settings_of = Counter(loss for _, loss in {*rows})
    is_whole = min(Counter(rows).values(), default=1) > 1
    first = dict[tuple[Cells, float], int]()
    copies = list[tuple[int, int]]()
    digits = 0
    for row, place in zip(rows, places, strict=True):
        if row in first and (is_whole or settings_of[row[1]] == 1):
            copies.append((first[row], place))
            digits = max(digits, _digits(row[1]))
        first.setdefault(row, place)
    if not copies:
        return []
    repeats = len(rows) - len({*settings})
    are_common = digits >= _ROUNDED and len(copies) >= _COPIED * repeats
    if len({*settings}) > 1 and (digits >= _EXACT or are_common):
        original, copy = copies[0]
        raise InputError(
            f"the log holds {plural(len(copies), 'copy', 'copies')} of rows, such as row {copy}, "
            f"which is row {original} in every column, the loss too. A copy is not a run of "
            "another seed. Give each run once, or add a column of seeds."
        )
    return [
        f"Rows equal to another in every column: {len(copies)}. They count as runs of other seeds; "
        "give each run once if they are copies."
    ]


def _setting(line: Line, loss: str) -> Cells:
    """What a row holds beside its loss, its number and the name of its run."""
    cells = list[tuple[str, str]]()
    for name, value in line.items():
        if name not in (*_ROW_NUMBERS, loss) and usual_field(name) != "run":
            cells.append((name, str(value)))
    return tuple(sorted(cells))


def _digits(loss: float) -> int:
    """The significant digits of a loss, at most those of single precision."""
    mantissa, _, _ = f"{loss:.6e}".partition("e")
    return len(mantissa.replace(".", "").replace("-", "").rstrip("0"))
