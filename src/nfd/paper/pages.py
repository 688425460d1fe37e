"""Pages and files of the figures of the paper, and of its claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard

from nfd.core import Finding, Row, plain, staged, visible
from nfd.paper.claims.claim import ClaimVerdict, figure_of, only_of
from nfd.paper.figures.figure import Figure
from nfd.paper.settings import FigureConfig, warnings_of
from nfd.report import Label, Report, Result, Section, figure_section, made_by, write_charts, write_page

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
    judge = f"Judge them, with the same options of data and size: nfd paper claims --only {only_of(figure.name)}"
    said = Section("What the paper says of this figure", [f"Statements: {', '.join(statements)}.", judge])
    with staged(directory) as folder:
        number = figure.name.replace("figure-", "Figure ")
        write_charts(findings, folder)
        section = figure_section(f"{number}: {figure.title}", findings)
        sections = [*_warning(config.warnings), section, *([said] if statements else [])]
        write_page(folder / f"{figure.name}.html", f"{figure.title} ({data})", sections)
    return section


def write_figures(
    config: FigureConfig, drawn: Sequence[tuple[Sequence[Finding], Section]], data: str, directory: Path, command: str
) -> Path:
    """Write the page of several figures, and ``result.json``; returns the page's path."""
    return Report(
        f"The figures of the paper, on {data}",
        command,
        config.plain(),
        [],
        opening=[*_warning(config.warnings), *(section for _, section in drawn)],
        closing=[made_by(command, "The same command draws again without training.")],
        content={"findings": plain([finding for findings, _ in drawn for finding in findings])},
    ).write(directory)


def warning_sections(result: Result) -> list[Section]:
    """The warning of a result at size smoke, for the page of ``nfd report``; none of another."""
    config = result.content.get("config")
    return _warning(warnings_of(config.get("size")) if isinstance(config, dict) else [], level=3)


def _warning(warnings: list[str], level: Literal[2, 3] = 2) -> list[Section]:
    return [Section("Not the size of the paper", warnings, level=level)] if warnings else []


# ---- claims


def write_claims(
    config: FigureConfig, rows: Sequence[dict[str, Any]], data: str, directory: Path, command: str
) -> Path:
    """Write the table of claims as ``result.json``, Markdown and a page; returns the page's path."""
    return Report(
        _CLAIMS,
        command,
        config.plain(),
        [],
        opening=[
            *_warning(config.warnings), Section("How", [_intro(config, data, command)]), claims_section(rows),
        ],
        content={"data": data, "rows": list(rows)},
        texts={"claims.md": claims_page(config, rows, data, command)},
    ).write(directory)  # fmt: skip


def claims_page(config: FigureConfig, rows: Sequence[Row], data: str, command: str) -> str:
    """The table of claims as a page in Markdown."""
    return claims_markdown(rows, f"# {_CLAIMS}\n\n{in_markdown(_intro(config, data, command))}")


def claims_sections(result: Result) -> list[Section]:
    """The statements of a result of ``nfd paper claims``, for the page of ``nfd report``; none of another command's."""
    rows = result.content.get("rows")
    return [claims_section(rows, level=3)] if _are_claims(rows) else []


