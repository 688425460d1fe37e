"""Claims: every statement has a complete row, rules decide both ways, and the table covers the
equations.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from docs._extensions.claims import number, table

from nfd.cli import main
from nfd.core.estimates import Interval
from nfd.paper.claims.claim import (
    above,
    as_fast_as,
    below,
    between,
    inside,
    rescued,
    some_of,
    together,
)
from nfd.paper.claims.table import CLAIMS
from nfd.paper.figures import FIGURES
from nfd.paper.pages import warning_sections, write_figure
from nfd.paper.settings import FigureConfig
from nfd.report import Result

ROOT = Path(__file__).parents[1]
VERDICTS = {"holds", "holds with a condition", "does not hold", "undecided", "not testable here"}


def around(value: float, half: float) -> Interval:
    return Interval(value, half / 2, value - half, value + half)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (around(0.0, 0.1), "holds"),
        (around(1.0, 0.1), "does not hold"),
        (around(0.5, 0.3), "undecided"),
    ],
)
def test_an_interval_decides_by_where_it_lies(found: Interval, verdict: str) -> None:
    assert inside(found, -0.5, 0.5) == between(found, -0.5, 0.5, "").verdict == verdict
    assert below(found, 0.5, "").verdict == verdict
    mirrored = Interval(-found.value, found.stderr, -found.high, -found.low)
    assert above(mirrored, -0.5, "").verdict == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (around(-1.0, 0.1), "holds"),
        (around(-2.0, 0.1), "holds"),  # faster than claimed
        (around(-0.95, 0.1), "holds"),
        (around(-0.86, 0.1), "holds"),  # as exponents seem at finite sizes
        (around(-0.8, 0.1), "undecided"),
        (around(-0.5, 0.1), "does not hold"),  # the root
        (around(-0.9, 0.5), "undecided"),
    ],
)
def test_a_rate_holds_where_it_is_as_fast_as_claimed(found: Interval, verdict: str) -> None:
    assert as_fast_as(found, -1.0, "").verdict == verdict


def test_verdicts_combine() -> None:
    assert together(["holds", "undecided"]) == together([]) == "undecided"
    assert some_of(["holds", "does not hold"]) == "holds with a condition"
    assert some_of(["does not hold"]) == "does not hold"
    saved = rescued("does not hold", {"a": "holds", "b": "undecided"})
    assert saved == ("holds with a condition", " The condition: a.")
    assert rescued("undecided", {"a": "holds"}) == ("undecided", "")


@pytest.mark.parametrize("size", ["smoke", "cpu"])
def test_pages_of_the_smallest_size_warn(size: Any, tmp_path: Path) -> None:
    config = FigureConfig(size=size)
    write_figure(config, FIGURES["5"], [], "digits", tmp_path, ["eq7-inner"])
    page = (tmp_path / "figure-5.html").read_text()
    assert ("nothing of what the paper says" in page) == bool(config.warnings) == (size == "smoke")
    assert "nfd paper claims --only fig5" in page
    result = Result(".", {"command": "nfd figure", "config": config.plain()})
    assert bool(warning_sections(result)) == (size == "smoke")
    assert not warning_sections(Result(".", {"command": "nfd figure", "config": None}))


@pytest.mark.long
def test_the_command_judges_every_claim_from_the_figures_runs(
    figures: Path, tmp_path: Path
) -> None:
    arguments = [
        "--size",
        "smoke",
        "--store",
        str(figures),
        "--out",
        str(tmp_path),
        "--executor",
        "inline",
    ]
    assert main(["paper", "claims", *arguments]) == 0
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [row["id"] for row in rows] == [claim.id for claim in CLAIMS]
    keys = {
        *[
            "id",
            "source",
            "statement",
            "measurement",
            "value",
            "low",
            "high",
            "verdict",
            "reading",
            "tried",
            "stderr",
        ]
    }
    for row in rows:
        assert row.keys() == keys
        assert row["verdict"] in VERDICTS
        assert row["reading"].endswith(".")
        if row["verdict"] in ("holds", "holds with a condition", "does not hold"):
            assert row["low"] is not None
            assert row["low"] <= row["value"] <= row["high"]
    page = (tmp_path / "report.html").read_text()
    assert all(claim.id in page for claim in CLAIMS)
    assert (
        page.index('class="state open"')
        < page.index("<svg")
        < page.index("Statements and verdicts")
    )
    assert main(["paper", "claims", *arguments, "--only", CLAIMS[0].id]) == 0
    assert [row["id"] for row in json.loads((tmp_path / "result.json").read_text())["rows"]] == [
        CLAIMS[0].id
    ]


def test_the_table_is_complete_against_the_equations() -> None:
    """docs/equations.md names the claims of every equation, and every claim is named there."""
    table = (ROOT / "docs/equations.md").read_text().split("## Deferred decisions")[0]
    named = set(re.findall(r"claim:([a-z0-9-]+)", table))
    assert named == {claim.id for claim in CLAIMS}
    numbers = {
        int(n) for n in re.findall(r"\d+", " ".join(re.findall(r"Props?\. [\d, and]+", table)))
    }
    assert numbers >= set(range(1, 9))
    sources = " ".join(claim.source for claim in CLAIMS)
    for name in (
        *(f"Prop. {k}" for k in range(1, 9)),
        "Theorem 1",
        "Corollary 1",
        "Assumption 1",
        "Definition 1",
    ):
        assert name in sources, name
    for name in ("7", "8", *(f"Fig. {k}" for k in range(1, 8)), "H.1", "H.2", "I.1", "I.2"):
        assert name in sources, name


def test_the_committed_table_is_of_these_claims() -> None:
    """docs/claims.md counts them, and names those that do not hold, of which it is said what was
    tried.
    """
    text = (ROOT / "docs/claims.md").read_text().replace("\n", " ")
    readme = (ROOT / "README.md").read_text()
    stored = json.loads((ROOT / "docs/claims.json").read_text())
    assert [row["id"] for row in stored["rows"]] == [claim.id for claim in CLAIMS]
    shown = table(stored["rows"])
    for row, claim in zip(stored["rows"], CLAIMS, strict=True):
        assert row["statement"] == claim.statement
        assert row["verdict"] in VERDICTS
        assert f'<tr id="{claim.id}"' in shown
        failed = row["verdict"] == "does not hold"
        assert (
            bool(re.search(rf"\| `{claim.id}` [^`]* {re.escape(number(row))}[ |]", text)) == failed
        ), claim.id
        assert row["tried"] or not failed, claim.id
    count = Counter(row["verdict"] for row in stored["rows"])
    told = f"hold on CIFAR-10, {count['holds with a condition']} hold with"
    assert f"Of {len(CLAIMS)} statements {count['holds']} {told}" in readme
    assert f"Of {len(CLAIMS)} statements that can be measured, {count['holds']} {told}" in text
