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
from nfd.core.tables import Row
from nfd.core.words import plural
from nfd.meters.meter import METERS, METERS_OF_LAYERS, quantity_in_words
from nfd.meters.reading import Series, WatchRow, at_steps, in_series, stack_at, steps_of
from nfd.report.look import BLUE
from nfd.report.page import Card, Label, Section, figure_section, page
from nfd.watch.alerts import Fault, expected, measured
from nfd.watch.bands import ALERTS
from nfd.watch.run_charts import (
    loss_picture,
    over_steps,
    spaced,
    worst_layer,
    worst_picture,
)
from nfd.watch.verdict import EXPECTED, deviations_of, faults_now
from nfd.watch.watch import Watch, name_of, outside, remarks_of

MARK = '<meta name="generator" content="nfd run page">'
# Bytes of a file within which its mark stands
_HEAD = 1024
# Seconds after which a browser reads the file again
_RELOAD = 30
_STREAM = "The stream behind every block"
# A meter has its colour in every chart.
_ORDER = tuple(dict.fromkeys([*METERS, *METERS_OF_LAYERS]))


def run_page(watch: Watch, path: str | Path, *, title: str = "A training") -> Path:
    """Write the page of a training run, which opens offline and follows the run.

    It begins with the answer of the watch, the loss, one card for each cause of alerts, and the
    worst layers; all other readings are folded. Call it at alerts, at looks that become rarer, and
    at the end, as drawing takes some 60 milliseconds a chart. The file is replaced as a whole, and
    a browser that shows it reads it again every half a minute.

    Args:
        watch: of the training.
        path: of the page, such as ``"run.html"``; folders are made.
        title: the name of the training, above the answer.

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
    answer = watch.answer
    answer = replace(answer, about=f"{title} · {answer.about}")
    replace_file(place, page(title, list(sections_of(watch)), head, answer=answer).encode())
    return place


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return not head or MARK.encode() in head


def first_sections_of(watch: Watch) -> list[Section]:
    """What a page and a notebook show first: the loss, a card for each fault, the worst layers."""
    faults = faults_now(watch)
    sections = []
    loss = loss_picture(watch)
    if loss is not None:
        sections.append(Section("", [], pictures=[loss]))
    if faults:
        cards = [_card(watch, fault, place) for place, fault in enumerate(faults)]
        sections.append(Section("", [], faults=cards))
    worst = worst_picture(watch, faults)
    if worst is not None:
        step, picture = worst
        sections.append(Section(f"Worst layers at step {step:,}", [], pictures=[picture]))
    if not sections:
        outputs = over_steps(watch, "function_update", None, "function-update", BLUE)
        if outputs is not None:
            sections.append(Section("", [], pictures=[outputs]))
    return sections


def _card(watch: Watch, fault: Fault, place: int) -> Card:
    """What is wrong, where, what to do, and the worst layer's numbers."""
    first = fault.alerts[0]
    title = fault.title[:1].upper() + fault.title[1:]
    if first.tensors:
        table = deviations_of(first.tensors, first.meter)
        return Card(title, [], fault.seen, fault.remedy, table=table)
    note = ""
    layer = first.layer
    if all(row.layer is not None for row in watch.rows if row.meter == first.meter):
        # What shows a fault of the whole network may be read of layers only.
        layer = layer or worst_layer(watch, first.meter)
    of_layer = [row for row in watch.rows if (row.meter, row.layer) == (first.meter, layer)]
    if of_layer:
        latest = of_layer[-1]
        numbers = measured(latest.value, watch.band(latest))
        of = layer or "the network"
        note = f"Shown: {of}, {quantity_in_words(first.meter)} {numbers} at step {latest.step:,}."
    drawn = over_steps(watch, first.meter, layer, f"fault-{place + 1}")
    return Card(title, fault.layers, fault.seen, fault.remedy, note, drawn)


def sections_of(watch: Watch) -> Iterator[Section]:
    """What the page says, from the loss and the faults to every number of the latest look."""
    yield from first_sections_of(watch)
    steps = steps_of(watch.rows)
    shown = [row for row in at_steps(watch.rows, spaced(steps)) if row.meter != ALERTS]
    latest_step = steps[-1] if steps else 0
    written = (
        f"Step {latest_step}: {plural(len(steps), 'look')}, one every {watch.every} steps. Written "
        f"at {time.strftime('%Y-%m-%d %H:%M:%S')}."
    )
    left_out = [f"{meter} is left out: {reason}" for meter, reason in watch.left_out.items()]
    points = [str(alert) for alert in watch.alerts]
    title = "All alerts, and what was looked at"
    yield Section(title, [written, *remarks_of(watch)], points=[*points, *left_out], folded=True)
    if not steps:
        return
    series = in_series(shown)
    network = [_over_steps(watch, s, rows) for s, rows in series.items() if s.kind is None]
    yield replace(figure_section("The network, over the steps", network), folded=True)
    for section in _layers(watch, series, shown):
        yield replace(section, folded=True)
    latest = [_numbers(watch, row) for row in at_steps(shown, steps[-1:])]
    yield Section("Every number of the latest look", [], table=latest, folded=True)


def _numbers(watch: Watch, row: WatchRow) -> Row:
    """A row of the latest look as the page's table shows it."""
    cells: Row = {
        "meter": row.meter,
        "of": row.layer or "the network",
        "value": row.value,
        EXPECTED: "",
    }
    band = watch.band(row)
    if band is not None:
        cells[EXPECTED] = expected(band, level="")
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
        title = quantity_in_words(meter)
        title = title[:1].upper() + title[1:]
        yield replace(figure_section(title, charts), paragraphs=paragraphs)


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
        quantity_in_words(series.meter),
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
        quantity_in_words(series.meter),
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
    title = f"{quantity_in_words(series.meter)} of {name_of(series, rows)}"
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
        band = watch.band(row)
        if band is not None and outside(watch, row):
            place = f"{row.layer or 'the network'} at step {row.step}"
            texts.append(f"{place}: {measured(row.value, band)}")
    if not texts:
        return ""
    return f"Outside of the band: {'; '.join(texts)}."
