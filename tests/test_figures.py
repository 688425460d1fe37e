"""Figures: runs made by hand whose answers are known, what the captions of the paper say, and all
of them small.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.handmade import (
    HORIZONS,
    RATES,
    Ended,
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
)

from nfd.core.findings import Finding
from nfd.data import digits
from nfd.paper.figures import FIGURES, figure1, figure2, figure3, figure5, figure6
from nfd.paper.figures.figure import DataSummary, dataset_for, findings, trained
from nfd.paper.settings import FigureConfig
from nfd.runs.sweep import Sweep

ROOT = Path(__file__).parents[1]
DATA = DataSummary("pictures", 10)
PANELS = {
    "1": "abc",
    "2": "abcd",
    "3": "abcd",
    "5": "abcdefghij",
    "6": "abcdef",
    "4": ["a-train", "a-test", "b-train", "b-test", "c-train", "c-test"],
    "7": ["a-train", "a-test", "b-train", "b-test", "c-train", "c-test"],
}


def in_order(found: list[Finding], figure: str) -> None:
    """Names and letters are the paper's, and every row of a panel has the same columns."""
    assert [finding.name for finding in found] == [
        f"figure-{figure}{letter}" for letter in PANELS[figure]
    ]
    for finding, letter in zip(found, PANELS[figure], strict=True):
        assert finding.title.startswith(f"({letter}) ")
        assert len({frozenset(row) for row in finding.rows}) < 2


def exponents(finding: Finding) -> dict[str, float]:
    """Slopes by series, each with an interval that holds it."""
    for row in finding.slopes:
        assert row["low"] <= row["slope"] <= row["high"]
    return {row["series"]: row["slope"] for row in finding.slopes}


def reference(finding: Finding) -> tuple[float, float]:
    """The exponent of a figure's one line, and its height at its first place."""
    first, last = finding.references
    x = finding.axes.x
    y = finding.axes.y
    assert len({row["series"] for row in finding.references}) == 1
    return math.log(last[y] / first[y]) / math.log(last[x] / first[x]), first[y]


def said_plainly(found: list[Finding]) -> None:
    """Nothing that a person reads has not-a-number, and every row that is drawn is finite."""
    for finding in found:
        for text in (finding.headline, finding.caption, *finding.details):
            assert "nan" not in text.split("pictures")[0].lower().replace("beyond", ""), text
            assert "inf]" not in text, text
        for row in finding.rows:
            assert all(
                math.isfinite(row[name]) for name in (finding.axes.x, finding.axes.y, "low", "high")
            ), row


# ---- figure 1


def test_figure_1() -> None:
    found = figure1.reduce(figure_1(), DATA)
    in_order(found, "1")
    said_plainly(found)
    a, b, c = found
    assert exponents(a) == pytest.approx({"pre-activation": 0.0, "post-activation": 0.5}, abs=0.01)
    assert a.headline.startswith("RMS of h_L before training goes as pre-activation: L^")
    assert reference(a) == pytest.approx((0.0, 1.0), abs=0.02)
    assert [r["rms"] for r in a.rows] == pytest.approx([1, 1, 1, 2, 4, 8], rel=0.01)
    ends = [r["loss"] for r in b.rows if r["step"] == 8]
    assert ends == pytest.approx([1.0, 1.2])
    assert [r["step"] for r in b.rows] == [0, 2, 4, 6, 8] * 2
    assert [r["step"] for r in c.rows] == [0, 2, 4, 6, 8] * 2


WHERE_ALL_DIVERGE = {
    "1": lambda ended: figure_1(ended),
    "2": figure_2,
    "3": figure_3,
    "4": lambda ended: figure_4(ended=ended),
    "5": figure_5,
    "6": figure_6,
}


