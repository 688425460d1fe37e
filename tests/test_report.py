"""Findings survive their files, charts of every kind are drawn, pages hold in a browser, any results make a page."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.browser import Seen, browser, seen

from nfd.cli.main import main
from nfd.core.files import write_json
from nfd.paper.claims.page import claims_markdown, claims_section
from nfd.paper.config import FigureConfig
from nfd.paper.pages import write_claims
from nfd.questions.finding import Axes, Finding, plain
from nfd.report.charts import chart_of
from nfd.report.figure import figure_section, finding_section
from nfd.report.labels import apart
from nfd.report.page import Section, _vega, page
from nfd.report.series import COLOURS, DARK, INK, ORDERED, SHADES, styled
from nfd.report.stills import still
from nfd.report.tidy import linear_span, log_span, tidy

KINDS = ("curves", "logcurves", "logarithmic", "semilogarithmic", "linear", "named", "map")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><b>&amp;",
    "\u2028\u2029<!--",
    "datum['x'] + signal('hidden')",
    "{{constructor}}.a[b]\\",
    "\ud800",
    "title",
    "constructor",
    "",
)


def finding(kind: str, name: str = "", series: tuple[str, ...] = ("depth 2", "depth 8", "depth 4")) -> Finding:
    """A chart's worth of rows that fall with x, and a line to compare with."""
    places: list[float] = [4, 8, math.inf] if kind == "named" else [1, 2, 4, 8]
    rows = [
        {"series": one, "x": x, "y": (k + 1) / (1 + min(x, 16)), "low": 0.8 / (1 + min(x, 16)), "high": k + 1.3}
        for k, one in enumerate(series)
        for x in places
    ]
    compared = [{"series": "slope -1", "x": x, "y": 1.5 / min(x, 16)} for x in places]
    axes = Axes("x", "y", "across", "up", kind)  # type: ignore[arg-type]
    return Finding(name or kind, f"Kind {kind}", "It falls.", rows, axes, "A caption.", references=compared)


def layers(chart: Any) -> list[dict[str, Any]]:
    spec = chart.to_dict()
    return [layer | {"rows": spec["datasets"][layer.get("data", spec.get("data"))["name"]]} for layer in spec["layer"]]


# ---- findings ----------------------------------------------------------------------------------------------------

