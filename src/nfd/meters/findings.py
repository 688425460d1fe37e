"""Charts and report of a check: how meters change with width and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from nfd.core.errors import AXES, Axis
from nfd.core.estimates import interval
from nfd.core.files import Axes, Finding, columns
from nfd.core.tables import Row
from nfd.meters.check import MEANINGS, Check, meaning_of, slope_of
from nfd.meters.updates import meter_of
from nfd.meters.verdict import LIMITS, THRESHOLDS, networks
from nfd.report.page import Section
from nfd.report.report import Report, made_by


def check_findings(check: Check, data: str) -> list[Finding]:
    """One chart per axis: every meter after the last step against size, relative to the smallest network."""
    about = (
        f"Rule {check.rule!r}, {check.optimizer}, lr = {check.lr:g}, {check.seeds} seeds, {data}; bars: 95 % intervals."
    )
    return [finding for axis in reversed(AXES) if (finding := _with_size(check, axis, about)).rows]


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
    table = [
        {
            "meter": meter_name(trend),
            "exponent [95 % interval]": slope_of(trend),
            "verdict": trend["verdict"],
            "what it means": meaning_of(trend),
        }
        for trend in trends
    ]
    caption = (
        f"Geometric means over networks, over that of the smallest, after {check.steps} steps. {about} "
        + " ".join([THRESHOLDS, LIMITS, *check.notes])
    )  # fmt: skip
    shown = Axes(axis, "ratio", axis, f"over the network of {axis} {sizes[0]}", "logarithmic")
    return Finding(axis, f"What changes with {axis}?", _headline(trends, axis), rows, shown, caption, table=table)


def _headline(trends: Sequence[Row], axis: Axis) -> str:
    """Which meters have a verdict other than STABLE, with their exponents where these are beyond chance."""
    meters: dict[str, list[str]] = {word: [] for word in ("COLLAPSES", "GROWS", "LIMIT", "UNCERTAIN", "NOT MEASURED")}
    for trend in (trend for trend in trends if trend["verdict"] in meters):
        slope = f" ({axis}^{trend['slope']:+.2f})" if trend["reason"] in ("trend", "limit") else ""
        meters[trend["verdict"]].append(meter_name(trend) + slope)
    fine = "" if meters["COLLAPSES"] or meters["GROWS"] else f"Nothing collapses or grows with {axis}. "
    return fine + "".join(f"{word}: {', '.join(names)}. " for word, names in meters.items() if names).rstrip()


def meter_name(trend: Row) -> str:
    """The meter of a row, for people."""
    return meter_of(str(trend["meter"]).replace("_", " "), trend.get("stack", ""))


# ---- the report of a check

_NESTED = ("events", "start", "unread", "rows", "readings", "noise", "draws", "print", "stacks")


def check_report(
    settings: Mapping[str, Any], model: str, check: Check, findings: Sequence[Finding], command: str
) -> Report:
    """The report of a check of ``model``, with ``runs.csv`` and ``meters.csv``."""
    events = [str(failure) for failure in check.failures]
    broken = [Section("What went wrong", [], points=events)] if events else []
    meanings = [f"{name.replace('_', ' ')}: {meaning}." for name, meaning in MEANINGS.items()]
    runs = [_flat(run) for run in check.runs]
    return Report(
        f"How {model} scales",
        command,
        settings,
        findings,
        opening=broken,
        closing=[
            Section("What the meters are", [], points=meanings, folded=True),
            made_by(command),
        ],
        content={
            "model": model,
            "rule": check.rule,
            "optimizer": check.optimizer,
            "lr": check.lr,
            "ok": check.ok,
            "events": events,
            "failures": [asdict(failure) for failure in check.failures],
            "table": check.table,
            "growth": check.growth,
            "runs": runs,
            "rows": check.rows,
            "noise": check.noise,
            "ladder": check.ladder,
        },
        tables={"runs.csv": runs, "meters.csv": check.rows} | ({"noise.csv": check.noise} if check.noise else {}),
    )


def _flat(run: Row) -> Row:
    """A network as a row: its meters, those of every stack, and why others were not measured."""
    flat = {k: v for k, v in run.items() if k not in _NESTED}
    unread = dict[str, str]()
    for stack, own in {"": run, **run.get("stacks", {})}.items():
        meters = {} if not stack else {k: v for k, v in own.items() if k not in _NESTED}
        flat |= {meter_of(name, stack): value for name, value in meters.items()}
        unread |= {meter_of(name, stack): why for name, why in own["unread"].items()}
    return flat | {"not_measured": "; ".join(f"{name}: not measured, {why}" for name, why in unread.items())}
