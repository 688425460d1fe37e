"""How every meter of a check changes with width and with depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nfd.core.findings import Axes, Finding, columns
from nfd.core.names import AXES, Axis
from nfd.core.statistics import interval
from nfd.core.tables import Row
from nfd.meters.check import Check, meaning_of, slope_of
from nfd.meters.updates import meter_of
from nfd.meters.verdict import LIMITS, THRESHOLDS, of_stack

_CAPTION = (
    "Geometric means over networks, over that of the smallest; bars: 95 % intervals. Rule {rule!r}, {optimizer}, "
    "lr = {lr:g}, after {steps} steps, {seeds} seeds, {data}. {thresholds}"
)

_VERBS = (
    ("COLLAPSES", "collapses", "collapse"),
    ("GROWS", "grows", "grow"),
    ("LIMIT", "falls to a limit", "fall to a limit"),
)


def check_findings(check: Check, data: str) -> list[Finding]:
    """One chart per axis: every meter after the last step against size, relative to the smallest network."""
    about = {name: getattr(check, name) for name in ("rule", "optimizer", "lr", "seeds", "steps")}
    caption = _CAPTION.format(**about, data=data, thresholds=" ".join([THRESHOLDS, LIMITS, *check.notes]))
    findings = []
    for axis in reversed(AXES):
        sizes = sorted({run[axis] for run in check.runs})
        trends = [row for row in check.table if row["axis"] == axis and row["step"] == check.steps]
        rows = [row for trend in trends for row in _points(check, axis, sizes, trend)]
        if rows:
            title = f"What changes with {axis}?"
            shown = Axes(axis, "ratio", axis, f"over the network of {axis} {sizes[0]}", "logarithmic")
            findings.append(Finding(axis, title, _headline(trends, axis), rows, shown, caption, table=_table(trends)))
    return findings


def _points(check: Check, axis: Axis, sizes: Sequence[int], trend: Row) -> list[Row]:
    """Ratios to the smallest size, over all seeds and sizes of the other axis."""
    logs, runs = {}, of_stack(check.runs, trend.get("stack", ""))
    for size in sizes:
        values = [run.get(trend["meter"], math.nan) for run in runs if run[axis] == size]
        log_values = torch.tensor(values, dtype=torch.float64).log()
        logs[size] = log_values[log_values.isfinite()]
    rows = []
    for size in sizes:
        if min(len(logs[size]), len(logs[sizes[0]])) > 1:
            ratio = interval(lambda a, b: b.mean(0) - a.mean(0), logs[sizes[0]], logs[size]).exp()
            rows.append({"series": meter_name(trend), axis: size} | columns("ratio", ratio))
    return rows


def _headline(trends: Sequence[Row], axis: Axis) -> str:
    """What collapses, grows, is uncertain or was not measured, in one sentence."""
    by_verdict: dict[str, list[Row]] = {}
    for trend in trends:
        by_verdict.setdefault(trend["verdict"], []).append(trend)
    meters = {word: [meter_name(trend) for trend in own] for word, own in by_verdict.items()}
    clauses = []
    for word, singular, plural in _VERBS:
        if own := by_verdict.get(word):
            slopes = ", ".join(f"{meter_name(trend)} ({axis}^{trend['slope']:+.2f})" for trend in own)
            clauses.append(f"{slopes} {singular if len(own) == 1 else plural} with {axis}")
    if "UNCERTAIN" in meters:
        clauses.append(f"of {', '.join(meters['UNCERTAIN'])} the trend is uncertain")
    if not clauses:
        clauses.append(f"nothing that was measured collapses or grows with {axis}")
    if unread := meters.get("NOT MEASURED"):
        clauses.append(f"{', '.join(unread)} {'was' if len(unread) == 1 else 'were'} not measured")
    sentence = "; ".join(clauses)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def meter_name(trend: Row) -> str:
    """The meter of a row, for people."""
    return meter_of(str(trend["meter"]).replace("_", " "), trend.get("stack", ""))


def _table(trends: Sequence[Row]) -> list[dict[str, str]]:
    return [
        {
            "meter": meter_name(trend),
            "exponent [95 % interval]": slope_of(trend),
            "verdict": trend["verdict"],
            "what it means": meaning_of(trend),
        }
        for trend in trends
    ]
