"""The page of sliders: its numbers are those of the runs, its lines make them again, and it holds in a browser."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Seen, browser, seen

from nfd.cli.commands import parsed
from nfd.cli.main import main
from nfd.questions.explored import explored
from nfd.questions.explored_grid import Grid, explored_grid
from nfd.report.explore import about, explore_page, stored
from nfd.runs.sweep import Sweep
from nfd.store.store import Store

SMALL = Grid(
    horizons=(1.0,), widest=(4,), largest=31, rates={"mup": (0.5, 1.0, 1e18), "standard": (2.0,)}, depths=(1, 2),
    widths=(3, 4), measured=16, seeds=2, steps=2, batch=4, limit_width=4, replicates=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="module")
def small(directory: Path) -> dict[str, Any]:
    with Sweep(directory) as sweep:
        table = explored_grid(SMALL, sweep)
    with Sweep(directory) as sweep:
        assert sweep.missing([run for place in SMALL.places() for run in SMALL.runs(place)]) == 0  # which resumes
    assert json.loads(json.dumps(table)) == json.loads(json.dumps(table, allow_nan=False))
    return table


def by_place(rows: list[list[Any]], length: int) -> dict[tuple[int, ...], list[Any]]:
    return {tuple(row[:length]): row[length:] for row in rows}


def last_number(text: str, column: str) -> str:
    """The text below a heading of a printed table."""
    head, _, line = [line for line in text.splitlines() if line.strip()][:3]
    names, values = re.split(r"\s{2,}", head.strip()), re.split(r"\s{3,}", line.strip())
    return values[names.index(column)]


def test_a_cell_is_what_its_sweep_prints(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "sweep width=4 depth=1 horizon=1 eta_c=1 rule=mup block=two-layer steps=2 batch=4 seed=0,1 meter=updates"
    assert main([*line.split(), "--executor", "inline", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    cells, mup = by_place(small["cells"], 5), small["axes"]["rule"].index("mup")
    seeds, diverged, *numbers = cells[0, mup, 1, 0, 1]  # the second rate and width, the first depth
    assert (seeds, diverged) == (2, 0)
    for column, number in zip(("train_loss", "inner_update", "function_update"), numbers, strict=True):
        shown = [float(x) for x in re.findall(r"-?[\d.]+", last_number(printed, column))]
        assert shown == pytest.approx(number, rel=0.02, abs=2e-3), column
    assert len(cells[0, mup, 1, 1, 0]) == 3  # too large to measure its updates
    assert (0, mup, 1, 1, 1) not in cells  # too large to train


def test_a_limit_is_what_its_prediction_says(small: dict[str, Any], tmp_path: Path) -> None:
    line = "predict --depth 1 --rule mup --eta-c 1 --block two-layer --steps 2 --batch 4 --width 4 --replicates 2"
    assert main([*line.split(), "--executor", "inline", "--out", str(tmp_path)]) == 0
    last = json.loads((tmp_path / "result.json").read_text())["rows"][-1]
    limits, mup = by_place(small["limits"]["rows"], 4), small["axes"]["rule"].index("mup")
    assert limits[0, mup, 1, 0] == [pytest.approx([last["loss"], last["low"], last["high"]], rel=1e-3)]
    assert {rule for _, rule, *_ in limits} == {mup}  # standard rates have no limit of large width


def test_what_diverged_has_no_number(small: dict[str, Any]) -> None:
    mup = small["axes"]["rule"].index("mup")
    assert by_place(small["cells"], 5)[0, mup, 2, 0, 1] == [2, 2]
    assert by_place(small["limits"]["rows"], 4)[0, mup, 2, 0] == [None]


def test_best_rates_are_told_from_three_rates_and_laws_only_where_depth_has_a_limit(small: dict[str, Any]) -> None:
    mup = small["axes"]["rule"].index("mup")
    assert {rule for _, rule, *_ in small["best"]} <= {mup}  # standard was trained at one rate
    assert small["laws"] == []


# ---- runs of one's own -------------------------------------------------------------------------------------------


def test_a_directory_of_runs_gives_the_same_numbers(
    small: dict[str, Any], directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", "--from", str(directory), "--where", "rule=mup", "batch=4", "--out", str(tmp_path)]) == 0
    own = json.loads((tmp_path / "explore.json").read_text())
    mup = small["axes"]["rule"].index("mup")
    assert own["axes"]["rule"] == ["mup"]
    assert [cell[2:] for cell in own["cells"]] == [cell[2:] for cell in small["cells"] if cell[1] == mup]
    assert "limits" not in own
    assert own["where"] == ["batch=4"]  # axes are chosen by the sliders
    assert str(directory) in (tmp_path / "explore.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"steps": 3}, "steps in 2, 3"), ({"lr": 0.1}, "other settings: lr")],
    ids=["other-settings", "own-networks"],
)
def test_runs_that_no_page_can_show_are_refused(directory: Path, change: dict[str, Any], message: str) -> None:
    with Store.read(directory) as store:
        first, *rest = store.records()
        with pytest.raises(ValueError, match=message):
            explored([replace(first, config=first.config | change), *rest], store)


def test_places_with_one_seed_are_left_out(directory: Path) -> None:
    with Store.read(directory) as store:
        records = store.records()
        first = [r for r in records if r.config["seed"] == 0]
        with pytest.raises(ValueError, match="two seeds"):
            explored(first, store)
        assert len(explored([*first, records[1]], store)["cells"]) == 1


def test_measured_runs_stand_for_their_place(directory: Path) -> None:
    with Store.read(directory) as store:
        measured = [r for r in store.records() if r.config["meter"] == "updates" and r.config["width"] == 3]
        plain = [replace(r, config=r.config | {"meter": "none"}, metrics={"train_loss": 9.0}) for r in measured]
        assert explored([*measured, *plain], store)["cells"] == explored(measured, store)["cells"]


# ---- the numbers that come with the package ----------------------------------------------------------------------


def numbers_in(table: Any) -> Iterator[list[float]]:
    if isinstance(table, list) and len(table) == 3 and all(isinstance(x, float) for x in table):
        yield table
    elif isinstance(table, list | dict):
        for part in table.values() if isinstance(table, dict) else table:
            yield from numbers_in(part)


def test_the_stored_numbers_are_whole_and_those_of_the_grid() -> None:
    table, grid = stored(), Grid()
    axes = table["axes"]
    assert axes["rate"] == {rule: list(grid.rates[rule]) for rule in axes["rule"]}
    assert (axes["horizon"], axes["depth"], axes["width"]) == (
        list(grid.horizons), list(grid.depths), list(grid.widths))  # fmt: skip
    trained = list(grid.places())
    assert len(by_place(table["cells"], 5)) == len(table["cells"]) == len(trained)
    limited = [place for place in grid.places(grid.limit_width) if place.rule != "standard"]
    assert len(by_place(table["limits"]["rows"], 4)) == len(limited)
    assert {seeds for *_, seeds in (cell[:6] for cell in table["cells"])} == {grid.seeds}
    assert len(table["laws"]) > 10
    checked = list(numbers_in({name: table[name] for name in ("cells", "limits", "best", "laws")}))
    assert len(checked) > len(table["cells"])
    assert all(low <= value <= high for value, low, high in checked)
    assert "12 steps of 16 samples" in about(table)
    assert len(explore_page(table)) < 1.5e6


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
  notes: text(all("figure p.note")).join(" "),
  lined: all("figure").map((figure) => Boolean(figure.querySelector("pre")?.textContent)),
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
const resolved = CASES.map(([points, options]) => settled(points.map((own) => ({ points: own })), options)
  .map((series) => ({ open: series.open, above: series.lost })));
const labels = controls.map((control) => control.labels[0]?.innerText ?? "");
const focus = controls.map((control) => (control.focus(), document.activeElement === control));
parent.postMessage({ mode, overflow, paper, labels, focus, resolved, states: [state(), ...MOVES.map(moved)] }, "*");
})();
</script></body>"""
MOVES = [("width", -1), ("depth", 1), ("horizon", 1), ("rate", -2), ("rule", -1), ("rate", 4),
         ("horizon", -1), ("depth", 9), ("width", 3), ("width", 9)]  # fmt: skip
