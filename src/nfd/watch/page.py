"""The page of a training that is under way: what ``nfd.Watch`` read so far, in one file that follows the run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from nfd.core.errors import InputTypeError
from nfd.core.files import expanded, replace_file
from nfd.core.tables import Row, short
from nfd.meters.verdict import METERS
from nfd.report.charts import across_span, drawable, log_span
from nfd.report.page import Label, templates
from nfd.watch.bands import Series, WatchRow, at_steps, in_series, stack_at, steps_of
from nfd.watch.watch import Watch, name_of, not_judged, outside, remarks_of

# ---- The page of a training that is under way: what ``nfd.Watch`` read so far, in one file that follows the run


MARK = '<meta name="generator" content="nfd run page">'
_HEAD = 1024  # bytes of a file within which its mark stands
_LONGEST = 3600.0  # seconds between two looks
_LOOKS, _EARLIER = 60, 4  # of the past, in a chart over steps and in one over blocks
_OF_MATRICES = {
    "update": "RMS of what training a matrix changed in its output",
    "change": "size of the change of a matrix over the size of its start",
    "weight": "size of a matrix over the size of its start",
    "alignment": METERS["alignment"],
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
        plot={"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "TOP": TOP, "BOTTOM": BOTTOM},
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
            _over_blocks(watch, s, rows, blocks, f"{s.kind}") if s.stack is not None else _over_steps(watch, s, rows)
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


# ---- Small line charts as SVG, drawn in milliseconds and without a script, for pages that are written at every look


WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 34
_NICE = (1, 2, 5)
_FOR_ZERO = 0.25  # of the axis above it: the room for zero, which a logarithm has no place for
_MOST = 5  # ticks of an axis that is not logarithmic


@dataclass(frozen=True)
class Place:
    """A value and where it belongs.

    Attributes:
        x, y: the value y at x; not-a-number breaks a line.
        expected: the ends of its band, where one is known.
        name: of the layer, where it is one.
    """

    x: float
    y: float
    expected: tuple[float, float] | None = None
    name: str = ""

    @property
    def text(self) -> str:
        """The value with its name and what is expected of it."""
        band = "" if self.expected is None else f", expected [{', '.join(map(short, self.expected))}]"
        return f"{self.name or f'at {self.x:g}'}: {short(self.y)}{band}"

    @property
    def outside(self) -> bool:
        """Whether it lies outside of what is expected."""
        return self.expected is not None and not self.expected[0] <= self.y <= self.expected[1]


@dataclass(frozen=True)
class Plot:
    """Lines over one axis, on a logarithmic axis up; zero stands at its bottom.

    Args:
        title: above it. x_title: below it.
        description: what it shows, for those who do not see it.
        places: the line in the foreground, with its band.
        earlier: lines behind it, from the oldest to the newest.
    """

    title: str
    x_title: str
    description: str
    places: Sequence[Place]
    earlier: Sequence[Sequence[Place]] = ()

    @cached_property
    def _all(self) -> list[Place]:
        return [place for line in (self.places, *self.earlier) for place in line if drawable(place.y)]

    @cached_property
    def _up(self) -> tuple[float, float]:
        bands = ((place, place.expected or (place.y, place.y)) for place in self._all if place.y > 0)
        low, high = log_span([{"y": place.y, "low": low, "high": high} for place, (low, high) in bands])
        return (low * (low / high) ** _FOR_ZERO if self._has_zero else low), high

    @cached_property
    def _has_zero(self) -> bool:
        return any(place.y == 0 for place in self._all)

    @cached_property
    def _across(self) -> tuple[float, float]:
        return across_span([{"x": p.x} for p in self._all], log=False, tight=True)

    @property
    def line(self) -> str:
        """The path of the foreground."""
        return self._path(self.places)

    @property
    def earlier_lines(self) -> list[tuple[str, float]]:
        """Paths of the lines behind, each with its opacity: the older, the fainter."""
        return [(self._path(line), (k + 1) / (len(self.earlier) + 1)) for k, line in enumerate(self.earlier)]

    @property
    def dots(self) -> list[tuple[float, float, Place]]:
        """Where the values of the foreground stand, each with its place."""
        return [(self._x(p.x), self._y(p.y), p) for p in self.places if drawable(p.y)]

    @property
    def band(self) -> str:
        """The path around what is expected."""
        known = [(place.x, *place.expected) for place in self.places if place.expected is not None]
        ends = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
        return f"M{'L'.join(self._at(*end) for end in ends)}Z" if len(known) > 1 else ""

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Where the x axis is named, and how."""
        return [(self._x(x), f"{x:g}") for x in _round(*self._across) if x == int(x)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Where the y axis is named, and how; zero, which has no place on it, at its bottom."""
        low, high = self._up
        if not self._has_zero:
            return [(self._y(y), f"{y:g}") for y in _logarithmic(low, high)]
        least = low * (high / low) ** (_FOR_ZERO / (1 + _FOR_ZERO))  # above the room for zero
        return [(self._y(0), "0"), *((self._y(y), f"{y:g}") for y in _logarithmic(least, high))]

    def _path(self, line: Sequence[Place]) -> str:
        parts = (list(part) for known, part in groupby(line, lambda p: drawable(p.y)) if known)
        return "".join(f"M{'L'.join(self._at(p.x, p.y) for p in part)}" for part in parts)

    def _at(self, x: float, y: float) -> str:
        return f"{self._x(x):.1f},{self._y(y):.1f}"

    def _x(self, x: float) -> float:
        low, high = self._across
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - low) / (high - low)

    def _y(self, y: float) -> float:
        """A value from the bottom of the axis to its top; those beyond stand at its ends."""
        low, high = self._up
        share = math.log(min(max(y, low), high) / low) / math.log(high / low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _logarithmic(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: 1, 2 and 5 times powers of ten; powers alone where they are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = _NICE if len(powers) < 4 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
    return ticks if len(ticks) > 1 else list(_round(low, high))


def _round(low: float, high: float) -> Iterator[float]:
    """A few round numbers from low to high."""
    rough = (high - low) / _MOST
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (*_NICE, 10) if factor * power >= rough)
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield float(f"{k * step:.12g}")
