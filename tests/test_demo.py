"""The page of ``make demo``, from made-up results: it shows what its commands concluded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import pytest

from makers.demo import demo_page
from nfd.core.answer import Answer, Tone
from nfd.report.answer_page import AnswerPage
from nfd.report.page import Section
from nfd.report.picture import Picture, picture

NETWORKS = [{"width": width, "depth": 2, "seed": 0} for width in (8, 16, 16)]


def drawn(name: str, **more: Any) -> Picture:
    data = alt.InlineData(values=[{"x": 1, "y": 2}, {"x": 2, "y": 3}])
    return picture(name, alt.Chart(data).mark_line().encode(x="x:Q", y="y:Q"), title=name, **more)


def results(folder: Path, tone: Tone) -> Path:
    """Results of the three commands, whose transfer ends in this state."""
    small = [drawn(f"small{k}", kind="small") for k in range(5)]
    halves = [drawn(f"half{k}", kind="half") for k in range(3)]
    costs = [
        {"tuning small with": name, "": state, "gives up (95 %)": "42 % (25 to 63)"}
        for name, state in (("the defaults", "Costs"), ("the plan", "Transfers"))
    ]
    contents = {
        "check": (Answer("bad", "Will not scale", "7 tensors need another rate"), small),
        "transfer": (
            Answer(
                tone,
                "Some state",
                "A decision",
                "It costs 1.4 %.",
                about="nfd transfer · width 8 · 12 trainings",
                table=costs,
            ),
            halves,
        ),
        "paper": (Answer("good", "Decided", "4 of 5 hold", table=[{"": "✓", "a": "b"}]), []),
    }
    for name, (answer, pictures) in contents.items():
        (folder / name).mkdir()
        section = Section("", [], pictures=pictures, key={"defaults": "orange"})
        content = {"rows": NETWORKS, "remedy": [{}]} if name == "check" else {}
        AnswerPage(answer, f"nfd {name}", {}, [section], content=content).write(folder / name)
    return folder


@pytest.mark.parametrize("tone", ["good", "bad", "open"])
def test_the_demo_tells_its_story_only_where_the_rate_transfers(tone: Tone, tmp_path: Path) -> None:
    page = demo_page(results(tmp_path, tone))
    assert "check: 2 networks, and again by the plan; transfer: 12 trainings" in page
    head = page[page.index("<body") : page.index("<main>")]
    assert ("fits the large one" in head) == (tone == "good")
    assert ("A decision" in head) == (tone != "good")
    assert "It costs 1.4&nbsp;%." in head
    assert "nfd check setup.py" in head
    # Only the rule that costs is named, and only where another one transfers.
    assert ("the defaults give up" in head) == (tone == "good")
    assert "the plan give up" not in head
    order = ["Check: 7 tensors", "small0", "small3", "Transfer: a decision", "half0", "half1"]
    places = [page.index(text) for text in [*order, "three commands", "4 of 5 hold"]]
    assert places == sorted(places)
    assert "small4" not in page
    assert "half2" not in page
    # The key of a section is shown once, above its charts.
    assert page.count("</i>defaults") == 2
    assert 'href="check/report.html"' in page
    assert "✓" in page[page.index("4 of 5 hold") :]