NAMES = st.text(max_size=12) | st.sampled_from([*HOSTILE, "inf", "-inf", "nan", "'nan", "''inf"])
NUMBERS = st.floats() | st.integers() | st.none() | st.booleans()
ROWS = st.lists(st.dictionaries(NAMES, NUMBERS | NAMES, max_size=4), max_size=3)
FINDINGS = st.builds(
    Finding, NAMES, NAMES, NAMES, ROWS, st.builds(Axes, NAMES, NAMES, NAMES, NAMES, st.sampled_from(KINDS)), NAMES,
    st.lists(NAMES, max_size=2), ROWS, st.lists(st.dictionaries(NAMES, NAMES, max_size=2), max_size=2), ROWS,
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(FINDINGS)
def test_findings_survive_their_file(found: Finding) -> None:
    written = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert repr(Finding.of(written)) == repr(found)  # by repr, for nan
    assert written["reading"] == found.reading


def test_infinite_depth_survives_and_reads_as_a_number(tmp_path: Path) -> None:
    found = finding("named")
    write_json(tmp_path / "result.json", {"findings": plain([found])})
    stored = json.loads((tmp_path / "result.json").read_text())["findings"]["named"]
    assert stored["rows"][2]["x"] == "inf"
    assert float(stored["rows"][2]["x"]) == math.inf
    assert Finding.of(stored) == found


@pytest.mark.parametrize("bad", [None, 3, [], {}, {"title": "old", "rows": []}, {**finding("map").plain(), "rows": 3}])
def test_what_is_no_finding_says_what_is_wrong(bad: Any) -> None:
    with pytest.raises(ValueError, match="is no finding that can be drawn: "):
        Finding.of(bad)


# ---- charts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stills() -> dict[str, tuple[bytes, bytes]]:
    return {kind: still(chart_of(finding(kind))) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn(kind: str, stills: dict[str, tuple[bytes, bytes]]) -> None:
    pdf, png = stills[kind]
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    assert pdf.startswith(b"%PDF")
    assert picture.width >= 1280
    colours = {c for _, c in picture.getcolors(1 << 20) or []}
    assert len(colours) > 30
    assert (0x85, 0x85, 0x85) in colours  # the reference


def test_references_are_thin_dashed_named_and_without_bars() -> None:
    chart = chart_of(finding("logarithmic"))
    first, *others = layers(chart)
    assert (first["mark"]["type"], first["mark"]["strokeWidth"] < 2) == ("line", True)
    assert {row["series"] for row in first["rows"]} == {"slope -1"}
    assert all("low" not in row for row in first["rows"])
    assert all(row["series"] != "slope -1" for layer in others for row in layer["rows"])
    assert chart.to_dict()["usermeta"]["series"][-1]["reference"] is True
    assert first["encoding"]["color"]["scale"]["domain"][-1] == "slope -1"


def test_rows_that_an_axis_cannot_show_are_left_out_and_bars_without_ends_too() -> None:
    axes = Axes("x", "y", "x", "y", "logcurves")
    rows: list[dict[str, Any]] = [
        {"series": "a", "x": 0, "y": 1.0, "low": None, "high": 2.0},
        {"series": "a", "x": 1, "y": 0.0, "low": 0.0, "high": 1.0},
        {"series": "a", "x": 2, "y": math.nan},
        {"series": "a", "x": math.inf, "y": 1.0},
        {"series": "a", "x": "3", "y": 1.0},
        {"series": "a", "y": 1.0},
        {"series": "a", "x": 4, "y": 10**400},
        {"series": "a", "x": 5, "y": 2.0, "low": -1.0, "high": 3.0},
    ]
    found = tidy(rows, axes)
    assert [(p["x"], "low" in p) for p in found] == [(0, False), (5, True)]
    assert found[1]["text"] == "2 [-1, 3]"
    assert log_span(found)[0] > 0.5
    assert linear_span(found, zero=True)[0] < -1
    cut = [row["cut"] for layer in layers(chart_of(Finding("a", "", "", rows, axes, ""))) for row in layer["rows"]
           if "cut" in row]  # fmt: skip
    assert all(value > 0 for value in cut)
    for empty in ("curves", "map"):  # a study in which everything diverged
        assert still(chart_of(Finding("a", "", "", [], Axes("x", "y", "x", "constructor", empty), "")))[1]  # type: ignore[arg-type]


def test_nothing_above_the_top_is_drawn_or_stretches_the_axis() -> None:
    rows = [{"series": "a", "x": x, "y": y, "low": y, "high": y} for x, y in enumerate([1.0, 2.0, 300.0])]

    def about(top: float) -> dict[str, Any]:
        axes = Axes("x", "y", "across", "up", "curves", top=top)
        return dict(chart_of(Finding("cut", "", "", rows, axes, "")).to_dict()["usermeta"])

    low, high = about(3.0)["scales"]["linear"]["domain"]
    assert 0.9 < low <= 1.0
    assert 2.0 <= high <= 3.0
    assert (about(3.0)["cut"], about(300.0)["cut"]) == (True, False)  # clips are slow to draw


def test_axes_turn_only_where_every_value_is_above_zero() -> None:
    def turns(kind: str, shift: float) -> bool:
        found = finding(kind)
        rows = [row | {"y": row["y"] - shift} for row in found.rows]
        chart = chart_of(Finding("a", "", "", rows, found.axes, ""))
        return set(chart.to_dict()["usermeta"]["scales"]) == {"linear", "log"}

    assert all(turns(kind, 0.0) for kind in KINDS if kind != "map")
    assert not any(turns(kind, 0.5) for kind in KINDS)


def styles(*rows: dict[str, Any], **columns: str) -> list[tuple[str, tuple[int, int]]]:
    """The colour and the dash of series ``s0``, ``s1``, ..., one for each row."""
    named = [{"series": f"s{k}", **row} for k, row in enumerate(rows)]
    drawn = {s.name: s for s in styled(named, Axes("x", "y", "", "", "curves", **columns))}  # type: ignore[arg-type]
    return [(drawn[row["series"]].colour, drawn[row["series"]].dash) for row in named]


SOLID, DASHED = (1, 0), (6, 4)


def test_numbers_have_colours_that_grow_and_all_else_colours_of_its_own() -> None:
    def colours(*values: Any) -> list[str]:
        return [colour for colour, _ in styles(*({"a": value} for value in values), colour="a")]

    assert colours(16, 4, 8) == [ORDERED[-1], ORDERED[0], ORDERED[4]]
    assert colours(0.5, 2.0, None) == [ORDERED[0], ORDERED[-1], INK]
    assert colours(4, 8, math.inf) == [ORDERED[0], ORDERED[-1], INK]
    assert colours("mup", "depth-mup") == list(COLOURS[:2])
    assert colours("mup", "mup") == [COLOURS[0]] * 2
    assert colours(3) == [INK]
    assert colours([4], {"a": 8}) == list(COLOURS[:2])  # of a file from elsewhere
    assert styles({"series": "depth 2"}, {"series": "depth 4"}) == [(COLOURS[0], SOLID), (COLOURS[1], DASHED)]


def test_one_column_makes_the_colour_and_another_the_dash() -> None:
    rows = [{"rule": rule, "depth": L} for rule in ("mup", "depth-mup") for L in (2, 4, 8)]
    colours, dashes = zip(*styles(*rows, colour="depth", dash="rule"), strict=True)
    assert colours == (ORDERED[0], ORDERED[4], ORDERED[-1]) * 2
    assert len({*dashes[:3]}) == len({*dashes[3:]}) == 1
    assert dashes[0] != dashes[3]


def test_the_role_of_a_series_decides_and_its_name_does_not() -> None:
    rows: list[dict[str, Any]] = [{"role": role} for role in ("prediction", "real", "level", "prediction", "real")]
    first, real, level, last, other = styles(*rows)
    assert last == (INK, SOLID)
    assert first == level == (SHADES[0], SOLID)
    assert (real[0], other[0]) == COLOURS[:2]
    assert len({real[1], other[1], SOLID}) == 3
    assert styles({"series": "real, width 8", "role": "odd"}, {"series": "infinitely wide"}) == [
        (COLOURS[0], SOLID),
        (COLOURS[1], DASHED),
    ]


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("light", [*COLOURS, *ORDERED, INK])
def test_colours_can_be_seen_on_light_and_on_dark(light: str) -> None:
    """A ratio of 2 and of 3: lines are thick, named in the legend, and the brightest of a set is not alone."""
    assert 1.05 / (luminance(light) + 0.05) > 2
    assert (luminance(DARK.get(light, light)) + 0.05) / (luminance("#16181c") + 0.05) > 3


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(-60, 60).map(float), min_size=1, max_size=8, unique=True))
def test_names_at_the_ends_of_lines_keep_their_order_and_their_distance(heights: list[float]) -> None:
    placed = apart(heights, 15.0)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    steps = [placed[b] - placed[a] for a, b in itertools.pairwise(order)]
    assert all(step >= 15 - 1e-9 for step in steps)
    assert sum(placed) == pytest.approx(sum(heights), abs=1e-6)
    if all(b - a >= 15 for a, b in itertools.pairwise(sorted(heights))):
        assert placed == pytest.approx(heights)


