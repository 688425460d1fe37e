"""Pages and files of the figures of the paper, and of its claims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from nfd.core import (
    Answer,
    Axes,
    Finding,
    Next,
    Row,
    Tone,
    alike,
    listed,
    number,
    plain,
    plural,
    staged,
)
from nfd.paper.claims.claim import ClaimVerdict, figure_of, only_of
from nfd.paper.figures.figure import Figure
from nfd.paper.settings import FigureConfig, warnings_of
from nfd.report import (
    AnswerPage,
    Label,
    Result,
    Section,
    figure_section,
    write_charts,
    write_page,
)

_KEYS = {"id", "source", "statement", "verdict"}
_TONES: dict[str, Tone] = {
    ClaimVerdict.HOLDS: "good",
    ClaimVerdict.CONDITIONAL: "good",
    ClaimVerdict.FAILS: "bad",
}
_SYMBOLS: dict[Tone, str] = {"good": "✓", "bad": "✗", "open": "?"}
# What fails is read first.
_ORDER: list[Tone] = ["bad", "open", "good"]


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
    with staged(directory) as folder:
        write_charts([replace(f, title=f"{f.title}: {f.headline}") for f in findings], folder)
        section = figure_section(_title(figure), findings)
        sections = [section]
        if statements:
            text = f"Statements: {', '.join(statements)}."
            sections.append(Section("What the paper says of this figure", [text]))
        answer = figures_answer(config, [(figure, findings)], data)
        write_page(folder / f"{figure.name}.html", answer, sections)
    return section


def figures_answer(
    config: FigureConfig, drawn: Sequence[tuple[Figure, Sequence[Finding]]], data: str
) -> Answer:
    """Say what the figures show, the answer of each first."""
    answers: list[str] = []
    lines: list[str] = []
    for figure, findings in drawn:
        for panel in findings:
            headline = in_words(panel.headline)
            lines.append(f"{panel.name}: {headline}")
            if panel.name == f"{figure.name}{figure.answer}":
                answers.append(f"{figure.title} {headline}")
    titles = [_title(figure) for figure, _ in drawn]
    if len(drawn) == 1:
        title = f"{titles[0].removesuffix('?')}, {plural(len(lines), 'panel')} drawn"
        only = f" --only {only_of(drawn[0][0].name)}"
    else:
        title = f"The {len(drawn)} figures of the paper are drawn, {len(lines)} panels"
        only = ""
    answer = Answer(
        "good",
        "Drawn",
        title,
        because=answers[0] if answers else "",
        next=Next(
            "Judge what the paper says of it, with the same options",
            f"nfd paper claims{only} --size {config.size}",
        ),
        about=f"nfd paper figure · {data} · size {config.size}",
        details=[*answers[1:], *lines],
    )
    return _warned(answer, config)


def _warned(answer: Answer, config: FigureConfig) -> Answer:
    """Leave an answer open at a size that shows nothing of what the paper says."""
    for warning in config.warnings:
        but = warning[:1].lower() + warning[1:]
        return replace(answer, tone="open", state="Not the size of the paper", but=but)
    return answer


def in_words(headline: str) -> str:
    """Write the intervals of a headline as answers do: ``(95 %: 1.2 to 1.4)``."""
    return re.sub(r" \[([^\[\],]+), ([^\[\],]+)\]", r" (95 %: \1 to \2)", headline)


def _title(figure: Figure) -> str:
    name = figure.name.capitalize().replace("-", " ")
    return f"{name}: {figure.title}"


def write_figures(
    config: FigureConfig,
    drawn: Sequence[tuple[Figure, Sequence[Finding], Section]],
    data: str,
    directory: Path,
    command: str,
) -> tuple[Answer, Path]:
    """Write the page of figures; returns the answer with which it begins, and its path."""
    panels: list[Finding] = []
    for _, findings, _ in drawn:
        panels += findings
    answer = figures_answer(config, [(figure, findings) for figure, findings, _ in drawn], data)
    page = AnswerPage(
        answer,
        command,
        config.plain(),
        [section for _, _, section in drawn],
        content={"findings": plain(panels)},
    )
    return answer, page.write(directory)


def warning_sections(result: Result) -> list[Section]:
    """Return the warning of a result at size smoke, for ``nfd report``; none of another."""
    config = result.content.get("config")
    return _warning(warnings_of(config.get("size")) if isinstance(config, dict) else [], level=3)


def _warning(warnings: list[str], level: Literal[2, 3] = 2) -> list[Section]:
    return [Section("Not the size of the paper", warnings, level=level)] if warnings else []


# ---- claims


def write_claims(
    config: FigureConfig, rows: Sequence[dict[str, Any]], data: str, directory: Path, command: str
) -> tuple[Answer, Path]:
    """Write the table of claims as ``result.json`` and a page.

    Returns the answer with which the page begins, and its path.
    """
    answer = claims_answer(config, rows, data)
    page = AnswerPage(
        replace(answer, details=()),
        command,
        config.plain(),
        [],
        [_counted(rows, answer.title)],
        [claims_section(rows), Section("How", [_intro(config, data, command)], folded=True)],
        {"data": data, "rows": list(rows)},
    )
    return answer, page.write(directory)


def claims_answer(config: FigureConfig, rows: Sequence[dict[str, Any]], data: str) -> Answer:
    """Count what holds and what does not, and name the statements, those that fail first."""
    counts = Counter(str(row["verdict"]) for row in rows)
    holds = counts[ClaimVerdict.HOLDS]
    fails = counts[ClaimVerdict.FAILS]
    tone: Tone = "good" if holds == len(rows) else "open"
    state = "All hold" if tone == "good" else "Not all decided"
    if fails:
        tone = "bad"
        state = "Not all hold"
    others = [f"{counts[v]} {v}" for v in ClaimVerdict if counts[v] and v != ClaimVerdict.HOLDS]
    title = f"{holds} of {plural(len(rows), 'statement')} of the paper "
    title += "holds" if holds == 1 else "hold"
    by_tone = sorted(rows, key=lambda row: _ORDER.index(_tone(row)))
    answer = Answer(
        tone,
        state,
        title,
        because=f"Of the others: {listed(others)}." if others else "",
        next=Next("Where each stands, on one page with other results", "nfd report out"),
        about=f"nfd paper claims · {data} · size {config.size}",
        table=[_line(row) for row in by_tone],
        details=[f"{row['id']}: {row['statement']} {in_words(row['reading'])}" for row in by_tone],
    )
    return _warned(answer, config)


def _tone(row: Row) -> Tone:
    return _TONES.get(str(row["verdict"]), "open")


def _line(row: Row) -> dict[str, str]:
    """Return a line of the terminal: whether a statement holds, its id and its number."""
    return {
        "": _SYMBOLS[_tone(row)],
        "statement": str(row["id"]),
        "verdict": str(row["verdict"]),
        "measured": _measured(row),
    }


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
        table.append(
            {
                "source": _plain(row["source"]),
                "statement": [f"{row['id']}: {row['statement']}"],
                "measured": _measured(row),
                "verdict": Label(_plain(row["verdict"]), _tone(row)),
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
    """Show the value with its interval, as far as they are numbers."""
    value = _number(row.get("value"))
    low = _number(row.get("low"))
    high = _number(row.get("high"))
    if value is None:
        return "none"
    if low is None or high is None:
        return number(value, 3)
    if low == high == value:
        return f"{number(value, 3)} (exact)"
    shown, *limits = alike(value, low, high)
    return f"{shown} (95 %: {' to '.join(limits)})"


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
