"""Pages and files of the figures of the paper, and of its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from nfd.core import Axes, Finding, Lead, Row, plain, staged
from nfd.paper.claims.claim import ClaimVerdict, figure_of, only_of
from nfd.paper.figures.figure import Figure
from nfd.paper.settings import FigureConfig, warnings_of
from nfd.report import (
    Label,
    Report,
    Result,
    Section,
    figure_section,
    made_by,
    opening_of,
    write_charts,
    write_page,
)

_CLAIMS = "What the paper says, and what is measured"
_KEYS = {"id", "source", "statement", "verdict"}
_TONES: dict[str, Literal["good", "partly", "bad", "open"]] = {
    ClaimVerdict.HOLDS: "good",
    ClaimVerdict.CONDITIONAL: "partly",
    ClaimVerdict.FAILS: "bad",
}


# ---- figures


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
    name = figure.name.capitalize().replace("-", " ")
    with staged(directory) as folder:
        write_charts([replace(f, title=f"{f.title}: {f.headline}") for f in findings], folder)
        section = figure_section(f"{name}: {figure.title}", findings)
        sections = [*_warning(config.warnings), section]
        if statements:
            sections.append(_statements_section(figure, statements))
        write_page(folder / f"{figure.name}.html", f"{figure.title} ({data})", sections)
    return section


def _statements_section(figure: Figure, statements: Sequence[str]) -> Section:
    """Return the ids of the claims about a figure, and the command that judges them."""
    command = (
        "To judge them, with the same options of data and size: nfd paper claims --only "
        f"{only_of(figure.name)}"
    )
    return Section(
        "What the paper says of this figure", [f"Statements: {', '.join(statements)}.", command]
    )


def write_figures(
    config: FigureConfig,
    drawn: Sequence[tuple[Figure, Sequence[Finding], Section]],
    data: str,
    directory: Path,
    command: str,
) -> tuple[Lead, Path]:
    """Write the page of figures, which opens with the answer of the first.

    Returns the lead of the page, and its path.
    """
    panels: list[Finding] = []
    sections: list[Section] = []
    answers: list[Finding] = []
    headlines: list[str] = []
    for figure, findings, section in drawn:
        panels += findings
        sections.append(section)
        for panel in findings:
            if panel.name == f"{figure.name}{figure.answer}":
                answers.append(panel)
                headlines.append(f"{section.title} {panel.headline}")
    numbers = {
        "figures": f"{len(drawn)}",
        "panels": f"{len(panels)}",
        "size": f"{config.size}, on {data}",
    }
    first, *_ = drawn[0]
    lead = Lead(f"{first.title} {answers[0].headline}", "open", numbers)
    if config.warnings:
        lead = Lead(config.warnings[0], "partly", numbers)
    title = f"The figures of the paper, on {data}"
    if len(drawn) == 1:
        title = f"{sections[0].title} ({data})"
        # The lead is the answer of a single figure.
        headlines = []
    report = Report(
        title,
        command,
        config.plain(),
        [],
        lead,
        answers=headlines,
        opening=opening_of(answers),
        closing=[*sections, made_by(command, "The same command draws again without training.")],
        content={"findings": plain(panels)},
    )
    return lead, report.write(directory)


def warning_sections(result: Result) -> list[Section]:
    """Return the warning of a result at size smoke, for ``nfd report``; none of another."""
    config = result.content.get("config")
    return _warning(warnings_of(config.get("size")) if isinstance(config, dict) else [], level=3)


def _warning(warnings: list[str], level: Literal[2, 3] = 2) -> list[Section]:
    return [Section("Not the size of the paper", warnings, level=level)] if warnings else []


# ---- claims


def write_claims(
    config: FigureConfig, rows: Sequence[dict[str, Any]], data: str, directory: Path, command: str
) -> tuple[Lead, Path]:
    """Write the table of claims as ``result.json`` and a page.

    Returns the lead of the page, and its path.
    """
    counts = Counter(str(row["verdict"]) for row in rows)
    holds = counts[ClaimVerdict.HOLDS]
    numbers = {f"{v}": f"{counts[v]}" for v in ClaimVerdict if counts[v]}
    answer = (
        f"{holds} of {len(rows)} statements of the paper hold, {counts[ClaimVerdict.FAILS]} do not."
    )
    lead = Lead(answer, "good" if holds == len(rows) else "partly", numbers)
    if config.warnings:
        lead = Lead(config.warnings[0], "partly", numbers)
    report = Report(
        _CLAIMS,
        command,
        config.plain(),
        [_counted(rows, lead.verdict)],
        lead,
        opening=[claims_section(rows)],
        closing=[Section("How", [_intro(config, data, command)])],
        content={"data": data, "rows": list(rows)},
    )
    return lead, report.write(directory)


def _counted(rows: Sequence[Row], headline: str) -> Finding:
    """Count the statements of each figure by verdict, under the ``headline`` on all."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        figure = figure_of(row["id"], row["source"]) or "no figure"
        counts[figure, str(row["verdict"])] += 1
    figures = sorted({figure for figure, _ in counts})
    bars: list[Row] = []
    for verdict in ClaimVerdict:
        for figure in figures:
            count = counts[figure, verdict.value]
            if count:
                place = {"series": verdict.value, "figure": figure.replace("figure-", "Fig. ")}
                bars.append({**place, "statements": count})
    axes = Axes(
        "statements",
        "figure",
        "statements",
        "",
        "counts",
        order=tuple(verdict.value for verdict in ClaimVerdict),
    )
    return Finding("verdicts", "Statements of each figure, by verdict", headline, bars, axes, "")


