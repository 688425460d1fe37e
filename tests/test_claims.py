"""Claims: every statement has a complete row, rules decide both ways, and the table covers the equations."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats
from tests.handmade import made

from nfd.cli.main import main
from nfd.core.intervals import Interval, mean
from nfd.data.digits import digits
from nfd.paper.claims.claim import Bounds, Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.page import chance
from nfd.paper.claims.rules import above, as_fast_as, below, between, conditional, inside, undecided
from nfd.paper.claims.significance import discovery_rates, level
from nfd.paper.claims.table import CLAIMS, chosen, evidence_for, ids_of, updated
from nfd.paper.config import FigureConfig
from nfd.paper.earlier import clash
from nfd.paper.figures import FIGURES
from nfd.paper.figures.figure import Figure
from nfd.paper.figures.selection import Runs
from nfd.paper.pages import claims_page, warning_sections, write_figure
from nfd.report import Result

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
        "p": None,
    }  # fmt: skip


def test_the_level_of_a_verdict_is_that_of_students_test() -> None:
    samples = torch.tensor([0.3, 0.5, 0.2, 0.9, 0.4], dtype=torch.float64)
    measured = mean(samples)
    above_zero = stats.ttest_1samp(samples.numpy(), 0.0).pvalue
    assert level(measured, 0.0, math.inf) == pytest.approx(above_zero, rel=1e-6)
    assert level(measured, -math.inf, 0.0) == pytest.approx(above_zero, rel=1e-6)  # as sure that it fails
    sides = [stats.ttest_1samp(samples.numpy(), bound).pvalue for bound in (0.1, 1.0)]
    assert level(measured, 0.1, 1.0) == pytest.approx(max(sides), rel=1e-6)  # both bounds have to be kept
    assert level(measured, measured.low, math.inf) == pytest.approx(0.05)
    assert level(Interval(1.0, 0.0, 1.0, 1.0), 0.5, math.inf) == 0.0


@pytest.mark.parametrize(("value", "p"), [(2.0, 0.02), (-2.0, 0.04)])
def test_a_failure_in_one_of_two_cases_is_as_likely_by_chance_twice(value: float, p: float) -> None:
    bounds = Bounds(0.0, math.inf, 2)
    measured = Interval(value, 1.0, value - 1.96, value + 1.96)
    found = Judged(measured, ClaimVerdict.HOLDS if value > 0 else ClaimVerdict.FAILS, "", (), bounds)
    assert found.p == pytest.approx(p * 2 * stats.norm.sf(2.0) / 0.02, rel=1e-3)
    assert Judged(measured, ClaimVerdict.HOLDS, "").p is None


def test_false_discoveries_are_as_rare_as_q_says() -> None:
    """400 tables of 40 statements, of which half lie on their bound: of verdicts with q up to 0.1 few are wrong."""
    draws = torch.randn(400, 40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draws[:, 20:] += 2.0
    p = stats.ttest_1samp(draws.numpy(), 0.0, axis=-1).pvalue
    shares = []
    for row in p:
        given = torch.tensor(discovery_rates(row.tolist())) <= 0.1
        shares.append(float(given[:20].sum()) / max(1, int(given.sum())))
    assert sum(shares) / len(shares) == pytest.approx(0.05, abs=0.01)  # 0.1 times the share that lie on their bound
    assert discovery_rates([None, 0.04, None]) == [None, 0.04, None]


def test_the_page_says_how_many_verdicts_are_wrong_by_chance() -> None:
    row = {"id": "one", "verdict": "holds", "p": 0.01}
    text = chance([row, row | {"id": "two", "p": 0.04}, row | {"id": "three", "verdict": "undecided", "p": 0.5},
                   row | {"p": None}])  # fmt: skip
    assert "Of 2 verdicts" in text
    assert "at most 0.1 are" in text
    assert "among these 3 tests" in text
    assert "q of a verdict is 0.06 (two)" in text


def test_statements_judged_anew_take_the_place_of_their_rows() -> None:
    first, second = (claim.id for claim in CLAIMS[:2])
    rows = updated([{"id": second, "p": 1}, {"id": "gone"}], [{"id": first, "p": 2}, {"id": second, "p": 3}])
    assert rows == [{"id": first, "p": 2}, {"id": second, "p": 3}]


@pytest.mark.parametrize("at_need", [True, False])
def test_parts_are_trained_when_a_claim_reads_them(at_need: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def trained(figure: Figure, config: FigureConfig, *_: Any) -> dict[str, Runs]:
        parts = _[2] if len(_) > 2 else list(figure.parts[config.size])
        asked.append((figure.name, parts))
        return {name: Runs([]) for name in parts}

    monkeypatch.setattr("nfd.paper.claims.table.trained", trained)
    evidence = evidence_for(FigureConfig(size="smoke"), SimpleNamespace(progress=False), at_need=at_need)  # type: ignore[arg-type]
    if at_need:
        for _ in range(2):  # the second reading trains nothing
            evidence.part("5", "collapse", "stream")
        assert asked == [("figure-5", ["collapse"])]
        assert {name for parts in evidence.read.values() for name in parts} == {"collapse"}
        with pytest.raises(KeyError):
            evidence.part("5", "none")
    else:
        assert len(asked) == 8
        assert evidence.read == evidence.runs


def test_statements_are_chosen_by_id_by_beginning_and_by_figure() -> None:
    assert [claim.id for claim in chosen(["eq7-inner"])] == ["eq7-inner"]
    assert [claim.id for claim in chosen(["eq7"])] == ["eq7-inner", "eq7-stream"]
    assert chosen([]) == list(CLAIMS)
    assert not chosen(["eq7-inn"])  # a beginning ends where a word does
    of_figure = ids_of("figure-5")
    assert [claim.id for claim in chosen(["fig5"])] == of_figure
    assert {"fig5-moves", "eq7-inner"} <= {*of_figure}
    assert "fig4-mup-diverges" in ids_of("figure-4")
    assert "eq8-stream" not in of_figure


@pytest.mark.parametrize("size", ["smoke", "cpu"])
def test_pages_of_the_smallest_size_warn(size: Any, tmp_path: Path) -> None:
    config = FigureConfig(size=size)
    write_figure(config, FIGURES["5"], [], "digits", tmp_path, ["eq7-inner"])
    page = (tmp_path / "figure-5.html").read_text()
    assert ("nothing of what the paper says" in page) == bool(config.warnings) == (size == "smoke")
    assert "nfd paper claims --only fig5" in page
    result = Result(".", {"command": "nfd figure", "config": config.model_dump()})
    assert bool(warning_sections(result)) == (size == "smoke")
    assert not warning_sections(Result(".", {"command": "nfd figure", "config": None}))


def test_more_runs_of_a_claim_stand_in_for_the_figures() -> None:
    shown, more = Runs([]), made(lambda config: ({}, {}))
    evidence = Evidence("smoke", digits(), runs={"4": {"dnn": shown, "mup": shown}, "claims": {"4-ends": more}})
    assert evidence.part("4", "dnn", "ends") is more
    assert evidence.part("4", "mup") is shown
    assert Evidence("smoke", digits(), runs={"4": {"mup": shown}}).part("4", "mup", "ends") is shown


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
    assert main(["paper", "claims", *arguments]) == 0
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [row["id"] for row in rows] == [claim.id for claim in CLAIMS]
    keys = {
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
        "p",
    }
    for row in rows:
        assert row.keys() == keys
        assert row["verdict"] in VERDICTS
        assert row["reading"].endswith(".")
        if row["verdict"] in ("holds", "holds with a condition", "does not hold"):
            assert row["low"] is not None
            assert row["low"] <= row["value"] <= row["high"]
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "claims.md").read_text()
    assert all(claim.id in page and claim.id in text for claim in CLAIMS)
    assert main(["paper", "claims", *arguments, "--only", CLAIMS[0].id]) == 0
    assert [row["id"] for row in json.loads((tmp_path / "result.json").read_text())["rows"]] == [c.id for c in CLAIMS]


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
    stored = json.loads((ROOT / "docs/claims.json").read_text())
    config = FigureConfig(data="images", data_dir="cifar10-jpeg")
    assert text == claims_page(config, stored["rows"], stored["data"], stored["command"])
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 5]
    table = {
        line[0].removeprefix("| ").replace("\\", ""): line
        for line in lines
        if not line[0].startswith(("| ---", "| id"))
    }
    assert set(table) == {claim.id for claim in CLAIMS}
    details = dict(re.findall(r"^- \*\*([a-z0-9-]+)\*\*, (.*)$", text, flags=re.MULTILINE))
    for claim in CLAIMS:
        assert table[claim.id][2].replace("\\", "").replace("&lt;", "<") == claim.statement
        verdict = table[claim.id][5].removesuffix(" |")
        assert verdict in VERDICTS
        assert verdict != "does not hold" or "Tried:" in details[claim.id], claim.id
    count = Counter(line[5].removesuffix(" |") for line in table.values())
    told = f"Of {len(CLAIMS)} statements {count['holds']} hold on CIFAR-10, {count['holds with a condition']} hold with"
    assert told in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("kept", "change"),
    [("figure-5.html", {"seed": 3}), ("claims.md", {"size": "paper"}), ("figure-1.html", {"data_dir": "cifar-10"})],
)
def test_results_of_two_settings_do_not_share_a_directory(kept: str, change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "cifar-10").mkdir()
    change = {name: str(tmp_path / value) if name == "data_dir" else value for name, value in change.items()}
    patterns = ["figure-*.html", "claims.md"]
    first, other = FigureConfig(size="smoke"), FigureConfig(**{"size": "smoke", **change})
    assert clash(other, tmp_path, patterns) is None  # nothing is there
    (tmp_path / kept).touch()
    assert clash(first, tmp_path, patterns) is None  # not made by nfd: the check of what may be replaced speaks
    (tmp_path / "config.toml").write_text("steps = 3\n")
    assert "another setting" in (clash(first, tmp_path, patterns) or "")
    (tmp_path / "config.toml").write_text(first.toml())
    assert clash(FigureConfig(size="smoke", data="digits"), tmp_path, patterns) is None
    said = clash(other, tmp_path, patterns) or ""
    assert "digits at size smoke, seed 0" in said
    assert said.count(" at size ") == 2
    assert clash(other, tmp_path, ["other-*"]) is None


def test_a_command_refuses_to_mix_two_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "claims.md").touch()
    (tmp_path / "config.toml").write_text(FigureConfig(seed=3).toml())
    assert main(["paper", "claims", "--only", CLAIMS[0].id, "--out", str(tmp_path)]) == 2
    assert "Give another --out" in capsys.readouterr().err
    (tmp_path / "figure-5.html").touch()
    assert main(["paper", "figure", "1", "--out", str(tmp_path)]) == 2
    assert "seed 3, and this is digits at size cpu, seed 0" in capsys.readouterr().err
