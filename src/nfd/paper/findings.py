"""The findings of a study, one per chart: measurements reduced to rows, fitted slopes and
sentences; its report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
    Lead,
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
from nfd.paper.figures.panels import fitted, power, slope_row, slope_table, slopes_said
from nfd.paper.study import NARROW, WEIGHTS, Study
from nfd.report import Report, Section, made_by

NAMES = ("loss-shared", "loss-independent", "gap", "distance-width", "distance-depth", "updates")


def findings(study: Study) -> list[Finding]:
    """Everything that can be said from what has been measured, in the order of the report."""
    drawn = [
        losses(study, "shared"),
        losses(study, "independent"),
        gap(study),
        by_width(study),
        by_depth(study),
    ]
    drawn.append(blocks(study))
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
    """Loss against step for one kind of feedback."""
    limits = wide(study, feedback)
    if not limits:
        return _all_diverged(study, feedback)
    rows = [row for depth, outputs in limits.items() for row in _wide_rows(study, depth, outputs)]
    rows += [
        row
        for width, outputs in _all_real(study).items()
        for row in _real_rows(study, width, outputs)
    ]
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
    """What to say when no prediction stayed finite; None when none was made yet."""
    diverged = divergence(study, feedback)
    if not any(name == feedback for name, _ in study.measured.limits):
        return None
    rows = [
        row
        for width, outputs in _all_real(study).items()
        for row in _real_rows(study, width, outputs)
    ]
    return Finding(
        f"loss-{feedback}",
        f"Training of {_WHO[feedback]} diverges",
        " ".join(diverged),
        rows,
        _LOSS_AXES,
        "Mean of real networks.",
    )


def _all_real(study: Study) -> dict[int, Tensor]:
    """Real networks of the deepest depth, diverged ones too: their curves end."""
    deepest = study.config.depths[-1]
    return {
        n: study.measured.real[deepest, n]
        for n in study.config.widths
        if (deepest, n) in study.measured.real
    }


def _wide_rows(study: Study, depth: float, outputs: Tensor) -> Iterator[Row]:
    series = (
        "infinitely wide and deep" if depth == INFINITE else f"infinitely wide, depth {depth:g}"
    )
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
    """What share of the deepest network's progress the shallowest one makes."""
    shallow = min(limits)
    deep = max(limits)
    if shallow == deep:
        return []
    made = interval(lambda r: progress(study, r), limits[deep])
    if not made.low > 0:
        return ["No progress is made that depth could add to."]
    pair = torch.stack([limits[shallow], limits[deep]], 1)
    share = interval(lambda r: 100 * progress(study, r[:, 0]) / progress(study, r[:, 1]), pair)
    return [
        f"On average over the steps, {depth_name(shallow)} makes {share.value:.0f} % "
        f"[{share.low:.0f}, {share.high:.0f}] of its progress below log {limits[deep].shape[-1]}."
    ]


