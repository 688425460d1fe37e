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
    judge = (
        "To judge them, with the same options of data and size: nfd paper claims --only "
        f"{only_of(figure.name)}"
    )
    said = Section(
        "What the paper says of this figure", [f"Statements: {', '.join(statements)}.", judge]
    )
    with staged(directory) as folder:
        write_charts([replace(f, title=f"{f.title}: {f.headline}") for f in findings], folder)
        section = figure_section(
            f"{figure.name.capitalize().replace('-', ' ')}: {figure.title}", findings
        )
        sections = [*_warning(config.warnings), section, *([said] if statements else [])]
        write_page(folder / f"{figure.name}.html", f"{figure.title} ({data})", sections)
    return section


def write_figures(
    config: FigureConfig,
    drawn: Sequence[tuple[Figure, Sequence[Finding], Section]],
    data: str,
    directory: Path,
    command: str,
) -> tuple[Lead, Path]:
    """Write the page of figures, which opens with the answer of the first; returns what it begins
    with, its path.
    """
    panels = [panel for _, own, _ in drawn for panel in own]
    sections = [section for *_, section in drawn]
    answers = [
        panel
        for figure, own, _ in drawn
        for panel in own
        if panel.name == f"{figure.name}{figure.answer}"
    ]
    numbers = {
        "figures": f"{len(drawn)}",
        "panels": f"{len(panels)}",
        "size": f"{config.size}, on {data}",
    }
    said = (*config.warnings, f"{drawn[0][0].title} {answers[0].headline}")[0]
    lead = Lead(said, "partly" if config.warnings else "open", numbers)
    return lead, Report(
        f"The figures of the paper, on {data}"
        if len(drawn) > 1
        else f"{sections[0].title} ({data})",
        command,
        config.plain(),
        [],
        lead,
        answers=[
            f"{section.title} {a.headline}"
            for section, a in zip(sections, answers, strict=True)
            if drawn[1:]
        ],
        opening=opening_of(answers),
        closing=[*sections, made_by(command, "The same command draws again without training.")],
        content={"findings": plain(panels)},
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
) -> tuple[Lead, Path]:
    """Write the table of claims as ``result.json`` and a page; returns what it begins with, and its
    path.
    """
    counts = Counter(str(row["verdict"]) for row in rows)
    holds = counts[ClaimVerdict.HOLDS]
    numbers = {f"{v}": f"{counts[v]}" for v in ClaimVerdict if counts[v]}
    held = (
        f"{holds} of {len(rows)} statements of the paper hold, {counts[ClaimVerdict.FAILS]} do not."
    )
    said = (*config.warnings, held)[0]
    lead = Lead(said, "good" if holds == len(rows) and not config.warnings else "partly", numbers)
    return lead, Report(
        _CLAIMS,
        command,
        config.plain(),
        [_counted(rows, said)],
        lead,
        opening=[claims_section(rows)],
        closing=[Section("How", [_intro(config, data, command)])],
        content={"data": data, "rows": list(rows)},
    ).write(directory)


def _counted(rows: Sequence[Row], verdict: str) -> Finding:
    """How many statements of each figure have each verdict, under the ``verdict`` on all."""
    figures = [figure_of(row["id"], row["source"]) or "no figure" for row in rows]
    counts = Counter(zip(figures, (row["verdict"] for row in rows), strict=True))
    bars = [
        {"series": word.value, "figure": figure.replace("figure-", "Fig. "), "statements": n}
        for word in ClaimVerdict
        for figure in sorted(set(figures))
        if (n := counts[figure, word])
    ]
    axes = Axes(
        "statements",
        "figure",
        "statements",
        "",
        "counts",
        order=tuple(word.value for word in ClaimVerdict),
    )
    return Finding("verdicts", "Statements of each figure, by verdict", verdict, bars, axes, "")


def claims_sections(result: Result) -> list[Section]:
    """The statements of a result of ``nfd paper claims``, for the page of ``nfd report``; none of
    another command's.
    """
    rows = result.content.get("rows")
    return [claims_section(rows, level=3)] if _are_claims(rows) else []


def _are_claims(rows: object) -> TypeGuard[list[dict[str, Any]]]:
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(r, dict) and r.keys() >= _KEYS for r in rows)
    )


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


def _count(rows: Sequence[Row]) -> str:
    """``5 statements. Holds: 3, undecided: 2.``"""
    counts = Counter(str(row["verdict"]) for row in rows)
    order = dict.fromkeys([*(verdict for verdict in ClaimVerdict if verdict in counts), *counts])
    shares = ", ".join(f"{name}: {counts[name]}" for name in order)
    return (
        f"{len(rows)} statement{'s' if len(rows) != 1 else ''}. {shares[:1].upper()}{shares[1:]}."
    )


def _measured(row: Row) -> str:
    """The value with its interval and standard error, as far as they are known."""
    value, error, low, high = (
        _number(row.get(name)) for name in ("value", "stderr", "low", "high")
    )
    if value is None:
        return "none"
    if low is None or high is None:
        return f"{value:.4g}"
    if low == high == value:
        return f"{value:.4g} (exact)"
    return f"{value:.4g} [{low:.4g}, {high:.4g}]" + (f" ± {error:.2g}" if error is not None else "")


def _number(value: Any) -> float | None:
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
