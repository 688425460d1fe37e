"""The distance of finite networks to the limit, against width and against depth.

Distances are RMS over steps, samples and outputs. Inference is on their squares, which are unbiased once the noise of
the prediction is taken away, and may be negative; an exponent is fitted only where every square is resolved from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nfd.core import (
    INFINITE,
    UNKNOWN,
    Axes,
    Finding,
    Row,
    SeriesRole,
    columns,
    intervals,
    listed,
    log_slope,
    squared_distances,
    systematic_squares,
)
from nfd.paper.findings.outputs import divergence, real, wide
from nfd.paper.slopes import fitted, power, slope_row, slope_table
from nfd.paper.study import Study

_WIDE = "infinitely wide"
_TITLE = "RMS distance of outputs to the limit"

Squares = Callable[..., Tensor]


def by_width(study: Study) -> Finding | None:
    """One real network minus the infinitely wide one of its depth, against width."""
    rows: list[Row] = []
    slopes: list[Row] = []
    limits = wide(study, "shared")
    for depth in study.config.depths:
        outputs = real(study, depth)
        if depth in limits and len(outputs) > 1:
            samples = torch.stack([*outputs.values()], 1), limits[depth]
            rows += _rows(f"depth {depth}", "width", list(outputs), squared_distances, *samples, depth=depth)
            slopes.append(_slope(f"depth {depth}", list(outputs), squared_distances, *samples))
    if not rows:
        return None
    last = slopes[-1]
    own = [row for row in rows if row["series"] == last["series"]]
    headline = (
        f"One real network of {last['series']} is {listed([row['distance'] for row in own], '.3f')} away from the "
        f"infinitely wide one of that depth at width {listed([row['width'] for row in own])}"
        f"{_power('n', last, 'theory: n^-1/2')}."
    )
    return Finding(
        "distance-width",
        "How far is a real network from the limit? Width:",
        headline,
        rows,
        Axes("width", "distance", "width", _TITLE, "logarithmic", colour="depth"),
        f"Bars: 95 % intervals from {study.config.seeds} real networks of each size and the prediction's noise. "
        "RMS over steps, samples and outputs.",
        divergence(study),
        slopes,
        slope_table(slopes, verdicts=False),
    )


def by_depth(study: Study) -> Finding | None:
    """Real networks, and the infinitely wide one of each depth, minus the infinitely wide and deep one."""
    limits = wide(study, "shared")
    if INFINITE not in limits:
        return None
    rows: list[Row] = []
    slopes: list[Row] = []
    target = limits.pop(INFINITE)
    for n in study.config.widths:
        own = {L: real(study, L)[n] for L in study.config.depths if n in real(study, L)}
        if len(own) > 1:
            samples, about = (torch.stack([*own.values()], 1), target), {"role": SeriesRole.REAL, "width": n}
            rows += _rows(f"real, width {n}", "depth", list(own), squared_distances, *samples, **about)
            slopes.append(_slope(f"real, width {n}", list(own), squared_distances, *samples))
    depths = [int(L) for L in limits]
    differences = torch.stack([outputs - target for outputs in limits.values()], 1)
    wide_rows = _rows(_WIDE, "depth", depths, systematic_squares, differences, role=SeriesRole.PREDICTION)
    # without the deepest: it is in proportion 2 to the last but one by making
    slope = _slope(_WIDE, depths[:-1], systematic_squares, differences[:, :-1])
    headline = (
        f"The infinitely wide network of depth {listed(depths)} is "
        f"{listed([row['distance'] for row in wide_rows], '.3f')} away from the infinitely deep one"
        f"{_power('L', slope, f'up to depth {depths[-2]}; theory, for large L: L^-1')}."
    )
    return Finding(
        "distance-depth",
        "How far is a real network from the limit? Depth:",
        headline,
        rows + wide_rows,
        Axes("depth", "distance", "depth", _TITLE, "logarithmic"),
        "Bars: 95 % intervals. Infinite depth is extrapolated from the two deepest, which puts their own distances in "
        "proportion 2; the deepest is not in the fit of the infinitely wide one. RMS over steps, samples and outputs.",
        _share_of_width(rows, wide_rows),
        [*slopes, slope],
        slope_table([*slopes, slope], verdicts=False),
    )


def _rows(series: str, axis: str, points: Sequence[int], squares: Squares, *samples: Tensor, **about: Any) -> list[Row]:
    """Distances of samples [seeds, points, ...], with settings as columns."""
    return [
        {"series": series, **about, axis: point} | columns("distance", squared.root())
        for point, squared in zip(points, intervals(squares, *samples), strict=True)
    ]


def _slope(series: str, points: Sequence[int], squares: Squares, *samples: Tensor) -> Row:
    """The exponent of the distance, where every point is resolved from zero."""
    resolved = all(squared.low > 0 for squared in intervals(squares, *samples))
    if len(points) < 2 or not resolved:
        return slope_row(series, UNKNOWN)
    return fitted(series, lambda *s: log_slope(points, squares(*s).clamp_min(1e-300).sqrt()), *samples)


def _power(letter: str, slope: Row, why: str) -> str:
    return (
        f": it goes as {power(letter, slope)} ({why})" if math.isfinite(slope["slope"]) else " (noise hides its trend)"
    )


def _share_of_width(rows: Sequence[Row], wide_rows: Sequence[Row]) -> list[str]:
    """How much of the squared distance of the last real network is not that of the infinitely wide one of its depth."""
    if not rows:
        return []
    last = rows[-1]
    of_depth = next((row for row in wide_rows if row["depth"] == last["depth"]), None)
    where = f"A network of width {last['width']} and depth {last['depth']} is {last['distance']:.3f} away"
    if of_depth is None or not of_depth["low"] > 0 or not last["low"] > of_depth["distance"]:
        return [f"{where}."]
    return [f"{where}, and finite width makes {1 - (of_depth['distance'] / last['distance']) ** 2:.0%} of its square."]
