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
from nfd.core.words import number
from nfd.meters.meter import quantity_in_words
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
        said = Cause.FROZEN, "it does <not> train", "Let it <not> rest."
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


def one_line(text: object) -> str:
    """A text of a terminal without its line breaks."""
    return " ".join(str(text).split())


@pytest.mark.slow
def test_an_alert_is_shown_where_there_is_one_and_not_otherwise(tmp_path: Path) -> None:
    texts = {}
    for name, least in {"bad": 5.0, "good": 1e-9, "unjudged": None}.items():
        watch = watched(least, tmp_path / f"{name}.html")
        texts[name] = text_of(tmp_path / f"{name}.html"), str(watch), watch.line
        assert "<not>" not in (tmp_path / f"{name}.html").read_text()
        assert len(str(watch).splitlines()) <= 15
        assert max(map(len, str(watch).splitlines())) <= 80
    page, terminal, line = texts["bad"]
    assert "1 fault since step 2" in page
    assert "<h1>blocks.2.up does not train</h1>" in page
    assert "Let it <not> rest." in page
    assert "No alert" not in page
    assert terminal.startswith("✗ 1 FAULT SINCE STEP 2  blocks.2.up does not train")
    assert "print([p.grad for p in model.blocks[2].up.parameters()])" in terminal
    assert line.endswith("alerts 2")
    page, terminal, line = texts["good"]
    assert "<h1>Every layer trains as in the small networks</h1>" in page
    assert terminal.startswith("✓ NO ALERT ")
    assert "Outside of the band" not in page
    assert "does not train" not in page + terminal
    assert "1 quantity lies in its band at step 4, in 1 layer" in page
    assert line.endswith("alerts 0")
    page, terminal, line = texts["unjudged"]
    assert terminal.startswith("? JUDGED IN PART ")
    assert "exploding, dead and frozen layers" in page
    assert "No alert" not in page
    assert "alerts" not in line


class TwoAtEveryLook(Limits):
    """Raises two alerts at every look, each of a layer more."""

    def alerts(self, rows: Sequence[WatchRow]) -> list[Alert]:
        step = rows[0].step
        said = Cause.FROZEN, "the layer does not train", "Let it train."
        layers = [f"blocks.{step // 2}.{part}" for part in ("up", "down")]
        return [Alert(step, step, "change", layer, 0.0, None, *said) for layer in layers]


@pytest.mark.filterwarnings("ignore:.*layers do not train")
def test_the_mark_of_the_first_alert_counts_the_alerts_of_its_own_step(tmp_path: Path) -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(model, plan, X, every=2, expected=TwoAtEveryLook(1.0))
    pages = {}
    for step in (1, 2, 3, 4):
        train(model, plan, 1)
        watch.step(1 / step)
        pages[step] = text_of(nfd.run_page(watch, tmp_path / "run.html"))
    assert "alerts at step" not in pages[1]
    assert "✗ 2 alerts at step 2" in pages[2]
    assert "so far" not in pages[2]
    assert len(watch.alerts) == 4
    assert "✗ 2 alerts at step 2, 4 so far" in pages[4]


@pytest.mark.slow
def test_beyond_the_last_look_of_the_check_nothing_is_judged_and_the_reader_is_told(
    tmp_path: Path,
) -> None:
    for last_step, is_told in ((2, True), (4, False)):
        watch = watched(1e-9, tmp_path / "run.html", last_step)
        text = f"Nothing is judged after step {last_step}: the check ends there."
        assert watch.unjudged_since == (last_step if is_told else None)
        assert (text in one_line(watch)) == is_told
        assert (text in text_of(tmp_path / "run.html")) == is_told
        assert watch.answer.chip == ("? Not judged since step 2" if is_told else "✓ No alert")


@pytest.mark.slow
def test_faults_of_the_check_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_sound in (True, False):
        monkeypatch.setattr(Limits, "is_of_sound", is_sound, raising=False)
        watch = watched(1e-9, tmp_path / "run.html")
        for text in (one_line(watch), text_of(tmp_path / "run.html")):
            assert ("he small networks had faults, too" in text) != is_sound


def test_the_values_are_those_of_the_rows(tmp_path: Path) -> None:
    watch = watched(5.0, tmp_path / "run.html")
    page = text_of(tmp_path / "run.html")
    shown = re.findall(
        r'<td data-label="of">(\S+)</td><td data-label="value">(?:<span[^>]*>)?([\d.e+-]+)', page
    )
    for row in (r for r in watch.rows if r.step == 4):
        assert f"{row.value:.4g}" in page, row
    (changed,) = [r for r in watch.rows if (r.step, r.meter, r.layer) == (4, "change", FROZEN)]
    value = number(changed.value, 3)
    numbers = f"{value}, expected 10.0 (95 %: 5.0 to 10.0)"
    assert page.count("Outside of the band") == 1
    assert f"Outside of the band: {FROZEN} at step 4: {numbers}." in page
    assert (FROZEN, f"{changed.value:.4g}") in shown
    line = rf"{re.escape(FROZEN)} +relative weight change +{value} +10\.0 \(5\.0 to 10\.0\)"
    assert re.search(line, str(watch))
    sound = str(watched(1e-9))
    for row in watch.rows:
        if row.step != 4 or row.layer is not None or row.meter == "alerts":
            continue
        assert f"{row.meter} {row.value:.3g}" in watch.line
        if row.meter in ("activation", "function_update"):
            line = rf"{quantity_in_words(row.meter)} +\S+ +{re.escape(number(row.value, 3))}\b"
            assert re.search(line, sound), line


def test_a_page_loads_nothing_and_follows_the_run(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "run.html"
    watch = watched(None, page)
    text = page.read_text()
    assert not re.search(r'src=|href="[^#]|@import|url\([^#]', text)
    assert '<meta http-equiv="refresh"' in text
    assert "<script" not in text
    plots = text.count('<figure class="plot" role="figure" aria-label="')
    assert text.count("<svg") == plots + text.count('<div class="drawing ') > plots
    before = page.stat().st_ino
    nfd.run_page(watch, page, title="<b>")
    assert page.stat().st_ino != before
    # Where the text of answers is bold.
    assert "<b> · step" not in page.read_text()
    assert "&lt;b&gt; · step" in page.read_text()
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
    assert str(watch).startswith("? NOT JUDGED YET  The first look follows step 7")
    with pytest.raises(ValueError, match="has no chart"):
        watch.plot()
    assert watch.table == []
    assert watch.line == "step 0: no look yet"
    assert "<svg" not in nfd.run_page(watch, tmp_path / "run.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="needs chromium, as in make browser")
def test_a_browser_shows_every_chart_whole_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    page = nfd.run_page(watched(5.0), tmp_path / "run.html", title="A " + "long_" * 40).read_text()
    # A browser draws what is folded once it is opened.
    page = page.replace("<details>", "<details open>")
    frames = {"light": (0, 1200, 1600), "phone": (1600, 380, 3000)}
    found = seen(page, frames, tmp_path)
    assert found.console == []
    assert set(found.said) == set(frames)
    for mode, told in found.said.items():
        assert told["width"] == frames[mode][1]
        assert told["overflow"] <= 0
        assert len(told["marks"]) == page.count('<div class="chart ') > 10
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