@pytest.mark.parametrize("number", WHERE_ALL_DIVERGE)
@pytest.mark.parametrize(
    "ended", [lambda c: 1, lambda c: 1 if c.seed == 0 else None], ids=["all", "one seed"]
)
def test_networks_that_diverge_are_named_and_not_drawn(number: str, ended: Ended) -> None:
    """A point needs every seed; a curve ends where the first network does."""
    found = FIGURES[number].reduce(WHERE_ALL_DIVERGE[number](ended), DATA)
    in_order(found, number)
    said_plainly(found)
    told = " ".join(text for finding in found for text in (finding.headline, *finding.details))
    assert re.search("iverged|no exponent", told)
    for finding in found:
        assert all(row[finding.axes.x] <= 1 for row in finding.rows if finding.axes.x == "step"), (
            finding.name
        )
        assert not any(math.isfinite(row["slope"]) for row in finding.slopes) or number in "13", (
            finding.name
        )


# ---- figure 2


def test_figure_2() -> None:
    runs = figure_2(lambda c: 5 if c.horizon == 32 and c.seed else None)
    found = figure2.reduce(runs, DATA)
    in_order(found, "2")
    said_plainly(found)
    a, b, c, _ = found
    assert a.headline.startswith("The final train loss is lowest at T = 8.")
    # 1.1 + 0.2 against 1.0 + 0.3
    assert b.headline.startswith("The final test loss is lowest at T = 4.")
    assert a.details == b.details == ["Diverged: T = 32 (3 of 4)."]
    assert [r["step"] for r in a.rows if r["series"] == "T = 32"] == [0, 2, 4]
    assert [r["step"] for r in b.rows if r["series"] == "T = 32"] == [0, 2, 4]
    assert {r["horizon"] for r in c.rows} == set(HORIZONS) - {32.0}
    assert figure2.best(runs["horizon"], "train_loss") == 8
    assert figure2.gain(runs["horizon"], 1.0, 8.0, 10, "train_loss").value == pytest.approx(-0.9)
    # what diverges counts as a uniform guess
    assert figure2.gain(runs["horizon"], 1.0, 32.0, 10).value > 0
    assert figure2.gain(runs["horizon"], 32.0, 32.0, 10).value == 0


# ---- figure 3


def test_figure_3() -> None:
    runs = figure_3()
    found = figure3.reduce(runs, DATA)
    in_order(found, "3")
    said_plainly(found)
    a, b, c, d = found
    every = ["relu, h_L", "relu, g_0", "tanh, h_L", "tanh, g_0"]
    assert exponents(a) == pytest.approx(dict.fromkeys(every, -1.0))
    assert exponents(b) == pytest.approx(dict.fromkeys(every, -1.0), abs=0.05)
    rows = [r for r in a.rows if r["series"] == "relu, h_L"]
    assert {r["width"]: r["square"] for r in rows} == pytest.approx(
        {16: 1 / 16, 32: 1 / 32, 64: 1 / 64}
    )
    assert reference(a) == pytest.approx((-1.0, 3 / 16))  # from the highest of the first places
    assert reference(b)[0] == pytest.approx(-1.0)
    assert {r["depth"] for r in b.rows} == {4, 8, 16, 32}
    assert exponents(c) == pytest.approx({"depth 4": -1.0, "depth 8": -1.0}, abs=0.1)
    assert [r["square"] for r in c.rows if r["series"] == "depth 4"] == pytest.approx(
        [1 / 16, 1 / 64, 1 / 256], rel=0.1
    )
    assert exponents(d) == pytest.approx({"infinitely wide": -2.0}, abs=0.01)  # squares of 1/L
    assert reference(d)[0] == pytest.approx(-1.0)
    near = [r["square"] for r in d.rows if r["series"] == "infinitely wide"]
    assert near == pytest.approx([1 / 16, 1 / 64, 1 / 256], rel=0.02)
    real = {(r["series"], r["depth"]): r["square"] for r in d.rows}
    assert real["width 16", 8] == pytest.approx(1 / 16 + 1 / 64, rel=0.1)


# ---- figures 4 and 7