def test_few_lines_are_named_at_their_ends_and_many_in_a_legend() -> None:
    few = chart_of(finding("curves")).to_dict()["usermeta"]["ends"]
    assert [end["series"] for end in few] == ["depth 2", "depth 8", "depth 4", "slope -1"]
    assert all(end["x"] == 8 for end in few)
    many = chart_of(finding("curves", series=tuple(f"depth {k}" for k in range(9)))).to_dict()["usermeta"]["ends"]
    assert many == []


def test_an_axis_says_what_its_intervals_are_where_there_are_any() -> None:
    found = finding("curves")
    banded = layers(chart_of(found))[-1]["encoding"]["y"]["title"]
    assert banded == ["up", "(95 % interval)"]
    bare = replace(found, rows=[{k: v for k, v in row.items() if k not in ("low", "high")} for row in found.rows])
    assert layers(chart_of(bare))[-1]["encoding"]["y"]["title"] == ["up"]


def test_a_chart_says_in_words_what_it_shows() -> None:
    assert chart_of(finding("map")).to_dict()["description"] == "Kind map It falls."


# ---- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_names_stay_text(evil: str) -> None:
    axes = Axes(evil, evil + "y", evil, evil, "named")
    rows = [{"series": evil, evil: evil, evil + "y": 1.0, "low": 0.5, "high": 1.5}]
    rows += [{"series": evil + "2", evil: evil, evil + "y": 1.0}]
    found = Finding(evil, evil, evil, rows, axes, evil, [evil], table=[{evil: evil}])
    text = page(evil, [finding_section(found), figure_section(evil, evil, [found])])
    assert text.encode()
    assert text.count("</script>") == 2
    markup, bundle, data = text.split("<script>")
    assert "<img" not in markup + data
    assert "\u2028" not in data
    assert "vegaEmbed" in bundle