NETWORKS = [[2.2, 2.1, 2.3], [1.8, 1.7, 1.9]]
CASES: dict[str, Any] = {  # series of one chart, and its axis; the last series is looked at
    "covers all others": ([NETWORKS, [[2.6, -1.5, 6.7]]], {"top": 4}),
    "wide, and tells from others": ([NETWORKS, [[2.6, 1.75, 4.0]]], {"top": 4}),
    "narrow among equals": ([[[2.3, 2.29, 2.31]], [[2.3, 2.2, 2.4]]], {"top": 4}),
    "above the chart": ([NETWORKS, [[5.0, 4.9, 5.1]]], {"top": 4}),
    "reaches zero on a logarithmic axis": ([[[1.0, 0.8, 1.2]], [[500.0, -400.0, 1400.0]]], {"log": True}),
    "far from zero on a logarithmic axis": ([[[1.0, 0.8, 1.2]], [[500.0, 30.0, 1400.0]]], {"log": True}),
}
OPEN = {"covers all others", "reaches zero on a logarithmic axis"}


def unresolved() -> tuple[str, list[float]]:
    """A place of the stored table, as an address of the page, and its limit that covers every loss of the chart."""
    table = stored()
    cells, limits = by_place(table["cells"], 5), by_place(table["limits"]["rows"], 4)
    horizon, rule, rate, depth = place = next(
        place
        for place, (limit,) in limits.items()
        if limit and -100 < limit[1] < 0 and 4 < limit[2] < 100 and (*place, 1) in cells  # in three digits on the page
    )
    return f"open&horizon={horizon}&rule={rule}&rate={rate}&depth={depth}&width=1", limits[place][0]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    if browser() is None:
        pytest.skip("needs chromium, chromium-browser or google-chrome on the PATH; make browser installs one")
    probe = PROBE.replace("MOVES", json.dumps(MOVES)).replace("CASES", json.dumps([*CASES.values()]))
    frames = FRAMES | {unresolved()[0]: (4500, 380, 1500)}
    return seen(explore_page(stored()), frames, tmp_path_factory.mktemp("browser"), probe)


