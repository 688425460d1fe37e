"""What a study found: measurements reduced to tidy rows, fitted slopes and plain sentences, one finding per chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nfd.core.statistics import Interval, interval, jackknife, log_slope, size_of_mean, stderr
from nfd.experiment.study import FEEDBACKS, RULES, Study
from nfd.meters.verdict import verdict

Row = dict[str, Any]

INFINITE = math.inf
_WIDE = "infinitely wide"
LIMITS = {"shared": "the infinitely wide network", "independent": "the infinitely wide decoupled network"}
RULE_NAMES = {"depth-mup": "uniform rates", "depth-mup-inner": "Eq. 8"}
METERS = {
    "inner": "inner update",
    "stream": "stream update",
    "function": "function update",
    "function_inner": "function update by inner layers",
}


@dataclass(frozen=True)
class Finding:
    """One chart's worth: tidy ``rows``, fitted ``slopes`` and a ``reading`` in words; None of it needs the chart."""

    name: str
    title: str
    rows: list[Row]
    reading: str
    slopes: list[Row] = field(default_factory=list)


def findings(study: Study) -> list[Finding]:
    """Everything that can be said from what has been measured, in the order of the report."""
    found = [losses(study, "shared"), losses(study, "independent"), gap(study), by_width(study), by_depth(study)]
    found += [blocks(study, steps) for steps in sorted({1, study.config.steps})]
    return [finding for finding in found if finding is not None]


def depth_name(depth: float) -> str:
    """``depth 8`` or ``infinite depth``."""
    return "infinite depth" if depth == INFINITE else f"depth {depth:g}"


# ---- the loss while training ---------------------------------------------------------------------------------


def losses(study: Study, feedback: str) -> Finding | None:
    """Loss against step: infinitely wide at every depth and at infinite depth, and real networks of the deepest."""
    limits = _limits(study, feedback)
    if not limits:
        return None
    rows = [row for depth, outputs in limits.items() for row in _limit_rows(study, depth, outputs)]
    rows += [row for width, outputs in _real(study).items() for row in _real_rows(study, width, outputs)]
    deepest = max(limits)
    loss, error = jackknife(limits[deepest], lambda r: study.mean_loss(r.mean(0)))
    reading = (
        f"At {depth_name(deepest)}, {LIMITS[feedback]} goes from loss {_pm(loss[0], error[0])} to "
        f"{_pm(loss[-1], error[-1])} nats in {len(loss)} steps of {study.config.batch}."
    )
    shallowest = min(limits)
    if shallowest < deepest:
        pair = torch.stack([limits[shallowest], limits[deepest]], 1)
        change = interval(pair, lambda r: _mean_loss(study, r[:, 1]) - _mean_loss(study, r[:, 0]))
        share = abs(change.value) / float(loss[0] - loss[-1])
        reading += (
            f" Between {depth_name(shallowest)} and {depth_name(deepest)} its loss, on average over the steps, changes "
            f"by {change}, {share:.0%} of the progress made."
        )
    real = _real(study)
    if feedback == "shared" and real:
        apart = "; ".join(f"{n}: {_above(study, outputs, limits)}" for n, outputs in real.items())
        reading += (
            f" Above the prediction for their depth, {study.config.depths[-1]}, lie real networks, by width: {apart}."
        )
    reading += _divergence(study, feedback)
    titles = {
        "shared": "How does it train when infinitely wide and deep?",
        "independent": "And with independent feedback, the paper's limit?",
    }
    return Finding(f"loss-{feedback}", titles[feedback], rows, reading)


def _divergence(study: Study, feedback: str) -> str:
    """Which networks left the range of numbers, and when; empty when none did."""
    m = study.measured
    runs = {f"infinitely wide, depth {L}": y for (name, L), y in m.limits.items() if name == feedback}
    runs |= {f"width {n}, depth {L}": y for (L, n), y in m.real.items()} if feedback == "shared" else {}
    ends = {where: y.isnan().any(-1).any(-1) for where, y in runs.items()}
    said = [
        f"{int(end.any(1).sum())} of {len(end)} of {where} at step {int(end.any(0).nonzero()[0])}"
        for where, end in ends.items()
        if bool(end.any())
    ]
    return f" Training diverged: {'; '.join(said)}. Their numbers are left out; lower eta_c." if said else ""


