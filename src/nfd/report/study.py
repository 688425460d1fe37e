"""The page and the files of a study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nfd.core.files import staged, write_json, write_text
from nfd.experiment.findings import NAMES, Finding
from nfd.experiment.findings.finding import plain
from nfd.experiment.study import Study
from nfd.report.charts import chart_files, write_charts
from nfd.report.figure import finding_section
from nfd.report.page import Section, page

_TITLE = (
    "How does this residual network train when it is infinitely wide and deep, do its inner features learn, and how "
    "far is a real network from that?"
)


def write_study(study: Study, found: Sequence[Finding], directory: Path, command: str) -> Path:
    """Write the page, ``result.json``, ``config.toml`` and every chart as PDF, PNG and CSV; returns the page's path.

    All or nothing: charts that an earlier study left in ``directory`` and this one lacks are removed.
    """
    repeat = shlex.join(["nfd", "study", "--config", str(directory / "config.toml"), "--out", str(directory)])
    with staged(directory, replaced=chart_files(NAMES)) as folder:
        write_text(folder / "config.toml", study.config.toml())
        charts = write_charts(found, folder)
        sections = [finding_section(replace(f, caption=_caption(f, study)), charts[f.name]) for f in found]
        opening = [*_warning(study), _summary(found)]
        write_text(folder / "report.html", page(_TITLE, [*opening, *sections, *_run(study, command, repeat)]))
        write_json(folder / "result.json", _result(study, found, command, repeat))
    return directory / "report.html"


def _result(study: Study, found: Sequence[Finding], command: str, repeat: str) -> dict[str, Any]:
    return {
        "title": _TITLE,
        "config": study.config.model_dump(),
        "complete": study.measured.complete,
        "findings": plain([replace(f, caption=_caption(f, study)) for f in found]),
        "run": study.facts(),
        "command": command,
        "repeat": repeat,
    }


# ---- the page ------------------------------------------------------------------------------------------------


def _warning(study: Study) -> list[Section]:
    if study.measured.complete:
        return []
    said = "The study was interrupted. What had been measured by then is below; the rest is missing."
    return [Section("This report is partial", [said])]


def _summary(found: Sequence[Finding]) -> Section:
    return Section("In short", [], points=[f"{f.title} {f.headline}" for f in found])


def _caption(finding: Finding, study: Study) -> str:
    """The finding's caption, and what all of the study's share."""
    c = study.config
    shared = (
        f"{study.dataset.title}, {c.steps} steps of {c.batch}, the same batches for all; {c.activation}, "
        f"T = {c.horizon:g}, eta_c = {c.eta_c:g}, cross-entropy in nats, inputs normalised per channel. "
        f"Infinitely wide: {c.replicates} networks of width {c.limit_width:,} with {study.weights} weights."
    )
    return f"{finding.caption} Data: {shared}"


def _run(study: Study, command: str, repeat: str) -> list[Section]:
    settings = {k: " ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in study.config.model_dump().items()}
    facts = study.facts()
    seconds = facts.pop("seconds")
    rows = [{"": k.replace("_", " "), "value": v} for k, v in (settings | facts).items() if v is not None]
    times = [{"": name, "seconds": value} for name, value in seconds.items()]
    said = [f"Made by: {command}", f"Repeat it bit for bit with: {repeat}"]
    return [Section("What was run", said, table=rows), Section("Where the time went", [], table=times, folded=True)]
