"""A watch as text: a table of the latest look beside the first one, and one line for a log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Column

from nfd.core.tables import as_text, table_of
from nfd.watch.ladder import Series
from nfd.watch.rows import WatchRow
from nfd.watch.series import at_steps, in_series, steps_of

if TYPE_CHECKING:
    from nfd.watch.watch import Watch

_COLUMNS = ("meter", "of", "first look", "latest look", "since the first", "expected")
_FAULTS = (
    "The check that this watch expects found faults (check.ok is False): a training with the same faults raises no "
    "alert. Print the check."
)
_LAYERS = "Of several layers: the median, and [the least, the largest]."


def table_of_watch(watch: Watch) -> str:
    """A row for every meter of the network and of every kind of layers, under what the watch says against the run."""
    left_out = [f"{part.meter} is left out: {part.reason}" for part in watch.left_out]
    alerts = [f"! {alert}" for alert in watch.alerts]
    remarks = remarks_of(watch)
    if not watch.rows:
        none = f"No look yet: the first one follows step {watch.every}." if watch.steps < watch.every else "No look."
        return "\n".join([none, *alerts, *remarks, *left_out])
    steps = steps_of(watch.rows)
    looks = f"{len(steps)} look{'s' if len(steps) > 1 else ''}, one every {watch.every} steps"
    table = table_of(*(Column(name, no_wrap=name != "expected") for name in _COLUMNS))
    for series, rows in in_series(at_steps(watch.rows, sorted({steps[0], steps[-1]}))).items():
        first, latest = ([row for row in rows if row.step == step] for step in (steps[0], steps[-1]))
        if latest:
            ends = spread(first), spread(latest), _change(first, latest)
            table.add_row(series.meter, name_of(series, latest), *ends, _expected(watch, latest))
    notes = [_LAYERS] if any(row.layer for row in watch.rows) else []
    head = f"Step {steps[-1]}: {looks}"
    return "\n".join([head, *alerts, *remarks, as_text(table, 150), *notes, *left_out])


def remarks_of(watch: Watch) -> list[str]:
    """Why the watch tells less than it seems to: it failed, the check in ``expected`` ended before the latest look, or
    that check found faults."""
    last: int | None = getattr(watch.expected, "last_step", None)
    ended = last is not None and watch.unjudged_since is not None and watch.steps > last
    remarks = [] if watch.failed is None else [watch.failed]
    remarks += [f"Nothing is judged after step {last}: the check ends there. Check for more steps."] if ended else []
    return remarks + ([_FAULTS] if watch.expects_faults else [])


def not_judged(watch: Watch) -> str | None:
    """``not judged since step 6``, where the latest look was not compared with ``expected``; None where it was, or
    nothing is expected."""
    since = watch.unjudged_since
    return None if since is None else f"not judged since step {since}" if since else "not judged yet"


def line_of_watch(watch: Watch) -> str:
    """The meters of the whole network at the latest look, those outside of their bands marked, and the alerts."""
    if not watch.rows:
        return f"step {watch.steps}: {watch.failed or 'no look yet'}"
    step = watch.rows[-1].step
    network = [row for row in at_steps(watch.rows, [step]) if row.layer is None]
    meters = [f"{row.meter} {row.value:.3g}{'!' if outside(watch, row) else ''}" for row in network]
    alerts = [f"alerts {len(watch.alerts)}"] if watch.expected is not None or watch.alerts else []
    unjudged = [text] if (text := not_judged(watch)) else []
    return ", ".join([f"step {step}: {meters[0]}", *meters[1:], *alerts, *unjudged])


def name_of(series: Series, rows: Sequence[WatchRow]) -> str:
    """Of what a series speaks: the network, one layer, or a kind of layers and how many of them there are."""
    if series.kind is None:
        return "the network"
    layers = len({row.layer for row in rows})
    blocks = f"{layers} block{'s' if layers > 1 else ''}"
    return series.kind if not series.along else f"{series.kind} of {blocks}" if series.kind else blocks


def spread(rows: Sequence[WatchRow]) -> str:
    """The value of one row; of several the median, the least and the largest."""
    values = [row.value for row in rows]
    if len(values) < 2:
        return "".join(f"{value:.3g}" for value in values)
    if not all(map(math.isfinite, values)):
        return "not finite"
    return f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


def outside(watch: Watch, row: WatchRow) -> bool:
    """Whether a row lies outside of its band; False where it has none."""
    band = watch.band(row)
    return band is not None and not band.low <= row.value <= band.high


def _change(first: Sequence[WatchRow], latest: Sequence[WatchRow]) -> str:
    """By which factor values changed; of several layers the median one."""
    starts = {row.layer: row.value for row in first}
    factors = [row.value / starts[row.layer] for row in latest if starts.get(row.layer)]
    return f"x {median(factors):.3g}" if factors and all(map(math.isfinite, factors)) else ""


def _expected(watch: Watch, rows: Sequence[WatchRow]) -> str:
    """The band of one row; of several how many lie outside of theirs."""
    bands = [band for row in rows if (band := watch.band(row)) is not None]
    if not bands:
        return ""
    beyond = sum(outside(watch, row) for row in rows)
    if len(rows) > 1:
        return f"{beyond} of {len(bands)} outside" if beyond else "all within"
    return f"{bands[0].value:.3g} [{bands[0].low:.3g}, {bands[0].high:.3g}]{' outside' if beyond else ''}"
