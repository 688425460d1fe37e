"""The page of a training run that is under way: what ``nfd.Watch`` read so far, in one file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from nfd.core.errors import InputTypeError
from nfd.core.files import expanded, replace_file
from nfd.core.findings import Axes, Finding
from nfd.core.tables import Lead, Row, short
from nfd.meters.meter import METERS, METERS_OF_LAYERS
from nfd.meters.reading import Series, WatchRow, at_steps, in_series, stack_at, steps_of
from nfd.report.page import Label, Section, figure_section, finding_section, page
from nfd.watch.bands import ALERTS
from nfd.watch.causes import CAUSES, Alert
from nfd.watch.watch import Watch, name_of, not_judged, outside, remarks_of

MARK = '<meta name="generator" content="nfd run page">'
# Bytes of a file within which its mark stands
_HEAD = 1024
# Seconds after which a browser reads the file again
_RELOAD = 30
# How many looks of the past a chart over steps has
_LOOKS = 60
_STREAM = "The stream behind every block"
# A meter has its colour in every chart.
_ORDER = tuple(dict.fromkeys([*METERS, *METERS_OF_LAYERS]))


def run_page(watch: Watch, path: str | Path, *, title: str = "A training") -> Path:
    """Write the page of a training run, which opens offline and follows the run.

    It has all readings of a watch so far. Call it after every look; drawing takes some 60
    milliseconds a chart. The file is replaced as a whole, and a browser that shows it reads it
    again every half a minute.

    Args:
        watch: of the training.
        path: of the page, such as ``"run.html"``; folders are made.
        title: its heading.

    Returns:
        The path.

    Raises:
        TypeError: naming the argument.
        FileExistsError: where ``path`` holds a file that is not such a page.

    Example::

        plan.apply_(model, seed=0)
        watch = nfd.Watch(model, plan, sample=x, every=1)
        watch.step()
        nfd.run_page(watch, "run.html")
    """
    if not isinstance(watch, Watch):
        raise InputTypeError(f"watch must be an nfd.Watch; got {type(watch).__name__}.")
    if not isinstance(title, str):
        raise InputTypeError(f"title must be a text; got {title!r} of {type(title).__name__}.")
    place = expanded(path)
    if place.exists() and not _is_ours(place):
        raise FileExistsError(
            f"{path} is not a page of a run and would be replaced. Nothing was changed. Choose "
            "another path."
        )
    head = f'{MARK}<meta http-equiv="refresh" content="{_RELOAD}">'
    replace_file(place, page(title, list(sections_of(watch)), head, lead_of(watch)).encode())
    return place


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return not head or MARK.encode() in head


def lead_of(watch: Watch) -> Lead:
    """Whether there are alerts, and what is trained: its rule, learning rate and loss so far."""
    steps = max(watch.losses, default=0)
    rate = f"{watch.rate:.3g}".replace("nan", "not known yet")
    loss = "not given to step()"
    if steps:
        loss = f"{watch.losses[steps]:.4g} at step {steps:,}"
    numbers = {
        "rule": watch.plan.rule if watch.is_planned else "no plan",
        "learning rate at the first step": rate,
        "training loss": loss,
    }
    if watch.alerts:
        more = len(watch.alerts) - 1
        verdict = _line(watch.alerts[0])
        if more:
            noun = "alerts" if more > 1 else "alert"
            verdict += f", and {more} more {noun}"
        return Lead(f"{verdict}.", "bad", numbers)
    unjudged = not_judged(watch)
    if unjudged:
        nothing = f"{unjudged.capitalize()}: there is nothing to compare the latest look with."
        return Lead(nothing, "open", numbers)
    if watch.expected is None:
        judged = "broken, exploding, dead and frozen layers, rounding, and losses"
        return Lead(f"Without expected only {judged} are judged: none was found.", "open", numbers)
    return Lead("No alert: no meter stays outside of its band.", "good", numbers)


def _line(alert: Alert) -> str:
    return f"Step {alert.step}, {alert.layer or 'the network'}: {CAUSES[alert.cause].reason}"


def sections_of(watch: Watch) -> Iterator[Section]:
    """What the page says, from the loss and the alerts to every number of the latest look."""
    steps = steps_of(watch.rows)
    if len(watch.losses) > 1:
        yield _losses(watch)
    shown = [row for row in at_steps(watch.rows, _spaced(steps)) if row.meter != ALERTS]
    latest_step = steps[-1] if steps else 0
    noun = "look" if len(steps) == 1 else "looks"
    written = (
        f"Step {latest_step}: {len(steps)} {noun}, one every {watch.every} steps. Written at "
        f"{time.strftime('%Y-%m-%d %H:%M:%S')}."
    )
    left_out = [f"{meter} is left out: {reason}" for meter, reason in watch.left_out.items()]
    alerts = {f"{_line(alert)}.": str(alert) for alert in watch.alerts}
    yield Section("Alerts", [written, *remarks_of(watch)], points=left_out, details=alerts)
    if not steps:
        return
    series = in_series(shown)
    network = [_over_steps(watch, s, rows) for s, rows in series.items() if s.kind is None]
    yield figure_section("The network, over the steps", network)
    yield from _layers(watch, series, shown)
    latest = [_numbers(watch, row) for row in at_steps(shown, steps[-1:])]
    yield Section("Every number of the latest look", [], table=latest, folded=True)


def _losses(watch: Watch) -> Section:
    """The chart of the losses that ``step()`` was given."""
    steps = _spaced([*watch.losses])
    losses = [{"series": "", "step": step, "loss": watch.losses[step]} for step in steps]
    axes = Axes("step", "loss", "step", "training loss", "curves")
    finding = Finding("loss", "Training loss", "", losses, axes, "")
    return replace(finding_section(finding), title="")


def _numbers(watch: Watch, row: WatchRow) -> Row:
    """A row of the latest look as the page's table shows it."""
    cells: Row = {
        "meter": row.meter,
        "of": row.layer or "the network",
        "value": row.value,
        "expected": "",
    }
    band = watch.band(row)
    if band is not None:
        cells["expected"] = f"{band.value:.4g} [{band.low:.4g}, {band.high:.4g}]"
    if outside(watch, row):
        cells["value"] = Label(f"{row.value:.4g}, outside", "bad")
    return cells


