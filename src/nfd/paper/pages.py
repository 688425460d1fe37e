"""Pages and files of the figures of the paper, and of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nfd.core import Finding, Row, plain, staged
from nfd.paper.claims.claim import only_of
from nfd.paper.claims.page import claims_markdown, claims_section, in_markdown
from nfd.paper.figures.figure import Figure
from nfd.paper.settings import FigureConfig, warnings_of
from nfd.report import Report, Result, Section, figure_section, made_by, write_charts, write_page

Drawn = Sequence[tuple[Sequence[Finding], Section]]

_FIGURES = "The figures of the paper"
_CLAIMS = "What the paper says, and what is measured"
_WARNING = "Not the size of the paper"
_PURPOSE = "Look up whether a statement of the paper holds, and how you can measure it again."


def write_figure(
    config: FigureConfig,
    figure: Figure,
    findings: Sequence[Finding],
    data: str,
    directory: Path,
    statements: Sequence[str] = (),
) -> Section:
    """Write a figure's page, and every panel as PDF, PNG and CSV; returns the figure as a section.

    Args:
        statements: ids of the claims about the figure, named below its panels.
    """
    number = figure.name.replace("figure-", "Figure ")
    with staged(directory) as folder:
        charts = write_charts(findings, folder)
        section = figure_section(f"{number}: {figure.title}", "", findings, charts)
        write_page(
            folder / f"{figure.name}.html",
            f"{figure.title} ({data})",
            [*_warning(config), section, *_statements(figure, statements)],
        )
    return section


def write_figures(
    config: FigureConfig, drawn: Drawn, beside: Sequence[Row], data: str, directory: Path, command: str
) -> Path:
    """Write the page of several figures, and ``result.json``; returns the page's path.

    Args:
        beside: what ran for every panel and what its caption says (``figures.beside_captions``).
    """
    return Report(
        f"{_FIGURES}, on {data}",
        command,
        config.plain(),
        [],
        opening=[*_warning(config), *(section for _, section in drawn)],
        closing=[
            *_beside(beside),
            made_by(command, "The same command draws again without training."),
        ],
        content={"findings": plain([finding for findings, _ in drawn for finding in findings])},
    ).write(directory)


def rows_in_markdown(rows: Sequence[Row]) -> str:
    """Rows of the same columns as a table in Markdown."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([in_markdown(row[name]) for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_claims(
    config: FigureConfig,
    rows: Sequence[dict[str, Any]],
    data: str,
    directory: Path,
    command: str,
    beside: Sequence[Row] = (),
) -> Path:
    """Write the table of claims as ``result.json``, Markdown and a page; returns the page's path.

    Args:
        beside: what ran for every panel and what its caption says (``figures.beside_captions``).
    """
    intro = _intro(config, data, command)
    return Report(
        _CLAIMS,
        command,
        config.plain(),
        [],
        opening=[*_warning(config), Section("How", [intro]), claims_section(rows)],
        closing=_beside(beside),
        content={"data": data, "rows": list(rows)},
        texts={"claims.md": claims_page(config, rows, data, command)},
    ).write(directory)


def claims_page(config: FigureConfig, rows: Sequence[Row], data: str, command: str) -> str:
    """The table of claims as a page in Markdown."""
    return claims_markdown(rows, f"# {_CLAIMS}\n\n{_PURPOSE}\n\n{in_markdown(_intro(config, data, command))}")


def _beside(rows: Sequence[Row]) -> list[Section]:
    return [Section("What ran, beside the captions", [], table=rows, cards=True)] if rows else []


def warning_sections(result: Result) -> list[Section]:
    """The warning of a result at size smoke, for the page of ``nfd report``; none of another."""
    config = result.content.get("config")
    warnings = warnings_of(config.get("size")) if isinstance(config, dict) else []
    return [Section(_WARNING, warnings, level=3)] if warnings else []


def _statements(figure: Figure, ids: Sequence[str]) -> list[Section]:
    if not ids:
        return []
    judge = f"Judge them, with the same options of data and size: nfd paper claims --only {only_of(figure.name)}"
    return [Section("What the paper says of this figure", [f"Statements: {', '.join(ids)}.", judge])]


def _warning(config: FigureConfig) -> list[Section]:
    return [Section(_WARNING, config.warnings)] if config.warnings else []


def _intro(config: FigureConfig, data: str, command: str) -> str:
    return (
        "These are statements of the paper, in our words, that can be measured. They are judged at size "
        f"{config.size} on {data} by {command}. For example, fig1-train says that pre-activation networks train "
        "faster: it holds where the whole interval of the difference in loss lies above 0. Intervals are 95 % ones, "
        "over seeds of the initial weights where networks are trained. The rule beside each measurement makes the "
        "verdict. A statement holds, or does not, where the whole interval says so. It holds with a condition where it "
        "does in part of the cases or under the condition that its reading names. It is undecided where the interval "
        "lies on both sides of the bound, where networks diverged, or where the grid was too small; the reading says "
        "which. A statement that does not simply hold comes with a list of what was tried to make it hold."
    )