@pytest.mark.parametrize("figure", ["4", "7"])
def test_figures_4_and_7(figure: str) -> None:
    found = FIGURES[figure].reduce(figure_4(), DATA)
    in_order(found, figure)
    said_plainly(found)
    for finding in found:
        assert re.findall(
            r"\+0\.020* \[\+0\.020*, \+0\.020*\] at depth (\d)", finding.headline
        ) == ["2", "4", "8"]
        assert {r["series"] for r in finding.rows} == {
            f"depth {L}, {member}" for L in (2, 4, 8) for member in ("standard", "decoupled")
        }
    ends = {r["series"]: r["loss"] for r in found[4].rows if r["step"] == 12}
    assert ends["depth 2, standard"] == pytest.approx(1.0)
    assert ends["depth 2, decoupled"] == pytest.approx(1.02)
    assert [r["step"] for r in found[4].rows][:5] == [0, 3, 6, 9, 12]
    assert [r["step"] for r in found[5].rows][:5] == [0, 3, 6, 9, 12]


# ---- figure 5


def test_figure_5() -> None:
    found = figure5.reduce(figure_5(), DATA)
    in_order(found, "5")
    said_plainly(found)
    a, b, c, d, _, _, _, h, _, j = found
    uniform, eq8 = figure5.RULES.values()
    assert exponents(a) == pytest.approx({uniform: -0.5, eq8: 0.0}, abs=0.01)
    assert exponents(b) == pytest.approx({uniform: 0.0, eq8: 0.0}, abs=0.01)
    assert exponents(c) == pytest.approx({uniform: 0.0, eq8: 0.5}, abs=0.01)
    assert [reference(x)[0] for x in (a, b, c)] == pytest.approx([-0.5, 0.0, 0.5])
    assert reference(a)[1] == pytest.approx(0.5, rel=0.02)  # at depth 4
    assert a.headline.startswith("After 4 steps: uniform rates: L^-0.50 [")
    assert a.slopes[0]["verdict"] == "COLLAPSES"
    assert len(re.findall(r"0\.53 \[0\.4.*?, 0\.6", d.headline)) == 4
    assert len(d.rows) == 4 * len(RATES)
    assert h.headline.startswith("Eq. 8 minus uniform rates at the end: -0.10")
    assert "+0.20" in j.headline
    assert {r["series"]: r["train_loss"] for r in h.rows if r["step"] == 8} == pytest.approx(
        {uniform: 0.98, eq8: 0.88}
    )


# ---- figure 6


def test_figure_6() -> None:
    found = figure6.reduce(figure_6(), DATA)
    in_order(found, "6")
    said_plainly(found)
    a, _, c, _, e, f = found
    assert {(r["series"], r["layer"]): r["eigenvalue"] for r in a.rows} == pytest.approx(
        {(f"width {n}", float(k)): k * n / 12 for n in (8, 16, 32) for k in (1, 2, 3)}
    )
    assert a.headline == "After 12 steps the smallest of any width and layer is 6.7e-01."
    assert {(r["series"], r["step"]): r["eigenvalue"] for r in c.rows} == pytest.approx(
        {(f"width {n}", float(k)): n / k for n in (8, 16, 32) for k in (4, 8, 12)}
    )
    for finding in (e, f):
        assert exponents(finding) == pytest.approx({"step 4": 1.0, "step 8": 1.0, "step 12": 1.0})


# ---- the runs of the figures


