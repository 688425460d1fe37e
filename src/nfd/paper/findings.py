"""The findings of a study, one per chart.

A finding reduces measurements to rows, fitted slopes and sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nfd.core import (
    INFINITE,
    UNKNOWN,
    Axes,
    Feedback,
    Finding,
    Interval,
    Row,
    RuleName,
    SeriesRole,
    columns,
    depth_name,
    interval,
    intervals,
    listed,
    log_slope,
    mean,
    squared_distances,
    systematic_squares,
)
from nfd.limits import extrapolated
from nfd.meters import THRESHOLDS
from nfd.paper.figures.panels import fitted, power, slope_row, slope_table, slopes_in_words
from nfd.paper.study import NARROW, Study

NAMES = ("loss-shared", "loss-independent", "gap", "distance-width", "distance-depth", "updates")


def findings(study: Study) -> list[Finding]:
    """Return all that can be said from what was measured so far, in the order of the report."""
    drawn = [
        losses(study, "shared"),
        losses(study, "independent"),
        gap(study),
        by_width(study),
        by_depth(study),
        blocks(study),
    ]
    return [finding for finding in drawn if finding is not None]


# ---- The loss while training: infinitely wide at every depth and infinitely deep, and real
# networks beside it

_LOSS_AXES = Axes("step", "loss", "step", "training loss before the step (nats)", "curves")
_LOSS = {"shared": "Loss", "independent": "Decoupled loss"}
_WHO = {
    "shared": "the infinitely wide network",
    "independent": "the infinitely wide decoupled network",
}


def losses(study: Study, feedback: Feedback) -> Finding | None:
    """Return the loss against the step for one kind of feedback."""
    limits = wide(study, feedback)
    if not limits:
        return _all_diverged(study, feedback)
    rows: list[Row] = []
    for depth, outputs in limits.items():
        rows.extend(_wide_rows(study, depth, outputs))
    rows.extend(_rows_of_real(study))
    deepest = max(limits)
    loss = intervals(lambda r: study.mean_loss(r.mean(0)), limits[deepest])
    first = loss[0].unsigned
    last = loss[-1].unsigned
    headline = (
        f"At {depth_name(deepest)}, {_WHO[feedback]} goes from loss {first} to {last} nats with "
        f"{len(loss) - 1} updates of {study.config.batch} samples."
    )
    details = [
        *_depth_pays(study, limits),
        *_extrapolation(study, limits),
        *_loss_width(study, feedback),
    ]
    if feedback == "shared":
        details += _above(study, limits)
    return Finding(
        f"loss-{feedback}",
        f"{_LOSS[feedback]} at {depth_name(deepest)}: {loss[-1].value:.3g} nats",
        headline,
        rows,
        _LOSS_AXES,
        f"Bands: 95 % intervals. Solid: predictions. Dashed: mean of {study.config.seeds} real "
        f"networks of depth {study.config.depths[-1]}, the standard ones in both charts.",
        details + divergence(study, feedback),
    )


def _all_diverged(study: Study, feedback: Feedback) -> Finding | None:
    """Say that no prediction stayed finite; None when no prediction was measured yet."""
    if not any(name == feedback for name, _ in study.measured.limits):
        return None
    return Finding(
        f"loss-{feedback}",
        f"Training of {_WHO[feedback]} diverges",
        " ".join(divergence(study, feedback)),
        _rows_of_real(study),
        _LOSS_AXES,
        "Mean of real networks.",
    )


def _rows_of_real(study: Study) -> list[Row]:
    """Return the losses of real networks of the largest depth.

    Networks that diverged are among them: their curves end early.
    """
    deepest = study.config.depths[-1]
    rows: list[Row] = []
    for width in study.config.widths:
        if (deepest, width) in study.measured.real:
            rows.extend(_real_rows(study, width, study.measured.real[deepest, width]))
    return rows


def _wide_rows(study: Study, depth: float, outputs: Tensor) -> Iterator[Row]:
    series = f"infinitely wide, depth {depth:g}"
    if depth == INFINITE:
        series = "infinitely wide and deep"
    place = {"series": series, "role": SeriesRole.PREDICTION, "depth": depth, "width": INFINITE}
    for step, loss in enumerate(intervals(lambda r: study.mean_loss(r.mean(0)), outputs)):
        yield place | {"step": step} | columns("loss", loss)


def _real_rows(study: Study, width: int, outputs: Tensor) -> Iterator[Row]:
    place = {
        "series": f"real, width {width}",
        "role": SeriesRole.REAL,
        "depth": study.config.depths[-1],
    }
    for step, losses in enumerate(study.mean_loss(outputs).T):
        yield place | {"width": width, "step": step} | columns("loss", mean(losses))


def _depth_pays(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """Say what share of the deepest network's progress the shallowest one makes."""
    shallow = min(limits)
    deep = max(limits)
    if shallow == deep:
        return []
    progress_of_deep = interval(lambda r: progress(study, r), limits[deep])
    if not progress_of_deep.low > 0:
        return ["No progress is made that depth could add to."]
    pair = torch.stack([limits[shallow], limits[deep]], 1)
    share = interval(lambda r: 100 * progress(study, r[:, 0]) / progress(study, r[:, 1]), pair)
    return [
        f"On average over the steps, {depth_name(shallow)} makes {share.value:.0f} % "
        f"[{share.low:.0f}, {share.high:.0f}] of its progress below log {limits[deep].shape[-1]}."
    ]