def test_figures_have_panels_in_a_grid() -> None:
    text = page("A figure", [figure_section("Figure 1", "Over all.", [finding("curves"), finding("map")])])
    assert text.index("Kind curves</h4>") < text.index("Kind map</h4>") < text.index("Over all.")
    assert text.count('<figure class="plot"') == 2
    assert text.count("window.vegaEmbed") == 1
    assert len(text) < 1_500_000


def test_long_pages_have_contents_and_pages_without_charts_are_small() -> None:
    sections = [Section(f"Part {k}", []) for k in range(5)]
    text = page("Words", [*sections, Section("hidden", [], folded=True)])
    assert '<a href="#part4">Part 4</a>' in text
    assert '">hidden</a>' not in text
    assert "<nav" not in page("Words", sections[:3])
    assert len(text) < 20_000


CLAIM: dict[str, Any] = {
    "id": "width", "source": "Thm. 1", "statement": "errors fall as n^-1/2 | <b>", "measurement": "slope of 5 widths",
    "value": -0.5, "stderr": 0.02, "low": -0.54, "high": -0.46, "verdict": "holds", "reading": "It does", "tried": [],
}  # fmt: skip
BARE = {**CLAIM, "value": None, "low": None, "high": None, "verdict": "not testable here", "tried": ["one", "two"]}