def _limits(study: Study, feedback: str) -> dict[float, Tensor]:
    """Depth to outputs [R, steps, b, C], infinite depth extrapolated as ``2 f_2L - f_L`` last."""
    done = study.measured.limits
    limits: dict[float, Tensor] = {L: done[feedback, L] for L in study.config.depths if (feedback, L) in done}
    *_, half, deepest = study.config.depths
    if half in limits and deepest in limits:
        limits[INFINITE] = 2 * limits[deepest] - limits[half]
    return limits


def _real(study: Study) -> dict[int, Tensor]:
    deepest = study.config.depths[-1]
    return {n: study.measured.real[deepest, n] for n in study.config.widths if (deepest, n) in study.measured.real}


def _limit_rows(study: Study, depth: float, outputs: Tensor) -> Iterator[Row]:
    loss, error = jackknife(outputs, lambda r: study.mean_loss(r.mean(0)))
    for step, (mean, se) in enumerate(zip(loss.tolist(), error.tolist(), strict=True)):
        series = "infinitely wide and deep" if depth == INFINITE else f"infinitely wide, {depth_name(depth)}"
        yield _loss_row(series, depth, None, step, mean, se, 2 * se)


def _real_rows(study: Study, width: int, outputs: Tensor) -> Iterator[Row]:
    loss = study.mean_loss(outputs)
    for step, (mean, se, sd) in enumerate(
        zip(loss.mean(0).tolist(), stderr(loss).tolist(), loss.std(0).tolist(), strict=True)
    ):
        yield _loss_row(f"real, width {width}", study.config.depths[-1], width, step, mean, se, sd)


def _loss_row(series: str, depth: float, width: int | None, step: int, mean: float, se: float, half: float) -> Row:
    place: Row = {"series": series, "depth": _finite_or_name(depth), "width": width or "infinite", "step": step}
    return place | {"loss": mean, "stderr": se, "low": mean - half, "high": mean + half}


def _above(study: Study, outputs: Tensor, limits: dict[float, Tensor]) -> str:
    """How far the loss of real networks lies above the prediction for their own depth, on average over steps."""
    limit = limits.get(study.config.depths[-1])
    if limit is None:
        return "not known"
    prediction, error = jackknife(limit, lambda r: _mean_loss(study, r))
    own = interval(study.mean_loss(outputs).mean(-1), lambda r: r.mean(0))
    half = math.hypot(own.high - own.value, 2 * float(error))
    value = own.value - float(prediction)
    return f"{value:+.3f} [{value - half:+.3f}, {value + half:+.3f}]"


# ---- the gap between the two kinds of feedback ---------------------------------------------------------------


def gap(study: Study) -> Finding | None:
    """Loss of independent feedback above shared, mean over steps, against depth; replicates are paired."""
    both = [_limits(study, feedback) for feedback in FEEDBACKS]
    rows: list[Row] = []
    for depth in both[0]:
        if depth in both[1]:
            pair = torch.stack([both[0][depth], both[1][depth]], 1)
            found = interval(pair, lambda r: _mean_loss(study, r[:, 1]) - _mean_loss(study, r[:, 0]))
            progress = study.mean_loss(both[0][depth].mean(0))
            share = found.value / float(progress[0] - progress[-1])
            rows.append({"depth": _finite_or_name(depth)} | _columns("gap", found) | {"share_of_progress": share})
    if not rows:
        return None
    last = rows[-1]
    where = depth_name(math.inf if last["depth"] == "infinite" else last["depth"])
    apart = last["low"] > 0 or last["high"] < 0
    reading = (
        f"At {where} the decoupled network's loss is above the standard one's by {last['gap']:.3f} "
        f"[{last['low']:.3f}, {last['high']:.3f}] nats on average over the steps, "
        f"{abs(last['share_of_progress']):.0%} of the progress made. "
    )
    reading += (
        "The two limits differ, and more depth does not bring them together."
        if apart and last["gap"] >= rows[0]["low"]
        else "The two limits differ."
        if apart
        else "The two cannot be told apart."
    )
    return Finding("gap", "Are the two limits the same?", rows, reading)


# ---- the distance of finite networks to the limit ------------------------------------------------------------


