"""The report of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nfd.core.tables import Row
from nfd.meters.check import MEANINGS, Check
from nfd.meters.updates import meter_of
from nfd.questions.finding import Finding
from nfd.report.report import Report, made_by
from nfd.report.section import Section

_NESTED = ("events", "start", "unread", "rows", "readings", "noise", "draws", "print", "stacks")


def check_report(
    settings: Mapping[str, Any], model: str, check: Check, findings: Sequence[Finding], command: str
) -> Report:
    """The report of a check of ``model``, with ``runs.csv`` and ``meters.csv``."""
    broken = [Section("What went wrong", [], points=check.events)] if check.events else []
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
            "events": check.events,
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
