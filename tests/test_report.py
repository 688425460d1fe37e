"""Findings survive their files, charts of every kind are drawn, pages hold in a browser, any
results make a page.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.browser import Seen, browser, seen

from nfd.cli import main
from nfd.core.files import write_json
from nfd.core.findings import Axes, Finding, plain
from nfd.paper.pages import claims_section
from nfd.report.charts import chart_of, still
from nfd.report.page import Section, figure_section, finding_section, page

KINDS = ("curves", "logcurves", "logarithmic", "semilogarithmic", "linear", "named")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><b>&amp;",
    "\u2028\u2029<!--",
    "datum['x'] + signal('hidden')",
    "{{constructor}}.a[b]\\",
    "\ud800",
    "title",
    "",
)


def finding(
    kind: str, name: str = "", series: tuple[str, ...] = ("depth 2", "depth 8", "depth 4")
) -> Finding:
    """A chart's worth of rows that fall with x, and a line to compare with."""
    places: list[float] = [4, 8, math.inf] if kind == "named" else [1, 2, 4, 8]
    rows = [
        {
            "series": one,
            "x": x,
            "y": (k + 1) / (1 + min(x, 16)),
            "low": 0.8 / (1 + min(x, 16)),
            "high": k + 1.3,
        }
        for k, one in enumerate(series)
        for x in places
    ]
    compared = [{"series": "slope -1", "x": x, "y": 1.5 / min(x, 16)} for x in places]
    axes = Axes("x", "y", "across", "up", kind)  # type: ignore[arg-type]
    return Finding(
        name or kind, f"Kind {kind}", "It falls.", rows, axes, "A caption.", references=compared
    )


# ---- findings