def states(shown: Seen) -> list[dict[str, Any]]:
    return list(shown.said["light"]["states"])


def in_words(number: list[float]) -> str:
    value, low, high = (f"{x:#.3g}" for x in number)
    return f"{value} [{low}, {high}]"


def test_the_page_complains_of_nothing_and_fits_every_window(shown: Seen) -> None:
    assert shown.console == []
    assert set(shown.said) == {*FRAMES, "open"}
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
    table = stored()
    axes, cells, limits = table["axes"], by_place(table["cells"], 5), by_place(table["limits"]["rows"], 4)
    for state in states(shown)[:-1]:  # the last one is of infinite width
        width, depth, horizon, rate, rule = (*map(float, state["values"][:4]), state["values"][4])
        lists = axes["horizon"], axes["rule"], axes["rate"][rule], axes["depth"], axes["width"]
        values = horizon, rule, rate, depth, width
        place = tuple(values_of.index(value) for values_of, value in zip(lists, values, strict=True))
        seeds, diverged, *numbers = cells[place]
        facts = state["facts"]
        assert f"depth {depth:g}," in state["place"]
        if diverged:
            assert facts["loss"] == f"{diverged} of {seeds} diverged"
        else:
            names = ("loss", "inner update", "function update")
            assert [facts[name] for name in names[: len(numbers)]] == [in_words(number) for number in numbers]
        ((limit,),) = [limits[place[:4]]]
        assert facts["loss at infinite width"] == ("diverged" if limit is None else in_words(limit))


def test_a_number_is_not_resolved_where_its_interval_is_wide_and_covers_the_chart(shown: Seen) -> None:
    last = {name: own[-1] for name, own in zip(CASES, shown.said["light"]["resolved"], strict=True)}
    assert {name for name, marks in last.items() if marks["open"]} == OPEN
    assert {name for name, marks in last.items() if marks["above"]} == {"above the chart"}


def test_what_is_not_resolved_is_told_with_its_interval(shown: Seen) -> None:
    first, (_, low, high) = shown.said["open"]["states"][0], unresolved()[1]
    assert first["facts"]["loss at infinite width"] == f"not resolved: [{low:#.3g}, {high:#.3g}]"
    assert f"[{low:#.3g}, {high:#.3g}]" in first["notes"]
    assert any(f"∞: not resolved: [{low:#.3g}, {high:#.3g}]" in figure["label"] for figure in first["figures"])


def test_where_nothing_was_trained_the_other_sliders_follow(shown: Seen) -> None:
    deep, wide = states(shown)[-3], states(shown)[-2]
    assert (deep["values"][1], wide["values"][0]) == ("32", "512")
    assert wide["values"][1] != "32"
    assert "The depth moved too" in wide["place"]
    assert "moved too" not in states(shown)[1]["place"]


def commands_in(lines: list[str]) -> Iterator[list[str]]:
    """The commands of lines that join them and repeat them, with the first value of every loop."""
    for line in lines:
        for name, first in re.findall(r"for (\w+) in (\S+)", line):
            line = line.replace(f"${name}", first)
        line = re.sub(r"for \w+ in [^;]+; do |; done", "", line)
        yield from map(shlex.split, line.split(" && "))


def test_every_line_is_one_that_the_program_takes(shown: Seen) -> None:
    lines = list(dict.fromkeys(line for state in states(shown) for line in state["lines"]))
    kinds = [parsed(command[1:]).__class__.__name__ for command in commands_in(lines)]
    assert set(kinds) == {"SweepCommand", "PredictCommand", "TransferCommand", "CapacityCommand", "RunsCommand"}
    assert not any("undefined" in line or "NaN" in line for line in lines)


def test_every_chart_has_its_line(shown: Seen) -> None:
    assert all(state["lined"] and all(state["lined"]) for state in states(shown))


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
