"""The page of a training that is under way: what ``nfd.Watch`` read so far, in one file that
follows the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
_HEAD = 1024  # bytes of a file within which its mark stands
_RELOAD = 30  # seconds after which a browser reads the file again
_LOOKS = 60  # of the past, in a chart over steps
# a meter has its colour in every chart
_ORDER = tuple(dict.fromkeys([*METERS, *METERS_OF_LAYERS]))


def run_page(watch: Watch, path: str | Path, *, title: str = "A training") -> Path:
    """Write the page of a run: all readings of a watch so far, on one page that opens offline and
    follows the run.

    Call it after every look; drawing takes some 60 milliseconds a chart. The file is replaced as a
    whole, and a browser that shows it reads it again every half a minute.

    Args:
        watch: of the training.
        path: of the page, such as ``"run.html"``; folders are made.
        title: its heading.

    Returns:
        The path.

    Raises:
        TypeError: naming the argument.
        FileExistsError: where ``path`` holds a file that is no such page.

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
    """Whether there are alerts, and what is trained: its rule, its rate and its loss so far."""
    steps = max(watch.losses, default=0)
    rate = f"{watch.rate:.3g}".replace("nan", "not known yet")
    numbers = {
        "rule": watch.plan.rule if watch.is_planned else "no plan",
        "learning rate at the first step": rate,
    }
    numbers["training loss"] = (
        f"{watch.losses[steps]:.4g} at step {steps:,}" if steps else "not given to step()"
    )
    if watch.alerts:
        first = watch.alerts[0]
        more = len(watch.alerts) - 1
        others = f", and {more} more alert{'s' * (more > 1)}" if more else ""
        return Lead(f"{_line(first)}{others}.", "bad", numbers)
    if unjudged := not_judged(watch):
        return Lead(
            f"{unjudged.capitalize()}: there is nothing to compare the latest look with.",
            "open",
            numbers,
        )
    if watch.expected is None:
        judged = "broken, exploding, dead and frozen layers, rounding, and losses"
        return Lead(f"Without expected only {judged} are judged: none was found.", "open", numbers)
    return Lead("No alert: no meter stays outside of its band.", "good", numbers)


def _line(alert: Alert) -> str:
    return f"Step {alert.step}, {alert.layer or 'the network'}: {CAUSES[alert.cause].reason}"


def sections_of(watch: Watch) -> Iterator[Section]:
    """What the page says: the loss, alerts, the network, its layers by meter, and every number of
    the latest look.
    """
    steps = steps_of(watch.rows)
    if len(watch.losses) > 1:
        losses = [
            {"series": "", "step": step, "loss": watch.losses[step]}
            for step in _spaced([*watch.losses])
        ]
        loss = Finding(
            "loss",
            "Training loss",
            "",
            losses,
            Axes("step", "loss", "step", "training loss", "curves"),
            "",
        )
        yield replace(finding_section(loss), title="")
    shown = [row for row in at_steps(watch.rows, _spaced(steps)) if row.meter != ALERTS]
    looks = f"{len(steps)} look{'' if len(steps) == 1 else 's'}, one every {watch.every} steps"
    written = (
        f"Step {steps[-1] if steps else 0}: {looks}. Written at "
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


def _numbers(watch: Watch, row: WatchRow) -> Row:
    """A row of the latest look as the page's table shows it."""
    band = watch.band(row)
    expected = "" if band is None else f"{band.value:.4g} [{band.low:.4g}, {band.high:.4g}]"
    value = Label(f"{row.value:.4g}, outside", "bad") if outside(watch, row) else row.value
    return {
        "meter": row.meter,
        "of": row.layer or "the network",
        "value": value,
        "expected": expected,
    }


def _layers(
    watch: Watch, series: dict[Series, list[WatchRow]], shown: Sequence[WatchRow]
) -> Iterator[Section]:
    """Every meter of layers with its meaning and its charts, one for each kind of layers; first
    those of the stream.
    """
    depths = sorted({row.depth for row in shown if row.depth is not None})
    stacks = [stack_at(depth) for depth in depths]
    blocks = {depth: stacks[: k + 1].count(stacks[k]) for k, depth in enumerate(depths)}
    several = len(set(stacks)) > 1  # then kinds begin with the name of the stack
    stream = {s for s in series if s.kind == "" or (several and f"{s.kind}".endswith(".*"))}
    figures: dict[str, list[Finding]] = {"The stream behind every block": []} if stream else {}
    for s, rows in series.items():
        if s in stream:
            figures["The stream behind every block"].append(_over_blocks(watch, s, rows, blocks))
        elif s.kind:
            chart = (
                _over_steps(watch, s, rows)
                if s.stack is None
                else _over_blocks(watch, s, rows, blocks)
            )
            figures.setdefault(s.meter, []).append(chart)
    for title, charts in figures.items():
        meaning = [f"{METERS_OF_LAYERS[title]}."] if title in METERS_OF_LAYERS else []
        yield replace(figure_section(title, charts), paragraphs=meaning)


def _over_steps(watch: Watch, series: Series, rows: Sequence[WatchRow]) -> Finding:
    """A meter of the network or of one layer over the steps."""
    # a logarithm has no place for zero, such as the change of a layer that does not train
    above_zero = all(row.value > 0 for row in rows)
    axes = Axes(
        "x",
        "y",
        "step",
        "",
        "logcurves" if above_zero else "curves",
        colour="meter",
        order=_ORDER,
        interval="shaded: expected",
    )
    return _judged(watch, series, rows, axes, _drawn(watch, rows, "", {}), [])


def _over_blocks(
    watch: Watch, series: Series, rows: Sequence[WatchRow], blocks: dict[float, int]
) -> Finding:
    """A meter of the layers of one kind along the blocks, at the latest look and at the first."""
    first = rows[0].step
    latest = rows[-1].step
    now, then = ([row for row in rows if row.step == step] for step in (latest, first))
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
    before = _drawn(watch, then, f"step {first}", blocks) if first < latest else []
    return _judged(watch, series, now, axes, _drawn(watch, now, f"step {latest}", blocks), before)


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
    is_judged = any("low" in point for point in points)
    shown = (points, before) if is_judged else ([], [*before, *points])
    return Finding("", title, "", shown[0], axes, _outside(watch, rows), references=shown[1])


def _drawn(
    watch: Watch, rows: Sequence[WatchRow], name: str, blocks: dict[float, int]
) -> list[Row]:
    """Rows as a chart draws them, at their step or at their block."""
    bands = [watch.band(row) for row in rows]
    return [
        {
            "series": name,
            "meter": row.meter,
            "x": row.step if row.depth is None else blocks[row.depth],
            "y": row.value,
        }
        | ({} if band is None else {"low": band.low, "high": band.high})
        for row, band in zip(rows, bands, strict=True)
    ]


def _outside(watch: Watch, rows: Sequence[WatchRow]) -> str:
    """The values outside of their bands, in words."""
    beyond = [
        f"{row.layer or 'the network'} at step {row.step}: {short(row.value)}, expected "
        f"{watch.band(row)}"
        for row in rows
        if outside(watch, row)
    ]
    return f"Outside of the band: {'; '.join(beyond)}." if beyond else ""


def _spaced(steps: Sequence[int]) -> list[int]:
    """At most ``_LOOKS`` of these steps, evenly spaced, the first and the last among them."""
    if len(steps) <= _LOOKS:
        return list(steps)
    return [steps[round(k * (len(steps) - 1) / (_LOOKS - 1))] for k in range(_LOOKS)]