def by_width(study: Study) -> Finding | None:
    """RMS over outputs of one real network minus the infinitely wide one of its depth, against width."""
    rows: list[Row] = []
    slopes: list[Row] = []
    limits = _limits(study, "shared")
    for depth in study.config.depths:
        widths = [n for n in study.config.widths if (depth, n) in study.measured.real]
        if depth not in limits or len(widths) < 2:
            continue
        squared = torch.stack([_squared_distance(study.measured.real[depth, n], limits[depth]) for n in widths], 1)
        rows += _distance_rows(depth_name(depth), "width", widths, squared, _root_mean)
        slopes += _slope_rows(depth_name(depth), widths, squared, _root_mean)
    if not rows:
        return None
    last = slopes[-1]
    reading = (
        f"One real network of depth {study.config.depths[-1]} differs from the infinitely wide one of the same "
        f"depth by {_listed(r for r in rows if r['series'] == last['series'])} (RMS over outputs) at width "
        f"{_spelled(study.config.widths)}: it falls as n^{_exponent(last)} (theory: n^-1/2)."
    )
    return Finding("distance-width", "How far is a real network from the limit: width", rows, reading, slopes)


def by_depth(study: Study) -> Finding | None:
    """RMS over outputs to the infinitely wide and deep network, against depth: real networks and the wide ones."""
    limits = _limits(study, "shared")
    if INFINITE not in limits:
        return None
    rows: list[Row] = []
    slopes: list[Row] = []
    target = limits.pop(INFINITE)
    for n in study.config.widths:
        depths = [L for L in study.config.depths if (L, n) in study.measured.real]
        if len(depths) > 1:
            squared = torch.stack([_squared_distance(study.measured.real[L, n], target) for L in depths], 1)
            rows += _distance_rows(f"real, width {n}", "depth", depths, squared, _root_mean)
            slopes += _slope_rows(f"real, width {n}", depths, squared, _root_mean)
    differences = torch.stack([outputs - target for outputs in limits.values()], 1)
    rows += _distance_rows(_WIDE, "depth", study.config.depths, differences, _systematic)
    fitted = study.config.depths[:-1]  # the two deepest fix the limit: their distances are in proportion 2 by making
    slopes += _slope_rows(_WIDE, fitted, differences[:, :-1], _systematic)
    reading = (
        f"The infinitely wide network of depth {_spelled(study.config.depths)} differs from the infinitely deep one by "
        f"{_listed(r for r in rows if r['series'] == _WIDE)} (RMS over outputs)"
    )
    if len(fitted) > 1:
        reading += f": it falls as L^{_exponent(slopes[-1])} up to depth {fitted[-1]} (theory: L^-1 for large L)"
    reading += f". {_share_of_width(rows, study)}"
    return Finding("distance-depth", "How far is a real network from the limit: depth", rows, reading, slopes)


def _share_of_width(rows: Sequence[Row], study: Study) -> str:
    """How much of the squared distance of the largest real network is not that of the infinitely wide one."""
    n, L = study.config.widths[-1], study.config.depths[-1]
    distance = {row["series"]: row["distance"] for row in rows if row["depth"] == L}
    real, wide = distance.get(f"real, width {n}"), distance[_WIDE]
    if real is None:
        return ""
    if not real > wide:
        return f"A real network of width {n} and depth {L} is {real:.3f} away, no further than the infinitely wide one."
    return (
        f"A real network of width {n} and depth {L} is {real:.3f} away, and finite width makes "
        f"{1 - (wide / real) ** 2:.0%} of its squared distance."
    )


def _squared_distance(outputs: Tensor, limit: Tensor) -> Tensor:
    """Mean squares [seeds] of real networks' outputs minus the limit's mean, without what the limit's noise adds."""
    noise = stderr(limit).square().mean()
    return (outputs - limit.mean(0)).square().mean((1, 2, 3)) - noise


def _root_mean(squared: Tensor) -> Tensor:
    return squared.mean(0).clamp_min(0).sqrt()


def _systematic(differences: Tensor) -> Tensor:
    """[R, points, ...] to [points]."""
    return torch.stack([size_of_mean(d) for d in differences.unbind(1)])


def _distance_rows(
    series: str, axis: str, points: Sequence[float], samples: Tensor, f: Callable[[Tensor], Tensor]
) -> Iterator[Row]:
    for k, point in enumerate(points):
        found = interval(samples[:, k : k + 1], lambda r: f(r)[0])
        yield {"series": series, axis: point} | _columns("distance", found)


