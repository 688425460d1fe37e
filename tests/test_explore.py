"""The page of sliders: its numbers are those of the runs, its lines make them again, and it holds in a browser."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Seen, browser, seen

from nfd.cli.commands import parsed
from nfd.cli.main import main
from nfd.questions.explored import Grid, explored
from nfd.report.explore import about, explore_page, stored
from nfd.runs.sweep import Sweep

SMALL = Grid(
    horizons=(1.0,), rules=("mup",), rates=(0.5, 1.0, 1e18), depths=(1, 2), widths=(3, 4), measured=(4,), seeds=2,
    steps=2, batch=4, limit_width=8, replicates=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("explored")
    with Sweep(directory) as sweep:
        table = explored(SMALL, sweep)
    with Sweep(directory) as sweep:
        runs = [
            run
            for place in itertools.product((1.0,), ("mup",), SMALL.rates, (1, 2), (3, 4))
            for run in SMALL.runs(*place)
        ]
        assert sweep.missing(runs) == 0  # which resumes
    assert json.loads(json.dumps(table)) == json.loads(json.dumps(table, allow_nan=False))
    return table


def last_number(text: str, column: str) -> str:
    """The text below a heading of a printed table."""
    head, _, line = [line for line in text.splitlines() if line.strip()][:3]
    names, values = re.split(r"\s{2,}", head.strip()), re.split(r"\s{3,}", line.strip())
    return values[names.index(column)]


def test_a_cell_is_what_its_sweep_prints(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "sweep width=4 depth=2 horizon=1 eta_c=1 rule=mup block=two-layer steps=2 batch=4 seed=0,1 meter=updates"
    assert main([*line.split(), "--executor", "inline", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    diverged, *numbers = small["cells"][(1 * 2 + 1) * 2 + 1]  # the second rate, depth and width
    assert diverged == 0
    for column, number in zip(("train_loss", "inner_update", "function_update"), numbers, strict=True):
        shown = [float(x) for x in re.findall(r"-?[\d.]+", last_number(printed, column))]
        assert shown == pytest.approx(number, rel=0.02, abs=2e-3), column
    assert small["cells"][(1 * 2 + 1) * 2][2:] == [None, None]  # a width at which updates are not measured


def test_a_limit_is_what_its_prediction_says(small: dict[str, Any], tmp_path: Path) -> None:
    line = "predict --depth 2 --rule mup --eta-c 1 --block two-layer --steps 2 --batch 4 --width 8 --replicates 2"
    assert main([*line.split(), "--executor", "inline", "--out", str(tmp_path)]) == 0
    last = json.loads((tmp_path / "result.json").read_text())["rows"][-1]
    assert small["limits"][1 * 2 + 1] == pytest.approx([last["loss"], last["low"], last["high"]], rel=1e-3)


def test_what_diverged_has_no_number(small: dict[str, Any]) -> None:
    assert small["cells"][(2 * 2 + 0) * 2 + 1] == [2, None, None, None]
    assert small["limits"][2 * 2] is None


def test_best_rates_and_laws_have_one_entry_at_each_place(small: dict[str, Any]) -> None:
    assert len(small["best"]) == 2 * 2
    assert len(small["laws"]) == 3
    assert small["laws"] == [None, None, None]  # muP has no limit of large depth


# ---- the numbers that come with the package ----------------------------------------------------------------------


def numbers_in(table: Any) -> Iterator[list[float]]:
    if isinstance(table, list) and len(table) == 3 and all(isinstance(x, float) for x in table):
        yield table
    elif isinstance(table, list | dict):
        for part in table.values() if isinstance(table, dict) else table:
            yield from numbers_in(part)


def test_the_stored_numbers_are_whole_and_those_of_the_grid() -> None:
    table, grid = stored(), Grid()
    assert table["grid"] == json.loads(json.dumps(vars(grid)))
    places = [len(part) for part in (grid.horizons, grid.rules, grid.rates, grid.depths, grid.widths)]
    assert len(table["cells"]) == math.prod(places)
    assert len(table["limits"]) == math.prod(places[:4])
    assert len(table["best"]) == math.prod(places) / len(grid.rates)
    assert len(table["laws"]) == math.prod(places[:3])
    checked = list(numbers_in({name: table[name] for name in ("cells", "limits", "best", "laws")}))
    assert len(checked) > len(table["cells"])
    assert all(low <= value <= high for value, low, high in checked)
    assert "12 steps of 16 samples" in about(table)


# ---- a browser ---------------------------------------------------------------------------------------------------

FRAMES = {"light": (0, 1100, 1500), "dark": (1500, 1100, 1500), "phone": (3000, 380, 1500)}
PROBE = """
<script>
(() => {
const root = document.documentElement, mode = location.hash.slice(1).split("&")[0].replace("=", "");
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const text = (nodes) => nodes.map((node) => node.textContent);
const controls = all("input, select");
if (mode === "dark") root.style.colorScheme = "dark";
const state = () => ({
  place: document.getElementById("place").textContent,
  facts: Object.fromEntries(all("dl div").map((fact) => text([...fact.children]))),
  lines: text(all("pre")),
  values: controls.map((control) => control.getAttribute("aria-valuetext")),
  figures: all("figure svg").map((svg) => ({
    role: svg.getAttribute("role"), label: svg.getAttribute("aria-label"), titles: text(all(":scope > text", svg)) })),
});
const moved = ([id, step]) => {
  const control = document.getElementById(id);
  control.value = Number(control.value) + step;
  control.dispatchEvent(new Event("input", { bubbles: true }));
  return state();
};
const overflow = Math.max(root.scrollWidth, document.body.scrollWidth) - innerWidth;
const paper = getComputedStyle(document.body).backgroundColor;
const labels = controls.map((control) => control.labels[0]?.innerText ?? "");
const focus = controls.map((control) => (control.focus(), document.activeElement === control));
parent.postMessage({ mode, overflow, paper, labels, focus, states: [state(), ...MOVES.map(moved)] }, "*");
})();
</script></body>"""
MOVES = [("width", -1), ("depth", 1), ("horizon", 1), ("rate", -2), ("rule", -1), ("rate", 4), ("width", 9)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    if browser() is None:
        pytest.skip("needs chromium, chromium-browser or google-chrome on the PATH; make browser installs one")
    return seen(
        explore_page(stored()), FRAMES, tmp_path_factory.mktemp("browser"), PROBE.replace("MOVES", json.dumps(MOVES))
    )


def states(shown: Seen) -> list[dict[str, Any]]:
    return list(shown.said["light"]["states"])


def in_words(number: list[float]) -> str:
    value, low, high = (f"{x:#.3g}" for x in number)
    return f"{value} [{low}, {high}]"


def test_the_page_complains_of_nothing_and_fits_every_window(shown: Seen) -> None:
    assert shown.console == []
    assert set(shown.said) == set(FRAMES)
    assert all(said["overflow"] <= 0 for said in shown.said.values())
    assert shown.said["light"]["paper"] == "rgb(255, 255, 255)"
    assert shown.said["dark"]["paper"] == "rgb(22, 24, 28)"


def test_every_control_has_a_name_takes_the_focus_and_says_where_it_stands(shown: Seen) -> None:
    said = shown.said["phone"]
    assert [label.split()[0] for label in said["labels"]] == ["width", "depth", "horizon", "rate", "rule"]
    assert all(said["focus"])
    assert states(shown)[0]["values"] == ["128", "8", "1", "0.5", "depth-mup"]
    assert states(shown)[-1]["values"][0] == "infinite"


def test_sliders_show_the_numbers_of_their_place(shown: Seen) -> None:
    table, grid = stored(), Grid()
    at = {"width": 1, "depth": 2, "horizon": 1, "rate": 4, "rule": 1}
    for k, state in enumerate(states(shown)[:-1]):  # the last one is of infinite width
        if k:
            at[MOVES[k - 1][0]] += MOVES[k - 1][1]
        place = (at["horizon"] * len(grid.rules) + at["rule"]) * len(grid.rates) + at["rate"]
        place = place * len(grid.depths) + at["depth"]
        diverged, loss, inner, function = table["cells"][place * len(grid.widths) + at["width"]]
        limit = table["limits"][place]
        facts = state["facts"]
        assert f"depth {grid.depths[at['depth']]}," in state["place"]
        if diverged:
            assert facts["loss"] == f"{diverged} of {grid.seeds} diverged"
        else:
            known = [in_words(number) for number in (loss, inner, function)]
            assert [facts[name] for name in ("loss", "inner update", "function update")] == known
        assert facts["loss at infinite width"] == ("diverged" if limit is None else in_words(limit))


def test_every_line_is_one_that_the_program_takes(shown: Seen) -> None:
    first, *_, last = states(shown)
    lines = {line for text in first["lines"] + last["lines"] for line in text.split(" && ")}
    kinds = [parsed(shlex.split(line)[1:]).__class__.__name__ for line in lines]
    assert set(kinds) == {"SweepCommand", "PredictCommand", "TransferCommand", "CapacityCommand"}
    assert not any("undefined" in line or "NaN" in line for line in lines)


def test_every_chart_has_a_text_and_axes_with_names(shown: Seen) -> None:
    for state in states(shown):
        assert state["figures"]
        for figure in state["figures"]:
            assert figure["role"] == "img"
            assert re.search(r"against .+\. .*: ", figure["label"])
            assert {"width n", "depth L", "rate eta_c"} & set(figure["titles"])
            assert any(title.startswith(("loss", "best", "RMS")) for title in figure["titles"])


def test_the_command_writes_a_page_that_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--out", str(tmp_path)]) == 0
    assert "explore.html" in capsys.readouterr().out
    page = (tmp_path / "explore.html").read_text()
    assert not re.search(r"(?:src|href)=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page
    assert json.loads((tmp_path / "explore.json").read_text()) == stored()
