"""Charts of a check: how meters change with width and depth, whether that still holds late, and the alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nfd.core.estimates import mean
from nfd.core.findings import Axes, Finding, columns, listed
from nfd.core.names import AXES, Axis
from nfd.core.statistics import interval
from nfd.core.tables import Row
from nfd.meters.check import Check, meaning_of, slope_of
from nfd.meters.updates import ALIGNMENT, meter_of
from nfd.meters.verdict import LIMITS, THRESHOLDS, networks

_VERBS = {
    "COLLAPSES": ("collapses", "collapse"),
    "GROWS": ("grows", "grow"),
    "LIMIT": ("falls to a limit", "fall to a limit"),
}


def check_findings(check: Check, data: str) -> list[Finding]:
    """One chart per axis: every meter after the last step against size, relative to the smallest network.

    With several steps, also charts of exponents and of meters against the step, and of the alignment of updates.
    """
    about = (
        f"Rule {check.rule!r}, {check.optimizer}, lr = {check.lr:g}, {check.seeds} seeds, {data}; bars: 95 % intervals."
    )
    findings: list[Finding | None] = [_with_size(check, axis, about) for axis in reversed(AXES)]
    if len(check.at) > 1:
        findings += [_exponents(check, axis, about) for axis in AXES]
    if check.growth:
        findings.append(_growth(check, about))
    findings.append(_alignment(check, about))
    return [finding for finding in findings if finding is not None and finding.rows]


def _with_size(check: Check, axis: Axis, about: str) -> Finding:
    """Geometric means of every meter, over seeds and sizes of the other axis, over that of the smallest size."""
    trends = [row for row in check.table if row["axis"] == axis and row["step"] == check.steps]
    sizes, rows = sorted({run[axis] for run in check.runs}), list[Row]()
    for trend in trends:
        seen = networks(check.runs, check.steps, trend.get("stack", ""))
        values = [[run.get(trend["meter"], math.nan) for run in seen if run[axis] == size] for size in sizes]
        logs = [log[log.isfinite()] for log in (torch.tensor(own, dtype=torch.float64).log() for own in values)]
        for size, log in zip(sizes, logs, strict=True):
            if min(len(log), len(logs[0])) > 1:
                ratio = interval(lambda a, b: b.mean(0) - a.mean(0), logs[0], log).exp()
                rows.append({"series": meter_name(trend), axis: size} | columns("ratio", ratio))
    caption = (
        f"Geometric means over networks, over that of the smallest, after {check.steps} steps. {about} "
        + " ".join([THRESHOLDS, LIMITS, *check.notes])
    )  # fmt: skip
    shown = Axes(axis, "ratio", axis, f"over the network of {axis} {sizes[0]}", "logarithmic")
    return Finding(
        axis, f"What changes with {axis}?", _headline(trends, axis), rows, shown, caption, table=_table(trends)
    )


def _headline(trends: Sequence[Row], axis: Axis) -> str:
    """What collapses, grows, is uncertain or was not measured, in one sentence."""
    meters: dict[str, list[str]] = {}
    for trend in trends:
        slope = f" ({axis}^{trend['slope']:+.2f})" if trend["verdict"] in _VERBS else ""
        meters.setdefault(trend["verdict"], []).append(meter_name(trend) + slope)
    clauses = [
        f"{', '.join(meters[w])} {verbs[len(meters[w]) > 1]} with {axis}" for w, verbs in _VERBS.items() if w in meters
    ]
    if "UNCERTAIN" in meters:
        clauses.append(f"of {', '.join(meters['UNCERTAIN'])} the trend is uncertain")
    if not clauses:
        clauses.append(f"nothing that was measured collapses or grows with {axis}")
    if unread := meters.get("NOT MEASURED"):
        clauses.append(f"{', '.join(unread)} {'was' if len(unread) == 1 else 'were'} not measured")
    return _sentence("; ".join(clauses))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


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


# ---- late ------------------------------------------------------------------------------------------------------------


def _exponents(check: Check, axis: Axis, about: str) -> Finding:
    """The exponent of every meter against size, step by step."""
    by_meter: dict[str, dict[int, Row]] = {}
    for row in check.table:
        if row["axis"] == axis:
            by_meter.setdefault(meter_name(row), {})[row["step"]] = row
    rows, table, turned = list[Row](), list[dict[str, str]](), list[str]()
    first, last = check.at[0], check.at[-1]
    for meter, own in by_meter.items():
        known = [row for row in own.values() if math.isfinite(row["slope"])]
        rows += [{"series": meter} | {name: row[name] for name in ("step", "slope", "low", "high")} for row in known]
        cells = {step: f"{slope_of(row)} {row['verdict']}" for step, row in own.items()}
        table.append({"meter": meter} | {f"after step {step}": cells.get(step, "") for step in check.at})
        words = [own[step]["verdict"] for step in (first, last) if step in own]
        if len(set(words)) > 1:
            turned.append(f"{meter} turns from {words[0]} to {words[1]}")
    change = f"from step {first} to {last}, {listed(turned)}" if turned else ""
    headline = _sentence(change or f"every verdict after step {last} is that after step {first}")
    shown = Axes("step", "slope", "step", f"exponent against {axis}", "semilogarithmic")
    caption = f"Exponents of every meter against {axis}, after every step that was looked at. {about}"
    title = f"Does what changes with {axis} still hold late?"
    return Finding(f"late-{axis}", title, headline, rows, shown, caption, table=table)


def _growth(check: Check, about: str) -> Finding:
    """Every meter against the step, over that of the first."""
    rows, first = list[Row](), check.at[0]
    for trend in check.growth:
        meter, stack = trend["meter"], trend.get("stack", "")
        start = networks(check.runs, first, stack)
        for step in check.at:
            pairs = zip(start, networks(check.runs, step, stack), strict=True)
            ratios = [late.get(meter, math.nan) / early.get(meter, math.nan) for early, late in pairs]
            rows += _mean_of_logs({"series": meter_name(trend), "step": step}, "ratio", ratios)
    fastest = max(check.growth, key=lambda row: abs(row["slope"]))
    headline = f"Of all meters {meter_name(fastest)} changes most: as step^{slope_of(fastest)}."
    shown = Axes("step", "ratio", "step", f"over that after step {first}", "logarithmic")
    table = [
        {"meter": meter_name(row), "exponent [95 % interval]": slope_of(row), "what it means": row["cause"]}
        for row in check.growth
    ]
    caption = f"Geometric means over networks of every size, of each over itself after step {first}. {about}"
    return Finding("time", "How do meters grow with the step?", headline, rows, shown, caption, table=table)


def _alignment(check: Check, about: str) -> Finding | None:
    """The alignment of the last update of every look against width, beside what independent vectors have."""
    trends = [row for row in check.table if row["meter"] == ALIGNMENT]
    if not trends:
        return None
    widths, rows = sorted({run["width"] for run in check.runs}), list[Row]()
    for step in check.at:
        seen = networks(check.runs, step)
        for width in widths:
            own = [run.get(ALIGNMENT, math.nan) for run in seen if run["width"] == width]
            rows += _mean_of_logs({"series": f"after step {step}", "width": width}, ALIGNMENT, own)
    first, last = rows[0] if rows else {"width": widths[0], ALIGNMENT: 1.0}, trends[-1]
    lost = [
        {"series": "no alignment, n^-1/2", "width": n, ALIGNMENT: first[ALIGNMENT] * (n / first["width"]) ** -0.5}
        for n in widths
    ]
    headline = f"After step {last['step']}: width^{slope_of(last)}, {last['verdict']}: {meaning_of(last)}"
    shown = Axes("width", ALIGNMENT, "width", "|dW z| / (|dW| |z|), rms over matrices", "logarithmic")
    caption = f"1 where an update acts on its inputs as one direction, n^-1/2 where it is independent of them. {about}"
    title = "Do updates act on the stream as the rule assumes?"
    table = [{"after step": str(row["step"])} | line for row, line in zip(trends, _table(trends), strict=True)]
    return Finding("alignment", title, headline, rows, shown, caption, table=table, references=lost)


def _mean_of_logs(place: Row, name: str, values: Sequence[float]) -> list[Row]:
    """A row with the geometric mean of what is above zero; none where that is one number or nothing."""
    logs = torch.tensor(values, dtype=torch.float64).log()
    kept = logs[logs.isfinite()]
    return [place | columns(name, mean(kept).exp())] if len(kept) > 1 else []