def _slope_rows(series: str, points: Sequence[float], samples: Tensor, f: Callable[[Tensor], Tensor]) -> list[Row]:
    if len(points) < 2:
        return []
    return [{"series": series} | _columns("slope", interval(samples, lambda r: log_slope(points, f(r))))]


# ---- two-layer blocks ----------------------------------------------------------------------------------------


def blocks(study: Study, steps: int) -> Finding | None:
    """Updates of two-layer blocks after ``steps`` against depth, uniform rates and Eq. 8, with slopes and verdicts."""
    rows: list[Row] = []
    slopes: list[Row] = []
    for rule in RULES:
        samples = _block_samples(study, rule, steps)
        for meter, name in METERS.items() if len(samples) > 1 else ():
            about = {"series": f"{name}, {RULE_NAMES[rule]}", "rule": rule, "meter": meter, "steps": steps}
            values = torch.stack([s[meter] for s in samples.values()], 1)
            for k, depth in enumerate(samples):
                rows.append(about | {"depth": depth} | _columns("update", interval(values[:, k], lambda r: r.mean(0))))
            slope = interval(values, partial(_slope_of_mean, list(samples)))
            slopes.append(about | _columns("slope", slope) | {"verdict": verdict(slope)})
    if not slopes:
        return None
    after = "the first step" if steps == 1 else f"{steps} steps"
    title = f"Do the inner layers of two-layer blocks learn? After {after}"
    return Finding(f"updates-{'first' if steps == 1 else 'last'}", title, rows, _block_reading(slopes), slopes)


def _slope_of_mean(points: Sequence[float], samples: Tensor) -> Tensor:
    return log_slope(points, samples.mean(0))


def _block_samples(study: Study, rule: str, steps: int) -> dict[int, dict[str, Tensor]]:
    """Depth to meter to values [seeds]."""
    found: dict[int, dict[str, Tensor]] = {}
    for depth in study.config.block_depths:
        own = [r for r in study.measured.blocks if (r["rule"], r["depth"], r["steps"]) == (rule, depth, steps)]
        if len(own) == study.config.block_seeds:
            found[depth] = {m: torch.tensor([row[m] for row in own], dtype=torch.float64) for m in METERS}
    return found


def _block_reading(slopes: Sequence[Row]) -> str:
    said = {
        ("inner", "COLLAPSES"): "inner features stop learning as depth grows",
        ("inner", "STABLE"): "inner features learn at every depth",
        ("inner", "GROWS"): "inner features move more the deeper the network",
        ("function_inner", "COLLAPSES"): "what inner layers do to the function vanishes",
        ("function_inner", "STABLE"): "what inner layers do to the function stays the same",
        ("function_inner", "GROWS"): "what inner layers do to the function grows with depth",
    }
    sentences = []
    for rule, name in RULE_NAMES.items():
        own = {row["meter"]: row for row in slopes if row["rule"] == rule}
        parts = [
            f"{said.get((meter, own[meter]['verdict']), f'the trend of the {METERS[meter]} is uncertain')} "
            f"(L^{_exponent(own[meter])})"
            for meter in ("inner", "function_inner")
            if meter in own
        ]
        if parts:
            sentences.append(f"With {name}, " + " and ".join(parts) + ".")
    return " ".join(sentences)


# ---- words and numbers ---------------------------------------------------------------------------------------


def _mean_loss(study: Study, outputs: Tensor) -> Tensor:
    """Loss of the mean outputs of replicates [R, steps, b, C], averaged over steps."""
    return study.mean_loss(outputs.mean(0)).mean()


def _columns(name: str, found: Interval) -> Row:
    values = asdict(found)
    return {name: values.pop("value"), **values}


def _finite_or_name(depth: float) -> float | str:
    return "infinite" if depth == INFINITE else depth


def _pm(value: Tensor, error: Tensor) -> str:
    return f"{float(value):.3f} ± {float(error):.3f}"


def _listed(rows: Iterator[Row] | Sequence[Row]) -> str:
    return ", ".join(f"{row['distance']:.3f}" for row in rows)


def _exponent(row: Row) -> str:
    return f"{row['slope']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def _spelled(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