def _extrapolation(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """Say how far the extrapolated loss moved with the last doubling of the depth.

    Its remaining error is a fraction of that.
    """
    if INFINITE not in limits:
        return []
    depths = study.config.depths
    # The check takes a third depth, which is half of the last but one and did not diverge.
    three_double = len(depths) > 2 and 2 * depths[-3] == depths[-2]
    if not three_double or depths[-3] not in limits:
        return ["Infinite depth is extrapolated from two depths alone, unchecked."]
    three = torch.stack([limits[L] for L in depths[-3:]], 1)

    def moved(r: Tensor) -> Tensor:
        before = extrapolated(r[:, 0], r[:, 1])
        after = extrapolated(r[:, 1], r[:, 2])
        return mean_loss(study, after) - mean_loss(study, before)

    return [
        f"Infinite depth is 2 f(2L) - f(L) with L = {depths[-2]}; from L = {depths[-3]} it would "
        f"have given a loss that differs, on average over the steps, by {interval(moved, three)}: "
        "its intervals count noise alone."
    ]


def _loss_width(study: Study, feedback: Feedback) -> list[str]:
    bias = width_bias(study, feedback)
    if bias is None:
        return []
    width = f"{study.config.limit_width:,}"
    return [
        f"Width {width} in place of infinity shifts the loss by {bias}; curves and intervals are "
        f"of width {width}."
    ]


def _above(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """Say how far the loss of real networks lies above the prediction for their own depth.

    The difference is a mean over the steps.
    """
    depth = study.config.depths[-1]
    networks = real(study, depth)
    if depth not in limits or not networks:
        return []

    def above(outputs: Tensor, limit: Tensor) -> Tensor:
        return study.mean_loss(outputs).mean() - mean_loss(study, limit)

    apart = {n: interval(above, outputs, limits[depth]) for n, outputs in networks.items()}
    resolved = [str(n) for n, difference in apart.items() if difference.resolved]
    which = f"significant: width {', '.join(resolved)}" if resolved else "none is significant"
    shown = "; ".join(f"{n}: {difference}" for n, difference in apart.items())
    return [
        f"The loss of real networks of depth {depth} minus the prediction for it, by width: "
        f"{shown} ({which})."
    ]


# ---- The gap between the two kinds of feedback: does it close with depth?

_GAP_AXES = Axes(
    "depth", "gap", "depth", "loss of independent minus shared feedback (nats)", "named"
)


def gap(study: Study) -> Finding | None:
    """Return the loss with independent feedback minus the loss with shared one, against depth.

    The loss is a mean over the steps; replicates are paired.
    """
    shared = wide(study, "shared")
    independent = wide(study, "independent")
    pairs = {L: torch.stack([shared[L], independent[L]], 1) for L in shared if L in independent}
    if not pairs:
        return None
    gaps = {L: interval(lambda r: _gap(study, r), pair) for L, pair in pairs.items()}
    shares = {L: _share(study, pair) for L, pair in pairs.items()}
    rows: list[Row] = []
    for L, share in shares.items():
        place: Row = {"series": "gap", "depth": L}
        part: Row = {"share_of_progress": share and share.value}
        rows.append(place | columns("gap", gaps[L]) | part)
    last = max(pairs)
    return Finding(
        "gap",
        f"Decoupled minus standard loss at {depth_name(last)}: {gaps[last]} nats",
        _gap_headline(depth_name(last), gaps[last], shares[last]),
        rows,
        _GAP_AXES,
        "Bars: 95 % intervals, replicates paired on the same Brownian paths. Progress: how far the "
        "loss of the standard network lies below its start, log of the number of classes, on "
        "average over the steps.",
        [*_gap_trend(study, pairs), *_gap_width(study)],
    )


def _gap_headline(depth: str, apart: Interval, share: Interval | None) -> str:
    """Say how far apart the two are at a depth; ``share`` is the gap over the progress."""
    if not apart.resolved:
        return (
            f"At {depth} the two do not differ significantly: {apart} nats on average over the "
            "steps."
        )
    side = "above" if apart.value > 0 else "below"
    progressed = ""
    if share is not None:
        limits = f"[{share.low:.0%}, {share.high:.0%}]"
        progressed = f", {share.value:.0%} {limits} of the progress made"
    return (
        f"At {depth} the decoupled network's loss lies {side} the standard one's by {apart} nats "
        f"on average over the steps{progressed}."
    )


def _gap(study: Study, pair: Tensor) -> Tensor:
    """Return the loss of the second member minus that of the first [R, 2, steps, b, C]."""
    return mean_loss(study, pair[:, 1]) - mean_loss(study, pair[:, 0])


def _share(study: Study, pair: Tensor) -> Interval | None:
    """Return the gap over the progress of the standard network; None where it makes none."""
    if not interval(lambda r: progress(study, r[:, 0]), pair).low > 0:
        return None
    return interval(lambda r: _gap(study, r) / progress(study, r[:, 0]), pair)


def _gap_trend(study: Study, pairs: dict[float, Tensor]) -> list[str]:
    """Say whether more depth brings the two together.

    The paired difference of the gaps at the smallest and at the largest depth decides.
    """
    first = min(pairs)
    last = max(pairs)
    if first == last:
        return []
    both = torch.stack([pairs[first], pairs[last]], 1)
    change = interval(lambda r: _gap(study, r[:, 1]).abs() - _gap(study, r[:, 0]).abs(), both)
    verb = "does not change significantly"
    if change.resolved:
        verb = "widens" if change.value > 0 else "narrows"
    return [f"From {depth_name(first)} to {depth_name(last)} the gap {verb}: {change}."]


def _gap_width(study: Study) -> list[str]:
    """Say what a finite width adds to the gap, as ``width_bias`` does for the loss.

    Replicates are paired.
    """
    depth = study.config.depths[-2]
    limits = study.measured.limits.items()
    narrow = _paired(study.measured.narrow)
    broad = _paired({feedback: outputs for (feedback, L), outputs in limits if depth == L})
    if narrow is None or broad is None:
        return []

    def bias(of_narrow: Tensor, of_broad: Tensor) -> Tensor:
        return (_gap(study, of_narrow) - _gap(study, of_broad)) / (NARROW - 1)

    shift = interval(bias, narrow, broad)
    width = f"{study.config.limit_width:,}"
    return [
        f"Width {width} in place of infinity shifts it by {shift}; the intervals are of width "
        f"{width}."
    ]


def _paired(outputs: dict[Feedback, Tensor]) -> Tensor | None:
    """Pair both kinds of feedback [R, 2, ...]; None where one is missing or diverged."""
    if len(outputs) < 2 or not all(map(whole, outputs.values())):
        return None
    return torch.stack([outputs["shared"], outputs["independent"]], 1)


# ---- The distance of finite networks to the limit. Inference is on squares, which are unbiased
# once the noise of the prediction is taken away, and may be negative; an exponent is fitted only
# where every square is resolved from zero.


_WIDE = "infinitely wide"
_TITLE = "RMS distance of outputs to the limit"

Squares = Callable[..., Tensor]


def by_width(study: Study) -> Finding | None:
    """Return the distance of real networks to the infinitely wide one, against width."""
    rows: list[Row] = []
    slopes: list[Row] = []
    limits = wide(study, "shared")
    for depth in study.config.depths:
        outputs = real(study, depth)
        if depth not in limits or len(outputs) < 2:
            continue
        distances = _Distances(
            f"depth {depth}",
            "width",
            list(outputs),
            squared_distances,
            (torch.stack([*outputs.values()], 1), limits[depth]),
        )
        rows += distances.rows(depth=depth)
        slopes.append(distances.slope())
    if not rows:
        return None
    last = slopes[-1]
    of_last = [row for row in rows if row["series"] == last["series"]]
    headline = (
        f"One real network of {last['series']} is "
        f"{listed([row['distance'] for row in of_last], '.3f')} away from the infinitely wide one "
        "of that depth at width "
        f"{listed([row['width'] for row in of_last])}{_power('n', last, 'theory: n^-1/2')}."
    )
    return Finding(
        "distance-width",
        f"Distance from infinite width: {power('n', last)}",
        headline,
        rows,
        Axes("width", "distance", "width", _TITLE, "logarithmic", colour="depth"),
        f"Bars: 95 % intervals from {study.config.seeds} real networks of each size and the "
        "prediction's noise. RMS over steps, samples and outputs.",
        divergence(study),
        slopes,
        slope_table(slopes, verdicts=False),
    )


def by_depth(study: Study) -> Finding | None:
    """Return the distance to the infinitely wide and deep network, against depth.

    It is the distance of real networks, and of the infinitely wide network of each depth.
    """
    limits = wide(study, "shared")
    if INFINITE not in limits:
        return None
    rows: list[Row] = []
    slopes: list[Row] = []
    target = limits.pop(INFINITE)
    for n in study.config.widths:
        outputs = {L: real(study, L)[n] for L in study.config.depths if n in real(study, L)}
        if len(outputs) < 2:
            continue
        distances = _Distances(
            f"real, width {n}",
            "depth",
            list(outputs),
            squared_distances,
            (torch.stack([*outputs.values()], 1), target),
        )
        rows += distances.rows(role=SeriesRole.REAL, width=n)
        slopes.append(distances.slope())
    depths = [int(L) for L in limits]
    differences = torch.stack([at_depth - target for at_depth in limits.values()], 1)
    of_wide = _Distances(_WIDE, "depth", depths, systematic_squares, (differences,))
    wide_rows = of_wide.rows(role=SeriesRole.PREDICTION)
    # The fit leaves out the deepest network: by construction its distance is in proportion 2 to the
    # distance of the last but one.
    fit = replace(of_wide, points=depths[:-1], samples=(differences[:, :-1],))
    slope = fit.slope()
    headline = (
        f"The infinitely wide network of depth {listed(depths)} is "
        f"{listed([row['distance'] for row in wide_rows], '.3f')} away from the infinitely deep one"
        f"{_power('L', slope, f'up to depth {depths[-2]}; theory, for large L: L^-1')}."
    )
    return Finding(
        "distance-depth",
        f"Distance from infinite depth: {power('L', slope)}",
        headline,
        rows + wide_rows,
        Axes("depth", "distance", "depth", _TITLE, "logarithmic"),
        "Bars: 95 % intervals. Infinite depth is extrapolated from the two deepest, which puts "
        "their own distances in proportion 2; the deepest is not in the fit of the infinitely wide "
        "one. RMS over steps, samples and outputs.",
        slopes=[*slopes, slope],
        table=slope_table([*slopes, slope], verdicts=False),
    )


@dataclass(frozen=True)
class _Distances:
    """Distances to a limit at several sizes along an axis.

    ``squares`` gives the squared distance of every point from ``samples``, the first of which is
    [seeds, points, ...].
    """

    series: str
    axis: str
    points: Sequence[int]
    squares: Squares
    samples: tuple[Tensor, ...]

    def rows(self, **about: Any) -> list[Row]:
        """Return the distances, with settings as columns."""
        squares = intervals(self.squares, *self.samples)
        return [
            {"series": self.series, **about, self.axis: point} | columns("distance", square.root())
            for point, square in zip(self.points, squares, strict=True)
        ]

    def slope(self) -> Row:
        """Return the exponent of the distance, where every point is resolved from zero."""
        squares = intervals(self.squares, *self.samples)
        if len(self.points) < 2 or not all(square.low > 0 for square in squares):
            return slope_row(self.series, UNKNOWN)

        def exponent(*samples: Tensor) -> Tensor:
            return log_slope(self.points, self.squares(*samples).clamp_min(1e-300).sqrt())

        return fitted(self.series, exponent, *self.samples)


def _power(letter: str, slope: Row, why: str) -> str:
    if math.isfinite(slope["slope"]):
        return f": it goes as {power(letter, slope)} ({why})"
    return " (noise hides its trend)"


# ---- Two-layer blocks: do their inner layers learn, under uniform rates and under Eq. 8?

_RULES: dict[RuleName, str] = {"depth-mup": "uniform rates", "depth-mup-inner": "Eq. 8"}
_METERS = {
    "inner_update": "inner update",
    "stream_update": "stream update",
    "function_update": "function update",
    "function_update_inner": "function update by inner layers",
}
_MEANINGS = {
    "inner_update": "inner features learn as",
    "function_update_inner": "the effect of inner layers on the function goes as",
}
_BLOCK_CAPTION = (
    "Bars: 95 % intervals over {seeds} networks of width {width}. RMS, on held-out samples, of "
    "what training changed: inner update x - x~ (Eq. 27, x~ from the initial inner weights on the "
    "present stream), stream update dh/dt - dh~/dt (Eqs. 33 and 34, the same for the outer "
    "weights), function update f - f(0), and f minus f with the inner weights reset. Uniform "
    "rates: eta_c n for both matrices of a block; Eq. 8: eta_c n sqrt(L) for the inner one. "
    "{thresholds}"
)


def blocks(study: Study) -> Finding | None:
    """Return updates of two-layer blocks after the last step, against depth.

    Slopes have a verdict.
    """
    c = study.config
    rows: list[Row] = []
    slopes: list[Row] = []
    diverged: list[str] = []
    for rule, name in _RULES.items():
        by_depth = _last_updates(study, rule)
        ended = {}
        for L, some in by_depth.items():
            ended[L] = sum("diverged_at" in r for r in some)
        upset = [L for L, count in ended.items() if count]
        if upset:
            count = sum(ended.values())
            diverged.append(f"{count} networks with {name}, of depth {listed(upset)}")
        complete = {L: some for L, some in by_depth.items() if len(some) == c.block_seeds}
        finite = {L: some for L, some in complete.items() if L not in upset}
        if len(finite) < 2:
            continue
        for meter in _METERS:
            meter_rows, slope = _updates(finite, rule, meter)
            rows += meter_rows
            slopes.append(slope)
    if not slopes:
        return None
    details = []
    if diverged:
        details.append(
            f"Training diverged: {'; '.join(diverged)}. These depths are left out; lower eta_c."
        )
    of_inner = [row for row in slopes if row["meter"] == "inner_update"]
    return Finding(
        "updates",
        f"After {c.steps} steps: {slopes_in_words('L', of_inner)}",
        _blocks_headline(slopes),
        rows,
        Axes("depth", "update", "depth", "RMS update", "logarithmic", colour="meter", dash="rule"),
        _BLOCK_CAPTION.format(seeds=c.block_seeds, width=c.block_width, thresholds=THRESHOLDS),
        details,
        slopes,
        slope_table(slopes, verdicts=True),
    )


def _last_updates(study: Study, rule: RuleName) -> dict[int, list[dict[str, Any]]]:
    """Return what was measured after the last step, by depth, one row per network."""
    by_depth: dict[int, list[dict[str, Any]]] = {}
    for row in study.measured.blocks:
        if row["rule"] == rule and row["steps"] == study.config.steps:
            by_depth.setdefault(row["depth"], []).append(row)
    return by_depth


def _updates(
    by_depth: dict[int, list[dict[str, Any]]], rule: RuleName, meter: str
) -> tuple[list[Row], Row]:
    """Return one update under one rule against depth, and its slope."""
    depths = list(by_depth)
    series = f"{_METERS[meter]}, {_RULES[rule]}"
    about: Row = {"rule": rule, "meter": meter}
    rows: list[Row] = []
    values: list[Tensor] = []
    for L, networks in by_depth.items():
        values.append(torch.tensor([row[meter] for row in networks], dtype=torch.float64))
        place: Row = {"series": series, **about, "depth": L}
        rows.append(place | columns("update", mean(values[-1])))
    slope = fitted(series, lambda r: log_slope(depths, r.mean(0)), torch.stack(values, 1))
    return rows, slope | about


def _blocks_headline(slopes: Sequence[Row]) -> str:
    sentences = []
    for rule, name in _RULES.items():
        parts = []
        for row in slopes:
            if row["rule"] == rule and row["meter"] in _MEANINGS:
                parts.append(f"{_MEANINGS[row['meter']]} {power('L', row)}, {row['verdict']}")
        if parts:
            sentences.append(f"With {name}, {' and '.join(parts)}.")
    return " ".join(sentences)


# ---- What has been measured, as the findings need it: only runs that did not diverge, infinite
# depth extrapolated


def wide(study: Study, feedback: Feedback) -> dict[float, Tensor]:
    """Return outputs [R, steps, b, C] of the infinitely wide network by depth, infinite last."""
    measured = study.measured.limits
    outputs: dict[float, Tensor] = {}
    for depth in study.config.depths:
        if (feedback, depth) in measured and whole(measured[feedback, depth]):
            outputs[depth] = measured[feedback, depth]
    *_, half, deepest = study.config.depths
    if half in outputs and deepest in outputs:
        outputs[INFINITE] = extrapolated(outputs[half], outputs[deepest])
    return outputs


def real(study: Study, depth: int) -> dict[int, Tensor]:
    """Return outputs [seeds, steps, b, C] of real networks of one depth, by width."""
    outputs: dict[int, Tensor] = {}
    for width in study.config.widths:
        measured = study.measured.real.get((depth, width))
        if measured is not None and whole(measured):
            outputs[width] = measured
    return outputs


def whole(outputs: Tensor) -> bool:
    """Return whether no network diverged."""
    return bool(torch.isfinite(outputs).all())


def mean_loss(study: Study, outputs: Tensor) -> Tensor:
    """Return the loss of the mean outputs of replicates [R, steps, b, C], averaged over steps."""
    return study.mean_loss(outputs.mean(0)).mean()


def progress(study: Study, outputs: Tensor) -> Tensor:
    """Return how far the loss lies below log C on average over the steps, in nats.

    log C is the loss of outputs of zero.
    """
    return math.log(outputs.shape[-1]) - mean_loss(study, outputs)


def width_bias(study: Study, feedback: Feedback) -> Interval | None:
    """Return what a finite width adds to the mean loss, or None where networks diverged.

    It is ``a / n`` from ``f_m - f_n = a (1/m - 1/n)``.
    """
    depth = study.config.depths[-2]
    broad = study.measured.limits.get((feedback, depth))
    narrow = study.measured.narrow.get(feedback)
    if broad is None or narrow is None or not whole(broad) or not whole(narrow):
        return None

    def bias(of_narrow: Tensor, of_broad: Tensor) -> Tensor:
        return (mean_loss(study, of_narrow) - mean_loss(study, of_broad)) / (NARROW - 1)

    return interval(bias, narrow, broad)


def divergence(study: Study, feedback: Feedback | None = None) -> list[str]:
    """Return a sentence that names the networks that diverged; none when none did.

    It speaks of infinitely wide networks with this feedback, by default of none, and of real
    networks unless the feedback is independent.
    """
    outputs_by_size: dict[str, Tensor] = {}
    for (name, L), outputs in study.measured.limits.items():
        if name == feedback:
            outputs_by_size[f"infinitely wide ones of depth {L}"] = outputs
    if feedback != "independent":
        for (L, n), outputs in study.measured.real.items():
            outputs_by_size[f"width {n} and depth {L}"] = outputs
    counts: list[str] = []
    first_steps: list[int] = []
    for size, outputs in outputs_by_size.items():
        if whole(outputs):
            continue
        has_ended = (~torch.isfinite(outputs)).any(-1).any(-1)
        first = int(has_ended.any(0).nonzero()[0])
        count = int(has_ended.any(1).sum())
        first_steps.append(first)
        counts.append(f"{count} of {len(has_ended)} of {size} (first at step {first})")
    if not counts:
        return []
    # Networks that diverge before the first update do so at any learning rate.
    remedy = "lower eta_c"
    if min(first_steps) == 0:
        remedy = "lower the horizon or the scale of the inputs"
    return [f"Training diverged: {'; '.join(counts)}. These sizes are left out; {remedy}."]
