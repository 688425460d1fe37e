"""The page and the table of a training under way: what they show are its rows, and alerts where
there are any.
"""

from __future__ import annotations

import html
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.browser import browser, seen
from tests.models import Residual
from tests.test_watch import DEPTH, WIDTH, X, planned, train

import nfd
from nfd.watch import Alert, Cause, WatchRow
from nfd.watch.bands import Band
from nfd.watch.causes import Alarm

FROZEN = "blocks.2.up"


class Limits(Alarm):
    """Expects that the named layer changes by at least ``least``; says so of it alone."""

    is_of_sound = True

    def __init__(self, least: float, last_step: float = math.inf) -> None:
        self.least = least
        self.last_step = last_step

    def band(self, row: WatchRow) -> Band | None:
        if (row.meter, row.layer) != ("change", FROZEN) or row.step > self.last_step:
            return None
        return Band(2 * self.least, self.least, 10.0, 0.0)

    def alerts(self, rows: Sequence[WatchRow]) -> list[Alert]:
        judged = [row for row in rows if (band := self.band(row)) and row.value < band.low]
        said = Cause.FROZEN, "it does <not> train", ""
        return [
            Alert(row.step, row.step, row.meter, row.layer, row.value, None, *said)
            for row in judged
        ]


def watched(
    least: float | None, page: Path | None = None, last_step: float = math.inf
) -> nfd.Watch:
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(
        model, plan, X, every=2, expected=None if least is None else Limits(least, last_step)
    )
    if page is not None:
        watch.listeners.append(partial(nfd.run_page, path=page))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the alerts
        train(model, plan, 4, watch)
    return watch


def text_of(page: Path) -> str:
    return html.unescape(page.read_text())


@pytest.mark.slow
def test_an_alert_is_shown_where_there_is_one_and_not_otherwise(tmp_path: Path) -> None:
    texts = {}
    for name, least in {"bad": 5.0, "good": 1e-9, "unjudged": None}.items():
        watch = watched(least, tmp_path / f"{name}.html")
        texts[name] = text_of(tmp_path / f"{name}.html"), str(watch), watch.line
        assert "<not>" not in (tmp_path / f"{name}.html").read_text()
    page, table, line = texts["bad"]
    assert page.count("does <not> train") == 2
    assert "No alert" not in page
    assert f"! step 4: {FROZEN}: change is" in table
    assert line.endswith("alerts 2")
    assert "1 of 4 outside" not in table
    assert "1 of 1 outside" in table
    page, table, line = texts["good"]
    assert "No alert" in page
    assert "Outside of the band" not in page
    assert "does <not>" not in page + table
    assert "all within" in table
    assert line.endswith("alerts 0")
    page, table, line = texts["unjudged"]
    assert "Without expected only broken, exploding, dead and frozen layers" in page
    assert "No alert" not in page
    assert "alerts" not in line


@pytest.mark.slow
def test_beyond_the_last_look_of_the_check_nothing_is_judged_and_the_reader_is_told(
    tmp_path: Path,
) -> None:
    for last_step, is_told in ((2, True), (4, False)):
        watch = watched(1e-9, tmp_path / "run.html", last_step)
        text = f"Nothing is judged after step {last_step}: the check ends there."
        assert watch.unjudged_since == (last_step if is_told else None)
        assert (text in str(watch)) == (text in text_of(tmp_path / "run.html")) == is_told


@pytest.mark.slow
def test_faults_of_the_check_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_sound in (True, False):
        monkeypatch.setattr(Limits, "is_of_sound", is_sound, raising=False)
        watch = watched(1e-9, tmp_path / "run.html")
        for text in (str(watch), text_of(tmp_path / "run.html")):
            assert ("The check that this watch expects found faults" in text) != is_sound


