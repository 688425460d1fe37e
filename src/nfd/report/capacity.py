"""The page and the files of a capacity sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nfd.core.files import staged, write_json, write_text
from nfd.experiment.config import Config
from nfd.experiment.findings.finding import Finding, plain
from nfd.report.charts import chart_files, write_charts
from nfd.report.figure import finding_section
from nfd.report.page import Section, page

_TITLE = "How big should it be?"
_CHARTS = ("ceiling", "map", "horizon", "stability")


def write_capacity(
    config: Config,
    store: str,
    result: Mapping[str, Any],
    findings: Sequence[Finding],
    directory: Path,
    command: str,
) -> Path:
    """Write the page, ``result.json``, ``config.toml`` and the charts; returns the page's path.

    ``config`` is of the sweep, whose runs are in the directory ``store``.
    """
    with staged(directory, replaced=chart_files(_CHARTS)) as folder:
        write_text(folder / "config.toml", config.toml())
        charts = write_charts(findings, folder)
        summary = Section("In short", [], points=result["answers"])
        sections = [finding_section(f, charts[f.name]) for f in findings]
        made = Section("What was run", [f"Made by: {command}", f"Every run of the fit: nfd runs {store}"])
        write_text(folder / "report.html", page(_TITLE, [summary, *sections, made]))
        about = {"title": _TITLE, "config": config.model_dump(), "store": store, "command": command}
        write_json(folder / "result.json", {**about, **result, "findings": plain(findings)})
    return directory / "report.html"