def _are_claims(rows: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(rows, list) and bool(rows) and all(isinstance(r, dict) and r.keys() >= _KEYS for r in rows)


def claims_section(rows: Sequence[Row], level: Literal[2, 3] = 2) -> Section:
    """The statements in a table, each with its measurement and verdict, and how many hold."""
    table = [
        {
            "source": _plain(row["source"]),
            "statement": [f"{row['id']}: {row['statement']}"],
            "measured": _measured(row),
            "verdict": Label(_plain(row["verdict"]), _TONES.get(str(row["verdict"]), "open")),
            "how, and what it says": _details(row),
        }
        for row in rows
    ]
    return Section("Statements and verdicts", [_count(rows)], table=table, level=level, cards=True)


def claims_markdown(rows: Sequence[Row], intro: str) -> str:
    """``intro``, and for every figure a table of its statements in Markdown, with what was measured, read and tried."""
    by_figure: dict[str, list[Row]] = {}
    for row in rows:
        by_figure.setdefault(figure_of(str(row["id"]), str(row["source"])) or "", []).append(row)
    lines = [intro.strip(), "", in_markdown(_count(rows)), ""]
    for figure, own in sorted(by_figure.items()):
        lines += [f"## {figure.replace('figure-', 'Figure ') or 'Theory and other sections'}", ""]
        lines += ["| id | source | statement | measured | verdict |", "| --- | --- | --- | --- | --- |"]
        for r in own:
            cells = (r["id"], r["source"], r["statement"], _measured(r), r["verdict"])
            lines.append(f"| {' | '.join(map(in_markdown, cells))} |")
        lines.append("")
        for r in own:
            name, verdict, details = map(in_markdown, (r["id"], r["verdict"], " ".join(_details(r))))
            lines.append(f"- **{name}**, {verdict}. {details}")
        lines.append("")
    return "\n".join(lines).strip() + "\n"


def in_markdown(text: Any) -> str:
    """Text in Markdown: in one line, without what would end a cell, begin HTML, or make a link or a picture."""
    shown = visible(_plain(text)).replace("&", "&amp;").replace("<", "&lt;")
    for mark in "\\|*_`[]!":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


def _count(rows: Sequence[Row]) -> str:
    """``5 statements. Holds: 3, undecided: 2.``"""
    counts = Counter(str(row["verdict"]) for row in rows)
    order = dict.fromkeys([*(verdict for verdict in ClaimVerdict if verdict in counts), *counts])
    shares = ", ".join(f"{name}: {counts[name]}" for name in order)
    return f"{len(rows)} statement{'s' if len(rows) != 1 else ''}. {shares[:1].upper()}{shares[1:]}."


def _measured(row: Row) -> str:
    """The value with its interval and standard error, as far as they are known."""
    value, error, low, high = (_number(row.get(name)) for name in ("value", "stderr", "low", "high"))
    if value is None:
        return "none"
    if low is None or high is None:
        return f"{value:.4g}"
    if low == high == value:
        return f"{value:.4g} (exact)"
    return f"{value:.4g} [{low:.4g}, {high:.4g}]" + (f" ± {error:.2g}" if error is not None else "")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _details(row: Row) -> list[str]:
    tried = row.get("tried")
    joined = "; ".join(map(str, tried)) if isinstance(tried, list) else ""
    parts = [("Measured", row.get("measurement")), ("Reading", row.get("reading")), ("Tried", joined)]
    return [f"{name}: {_plain(text).rstrip('.')}." for name, text in parts if text]


def _plain(text: Any) -> str:
    return " ".join(str(text).split())


def _intro(config: FigureConfig, data: str, command: str) -> str:
    return (
        "These are statements of the paper, in our words, that can be measured. All are of version 1 "
        "(arXiv:2512.21075, December 2025). Of versions 2 and 3 we could read the abstracts: they restate what "
        "theorem-1 and corollary1 say, with rates, and name no two-layer blocks. The statements are "
        f"judged at size {config.size} on {data} by {command}. For example, fig1-train says that pre-activation "
        "networks train "
        "faster: it holds where the whole interval of the difference in loss lies above 0. Intervals are 95 % ones, "
        "over seeds of the initial weights where networks are trained. The rule beside each measurement makes the "
        "verdict. A statement holds, or does not, where the whole interval says so. It holds with a condition where it "
        "does in part of the cases or under the condition that its reading names. It is undecided where the interval "
        "lies on both sides of the bound, where networks diverged, or where the grid was too small; the reading says "
        "which. A statement that does not simply hold comes with a list of what was tried to make it hold."
    )
