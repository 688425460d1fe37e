"""Whether what a check says still holds late: exponents and meters against the step, and the alignment of updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nfd.core.estimates import Interval, mean
from nfd.core.findings import Axes, Finding, columns, listed
from nfd.core.names import AXES, Axis
from nfd.core.tables import Row
from nfd.meters.check import Check, meaning_of, slope_of
from nfd.meters.updates import ALIGNMENT
from nfd.meters.verdict import after, of_stack
from nfd.questions.check_findings import meter_name

_NONE = "no alignment, n^-1/2"


def late_findings(check: Check, data: str) -> list[Finding]:
    """Charts of a check that looked at several steps; none where it looked at the last alone."""
    about = (
        f"Rule {check.rule!r}, {check.optimizer}, lr = {check.lr:g}, {check.seeds} seeds, {data}; bars: 95 % intervals."
    )
    findings = [finding for axis in AXES if (finding := _exponents(check, axis, about)) is not None]
    if check.growth:
        findings.append(_growth(check, about))
    if any(row["meter"] == ALIGNMENT for row in check.table):
        findings.append(_alignment(check, about))
    return findings


def _exponents(check: Check, axis: Axis, about: str) -> Finding | None:
    """The exponent of every meter against size, step by step."""
    trends = [row for row in check.table if row["axis"] == axis]
    rows = [
        {"series": meter_name(row)} | {name: row[name] for name in ("step", "slope", "low", "high")}
        for row in trends
        if math.isfinite(row["slope"])
    ]
    if len(check.at) < 2 or not rows:
        return None
    by_meter: dict[str, dict[int, Row]] = {}
    for row in trends:
        by_meter.setdefault(meter_name(row), {})[row["step"]] = row
    title = f"Does what changes with {axis} still hold late?"
    shown = Axes("step", "slope", "step", f"exponent against {axis}", "semilogarithmic")
    caption = f"Exponents of every meter against {axis}, after every step that was looked at. {about}"
    table = [{"meter": meter} | _cells(own, check.at) for meter, own in by_meter.items()]
    return Finding(f"late-{axis}", title, _changed(by_meter, check.at), rows, shown, caption, table=table)


def _cells(steps: dict[int, Row], at: Sequence[int]) -> dict[str, str]:
    shown = {step: f"{slope_of(row)} {row['verdict']}" for step, row in steps.items()}
    return {f"after step {step}": shown.get(step, "") for step in at}


def _changed(by_meter: dict[str, dict[int, Row]], at: Sequence[int]) -> str:
    """Which verdicts at the last step are others than at the first, in one sentence."""
    turned = [
        f"{meter} turns from {own[at[0]]['verdict']} to {own[at[-1]]['verdict']}"
        for meter, own in by_meter.items()
        if {at[0], at[-1]} <= own.keys() and own[at[0]]["verdict"] != own[at[-1]]["verdict"]
    ]
    if not turned:
        return f"Every verdict after step {at[-1]} is that after step {at[0]}."
    sentence = f"from step {at[0]} to {at[-1]}, {listed(turned)}."
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _growth(check: Check, about: str) -> Finding:
    """Every meter against the step, over that of the first."""
    rows = []
    for trend in check.growth:
        runs, meter = of_stack(check.runs, trend.get("stack", "")), trend["meter"]
        networks = {step: after(runs, step) for step in check.at}
        for step in check.at:
            pairs = zip(networks[check.at[0]], networks[step], strict=True)
            ratio = _mean_of_logs([late.get(meter, math.nan) / early.get(meter, math.nan) for early, late in pairs])
            if ratio is not None:
                rows.append({"series": meter_name(trend), "step": step} | columns("ratio", ratio))
    fastest = max(check.growth, key=lambda row: abs(row["slope"]))
    headline = f"Of all meters {meter_name(fastest)} changes most: as step^{slope_of(fastest)}."
    shown = Axes("step", "ratio", "step", f"over that after step {check.at[0]}", "logarithmic")
    table = [
        {"meter": meter_name(row), "exponent [95 % interval]": slope_of(row), "what it means": row["cause"]}
        for row in check.growth
    ]
    caption = f"Geometric means over networks of every size, of each over itself after step {check.at[0]}. {about}"
    return Finding("time", "How do meters grow with the step?", headline, rows, shown, caption, table=table)


def _alignment(check: Check, about: str) -> Finding:
    """The alignment of the last update of every look against width, beside what independent vectors have."""
    trends = [row for row in check.table if row["meter"] == ALIGNMENT]
    widths = sorted({run["width"] for run in check.runs})
    rows = []
    for step in check.at:
        networks = after(check.runs, step)
        for width in widths:
            own = [run.get(ALIGNMENT, math.nan) for run in networks if run["width"] == width]
            value = _mean_of_logs(own)
            if value is not None:
                rows.append({"series": f"after step {step}", "width": width} | columns(ALIGNMENT, value))
    first = rows[0] if rows else {"width": widths[0], ALIGNMENT: 1.0}
    lost = [{"series": _NONE, "width": n, ALIGNMENT: first[ALIGNMENT] * (n / first["width"]) ** -0.5} for n in widths]
    last = trends[-1]
    headline = f"After step {last['step']}: width^{slope_of(last)}, {last['verdict']}: {meaning_of(last)}"
    shown = Axes("width", ALIGNMENT, "width", "|dW z| / (|dW| |z|), rms over matrices", "logarithmic")
    caption = f"1 where an update acts on its inputs as one direction, n^-1/2 where it is independent of them. {about}"
    title = "Do updates act on the stream as the rule assumes?"
    table = [
        {
            "after step": str(row["step"]),
            "exponent against width": slope_of(row),
            "verdict": row["verdict"],
            "what it means": meaning_of(row),
        }
        for row in trends
    ]
    return Finding("alignment", title, headline, rows, shown, caption, table=table, references=lost)


def _mean_of_logs(values: Sequence[float]) -> Interval | None:
    """The geometric mean of what is above zero, None where that is one number or none."""
    logs = torch.tensor(values, dtype=torch.float64).log()
    kept = logs[logs.isfinite()]
    return mean(kept).exp() if len(kept) > 1 else None
