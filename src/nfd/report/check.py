"""The page and the files of a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nfd.core.files import staged, write_csv, write_json, write_text
from nfd.experiment.findings.finding import Finding, plain
from nfd.experiment.settings import CheckConfig
from nfd.meters.check import MEANINGS, Check
from nfd.meters.runs import Run
from nfd.report.charts import chart_files, write_charts
from nfd.report.figure import finding_section
from nfd.report.page import Section, page

_CHARTS = ("depth", "width")
_NESTED = ("events", "first", "unread")


def write_check(
    config: CheckConfig, model: str, check: Check, found: Sequence[Finding], directory: Path, command: str
) -> Path:
    """Write the page, ``result.json``, ``config.toml``, ``runs.csv`` and the charts; returns the page's path."""
    with staged(directory, replaced=chart_files(_CHARTS)) as folder:
        write_text(folder / "config.toml", config.toml())
        charts = write_charts(found, folder)
        sections = [finding_section(f, charts[f.name]) for f in found]
        broken = [Section("What went wrong", [], points=check.events)] if check.events else []
        meters = [f"{name.replace('_', ' ')}: {said}." for name, said in MEANINGS.items()]
        defined = Section("What the meters are", [], points=meters, folded=True)
        made = Section("What was run", [f"Made by: {command}"])
        title = f"How {model} scales"
        write_text(folder / "report.html", page(title, [*broken, *sections, defined, made]))
        runs = [_flat(run) for run in check.runs]
        names = list(dict.fromkeys(name for run in runs for name in run))
        write_csv(folder / "runs.csv", [{name: run.get(name) for name in names} for run in runs])
        write_json(
            folder / "result.json",
            {
                "title": title,
                "model": model,
                "config": config.model_dump(),
                "command": command,
                "ok": check.ok,
                "events": check.events,
                "failures": [asdict(failure) for failure in check.failures],
                "table": check.table,
                "runs": runs,
                "findings": plain(found),
            },
        )
    return directory / "report.html"


def _flat(run: Run) -> Run:
    """A network as a row: its meters, those after the first step, and what was not measured."""
    first = {f"first_{name}": value for name, value in run.get("first", {}).items()}
    unread = "; ".join(f"{name}: not measured, {said}" for name, said in run["unread"].items())
    return {k: v for k, v in run.items() if k not in _NESTED} | first | {"not_measured": unread}