# What the captions of the paper say, by figure and part: widths, depths, rates, batch and seeds.
STATED: dict[tuple[str, str], dict[str, Any]] = {
    ("1", "training"): {
        "depth": 64,
        "width": 128,
        "eta_c": 0.01,
        "batch": 128,
        "activation": "relu",
    },
    ("2", "horizon"): {
        "depth": 5,
        "width": 128,
        "eta_c": 0.1,
        "batch": 128,
        "seeds": 3,
        "horizon": [2.0, 32.0],
    },
    ("2", "both"): {"width": 128, "eta_c": 0.1, "batch": 128, "seeds": 3, "horizon": [2.0, 32.0]},
    ("3", "real"): {
        "widths": (32, 1024),
        "depths": (4, 128),
        "eta_c": 0.01,
        "batch": 128,
        "rule": "depth-mup",
    },
    ("4", "dnn"): {"width": 128, "eta_c": 0.1, "batch": 128, "network": "mlp", "depth": [16]},
    ("4", "mup"): {"width": 128, "eta_c": 0.1, "batch": 128, "rule": "mup", "depth": [16]},
    ("4", "depth-mup"): {
        "width": 128,
        "eta_c": 0.1,
        "batch": 128,
        "rule": "depth-mup",
        "depth": [16],
    },
    ("7", "dnn"): {"width": 256, "eta_c": 0.1, "batch": 128, "network": "mlp"},
    ("7", "mup"): {"width": 256, "eta_c": 0.1, "batch": 128, "rule": "mup"},
    ("7", "depth-mup"): {"width": 256, "eta_c": 0.1, "batch": 128, "rule": "depth-mup"},
    ("5", "collapse"): {
        "width": 128,
        "eta_c": 0.1,
        "batch": 128,
        "steps": 300,
        "block": "two-layer",
    },
    ("5", "transfer"): {
        "depth": [3, 6, 9],
        "eta_c": [0.5, 1.0],
        "batch": 128,
        "block": "two-layer",
    },
    ("5", "deep"): {"depth": 64, "width": 128, "batch": 128, "block": "two-layer"},
    ("6", "online"): {"widths": (512, 4096), "depth": 4, "eta_c": 0.1, "batch": 1, "seeds": 5},
}


def test_the_size_called_paper_is_what_the_captions_say() -> None:
    dataset = replace(digits(0), train=digits(0).train[torch.arange(1000)])
    grids = {name: figure.grids("paper", {}, dataset) for name, figure in FIGURES.items()}
    for (figure, part), stated in STATED.items():
        for name, value in stated.items():
            found = {
                getattr(c, name[:-1] if name in ("widths", "depths", "seeds") else name)
                for c in grids[figure][part]
            }
            if name == "seeds":
                assert len(found) == value
            elif name in ("widths", "depths"):
                assert (min(found), max(found)) == value
            elif isinstance(value, list):
                assert found >= set(value), (figure, part, name)
            else:
                assert found == {value}, (figure, part, name)
    for figure, part in (
        ("1", "training"),
        ("2", "both"),
        ("3", "real"),
        ("4", "mup"),
        ("5", "deep"),
    ):
        assert {c.steps for c in grids[figure][part]} == {30 * (1000 // 128)}  # 30 epochs
    seeds = {part: {c.seed for c in configs} for part, configs in grids["3"].items()}
    assert not seeds["real"] & seeds["limit"]


# ---- all of them, small


@pytest.mark.long
def test_every_figure_is_made_small_and_drawn_again_without_training(
    figures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FigureConfig(size="smoke")
    written = [
        Finding.of(f)
        for f in json.loads((figures / "result.json").read_text())["findings"].values()
    ]
    with Sweep(figures) as sweep:
        monkeypatch.setattr(
            sweep.store, "add", lambda records: pytest.fail("something was trained")
        )
        for name, figure in FIGURES.items():
            found = findings(figure, trained(figure, config, sweep, print), dataset_for(config))
            in_order(found, name)
            said_plainly(found)
            assert [f.headline for f in written if f.name.startswith(figure.name)] == [
                f.headline for f in found
            ]
            assert "<svg" in (figures / f"{figure.name}.html").read_text()
            for finding in found:
                assert finding.rows
                assert "digits" in finding.caption
                assert (figures / f"{finding.name}.pdf").read_bytes().startswith(b"%PDF")
                assert (figures / f"{finding.name}.png").stat().st_size > 5_000
                assert len((figures / f"{finding.name}.csv").read_text().splitlines()) == 1 + len(
                    finding.rows
                )
