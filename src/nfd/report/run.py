"""The page of a training that is under way: what ``nfd.Watch`` read so far, in one file that follows the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nfd.core.errors import InputTypeError
from nfd.core.files import expanded, replace_file
from nfd.core.tables import Row
from nfd.meters.check import MEANINGS
from nfd.report import plot
from nfd.report.plot import Place, Plot
from nfd.report.section import Label
from nfd.report.templates import templates
from nfd.watch.bands import Series, WatchRow, at_steps, in_series, stack_at, steps_of
from nfd.watch.watch import Watch, name_of, not_judged, outside, remarks_of

MARK = '<meta name="generator" content="nfd run page">'
_HEAD = 1024  # bytes of a file within which its mark stands
_LONGEST = 3600.0  # seconds between two looks
_LOOKS, _EARLIER = 60, 4  # of the past, in a chart over steps and in one over blocks
_OF_MATRICES = {
    "update": "RMS of what training a matrix changed in its output",
    "change": "size of the change of a matrix over the size of its start",
    "weight": "size of a matrix over the size of its start",
    "alignment": MEANINGS["alignment"],
}


def run_page(watch: Watch, path: str | Path, *, title: str = "A training") -> Path:
    """Write the page of a run: all readings of a watch so far, on one page that opens offline and follows the run.

    Call it after every look. The file is replaced as a whole. A browser that shows the page reloads it until no look
    has come for a while.

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
            f"{path} is not a page of a run and would be replaced. Nothing was changed. Choose another path."
        )
    now = time.time()
    pause = min(now - place.stat().st_mtime, _LONGEST) if place.exists() else 0.0
    replace_file(place, page_of(watch, title, now, pause).encode())
    return place


def page_of(watch: Watch, title: str, now: float, pause: float) -> str:
    """The page as HTML, written at the time ``now``, ``pause`` seconds after the one before."""
    steps = steps_of(watch.rows)
    shown = at_steps(watch.rows, _spaced(steps, _LOOKS))
    series, latest = in_series(shown), steps[-1] if steps else 0
    template = templates().get_template("run.html")
    return template.render(
        title=title,
        mark=MARK,
        step=latest,
        looks=len(steps),
        every=watch.every,
        written=now,
        pause=pause,
        judged=watch.expected is not None,
        not_judged=not_judged(watch),
        remarks=remarks_of(watch),
        alerts=[str(alert) for alert in watch.alerts],
        network=[_over_steps(watch, s, rows) for s, rows in series.items() if s.kind is None],
        layers=list(_layers(watch, series, shown)),
        latest=[_numbers(watch, row) for row in at_steps(shown, [latest])],
        left_out=watch.left_out,
        plot=plot,
        dark={},
    )


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return not head or MARK.encode() in head


def _numbers(watch: Watch, row: WatchRow) -> Row:
    """A row of the latest look as the page's table shows it."""
    band = watch.band(row)
    expected = "" if band is None else f"{band.value:.4g} [{band.low:.4g}, {band.high:.4g}]"
    value = Label(f"{row.value:.4g}, outside", "bad") if outside(watch, row) else row.value
    return {"meter": row.meter, "of": row.layer or "the network", "value": value, "expected": expected}


def _layers(
    watch: Watch, series: dict[Series, list[WatchRow]], shown: Sequence[WatchRow]
) -> Iterator[tuple[str, str, list[Plot]]]:
    """Every meter of layers with its meaning and its charts, one for each kind of layers; first those of the stream."""
    depths = sorted({row.depth for row in shown if row.depth is not None})
    stacks = [stack_at(depth) for depth in depths]
    blocks = {depth: stacks[: k + 1].count(stacks[k]) for k, depth in enumerate(depths)}
    several = len(set(stacks)) > 1  # then kinds begin with the name of the stack
    stream = {s: rows for s, rows in series.items() if s.kind == "" or (several and f"{s.kind}".endswith(".*"))}
    of_matrices = {s: rows for s, rows in series.items() if s.kind and s not in stream}
    if stream:
        charts = [_over_blocks(watch, s, rows, blocks, f"{s.meter} {s.kind}".strip()) for s, rows in stream.items()]
        yield "the stream behind every block", "", charts
    for meter in dict.fromkeys(s.meter for s in of_matrices):
        own = {s: rows for s, rows in of_matrices.items() if s.meter == meter}
        charts = [
            _over_blocks(watch, s, rows, blocks, f"{s.kind}") if s.along else _over_steps(watch, s, rows)
            for s, rows in own.items()
        ]
        yield meter, _OF_MATRICES.get(meter, ""), charts


def _over_steps(watch: Watch, series: Series, rows: Sequence[WatchRow]) -> Plot:
    """A meter of the network or of one layer over the steps."""
    places = [_place(watch, row, row.step) for row in rows]
    name = series.meter if series.kind is None else series.kind
    description = f"{series.meter} of {name_of(series, rows)} over the steps: {_in_words(places)}"
    return Plot(name, "step", description, places)


def _over_blocks(watch: Watch, series: Series, rows: Sequence[WatchRow], blocks: dict[float, int], name: str) -> Plot:
    """A meter of the layers of one kind along the blocks, at the latest look and at earlier ones."""
    looks = steps_of(rows)
    *earlier, latest = _spaced(looks, _EARLIER + 1)
    lines = [
        [Place(blocks[row.depth], row.value) for row in rows if row.step == step and row.depth] for step in earlier
    ]
    current = [row for row in rows if row.step == latest]
    places = [_place(watch, row, blocks[row.depth]) for row in current if row.depth]
    description = (
        f"{series.meter} of {name_of(series, current)} along the blocks after step {latest}: {_in_words(places)}"
    )
    return Plot(name, "block", description, places, lines)


def _place(watch: Watch, row: WatchRow, x: float) -> Place:
    band = watch.band(row)
    return Place(x, row.value, None if band is None else (band.low, band.high), row.layer or "")


def _in_words(places: Sequence[Place]) -> str:
    """The ends of a line, and which values lie outside of their bands."""
    beyond = [place.text for place in places if place.outside]
    ends = f"from {places[0].text} to {places[-1].text}"
    return f"{ends}; outside of the band: {'; '.join(beyond)}" if beyond else ends


def _spaced(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of these steps, evenly spaced, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(k * (len(steps) - 1) / (most - 1))] for k in range(most)]
