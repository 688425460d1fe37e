"""Figure 3: how fast networks come to their limits, before and after training.

Before training it is the error of Props. 2 and 6, coordinate by coordinate: in width against
particles of the same depth driven by the same noise (``nfd.paper.streams.at_start``), in depth
against the network of twice the depth along one Brownian path of matrices: where errors are c/L so
are these. After training it is the error of Theorem 1: outputs of one network against outputs of
very wide ones, and of infinite depth extrapolated from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nfd.core import (
    UNKNOWN,
    Axes,
    Finding,
    Interval,
    Row,
    columns,
    interval,
    log_slope,
    squared_distances,
    systematic_squares,
)
from nfd.limits import extrapolated
from nfd.paper.figures.figure import DataSummary, Figure, Parts, Runs, Settings
from nfd.paper.figures.panels import (
    BARS,
    by_seed,
    caption,
    line,
    panel,
    point_rows,
    sizes,
    slope,
    slope_row,
    slopes_in_words,
)
from nfd.paper.settings import Preset

_STREAMS = {"h": ("h_particles", "h_end"), "g": ("g_particles", "g_start")}
_START = {
    "meter": "start",
    "coupled": True,
    "steps": 1,
    "activation": ["relu", "tanh"],
    "eta_c": 0.01,
}
_REAL = {"meter": "outputs", "coupled": True}
_LIMIT = {
    "meter": "outputs",
    "coupled": 64,
    "apart": 1000,
    "weights": "structured",
    "resolution": 0.3,
}
_CAPTION = {"eta_c": 0.01, "batch": 128}
_WIDTHS = [32, 64, 128, 256, 512, 1024]
_DEPTHS = [4, 8, 16, 32, 64, 128]
_BEFORE: dict[str, Settings] = {
    "width": {**_START, "width": _WIDTHS, "depth": _DEPTHS[-1], "seeds": 8},
    "depth": {**_START, "width": _WIDTHS[-1], "depth": [*_DEPTHS, 2 * _DEPTHS[-1]], "seeds": 8},
}
_SIZES = {"width": _WIDTHS, "depth": _DEPTHS}

PARTS: dict[Preset, Parts] = {
    "smoke": {
        "width": {**_START, "width": [8, 16, 32], "depth": 8, "seeds": 3},
        "depth": {**_START, "width": 32, "depth": [2, 4, 8, 16], "seeds": 3},
        "real": {**_REAL, "width": [8, 16], "depth": [2, 4], "steps": 4, "eta_c": 0.3, "seeds": 3},
        "limit": {**_LIMIT, "width": 64, "depth": [2, 4], "steps": 4, "eta_c": 0.3, "seeds": 3},
    },
    "cpu": {
        **_BEFORE,
        "real": {**_REAL, **_CAPTION, **_SIZES, "steps": 64, "seeds": 4},
        "limit": {**_LIMIT, **_CAPTION, "width": 2048, "depth": _DEPTHS, "steps": 64, "seeds": 6},
    },
    "paper": {
        **_BEFORE,
        "real": {**_REAL, **_CAPTION, **_SIZES, "epochs": 30, "seeds": 5},
        "limit": {**_LIMIT, **_CAPTION, "width": 4096, "depth": _DEPTHS, "epochs": 30, "seeds": 3},
    },
}


def reduce(runs: Mapping[str, Runs], data: DataSummary) -> list[Finding]:
    """Return panels a and b before training, c and d after it."""
    real = runs["real"]
    limit = runs["limit"]
    return [
        _start(runs["width"], data, "a", "width"),
        _start(runs["depth"], data, "b", "depth"),
        _trained_width(real, limit, data),
        _trained_depth(real, limit, data),
    ]


def start_errors(start: Runs, activation: str, stream: str, axis: str) -> dict[float, Tensor]:
    """Return mean squares ``[seeds]`` by size, of ``h_L`` or of ``g_0``.

    In depth against the network twice as deep: where the distance from the limit is ``c / L`` the
    distance from a network of depth M is ``c (1/L - 1/M)``, which falls as 1/L for M = 2L but
    faster for one M that all are compared with.
    """
    particles, end = _STREAMS[stream]
    some = start.where(activation=activation)
    if axis == "width":
        return sizes(some, "width", lambda r: r.metric(particles))
    ends = {L: part.curve(end) for L, part in some.by("depth").items()}
    errors: dict[float, Tensor] = {}
    for L in sorted(ends):
        if 2 * L in ends:
            errors[float(L)] = (ends[L] - ends[2 * L]).square().mean(1)
    return errors


def changes(limit: Runs) -> Tensor:
    """Return outputs ``[seeds, probes x classes]`` less those before training.

    Outputs before training are noise, which at infinite width is zero.
    """
    return limit.curve("outputs") - limit.curve("start")


def infinite(limit: Runs) -> Tensor:
    """Extrapolate to infinite depth from the two deepest (L and 2L), ``[seeds, ...]``."""
    *_, shallow, deep = sorted(limit.values("depth"))
    return extrapolated(changes(limit.where(depth=shallow)), changes(limit.where(depth=deep)))


def width_squares(real: Runs, limit: Runs, depth: int) -> tuple[list[float], Tensor, Tensor]:
    """Return widths, and outputs ``[seeds, widths, ...]`` of networks of one depth.

    The third are outputs of wide networks of that depth.
    """
    widths = sorted(real.values("width"))
    outputs = [real.where(width=n, depth=depth).curve("outputs") for n in widths]
    return (
        list(map(float, widths)),
        torch.stack(outputs, 1),
        changes(limit.where(depth=depth)),
    )


def depth_squares(limit: Runs) -> tuple[list[float], Tensor]:
    """Return depths but the deepest, and differences ``[seeds, depths, ...]``.

    They are outputs of wide networks minus outputs of the infinitely deep ones.
    """
    *depths, _ = sorted(limit.values("depth"))
    end = infinite(limit)
    differences = [changes(limit.where(depth=L)) - end for L in depths]
    return list(map(float, depths)), torch.stack(differences, 1)


def width_slope(real: Runs, limit: Runs, depth: int) -> Interval:
    """Return the exponent in n of the mean-square error of trained networks of one depth."""
    widths, *samples = width_squares(real, limit, depth)
    return _exponent(widths, squared_distances, *samples)


def squares_slope(widths: list[float], runs: Tensor, limit: Tensor) -> Tensor:
    """Return the exponent in n of the squared distance from the limit, over all widths.

    Outputs ``runs`` are ``[seeds, widths, ...]``.
    """
    return log_slope(widths, squared_distances(runs, limit).clamp_min(1e-300))


def depth_slope(limit: Runs) -> Interval:
    """Return the exponent in L of the mean-square error of trained, very wide networks."""
    depths, differences = depth_squares(limit)
    return _exponent(depths, systematic_squares, differences)


def _exponent(places: list[float], squares: Callable[..., Tensor], *samples: Tensor) -> Interval:
    """Return the exponent of squares ``[points]`` of the samples.

    It is fitted over the points that differ significantly from zero.
    """
    kept = resolved(squares, *samples)
    if len(kept) < min(3, len(places)) or len(kept) < 2:
        return UNKNOWN
    kept_places = [places[k] for k in kept]
    return interval(
        lambda *s: log_slope(kept_places, squares(*s)[kept].clamp_min(1e-300)), *samples
    )


def resolved(squares: Callable[..., Tensor], *samples: Tensor) -> list[int]:
    """Return the points whose square differs significantly from zero."""
    return [k for k, square in enumerate(_of_points(squares, *samples)) if square.low > 0]


def _of_points(squares: Callable[..., Tensor], *samples: Tensor) -> list[Interval]:
    """Return the square of every point, with its interval."""
    return [interval(lambda *s, k=k: squares(*s)[k], *samples) for k in range(samples[0].shape[1])]


def _start(start: Runs, data: DataSummary, letter: str, axis: str) -> Finding:
    rows = list[Row]()
    slopes = list[Row]()
    other = "depth" if axis == "width" else "width"
    for activation in start.values("activation"):
        for stream, symbol in (("h", "h_L"), ("g", "g_0")):
            series = f"{activation}, {symbol}"
            errors = start_errors(start, activation, stream, axis)
            rows += point_rows(series, axis, "square", errors, activation=activation, stream=stream)
            slopes.append(slope(series, *by_seed(errors)))
    (at,) = start.values(other)
    against = {
        "width": "particles of infinite width driven by the same noise",
        "depth": "the network twice as deep along the same Brownian path",
    }[axis]
    letter_of = {"width": "n", "depth": "L"}[axis]
    places = sorted({row[axis] for row in rows})
    highest = max((row["square"] for row in rows if row[axis] == places[0]), default=1.0)
    return panel(
        "figure-3",
        letter,
        f"Before training, against {axis}",
        headline=f"Mean square error: {slopes_in_words(letter_of, slopes)}.",
        rows=rows,
        axes=Axes(
            axis,
            "square",
            f"{axis} {letter_of}",
            "mean square error",
            "logarithmic",
            colour="activation",
            dash="stream",
        ),
        caption=caption(
            start,
            data,
            f"At {other} {at:g}, coordinates of h_L and g_0 minus those of {against}.",
            BARS,
        ),
        slopes=slopes,
        references=line("slope -1", axis, "square", places, -1.0, highest),
    )


def _trained_width(real: Runs, limit: Runs, data: DataSummary) -> Finding:
    rows = list[Row]()
    slopes = list[Row]()
    for depth in sorted(real.values("depth")):
        widths, *samples = width_squares(real, limit, depth)
        rows += _resolved(
            f"depth {depth}", "width", widths, _of_points(squared_distances, *samples), depth=depth
        )
        slopes.append(slope_row(f"depth {depth}", width_slope(real, limit, depth)))
    return _panel(
        real, limit, data, "c", "width", "the mean of wide ones of that depth", rows, slopes
    )


def _trained_depth(real: Runs, limit: Runs, data: DataSummary) -> Finding:
    depths, differences = depth_squares(limit)
    squares = _of_points(systematic_squares, differences)
    rows = _resolved("infinitely wide", "depth", depths, squares, width=math.inf)
    slopes = [slope_row("infinitely wide", depth_slope(limit))]
    end = infinite(limit)
    for n, some in sorted(real.by("width").items()):
        by_depth = sizes(some, "depth", lambda r: r.curve("outputs")[:, None])
        squares = [
            interval(lambda r, e: squared_distances(r, e)[0], outputs, end)
            for outputs in by_depth.values()
        ]
        rows += _resolved(f"width {n}", "depth", list(by_depth), squares, width=n)
    return _panel(
        real,
        limit,
        data,
        "d",
        "depth",
        "infinite depth extrapolated from the two deepest",
        rows,
        slopes,
    )


def _resolved(
    series: str, axis: str, places: list[float], squares: list[Interval], **settings: float
) -> list[Row]:
    """Return rows of the squares that differ significantly from zero."""
    return [
        {"series": series, **settings, axis: p} | columns("square", s)
        for p, s in zip(places, squares, strict=True)
        if s.low > 0
    ]


def _panel(
    real: Runs,
    limit: Runs,
    data: DataSummary,
    letter: str,
    axis: str,
    against: str,
    rows: list[Row],
    slopes: list[Row],
) -> Finding:
    letter_of, other = {"width": ("n", "depth"), "depth": ("L", "width")}[axis]
    places = sorted({row[axis] for row in rows}) or [1.0, 2.0]
    highest = max((row["square"] for row in rows if row[axis] == places[0]), default=1.0)
    wide = (
        f"{len(limit.values('seed'))} networks of width {limit.values('width')[0]:,} stand for "
        "infinite width."
    )
    how = (
        f"Mean square of outputs of one network minus {against}, whose noise is subtracted; {wide}"
    )
    return panel(
        "figure-3",
        letter,
        f"After training, against {axis}",
        headline=f"Mean square error: {slopes_in_words(letter_of, slopes)}.",
        rows=rows,
        axes=Axes(
            axis,
            "square",
            f"{axis} {letter_of}",
            "mean square error of outputs",
            "logarithmic",
            colour=other,
        ),
        caption=caption(real, data, how, "Bars: 95 % intervals."),
        slopes=slopes,
        references=line("slope -1", axis, "square", places, -1.0, highest),
    )


FIGURE = Figure("figure-3", "How fast do networks come to the limit?", PARTS, reduce, "c")
