"""The page and the files of a kernel fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nfd.core.files import staged, write_json, write_text
from nfd.experiment.findings.finding import Finding, plain
from nfd.experiment.kernel_fit import KernelFit
from nfd.report.charts import write_charts
from nfd.report.figure import finding_section
from nfd.report.page import Section, page

_TITLE = "Regression with the kernel of an infinitely wide and deep network"


def write_fit(fit: KernelFit, found: Sequence[Finding], directory: Path, command: str) -> Path:
    """Write the page, ``result.json``, ``config.toml`` and every chart as PDF, PNG and CSV; returns the page's path."""
    with staged(directory) as folder:
        write_text(folder / "config.toml", fit.config.toml())
        charts = write_charts(found, folder)
        sections = [finding_section(f, charts[f.name]) for f in found]
        made = Section("What was run", [f"Made by: {command}", f"Data: {fit.dataset.source}"])
        write_text(folder / "report.html", page(_TITLE, [*sections, made]))
        about = {"config": fit.config.model_dump(), "data_fingerprint": fit.dataset.fingerprint, "command": command}
        write_json(folder / "result.json", {"title": _TITLE, **about, "findings": plain(found)})
    return directory / "report.html"
