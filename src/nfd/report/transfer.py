"""The page and the files of a transfer sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nfd.core.files import staged, write_csv, write_json, write_text
from nfd.experiment.findings.finding import Finding, plain
from nfd.experiment.sweep_settings import TransferConfig
from nfd.report.charts import chart_files, write_charts
from nfd.report.figure import finding_section
from nfd.report.page import Section, page
from nfd.scaling.rules import RULES
from nfd.sweep.recommendation import recommended
from nfd.sweep.transfer import Transfer
from nfd.sweep.transfer_findings import advice, result, sentence, table

_TITLE = "Is the best learning rate of a small network that of a large one?"
_CHARTS = ("depth", "width", *(f"loss-{rule}" for rule in RULES))


def write_transfer(
    config: TransferConfig, found: Sequence[Transfer], findings: Sequence[Finding], directory: Path, command: str
) -> Path:
    """Write the page, ``result.json``, ``config.toml``, ``transfer.csv`` and the charts; returns the page's path."""
    recommendation = recommended(found)
    with staged(directory, replaced=chart_files(_CHARTS)) as folder:
        write_text(folder / "config.toml", config.toml())
        charts = write_charts(findings, folder)
        summary = Section("In short", [], points=[*map(sentence, found), str(recommendation)], table=table(found))
        sections = [finding_section(f, charts[f.name]) for f in findings]
        made = Section("What was run", [f"Made by: {command}", f"Every run: nfd runs {directory}"])
        write_text(folder / "report.html", page(_TITLE, [summary, *sections, made]))
        write_csv(folder / "transfer.csv", table(found))
        about = {"title": _TITLE, "config": config.model_dump(), "command": command}
        rules = {"rules": result(found), "recommendation": advice(recommendation)}
        write_json(folder / "result.json", {**about, **rules, "findings": plain(findings)})
    return directory / "report.html"