def test_claims_as_a_table_and_as_markdown() -> None:
    shown = page("Claims", [claims_section([CLAIM, BARE])])
    assert '<span class="label good">holds</span>' in shown
    assert "-0.5 [-0.54, -0.46] ± 0.02" in shown
    assert "Tried: one; two." in shown
    assert "<b>" not in shown
    text = claims_markdown([CLAIM, BARE], "# Claims")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert all(line.replace("\\|", "").count("|") == 7 for line in table)
    assert "2 statements. Holds: 1, not testable here: 1." in text
    assert "<b>" not in text
    assert claims_section([]).paragraphs == ["There are none."]


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of several kinds, and what lies about beside them."""
    told = plain([finding("named"), finding("map")])
    content: dict[str, dict[str, Any]] = {
        "out/study": {"title": "A study", "command": "nfd study", "findings": told},
        "out/claims": {"title": "Tested", "command": "nfd claims", "rows": [CLAIM]},
        "out/facts": {"command": "nfd kernel facts", "facts": {"parity": "odd", "a": [0.5, None]}, "runs": [{"a": 1}]},
        "out/old": {"command": "nfd transfer", "answers": ["It transfers."], "findings": {"depth": {"title": "Old"}}},
        "out/odd": {"command": "nfd x", "findings": {"a": None, "b": {"rows": 3}}, "rules": [3], "title": 3},
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
        assert "5 results, 2 charts." in said.out
        for name in ("torn", "deep", "binary"):
            assert f"{name}/result.json: is damaged: not JSON" in said.err
        assert "foreign/result.json: was not written by nfd" in said.err
    text = (results / "report/report.html").read_text()
    parts = ("A study", "Kind named", "label good", "parity", "It transfers.", "torn/result.json", "Not drawn: a is")
    assert all(part in text for part in parts)
    assert "Hidden" not in text
    assert text.count('<figure class="plot"') == 2
    found = json.loads((results / "report/result.json").read_text())
    assert [one["folder"] for one in found["results"]] == ["claims", "facts", "odd", "old", "study"]


def test_a_pipe_among_the_results_is_not_waited_for(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "pipe").mkdir()
    os.mkfifo(results / "pipe/result.json")
    assert main(["report", str(results), "--out", str(results / "report")]) == 0
    assert "pipe/result.json: is not a regular file." in capsys.readouterr().err


def test_a_report_replaces_no_result(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("study", "torn"):
        before = (results / place / "result.json").read_bytes()
        assert main(["report", str(results), "--out", str(results / place)]) == 2
        assert "the page would replace a result" in capsys.readouterr().err
        assert (results / place / "result.json").read_bytes() == before


def test_what_cannot_be_reported_says_so(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for where, said in (
        ([], "report needs a directory with results"),
        ([str(tmp_path / "nowhere")], "report needs a directory that exists"),
        ([str(results / "torn")], "no result in"),
    ):
        assert main(["report", *where, "--out", str(tmp_path / "page")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "page/report.html").exists()


# ---- a browser ---------------------------------------------------------------------------------------------------

FRAMES = {"light": (0, 1200, 1200), "dark": (1200, 1200, 1200), "phone": (2400, 380, 1600)}


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    if browser() is None:
        pytest.skip("needs chromium, chromium-browser or google-chrome on the PATH; make browser installs one")
    found = [finding(kind) for kind in KINDS]
    long = "a_name_that_is_longer_than_any_phone_is_wide_" * 4
    sections = [
        *(finding_section(f) for f in found[:3]),
        figure_section("A figure", "All.", found[3:6]),
        finding_section(finding("map", series=(long, *HOSTILE))),
        claims_section([CLAIM, BARE]),
        Section(long, [long], table=[{long: long, "b": long}], caption=long),
    ]
    return seen(page("Every kind", sections), FRAMES, tmp_path_factory.mktemp("browser"))


def test_charts_are_drawn_without_a_complaint(shown: Seen) -> None:
    assert shown.console == []
    assert set(shown.said) == set(FRAMES)
    for said in shown.said.values():
        assert len(said["marks"]) == len(KINDS)
        assert min(said["marks"]) >= 2


def test_buttons_hide_series_and_turn_axes(shown: Seen) -> None:
    said = shown.said["light"]
    assert all(after < before for before, after in zip(said["marks"], said["hidden"], strict=True))
    assert said["turned"] == said["marks"]


def test_pointing_at_a_place_says_what_is_there(shown: Seen) -> None:
    for text in shown.said["light"]["tooltips"]:
        assert re.search(r"series\s+.+", text)
        assert re.search(r"\d \[[\d.]+, [\d.]+\]", text), text


@pytest.mark.parametrize("mode", FRAMES)
def test_no_page_is_wider_than_its_window(shown: Seen, mode: str) -> None:
    assert shown.said[mode]["width"] == FRAMES[mode][1]
    assert shown.said[mode]["overflow"] <= 0


def test_pages_are_full_in_light_and_in_dark(shown: Seen) -> None:
    assert shown.said["light"]["paper"] == "rgb(255, 255, 255)"
    assert shown.said["dark"]["paper"] == "rgb(22, 24, 28)"
    for mode, ground in (("light", (255, 255, 255)), ("dark", (22, 24, 28)), ("phone", (255, 255, 255))):
        top, width, height = FRAMES[mode]
        picture = shown.picture.crop((0, top, width, top + height))
        counts = {colour: count for count, colour in picture.getcolors(1 << 22) or []}
        assert len(counts) > 500
        assert counts[ground] == max(counts.values()) < 0.97 * width * height


def test_a_page_that_breaks_is_noticed(shown: Seen, tmp_path: Path) -> None:
    broken = page("Broken", [finding_section(finding("map"))]).replace('"mark"', '"murk"')
    found = seen(broken, {"light": (0, 600, 400)}, tmp_path)
    assert found.console
    assert min(found.said.get("light", {"marks": [0]})["marks"]) == 0


def test_the_name_of_the_data_is_text_in_the_markdown_of_claims(tmp_path: Path) -> None:
    write_claims(FigureConfig(size="smoke"), [], "<img src=x>\n# big", tmp_path, "nfd claims")
    text = (tmp_path / "claims.md").read_text()
    assert "on &lt;img src=x> # big by nfd claims" in text


@pytest.mark.parametrize("writable", [True, False])
def test_scripts_of_pages_are_bundled_once(writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one process for all that follow, and by each where nothing can be kept."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("NFD_CACHE", str(tmp_path / ("cache" if writable else "file")))
    bundled: list[str] = []
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_: bundled.append("") or "scripts </script>")
    scripts = [_vega.__wrapped__() for _ in range(3)]
    assert set(scripts) == {"scripts <\\/script>"}
    assert len(bundled) == (1 if writable else 3)
