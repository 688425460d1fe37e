"""Pages and tables of hostile names are inert: nothing runs, nothing is loaded, nothing is turned
around or hidden.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.browser import browser, seen

from nfd.cli import main
from nfd.core.answer import Answer, Next
from nfd.core.findings import Axes, Finding
from nfd.core.tables import visible
from nfd.report.charts import MOST_ROWS, MOST_SERIES, left_out, thinned
from nfd.report.picture import Picture

EVIL = (
    "</script><script>document.title='ran'</script>",
    "<img src=http://127.0.0.1:9/x onerror=document.title='ran'>",
    "\"'><svg onload=document.title='ran'>",
    "</title><meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "\u2028\u2029\u202etfel\u2066\u0000\x1b[31m",
    'a\nb\tc\\n"',
    "=cmd|' /C calc'!A0",
    "[a](javascript:alert(1)) ![b](http://127.0.0.1:9/x)",
    "javascript:alert(1)",
    "&lt;script&gt;",
    "constructor",
    "__proto__",
    "long " * 400,
    "x" * 3000,
)


def finding(evil: str, kind: Any = "curves") -> Finding:
    rows = [
        {"series": f"{evil}{k % 2}", evil: 1.0 + k, "y": 1.0 + k, "low": 0.5, "high": 9.0}
        for k in range(6)
    ]
    return Finding(
        evil,
        evil,
        evil,
        rows,
        Axes(evil, "y", evil, evil, kind),
        evil,
        [evil],
        table=[{evil: evil}],
    )


def answer(evil: str) -> Answer:
    table = [{evil: evil}]
    return Answer("bad", evil, evil, evil, evil, Next(evil, evil), evil, table, [evil])


def charts(evil: str) -> list[dict[str, Any]]:
    """A picture of hostile texts, and some that would load, link or paint something."""
    text = {"value": evil}
    spec: dict[str, Any] = {
        "data": {"values": [{evil: evil, "x": 1}]},
        "mark": "point",
        "title": evil,
        "encoding": {"text": text, "description": text, "x": {"field": "x", "title": evil}},
    }
    drawn = Picture("fair", spec, evil, evil, evil, evil, ("good", evil), {evil: "blue"}).plain()
    return [
        drawn,
        drawn | {"spec": spec | {"data": {"url": "http://127.0.0.1:9/x"}}},
        drawn | {"spec": {"layer": [spec | {"encoding": {"href": text}}]}},
        drawn | {"key": {evil: "blue);background:url(http://127.0.0.1:9/x"}},
        drawn | {"spec": {"mark": "point", "encoding": 3}},
        drawn | {"spec": {evil: evil}},
    ]


def results(folder: Path) -> Path:
    """Results of every kind, each with hostile texts wherever a text can be."""
    for k, evil in enumerate(EVIL):
        claim = dict.fromkeys(
            ("id", "source", "statement", "verdict", "measurement", "reading"), evil
        )
        contents: dict[str, dict[str, Any]] = {
            "findings": {"findings": {evil: finding(evil).plain()}, "config": {evil: evil}},
            "claims": {"rows": [claim | {"value": 1.0, "tried": [evil]}]},
            "values": {evil: evil, "nested": {evil: {evil: [evil]}}, "rows": [{evil: evil}]},
            "answers": {"answer": answer(evil).plain(), "charts": charts(evil)},
        }
        for name, content in contents.items():
            place = folder / f"{k}-{name}"
            place.mkdir(parents=True)
            (place / "result.json").write_text(
                json.dumps({"command": evil, "title": evil} | content)
            )
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("evil")
    assert main(["report", str(results(folder / "results")), "--out", str(folder / "report")]) == 0
    return (folder / "report" / "report.html").read_text(encoding="utf-8")


def test_the_only_markup_of_a_page_is_its_own(page: str) -> None:
    assert not re.search(
        r"<(script|img|iframe|object|embed|base|form|link|title[^>]*>[^<]*<meta)", page
    )
    assert not re.search(r"<[^>]* on\w+=", re.sub(r'"[^"]*"', '""', page))
    assert "default-src 'none'" in page.split("<title>")[0]


def test_a_chart_that_would_load_or_link_something_is_not_drawn(page: str) -> None:
    for reason in ("(&#39;url&#39;)", "(&#39;href&#39;)", "key names no colour", "spec needs one"):
        assert page.count(reason) == len(EVIL)
    assert 'fill="red"' not in page
    assert "background:url" not in re.sub(r"<li>.*?</li>", "", page)


def test_what_cannot_be_seen_is_shown_by_its_number(page: str) -> None:
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\u2028\u2029\0\x1b]", page)
    assert "⟨U+202E⟩" in page
    assert visible("a\u200cb ü\u00a0😀\n") == "a\u200cb ü\u00a0😀\n"  # what belongs to words stays
    assert visible("\u061c\x7f") == "⟨U+061C⟩⟨U+007F⟩"


@pytest.mark.skipif(browser() is None, reason="needs chromium, as in make browser")
def test_a_browser_runs_and_loads_nothing_of_it(page: str, tmp_path: Path) -> None:
    shown = seen(page, {"phone": (0, 480, 800)}, tmp_path)
    assert shown.said["phone"]["marks"].count(0) == 0
    # A chart of each finding, and the pictures that are drawn.
    assert len(shown.said["phone"]["marks"]) >= len(EVIL)
    assert "ran" not in shown.said
    assert not [
        line for line in shown.console if "Content-Security-Policy" in line or "Refused" in line
    ]
    assert shown.said["phone"]["overflow"] <= 0


def test_very_many_rows_are_thinned_and_said() -> None:
    axes = Axes("x", "y", "", "", "curves")
    rows: list[dict[str, Any]] = [
        {"series": f"s{k % 7}", "x": k // 7, "y": 1.0} for k in range(30_000)
    ]
    kept = thinned(rows)
    assert MOST_ROWS // 2 < len(kept) <= MOST_ROWS + 14  # rounding and the last of each series
    for name in ("s0", "s6"):
        own, all_ = ([row["x"] for row in some if row["series"] == name] for some in (kept, rows))
        assert (own[0], own[-1]) == (all_[0], all_[-1])
    assert f"{len(kept):,} of 30,000 rows" in left_out(Finding("many", "", "", rows, axes, ""))
    assert thinned(rows[:MOST_ROWS]) == rows[:MOST_ROWS]
    assert len(thinned([{"series": f"s{k}", "x": k} for k in range(500)])) == MOST_SERIES