NAMES = st.text(max_size=12) | st.sampled_from([*HOSTILE, "inf", "-inf", "nan", "'nan", "''inf"])
NUMBERS = st.floats() | st.integers() | st.none() | st.booleans()
ROWS = st.lists(st.dictionaries(NAMES, NUMBERS | NAMES, max_size=4), max_size=3)
FINDINGS = st.builds(
    Finding,
    NAMES,
    NAMES,
    NAMES,
    ROWS,
    st.builds(Axes, NAMES, NAMES, NAMES, NAMES, st.sampled_from(KINDS)),
    NAMES,
    st.lists(NAMES, max_size=2),
    ROWS,
    st.lists(st.dictionaries(NAMES, NAMES, max_size=2), max_size=2),
    ROWS,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(FINDINGS)
def test_findings_survive_their_file(found: Finding) -> None:
    written = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert repr(Finding.of(written)) == repr(found)  # by repr, for nan
    assert written["reading"] == found.reading


@pytest.mark.parametrize(
    "bad", [None, 3, [], {}, {"title": "old", "rows": []}, {**finding("linear").plain(), "rows": 3}]
)
def test_what_is_no_finding_says_what_is_wrong(bad: Any) -> None:
    with pytest.raises(ValueError, match="is no finding that can be drawn: "):
        Finding.of(bad)


MARK = {"series": "a", "x": 1.0, "y": 2.0, "text": "here"}
STRIP = {"series": "a", "x": 1.0, "low": 0.5, "high": 2.0}
EDITS: list[tuple[str, dict[str, Any], bool]] = [  # a part, a row of it, whether it can be drawn
    ("marks", MARK, True),
    ("marks", {**MARK, "y": -1.0}, True),  # it has no place on a logarithmic axis, and is left out
    ("marks", {**MARK, "y": "high"}, True),
    ("marks", {name: value for name, value in MARK.items() if name != "text"}, False),
    ("marks", {**MARK, "text": 3}, False),
    ("best", STRIP, True),
    ("best", {**STRIP, "low": "nan"}, True),  # a rate whose interval is not known has no bar
    ("best", {**STRIP, "high": 10**400}, True),
    ("best", {**STRIP, "x": "left"}, False),
    ("best", {name: value for name, value in STRIP.items() if name != "high"}, False),
]


@pytest.mark.parametrize(("part", "row", "is_drawn"), EDITS)
def test_an_edited_result_is_drawn_or_said_to_be_damaged(
    part: str, row: Any, is_drawn: bool
) -> None:
    edited = {**finding("logarithmic").plain(), part: [row]}
    if is_drawn:
        chart_of(Finding.of(edited)).to_dict(validate=False)
    else:
        with pytest.raises(ValueError, match=f"cannot be drawn: {part}: "):
            Finding.of(edited)


# ---- charts


@pytest.fixture(scope="module")
def stills() -> dict[str, tuple[bytes, ...]]:
    return {kind: still(chart_of(finding(kind))) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn(kind: str, stills: dict[str, tuple[bytes, ...]]) -> None:
    pdf, png, svg = stills[kind]
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    assert (pdf[:4], svg[:4]) == (b"%PDF", b"<svg")
    assert picture.width >= 1280
    colours = {c for _, c in picture.getcolors(1 << 20) or []}
    assert len(colours) > 30
    assert (0x85, 0x85, 0x85) in colours  # the reference


# ---- pages


CLAIM: dict[str, Any] = {
    "id": "width",
    "source": "Thm. 1",
    "statement": "errors fall as n^-1/2 | <b>",
    "measurement": "slope of 5 widths",
    "value": -0.5,
    "stderr": 0.02,
    "low": -0.54,
    "high": -0.46,
    "verdict": "holds",
    "reading": "It does",
    "tried": [],
}
BARE = {
    **CLAIM,
    "value": None,
    "low": None,
    "high": None,
    "verdict": "not testable here",
    "tried": ["one", "two"],
}


def test_claims_as_a_table() -> None:
    shown = page("Claims", [claims_section([CLAIM, BARE])])
    assert '<span class="label good">holds</span>' in shown
    assert "\u22120.500 (95 %: \u22120.540 to \u22120.460)" in shown
    assert "Tried: one; two." in shown
    assert "<b>" not in shown
    assert "2 statements. Holds: 1, not testable here: 1." in shown


# ---- the command


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of several kinds, and what lies about beside them."""
    told = plain([finding("named"), finding("linear")])
    content: dict[str, dict[str, Any]] = {
        "out/study": {"title": "A study", "command": "nfd study", "findings": told},
        "out/claims": {"title": "Tested", "command": "nfd claims", "rows": [CLAIM]},
        "out/facts": {"command": "nfd kernel facts", "parity": "odd", "runs": [{"a": 1}]},
        "out/old": {
            "command": "nfd transfer",
            "lead": {"verdict": "It transfers.", "tone": "good", "numbers": {"a": "1"}},
            "answers": ["It transfers."],
            "findings": {"depth": {"title": "Old"}},
        },
        "out/odd": {
            "command": "nfd x",
            "findings": {"a": None, "b": {"rows": 3}},
            "rules": [3],
            "title": 3,
        },
        "out/.unfinished-1": {"title": "Hidden", "command": "nfd study"},
        "out/foreign": {"anything": 1},
    }
    for folder, one in content.items():
        (tmp_path / folder).mkdir(parents=True)
        write_json(tmp_path / folder / "result.json", one)
    for name, text in (("torn", b'{"a": '), ("deep", b"[" * 100_000), ("binary", b"\xff\xfe\x00")):
        (tmp_path / "out" / name).mkdir()
        (tmp_path / "out" / name / "result.json").write_bytes(text)
    return tmp_path / "out"


def test_any_results_make_one_page(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # the second finds the first one's page among the results, and replaces it
        assert main(["report", str(results), "--out", str(results / "report")]) == 0
        said = capsys.readouterr()
        assert "5 results, 2 charts on one page" in said.out
        for name in ("torn", "deep", "binary"):
            assert f"{name}/result.json: is damaged: not JSON" in said.err
        assert "foreign/result.json: was not written by nfd" in said.err
    text = (results / "report/report.html").read_text()
    parts = (
        "A study",
        "Kind named",
        "label good",
        "odd",
        "It transfers.",
        "torn/result.json",
        "Not drawn: a is",
    )
    assert all(part in text for part in parts)
    assert "Hidden" not in text
    assert text.count('<figure class="plot"') == 2
    found = json.loads((results / "report/result.json").read_text())
    assert [one["folder"] for one in found["results"]] == ["claims", "facts", "odd", "old", "study"]


# ---- a browser

FRAMES = {"light": (0, 1200, 1200), "dark": (1200, 1200, 1200), "phone": (2400, 380, 1600)}


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    if browser() is None:
        pytest.skip(
            "needs chromium, chromium-browser or google-chrome on the PATH; make browser installs "
            "one"
        )
    found = [finding(kind) for kind in KINDS]
    long = "a_name_that_is_longer_than_any_phone_is_wide_" * 4
    sections = [
        *(finding_section(f) for f in found[:3]),
        figure_section("A figure", found[3:6]),
        finding_section(finding("linear", series=(long, *HOSTILE))),
        claims_section([CLAIM, BARE]),
        Section(long, [long], table=[{long: long, "b": long}], caption=long),
    ]
    return seen(page("Every kind", sections), FRAMES, tmp_path_factory.mktemp("browser"))


def test_charts_are_drawn_without_a_complaint(shown: Seen) -> None:
    assert shown.console == []
    assert set(shown.said) == set(FRAMES)
    for said in shown.said.values():
        assert len(said["marks"]) == len(KINDS) + 1
        assert min(said["marks"]) >= 2


@pytest.mark.parametrize("mode", FRAMES)
def test_no_page_is_wider_than_its_window(shown: Seen, mode: str) -> None:
    assert shown.said[mode]["width"] == FRAMES[mode][1]
    assert shown.said[mode]["overflow"] <= 0