def _layers(
    watch: Watch, series: Mapping[Series, list[WatchRow]], shown: Sequence[WatchRow]
) -> Iterator[Section]:
    """Every meter of layers with its meaning and its charts, the meters of the stream first.

    There is one chart for each kind of layers.
    """
    blocks = _blocks_by_depth(shown)
    has_several_stacks = len({stack_at(depth) for depth in blocks}) > 1
    of_stream: list[Finding] = []
    of_meters: dict[str, list[Finding]] = {}
    for s, rows in series.items():
        # If there are several stacks, kinds begin with the name of the stack.
        if s.kind == "" or (has_several_stacks and f"{s.kind}".endswith(".*")):
            of_stream.append(_over_blocks(watch, s, rows, blocks))
        elif s.kind:
            charts = of_meters.setdefault(s.meter, [])
            if s.stack is not None:
                charts.append(_over_blocks(watch, s, rows, blocks))
            else:
                charts.append(_over_steps(watch, s, rows))
    if of_stream:
        yield replace(figure_section(_STREAM, of_stream), paragraphs=[])
    for meter, charts in of_meters.items():
        paragraphs = []
        if meter in METERS_OF_LAYERS:
            paragraphs.append(f"{METERS_OF_LAYERS[meter]}.")
        yield replace(figure_section(meter, charts), paragraphs=paragraphs)


def _blocks_by_depth(rows: Sequence[WatchRow]) -> dict[float, int]:
    """The number of the block in its stack, counted from 1, by the depth of its rows."""
    depths = sorted({row.depth for row in rows if row.depth is not None})
    counts = Counter[int | None]()
    blocks = {}
    for depth in depths:
        stack = stack_at(depth)
        counts[stack] += 1
        blocks[depth] = counts[stack]
    return blocks


def _over_steps(watch: Watch, series: Series, rows: Sequence[WatchRow]) -> Finding:
    """A meter of the network or of one layer over the steps."""
    # A logarithm has no place for zero, such as the change of a layer that does not train.
    is_above_zero = all(row.value > 0 for row in rows)
    kind: Literal["curves", "logcurves"] = "logcurves" if is_above_zero else "curves"
    axes = Axes(
        "x",
        "y",
        "step",
        "",
        kind,
        colour="meter",
        order=_ORDER,
        interval="shaded: expected",
    )
    return _judged(watch, series, rows, axes, _drawn(watch, rows, "", {}), [])


def _over_blocks(
    watch: Watch, series: Series, rows: Sequence[WatchRow], blocks: Mapping[float, int]
) -> Finding:
    """A meter of the layers of one kind along the blocks, at the latest look and at the first."""
    first = rows[0].step
    latest = rows[-1].step
    now = at_steps(rows, [latest])
    then = at_steps(rows, [first])
    axes = Axes(
        "x",
        "y",
        "block",
        "",
        "named",
        False,
        colour="meter",
        order=_ORDER,
        interval="bars: expected",
    )
    before = []
    if first < latest:
        before = _drawn(watch, then, f"step {first}", blocks)
    points = _drawn(watch, now, f"step {latest}", blocks)
    return _judged(watch, series, now, axes, points, before)


def _judged(
    watch: Watch,
    series: Series,
    rows: Sequence[WatchRow],
    axes: Axes,
    points: list[Row],
    before: list[Row],
) -> Finding:
    """The chart of a meter: in its colour, or grey where nothing is judged."""
    title = f"{series.meter} of {name_of(series, rows)}"
    caption = _outside(watch, rows)
    if any("low" in point for point in points):
        return Finding("", title, "", points, axes, caption, references=before)
    return Finding("", title, "", [], axes, caption, references=[*before, *points])


def _drawn(
    watch: Watch, rows: Sequence[WatchRow], name: str, blocks: Mapping[float, int]
) -> list[Row]:
    """Rows as a chart draws them, at their step or at their block."""
    points = []
    for row in rows:
        place = row.step if row.depth is None else blocks[row.depth]
        point: Row = {"series": name, "meter": row.meter, "x": place, "y": row.value}
        band = watch.band(row)
        if band is not None:
            point |= {"low": band.low, "high": band.high}
        points.append(point)
    return points


def _outside(watch: Watch, rows: Sequence[WatchRow]) -> str:
    """The values outside of their bands, in words."""
    texts = []
    for row in rows:
        if outside(watch, row):
            place = f"{row.layer or 'the network'} at step {row.step}"
            texts.append(f"{place}: {short(row.value)}, expected {watch.band(row)}")
    if not texts:
        return ""
    return f"Outside of the band: {'; '.join(texts)}."


def _spaced(steps: Sequence[int]) -> list[int]:
    """At most ``_LOOKS`` of these steps, evenly spaced, the first and the last among them."""
    if len(steps) <= _LOOKS:
        return list(steps)
    return [steps[round(k * (len(steps) - 1) / (_LOOKS - 1))] for k in range(_LOOKS)]
