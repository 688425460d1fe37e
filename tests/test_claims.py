"""Claims: every statement has a complete row, rules decide both ways, and the table covers the equations."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from nfd.cli.main import main
from nfd.core.statistics import Interval
from nfd.paper.claims.claim import Claim, Judged
from nfd.paper.claims.rules import above, as_fast_as, below, between, conditional, inside, undecided
from nfd.paper.claims.table import CLAIMS

ROOT = Path(__file__).parents[1]
VERDICTS = {"holds", "holds with a condition", "does not hold", "undecided", "not testable here"}


def around(value: float, half: float) -> Interval:
    return Interval(value, half / 2, value - half, value + half)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [(around(0.0, 0.1), "holds"), (around(1.0, 0.1), "does not hold"), (around(0.5, 0.3), "undecided")],
)
def test_an_interval_decides_by_where_it_lies(found: Interval, verdict: str) -> None:
    assert inside(found, -0.5, 0.5) == between(found, -0.5, 0.5, "").verdict == verdict
    assert below(found, 0.5, "").verdict == verdict
    mirrored = Interval(-found.value, found.stderr, -found.high, -found.low)
    assert above(mirrored, -0.5, "").verdict == verdict


def test_what_lies_on_a_bound_is_not_beyond_it() -> None:
    same = Interval(0.0, 0.0, 0.0, 0.0)  # runs that do not differ at all
    assert above(same, 0.0, "").verdict == below(same, 0.0, "").verdict == "does not hold"
    assert inside(same, -0.1, 0.1) == inside(Interval(1.0, 0.0, 1.0, math.inf), 0.5, math.inf) == "holds"


def test_an_interval_that_is_not_known_decides_nothing() -> None:
    unknown = Interval(1.0, math.nan, math.nan, math.nan)
    assert between(unknown, 0.0, 2.0, "").verdict == "undecided"
    assert as_fast_as(unknown, -1.0, "").verdict == "undecided"
    assert undecided("too few").verdict == "undecided"


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


def test_a_condition_is_said_of_what_holds_and_of_nothing_else() -> None:
    held = conditional(between(around(0, 0.1), -1, 1, "So."), "At one rate:")
    assert (held.verdict, held.reading) == ("holds with a condition", "At one rate: So.")
    assert conditional(between(around(5, 0.1), -1, 1, "So."), "At one rate:").verdict == "does not hold"


def test_a_row_is_the_claim_and_its_verdict() -> None:
    found = Judged(around(1.0, 0.2), "holds", "So.", ("another rate",))
    claim = Claim("one", "Eq. 0", "It is one.", "The number.", lambda evidence: found)
    assert claim.row(None) == {  # type: ignore[arg-type]
        "id": "one", "source": "Eq. 0", "statement": "It is one.", "measurement": "The number.", "value": 1.0,
        "stderr": 0.1, "low": 0.8, "high": 1.2, "verdict": "holds", "reading": "So.", "tried": ["another rate"],
    }  # fmt: skip


def test_statements_are_many_short_and_different() -> None:
    assert len(CLAIMS) >= 25
    assert len({claim.id for claim in CLAIMS}) == len({claim.statement for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert re.fullmatch(r"[a-z0-9-]+", claim.id)
        assert len(claim.statement) < 220
        assert claim.statement.endswith(".")


@pytest.mark.long
def test_the_command_judges_every_claim_from_the_figures_runs(figures: Path, tmp_path: Path) -> None:
    arguments = ["--size", "smoke", "--store", str(figures), "--out", str(tmp_path), "--executor", "inline"]
    assert main(["claims", *arguments]) == 0
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [row["id"] for row in rows] == [claim.id for claim in CLAIMS]
    keys = {"id", "source", "statement", "measurement", "value", "low", "high", "verdict", "reading", "tried", "stderr"}
    for row in rows:
        assert row.keys() == keys
        assert row["verdict"] in VERDICTS
        assert row["reading"].endswith(".")
        if row["verdict"] in ("holds", "holds with a condition", "does not hold"):
            assert row["low"] is not None
            assert row["low"] <= row["value"] <= row["high"]
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "claims.md").read_text()
    assert all(claim.id in page and claim.id in text for claim in CLAIMS)


def test_the_table_is_complete_against_the_equations() -> None:
    """docs/equations.md names the claims of every equation, and every claim is named there."""
    table = (ROOT / "docs/equations.md").read_text().split("## Deferred decisions")[0]
    named = set(re.findall(r"claim:([a-z0-9-]+)", table))
    assert named == {claim.id for claim in CLAIMS}
    numbers = {int(n) for n in re.findall(r"\d+", " ".join(re.findall(r"Props?\. [\d, and]+", table)))}
    assert numbers >= set(range(1, 9))
    sources = " ".join(claim.source for claim in CLAIMS)
    for name in (*(f"Prop. {k}" for k in range(1, 9)), "Theorem 1", "Corollary 1", "Assumption 1", "Definition 1"):
        assert name in sources, name
    for name in ("7", "8", *(f"Fig. {k}" for k in range(1, 8)), "H.1", "H.2", "I.1", "I.2"):
        assert name in sources, name


def test_the_committed_table_is_of_these_claims() -> None:
    """docs/claims.md is what the command wrote of these statements, and says what was tried where one does not hold."""
    text = (ROOT / "docs/claims.md").read_text()
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 4][1:]
    table = {line[0].removeprefix("| ").replace("\\", ""): line for line in lines if not line[0].startswith("| ---")}
    assert set(table) == {claim.id for claim in CLAIMS}
    details = dict(re.findall(r"^- \*\*([a-z0-9-]+)\*\*, (.*)$", text, flags=re.MULTILINE))
    for claim in CLAIMS:
        assert table[claim.id][2].replace("\\", "").replace("&lt;", "<") == claim.statement
        verdict = table[claim.id][4].removesuffix(" |")
        assert verdict in VERDICTS
        assert verdict != "does not hold" or "Tried:" in details[claim.id], claim.id