def claims_sections(result: Result) -> list[Section]:
    """Return the statements of a result of ``nfd paper claims``, for the page of ``nfd report``.

    A result of another command has none.
    """
    rows = result.content.get("rows")
    return [claims_section(rows, level=3)] if _are_claims(rows) else []


def _are_claims(rows: object) -> TypeGuard[list[dict[str, Any]]]:
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and row.keys() >= _KEYS for row in rows)


def claims_section(rows: Sequence[Row], level: Literal[2, 3] = 2) -> Section:
    """Return the statements in a table, and how many have each verdict.

    Each statement comes with its measurement and verdict.
    """
    table: list[Row] = []
    for row in rows:
        tone = _TONES.get(str(row["verdict"]), "open")
        table.append(
            {
                "source": _plain(row["source"]),
                "statement": [f"{row['id']}: {row['statement']}"],
                "measured": _measured(row),
                "verdict": Label(_plain(row["verdict"]), tone),
                "how, and what it says": _details(row),
            }
        )
    return Section("Statements and verdicts", [_count(rows)], table=table, level=level, cards=True)


def _count(rows: Sequence[Row]) -> str:
    """Count verdicts, as ``5 statements. Holds: 3, undecided: 2.``

    The verdicts of this package come first, in their order.
    """
    counts = Counter(str(row["verdict"]) for row in rows)
    ours = [verdict.value for verdict in ClaimVerdict if verdict.value in counts]
    shares = ", ".join(f"{name}: {counts[name]}" for name in dict.fromkeys([*ours, *counts]))
    statements = "statement" if len(rows) == 1 else "statements"
    return f"{len(rows)} {statements}. {shares[:1].upper()}{shares[1:]}."


def _measured(row: Row) -> str:
    """Show the value with its interval and standard error, as far as they are numbers."""
    value = _number(row.get("value"))
    error = _number(row.get("stderr"))
    low = _number(row.get("low"))
    high = _number(row.get("high"))
    if value is None:
        return "none"
    if low is None or high is None:
        return f"{value:.4g}"
    if low == high == value:
        return f"{value:.4g} (exact)"
    measured = f"{value:.4g} [{low:.4g}, {high:.4g}]"
    return measured if error is None else f"{measured} ± {error:.2g}"


def _number(value: Any) -> float | None:
    """Return a number as a float; None for what is not a number, or not a finite one."""
    if not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)


def _details(row: Row) -> list[str]:
    tried = row.get("tried")
    joined = "; ".join(map(str, tried)) if isinstance(tried, list) else ""
    parts = [
        ("Measured", row.get("measurement")),
        ("Reading", row.get("reading")),
        ("Tried", joined),
    ]
    return [f"{name}: {_plain(text).rstrip('.')}." for name, text in parts if text]


def _plain(text: Any) -> str:
    return " ".join(str(text).split())


def _intro(config: FigureConfig, data: str, command: str) -> str:
    return (
        "These are statements of the paper, in our words, that can be measured. All are of version "
        "1 (arXiv:2512.21075, December 2025). Of versions 2 and 3 we could read the abstracts: "
        "they restate what theorem-1 and corollary1 say, with rates, and name no two-layer blocks. "
        f"The statements are judged at size {config.size} on {data} by {command}. For example, "
        "fig1-train says that pre-activation networks train "
        "faster: it holds where the whole interval of the difference in loss lies above 0. "
        "Intervals are 95 % ones, over seeds of the initial weights where networks are trained. "
        "The rule beside each measurement makes the verdict. A statement holds, or does not, where "
        "the whole interval says so. It holds with a condition where it does in part of the cases "
        "or under the condition that its reading names. It is undecided where the interval lies on "
        "both sides of the bound, where networks diverged, or where the grid was too small; the "
        "reading says which. A statement that does not simply hold comes with a list of what was "
        "tried to make it hold."
    )
