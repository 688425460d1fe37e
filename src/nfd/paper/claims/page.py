"""Statements and their verdicts, as a table of a page and as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, TypeGuard

from nfd.core import Row, visible
from nfd.paper.claims.claim import ClaimVerdict, figure_of
from nfd.report import Label, Result, Section

_KEYS = {"id", "source", "statement", "verdict"}
_TONES: dict[str, Literal["good", "partly", "bad", "open"]] = {
    ClaimVerdict.HOLDS: "good",
    ClaimVerdict.CONDITIONAL: "partly",
    ClaimVerdict.FAILS: "bad",
}


def are_claims(rows: object) -> TypeGuard[list[dict[str, Any]]]:
    """Whether rows of a result are statements with verdicts."""
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and row.keys() >= _KEYS for row in rows)


def claims_sections(result: Result) -> list[Section]:
    """The statements of a result of ``nfd paper claims``, for the page of ``nfd report``; none of another command's."""
    rows = result.content.get("rows")
    return [claims_section(rows, level=3)] if are_claims(rows) else []


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
    return Section(
        "Statements and verdicts",
        [_count(rows)] if rows else ["There are none."],
        table=table,
        level=level,
        cards=True,
    )


def claims_markdown(rows: Sequence[Row], intro: str) -> str:
    """``intro``, and for every figure a table of its statements in Markdown, with what was measured, read and tried."""
    lines = [intro.strip(), ""] + ([in_markdown(_count(rows)), ""] if rows else [])
    for figure in sorted({figure_of(str(row["id"]), str(row["source"])) or "" for row in rows}):
        own = [row for row in rows if (figure_of(str(row["id"]), str(row["source"])) or "") == figure]
        lines += [f"## {figure.replace('figure-', 'Figure ') or 'Theory and other sections'}", ""]
        lines += ["| id | source | statement | measured | verdict |", "| --- | --- | --- | --- | --- |"]
        cells = [(r["id"], r["source"], r["statement"], _measured(r), r["verdict"]) for r in own]
        lines += [*(f"| {' | '.join(map(in_markdown, row))} |" for row in cells), ""]
        lines += [*(_below(row) for row in own), ""]
    return "\n".join(lines).strip() + "\n"


def _below(row: Row) -> str:
    return f"- **{in_markdown(row['id'])}**, {in_markdown(row['verdict'])}. {in_markdown(' '.join(_details(row)))}"


def _count(rows: Sequence[Row]) -> str:
    """``5 statements: 3 holds, 2 undecided.``"""
    counts = Counter(str(row["verdict"]) for row in rows)
    known = [verdict for verdict in ClaimVerdict if verdict in counts]
    shares = ", ".join(f"{name}: {counts[name]}" for name in dict.fromkeys([*known, *counts]))
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
    try:
        return float(value) if value is not None and math.isfinite(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _details(row: Row) -> list[str]:
    tried = row.get("tried") or []
    tried = tried if isinstance(tried, list | tuple) else [tried]
    joined = "; ".join(map(str, tried))
    parts = [("Measured", row.get("measurement")), ("Reading", row.get("reading")), ("Tried", joined)]
    return [f"{name}: {_ended(_plain(text))}" for name, text in parts if text]


def _plain(text: Any) -> str:
    return " ".join(str(text).split())


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def in_markdown(text: Any) -> str:
    """Text in Markdown: in one line, without what would end a cell, begin HTML, or make a link or a picture."""
    shown = visible(_plain(text)).replace("&", "&amp;").replace("<", "&lt;")
    for mark in "\\|*_`[]!":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