def _extrapolation(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """How far the extrapolated loss moved with the last doubling: its remaining error is a fraction
    of that.
    """
    depths = study.config.depths
    if (
        INFINITE not in limits
        or len(depths) < 3
        or 2 * depths[-3] != depths[-2]
        or depths[-3] not in limits
    ):
        return (
            ["Infinite depth is extrapolated from two depths alone, unchecked."]
            if INFINITE in limits
            else []
        )
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
    """Loss of real networks minus the prediction for their own depth, on average over steps."""
    depth = study.config.depths[-1]
    if depth not in limits or not real(study, depth):
        return []
    apart = {
        n: interval(
            lambda o, r: study.mean_loss(o).mean() - mean_loss(study, r), outputs, limits[depth]
        )
        for n, outputs in real(study, depth).items()
    }
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
    """Loss of independent feedback minus shared, mean over steps, against depth; replicates are
    paired.
    """
    shared = wide(study, "shared")
    independent = wide(study, "independent")
    pairs = {L: torch.stack([shared[L], independent[L]], 1) for L in shared if L in independent}
    if not pairs:
        return None
    gaps = {L: interval(lambda r: _gap(study, r), pair) for L, pair in pairs.items()}
    shares = {L: _share(study, pair) for L, pair in pairs.items()}
    rows = [
        {"series": "gap", "depth": L}
        | columns("gap", gaps[L])
        | {"share_of_progress": s and s.value}
        for L, s in shares.items()
    ]
    last = max(pairs)
    headline = (
        f"At {depth_name(last)} the two do not differ significantly: {gaps[last]} nats on average "
        "over the steps."
    )
    if gaps[last].resolved:
        side = "above" if gaps[last].value > 0 else "below"
        share = shares[last]
        progressed = (
            f", {share.value:.0%} [{share.low:.0%}, {share.high:.0%}] of the progress made"
            if share
            else ""
        )
        headline = (
            f"At {depth_name(last)} the decoupled network's loss lies {side} the standard one's by "
            f"{gaps[last]} nats on average over the steps{progressed}."
        )
    return Finding(
        "gap",
        f"Decoupled minus standard loss at {depth_name(last)}: {gaps[last]} nats",
        headline,
        rows,
        _GAP_AXES,
        "Bars: 95 % intervals, replicates paired on the same Brownian paths. Progress: how far the "
        "loss of the standard network lies below its start, log of the number of classes, on "
        "average over the steps.",
        [*_gap_trend(study, pairs), *_gap_width(study)],
    )


def _gap(study: Study, pair: Tensor) -> Tensor:
    return mean_loss(study, pair[:, 1]) - mean_loss(study, pair[:, 0])


def _share(study: Study, pair: Tensor) -> Interval | None:
    """The gap over the progress of the standard network; None where it makes none."""
    if not interval(lambda r: progress(study, r[:, 0]), pair).low > 0:
        return None
    return interval(lambda r: _gap(study, r) / progress(study, r[:, 0]), pair)


def _gap_trend(study: Study, pairs: dict[float, Tensor]) -> list[str]:
    """Whether more depth brings the two together, from the paired difference of the gaps at both
    ends.
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
    """What a finite width adds to the gap, as for the loss (``width_bias``), from paired
    replicates.
    """
    wide_ones = {
        f: outputs
        for (f, L), outputs in study.measured.limits.items()
        if study.config.depths[-2] == L
    }
    both = [
        some
        for some in (study.measured.narrow, wide_ones)
        if len(some) == 2 and all(map(whole, some.values()))
    ]
    if len(both) < 2:
        return []
    pairs = [torch.stack([some["shared"], some["independent"]], 1) for some in both]
    shift = interval(lambda m, n: (_gap(study, m) - _gap(study, n)) / (NARROW - 1), *pairs)
    width = f"{study.config.limit_width:,}"
    return [
        f"Width {width} in place of infinity shifts it by {shift}; the intervals are of width "
        f"{width}."
    ]


# ---- The distance of finite networks to the limit. Inference is on squares, which are unbiased
# once the noise of the prediction is taken away, and may be negative; an exponent is fitted only
# where every square is resolved from zero.


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
            rows += _distance_rows(
                f"depth {depth}", "width", list(outputs), squared_distances, *samples, depth=depth
            )
            slopes.append(
                _distance_slope(f"depth {depth}", list(outputs), squared_distances, *samples)
            )
    if not rows:
        return None
    last = slopes[-1]
    own = [row for row in rows if row["series"] == last["series"]]
    headline = (
        f"One real network of {last['series']} is "
        f"{listed([row['distance'] for row in own], '.3f')} away from the infinitely wide one of "
        "that depth at width "
        f"{listed([row['width'] for row in own])}{_power('n', last, 'theory: n^-1/2')}."
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
    """Real networks, and the infinitely wide one of each depth, minus the infinitely wide and deep
    one.
    """
    limits = wide(study, "shared")
    if INFINITE not in limits:
        return None
    rows: list[Row] = []
    slopes: list[Row] = []
    target = limits.pop(INFINITE)
    for n in study.config.widths:
        own = {L: real(study, L)[n] for L in study.config.depths if n in real(study, L)}
        if len(own) > 1:
            samples = (torch.stack([*own.values()], 1), target)
            about = {"role": SeriesRole.REAL, "width": n}
            rows += _distance_rows(
                f"real, width {n}", "depth", list(own), squared_distances, *samples, **about
            )
            slopes.append(
                _distance_slope(f"real, width {n}", list(own), squared_distances, *samples)
            )
    depths = [int(L) for L in limits]
    differences = torch.stack([outputs - target for outputs in limits.values()], 1)
    wide_rows = _distance_rows(
        _WIDE, "depth", depths, systematic_squares, differences, role=SeriesRole.PREDICTION
    )
    # without the deepest: it is in proportion 2 to the last but one by making
    slope = _distance_slope(_WIDE, depths[:-1], systematic_squares, differences[:, :-1])
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


def _distance_rows(
    series: str, axis: str, points: Sequence[int], squares: Squares, *samples: Tensor, **about: Any
) -> list[Row]:
    """Distances of samples [seeds, points, ...], with settings as columns."""
    return [
        {"series": series, **about, axis: point} | columns("distance", squared.root())
        for point, squared in zip(points, intervals(squares, *samples), strict=True)
    ]


def _distance_slope(series: str, points: Sequence[int], squares: Squares, *samples: Tensor) -> Row:
    """The exponent of the distance, where every point is resolved from zero."""
    resolved = all(squared.low > 0 for squared in intervals(squares, *samples))
    if len(points) < 2 or not resolved:
        return slope_row(series, UNKNOWN)
    return fitted(
        series, lambda *s: log_slope(points, squares(*s).clamp_min(1e-300).sqrt()), *samples
    )


def _power(letter: str, slope: Row, why: str) -> str:
    return (
        f": it goes as {power(letter, slope)} ({why})"
        if math.isfinite(slope["slope"])
        else " (noise hides its trend)"
    )


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
    """Updates of two-layer blocks after the last step against depth, with slopes and verdicts."""
    c = study.config
    rows = list[Row]()
    slopes = list[Row]()
    diverged = list[str]()
    for rule, name in _RULES.items():
        by_depth: dict[int, list[dict[str, Any]]] = {}
        for row in study.measured.blocks:
            if row["rule"] == rule and row["steps"] == c.steps:
                by_depth.setdefault(row["depth"], []).append(row)
        if ended := {L: sum("diverged_at" in r for r in own) for L, own in by_depth.items()}:
            upset = [L for L, bad in ended.items() if bad]
            diverged += (
                [f"{sum(ended.values())} networks with {name}, of depth {listed(upset)}"]
                if upset
                else []
            )
        whole_ones = {
            L: own for L, own in by_depth.items() if len(own) == c.block_seeds and not ended[L]
        }
        for meter, update in _METERS.items() if len(whole_ones) > 1 else ():
            values = torch.tensor(
                [[r[meter] for r in own] for own in whole_ones.values()], dtype=torch.float64
            ).T
            series = f"{update}, {name}"
            about = {"rule": rule, "meter": meter}
            means = [columns("update", mean(values[:, k])) for k in range(len(whole_ones))]
            rows += [
                {"series": series, **about, "depth": L} | m
                for L, m in zip(whole_ones, means, strict=True)
            ]
            slopes.append(
                fitted(series, lambda r, L=list(whole_ones): log_slope(L, r.mean(0)), values)
                | about
            )
    if not slopes:
        return None
    return Finding(
        "updates",
        f"After {c.steps} steps: "
        f"{slopes_said('L', [row for row in slopes if row['meter'] == 'inner_update'])}",
        _blocks_headline(slopes),
        rows,
        Axes("depth", "update", "depth", "RMS update", "logarithmic", colour="meter", dash="rule"),
        _BLOCK_CAPTION.format(seeds=c.block_seeds, width=c.block_width, thresholds=THRESHOLDS),
        [f"Training diverged: {'; '.join(diverged)}. These depths are left out; lower eta_c."]
        if diverged
        else [],
        slopes,
        slope_table(slopes, verdicts=True),
    )


def _blocks_headline(slopes: Sequence[Row]) -> str:
    sentences = []
    for rule, name in _RULES.items():
        own = [row for row in slopes if row["rule"] == rule and row["meter"] in _MEANINGS]
        parts = [f"{_MEANINGS[row['meter']]} {power('L', row)}, {row['verdict']}" for row in own]
        sentences += [f"With {name}, {' and '.join(parts)}."] if parts else []
    return " ".join(sentences)


# ---- What has been measured, as the findings need it: only runs that did not diverge, infinite
# depth extrapolated


def wide(study: Study, feedback: Feedback) -> dict[float, Tensor]:
    """Depth to outputs [R, steps, b, C] of the infinitely wide network, infinite depth last."""
    done = study.measured.limits
    outputs: dict[float, Tensor] = {}
    for depth in study.config.depths:
        if (feedback, depth) in done and whole(done[feedback, depth]):
            outputs[depth] = done[feedback, depth]
    *_, half, deepest = study.config.depths
    if half in outputs and deepest in outputs:
        outputs[INFINITE] = extrapolated(outputs[half], outputs[deepest])
    return outputs


def real(study: Study, depth: int) -> dict[int, Tensor]:
    """Width to outputs [seeds, steps, b, C] of real networks of one depth."""
    done = study.measured.real
    return {
        n: done[depth, n]
        for n in study.config.widths
        if (depth, n) in done and whole(done[depth, n])
    }


def whole(outputs: Tensor) -> bool:
    """Whether no run diverged."""
    return bool(torch.isfinite(outputs).all())


def mean_loss(study: Study, outputs: Tensor) -> Tensor:
    """Loss of the mean outputs of replicates [R, steps, b, C], averaged over steps."""
    return study.mean_loss(outputs.mean(0)).mean()


def progress(study: Study, outputs: Tensor) -> Tensor:
    """How far, on average over the steps, the loss lies below log C, where outputs of zero start;
    in nats.
    """
    return math.log(outputs.shape[-1]) - mean_loss(study, outputs)


def width_bias(study: Study, feedback: Feedback) -> Interval | None:
    """What a finite width adds to the mean loss, ``a / n`` from ``f_m - f_n = a (1/m - 1/n)``."""
    depth = study.config.depths[-2]
    broad = study.measured.limits.get((feedback, depth))
    narrow = study.measured.narrow.get(feedback)
    if broad is None or narrow is None or not whole(broad) or not whole(narrow):
        return None
    return interval(
        lambda m, n: (mean_loss(study, m) - mean_loss(study, n)) / (NARROW - 1), narrow, broad
    )


def divergence(study: Study, feedback: Feedback | None = None) -> list[str]:
    """A sentence that names the networks that left the range of numbers; none when none did."""
    m = study.measured
    runs = {
        f"infinitely wide ones of depth {L}": y
        for (name, L), y in m.limits.items()
        if name == feedback
    }
    if feedback != "independent":
        runs |= {f"width {n} and depth {L}": y for (L, n), y in m.real.items()}
    ended_runs: list[str] = []
    firsts: list[int] = []
    for where, outputs in runs.items():
        ended = (~torch.isfinite(outputs)).any(-1).any(-1)
        if bool(ended.any()):
            first = int(ended.any(0).nonzero()[0])
            firsts.append(first)
            ended_runs.append(
                f"{int(ended.any(1).sum())} of {len(ended)} of {where} (first at step {first})"
            )
    if not ended_runs:
        return []
    remedy = "lower the horizon or the scale of the inputs" if min(firsts) == 0 else "lower eta_c"
    return [f"Training diverged: {'; '.join(ended_runs)}. These sizes are left out; {remedy}."]


# ---- The report of a study

_QUESTION = (
    "How does this residual network train when it is infinitely wide and deep, do its inner "
    "features learn, and how far is a real network from that?"
)


def study_report(study: Study, findings: Sequence[Finding], command: str) -> Report:
    """The report of a study ."""
    data = _shared_caption(study)
    return Report(
        _QUESTION,
        command,
        study.config.plain(),
        [replace(finding, caption=f"{finding.caption} {data}") for finding in findings],
        study_lead(study, findings),
        answers=[finding.headline for finding in findings],
        opening=_warning(study),
        closing=_run_sections(study, command),
        content={"complete": study.measured.complete, "run": study.facts()},
    )


def study_lead(study: Study, findings: Sequence[Finding]) -> Lead:
    """The first answer of a study, and the last losses."""
    said = (*(finding.headline for finding in findings), "Nothing was measured yet.")[0]
    if not study.measured.complete:
        said = f"Interrupted, so this is partial: {said}"
    last = {
        row["series"]: row
        for finding in findings[:1]
        for row in finding.rows
        if math.isfinite(row["loss"])
    }
    shown = "{loss:.3f} [{low:.3f}, {high:.3f}]"
    names = [name for name, row in last.items() if row["width"] == INFINITE][-1:] + list(last)[-2:]
    numbers = {f"last loss, {name}": shown.format(**last[name]) for name in dict.fromkeys(names)}
    return Lead(said, "open" if study.measured.complete else "partly", numbers)


def _warning(study: Study) -> list[Section]:
    partial = (
        "The study was interrupted. What had been measured by then is below; the rest is missing."
    )
    return [] if study.measured.complete else [Section("This report is partial", [partial])]


def _shared_caption(study: Study) -> str:
    """What the captions of all findings share."""
    c = study.config
    return (
        f"Data: {study.dataset.title}, {c.steps} steps of {c.batch}, the same batches for all; "
        f"{c.activation}, T = {c.horizon:g}, eta_c = {c.eta_c:g}, cross-entropy in nats, inputs "
        f"normalised per channel. Infinitely wide: {c.replicates} networks of width "
        f"{c.limit_width:,} with {WEIGHTS} weights."
    )


def _run_sections(study: Study, command: str) -> list[Section]:
    settings = {
        k: " ".join(map(str, v)) if isinstance(v, tuple) else v
        for k, v in study.config.plain().items()
    }
    facts = study.facts()
    times = [{"": name, "seconds": value} for name, value in facts.pop("seconds").items()]
    rows = [
        {"": k.replace("_", " "), "value": v}
        for k, v in (settings | facts).items()
        if v is not None
    ]
    made = replace(made_by(command, "The same command repeats it bit for bit."), table=rows)
    return [made, Section("Where the time went", [], table=times, folded=True)]
