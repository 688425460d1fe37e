"""Findings as sections of a page: one with its chart, or several as the panels of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from nfd.questions.finding import Finding
from nfd.report.charts import Chart, chart_of
from nfd.report.section import Panel, Section
from nfd.report.thinning import left_out


def finding_section(finding: Finding, chart: Chart | None = None, *, level: Literal[2, 3] = 2) -> Section:
    """A finding under its question: its sentences, its chart (drawn here unless given), caption and table."""
    drawn = chart_of(finding) if chart is None else chart
    text = [finding.headline, *finding.details]
    wide = any(len(row) > 3 for row in finding.table)
    return Section(finding.title, text, drawn, finding.table, _below(finding.caption, finding), level=level, cards=wide)


def figure_section(
    title: str, caption: str, findings: Sequence[Finding], charts: Mapping[str, Chart] | None = None
) -> Section:
    """Findings as the panels of one figure, each with what it shows below; the caption of all below.

    ``charts`` are theirs by name, where they are drawn already.
    """
    drawn = {f.name: chart_of(f) for f in findings} if charts is None else charts
    panels = [Panel(drawn[f.name], _below(f"{f.reading} {f.caption}", f), f.title) for f in findings]
    return Section(title, [], caption=caption, panels=panels)


def _below(caption: str, finding: Finding) -> str:
    """A caption, and which rows the chart does not draw."""
    return f"{caption} {left_out(finding)}".strip()