def test_the_values_are_those_of_the_rows(tmp_path: Path) -> None:
    watch = watched(5.0, tmp_path / "run.html")
    page = text_of(tmp_path / "run.html")
    table = str(watch)
    shown = re.findall(
        r'<td data-label="of">(\S+)</td><td data-label="value">(?:<span[^>]*>)?([\d.e+-]+)', page
    )
    for row in (r for r in watch.rows if r.step == 4):
        assert f"{row.value:.4g}" in page, row
    (changed,) = [r for r in watch.rows if (r.step, r.meter, r.layer) == (4, "change", FROZEN)]
    assert page.count("Outside of the band") == 1
    assert (
        f"Outside of the band: {FROZEN} at step 4: {changed.value:.4g}, expected 10 [5, 10]."
        in page
    )
    assert (FROZEN, f"{changed.value:.4g}") in shown
    network = [row for row in watch.rows if row.step == 4 and row.layer is None]
    of_network = {row.meter: row.value for row in network if row.meter != "alerts"}
    for meter, value in of_network.items():
        assert re.search(rf"(?m)^ {meter} +the network .*\b{re.escape(f'{value:.3g}')}\b", table), (
            meter
        )
        assert f"{meter} {value:.3g}" in watch.line
    ups = sorted(
        r.value
        for r in watch.rows
        if (r.step, r.meter) == (4, "change") and str(r.layer).endswith("up")
    )
    assert f"[{ups[0]:.3g}, {ups[-1]:.3g}]" in table


def test_a_page_loads_nothing_and_follows_the_run(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "run.html"
    watch = watched(None, page)
    text = page.read_text()
    assert not re.search(r'src=|href="[^#]|@import|url\([^#]', text)
    assert '<meta http-equiv="refresh"' in text
    assert "<script" not in text
    assert text.count("<svg") == text.count('<figure class="plot" role="figure" aria-label="')
    before = page.stat().st_ino
    nfd.run_page(watch, page, title="<b>")
    assert page.stat().st_ino != before
    assert "<b>" not in page.read_text()
    assert [path.name for path in page.parent.iterdir()] == ["run.html"]


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    watch = watched(None)
    notes = tmp_path / "notes.html"
    notes.write_text("<p>mine</p>")
    with pytest.raises(FileExistsError, match="not a page of a run"):
        nfd.run_page(watch, notes)
    assert notes.read_text() == "<p>mine</p>"
    with pytest.raises(TypeError, match=r"watch must be an nfd\.Watch; got list"):
        nfd.run_page(watch.rows, notes)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="title must be a text; got 3 of int"):
        nfd.run_page(watch, notes, title=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a path must be a text or a Path; got 3 of int"):
        nfd.run_page(watch, 3)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError, match="not a page of a run"):
        nfd.run_page(watch, tmp_path)


def test_before_the_first_look_there_is_no_number(tmp_path: Path) -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(model, plan, X, every=7)
    assert str(watch).startswith("No look yet: the first one follows step 7")
    assert watch.line == "step 0: no look yet"
    assert "<svg" not in nfd.run_page(watch, tmp_path / "run.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="needs chromium, as in make browser")
def test_a_browser_shows_every_chart_whole_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    page = nfd.run_page(watched(5.0), tmp_path / "run.html", title="A " + "long_" * 40).read_text()
    frames = {"light": (0, 1200, 1600), "phone": (1600, 380, 3000)}
    found = seen(page, frames, tmp_path)
    assert found.console == []
    assert set(found.said) == set(frames)
    for mode, told in found.said.items():
        assert told["width"] == frames[mode][1]
        assert told["overflow"] <= 0
        assert len(told["marks"]) == page.count("<svg") > 10
        assert min(told["marks"]) > 0


@pytest.mark.slow
def test_a_page_of_a_long_run_costs_what_one_of_a_short_run_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counted: for how many rows the page asks for bands."""
    watch = watched(5.0)
    asked = list[WatchRow]()
    latest = [row for row in watch.rows if row.step == 4]
    monkeypatch.setattr(watch, "band", asked.append)
    counts = []
    for looks in (61, 400):
        watch.rows = [replace(row, step=2 * look) for look in range(1, looks + 1) for row in latest]
        asked.clear()
        page = text_of(nfd.run_page(watch, tmp_path / "run.html"))
        assert f"Step {2 * looks}: {looks} looks" in page
        assert f"step {2 * looks}" in page
        assert "step 2<" in page  # the first look is shown
        counts.append(len(asked))
    assert counts[0] == counts[1]
