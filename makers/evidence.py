"""Charts of pages, drawn from stored numbers: ``python -m makers.evidence``.

They are written to ``docs/images``. Bars are 95 % intervals; what differs in colour differs in
shape and has its name.
"""

from __future__ import annotations

import csv
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import torch

from benchmarks.check import BASELINE
from benchmarks.ratio import Ratio
from benchmarks.result import Result
from calibration import coverage, verdicts
from makers.pictures import chart, svg
from makers.question_charts import panel
from nfd.core.estimates import mean, share
from nfd.core.files import write_text
from nfd.report.charts import COLOURS, INK

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NUMBERS = Path(__file__).parent / "numbers"
OUT = ROOT / "docs/images"
SCALE = 1.4
# Pixels of the column of names, and of text.
NAMES = 178
FONT = 11


def named(rows: Sequence[Row], x: alt.X, beside: Any = None) -> Any:
    """Draw a line per row: its name on the left, its value as a dot on the bar of its interval.

    ``beside`` is a chart that is drawn below the dots.
    """
    y = alt.Y("name:N", sort=[row["name"] for row in rows], axis=None)
    base = chart(rows).encode(y=y)
    layers = [
        base.mark_text(align="left", dx=-NAMES, fontSize=FONT).encode(
            x=alt.value(0), text="name:N"
        ),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(color=INK, strokeWidth=1.5)
        .encode(x=x_of(x, "low"), x2="high:Q"),
        base.mark_point(color=INK, filled=True, size=40, opacity=1).encode(x=x),
    ]
    if beside is not None:
        layers.insert(0, beside)
    return alt.layer(*layers).properties(width=158, height=17 * len(rows))


def x_of(x: alt.X, name: str) -> alt.X:
    """The same axis of another column."""
    other = x.copy()
    other.shorthand = f"{name}:Q"
    return other


def title(text: str) -> alt.Title:
    """A finding, at the left end of the picture."""
    return alt.Title(textwrap.wrap(text.replace(" %", "\xa0%"), 52), anchor="start", frame="bounds")


def covered(rows: Sequence[Row]) -> Any:
    """Every case as a tick, a line per kind; a dot and its bar for the lowest case of a kind."""
    counted = [row for row in rows if row["count"]]
    least: dict[str, Row] = {}
    for row in sorted(counted, key=measured_share):
        least.setdefault(row["kind"], row)
    bars = []
    for row in sorted(least.values(), key=lambda row: (measured_share(row), row["kind"])):
        interval = share(row["measured"] * row["count"], row["count"])
        bars.append(
            {
                "name": row["kind"],
                "value": 100 * interval.value,
                "low": 100 * interval.low,
                "high": 100 * interval.high,
            }
        )
    # Names stand left of the axis: every bar must fit into it.
    lowest = min(bar["low"] for bar in bars)
    scale = alt.Scale(domain=[lowest - 1, 100.5], nice=False)
    marks = range(10 * math.ceil(lowest / 10), 101, 10)
    x = alt.X(
        "value:Q",
        scale=scale,
        axis=alt.Axis(values=[*marks], title="% that contain the truth"),
    )
    y = alt.Y("name:N", sort=[row["name"] for row in bars], axis=None)
    ticks = chart([{"name": row["kind"], "value": 100 * row["measured"]} for row in counted])
    behind = alt.layer(
        chart([{"value": 100 * coverage.NOMINAL}])
        .mark_rule(color=COLOURS[1], strokeWidth=1.5)
        .encode(x=x),
        chart([{"value": 100 * coverage.WANTED}])
        .mark_rule(color=COLOURS[1], strokeDash=[3, 2])
        .encode(x=x),
        ticks.mark_tick(color=COLOURS[0], thickness=1.5, height=9, opacity=0.8).encode(x=x, y=y),
    )
    good = sum(row["measured"] >= coverage.WANTED for row in counted)
    short = any(coverage.verdict(row) == "falls short" for row in counted)
    finding = f"{good} of {len(counted)} cases reach {100 * coverage.WANTED:.0f} %"
    if not short:
        finding += ", the others within the noise of counting"
    return named(bars, x, behind).properties(title=title(finding))


def measured_share(row: Row) -> float:
    """The share of intervals that contain the truth."""
    return float(row["measured"])


# What is faster, a column of the baseline and the names of its rows.
FASTER = {
    ("dense", "dense / deferred"): "deferred, width {width:,}",
    ("structured", "dense / structured"): "structured, width {width:,}",
    ("reference", "dense networks for that error / ours"): "nfd.predict, at one error",
    ("recursion", "recursion / ours"): "{kind} {inputs:,}, plain PyTorch",
    ("neural-tangents", "neural-tangents / ours"): "{kind} {inputs:,}, neural-tangents",
}


def faster(result: Result) -> Any:
    """How many times as fast as its opponent each part is."""
    rows = list[Row]()
    for (part, column), name in FASTER.items():
        for row in result.parts[part]:
            ratio: Ratio = row[column]
            interval = ratio.interval
            label = name.format(**row | {"kind": str(row.get("kind")).upper()})
            drawn: Row = {"name": label, "value": interval.value}
            # A ratio of one round has no interval.
            if math.isfinite(interval.low):
                drawn |= {"low": interval.low, "high": interval.high}
            rows.append(drawn)
    axis = alt.Axis(values=[1, 3, 10, 30, 100, 300], title="times as fast as the opponent")
    x = alt.X("value:Q", scale=alt.Scale(type="log", domain=[1, 500], nice=False), axis=axis)
    dense = [row["value"] for row in rows[:4]]
    kernels = [row["value"] for row in rows[5:]]
    finding = (
        f"Wide networks train {min(dense):.0f} to {max(dense):.0f} times faster than dense ones, "
        f"kernels are {min(kernels):.0f} to {max(kernels):.0f} times as fast"
    )
    return named(rows, x).properties(title=title(finding))


def wrong(rows: Sequence[Row], looked: int = 10) -> alt.HConcatChart:
    """Draw misses and false alarms against the span of sizes, a line per number of seeds.

    They are those of checks after ``looked`` steps.
    """
    misses = f"misses, {looked} steps"
    alarms = f"alarms, {looked} steps"
    panels = [
        errors(rows, misses).properties(width=140, height=150, title=title("misses, %")),
        errors(rows, alarms, has_key=True).properties(
            width=140, height=150, title=title("false alarms, %")
        ),
    ]
    missed = {(row["sizes span"], row["seeds"]): row[misses].split()[0] for row in rows}
    near = missed["a factor of 2", 3]
    far = missed["a factor of 8", 3]
    finding = (
        f"With three seeds a check misses {near} % of the faults over a factor of 2 in size, {far} "
        "% over 8"
    )
    return alt.hconcat(*panels, spacing=10).properties(title=title(finding))


# Shape, colour and dash of a number of seeds.
SEEDS = {
    2: ("circle", INK, [1, 0]),
    3: ("square", COLOURS[0], [4, 2]),
    4: ("triangle-up", COLOURS[1], [1, 2]),
}


def errors(rows: Sequence[Row], column: str, *, has_key: bool = False) -> Any:
    """Draw a column of errors in percent against the span of sizes, and a key if ``has_key``."""
    span = alt.Axis(values=[2, 4, 8, 16], title="largest size over smallest")
    percent = alt.Axis(values=[0, 10, 25, 50], title=None)
    x = alt.X("factor:Q", scale=alt.Scale(type="log", domain=[1.7, 19], nice=False), axis=span)
    y = alt.Y("value:Q", scale=alt.Scale(domain=[0, 50]), axis=percent)
    layers = []
    for seeds, (shape, colour, dash) in SEEDS.items():
        points = [point(row, column) for row in rows if row["seeds"] == seeds]
        base = chart(points).encode(x=x)
        mark: Row = {"color": colour, "filled": True, "shape": shape, "size": 40, "opacity": 1}
        layers += [
            base.mark_line(color=colour, strokeDash=dash, strokeWidth=1.5).encode(y=y),
            base.mark_rule(color=colour, strokeWidth=1.2).encode(y=alt.Y("low:Q"), y2="high:Q"),
            base.mark_point(**mark).encode(y=y),
        ]
        if has_key:
            key = chart([{"factor": 3, "value": 60 - 6 * seeds, "name": f"{seeds} seeds"}]).encode(
                x=x, y=y
            )
            layers.append(key.mark_point(**mark))
            layers.append(key.mark_text(align="left", dx=10, fontSize=FONT).encode(text="name:N"))
    return alt.layer(*layers)


def point(row: Row, column: str) -> Row:
    """A cell ``2 [1, 5]`` as a point with its interval.

    It is moved aside so that the numbers of seeds do not overlap.
    """
    value, low, high = (float(part.strip("[],")) for part in row[column].split())
    factor = int(row["sizes span"].split()[-1])
    return {"factor": factor * 1.07 ** (row["seeds"] - 3), "value": value, "low": low, "high": high}


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def bar(row: dict[str, str], value: str) -> Row:
    """The ends of a bar and the point on it, by the names of columns of a CSV."""
    return {"y": float(row[value]), "low": float(row["low"]), "high": float(row["high"])}


def ladders() -> Any:
    """Best rates of a GPT by width, under a plan and under PyTorch's defaults."""
    names = {"AdamW, mup, complete-p, depth-mup": "a plan", "AdamW, standard": "PyTorch"}
    every = read(DOCS / "transformers.csv")
    rows = list[Row]()
    for name, label in names.items():
        ladder = f"{name}, width 64 to 256"
        for row in every:
            if row["ladder"] == ladder and row["quantity"] == "best rate":
                width = int(row["at"].split()[1])
                rows.append({"series": label, "x": width} | bar(row, "value"))
    return panel(
        "Under a plan the best rate stays,\nunder PyTorch's defaults it falls",
        rows,
        "width",
        "best rate",
    )


def wide() -> Any:
    """Losses of a GPT under Muon by width, and the limit of a law of the dense ones."""
    rows = list[Row]()
    every = read(OUT / "wide-gpt.csv")
    by_network: dict[tuple[str, int], list[float]] = {}
    for row in every:
        by_network.setdefault((row["weights"], int(row["width"])), []).append(float(row["loss"]))
    for (weights, width), losses in sorted(by_network.items()):
        interval = mean(torch.tensor(losses, dtype=torch.float64))
        drawn: Row = {"series": weights, "x": width, "y": interval.value}
        if len(losses) > 2:
            drawn |= {"low": interval.low, "high": interval.high}
        rows.append(drawn)
    # As the page has it.
    limit = [{"series": "limit of the dense", "x": x, "y": 2.4365} for x in (64, 16384)]
    title = "Structured weights come to the limit\nof dense ones"
    return panel(title, rows, "width", "training loss, nats per byte", limit, "semilogarithmic")


def million() -> Any:
    """Losses of networks of three widths while they train."""
    every = read(NUMBERS / "million.csv")
    rows = [
        {"series": row["width"], "x": int(row["step"]), "y": float(row["loss"])} for row in every
    ]
    title = "From width 4,096 on, wider networks train alike"
    return panel(title, rows, "step", "training loss before the step, nats", kind="curves")


def rates() -> Any:
    """Panel d of Fig. 5: losses by rate, of every depth at the larger width."""
    rows = [
        {"series": f"depth {row['depth']}", "depth": float(row["depth"]), "x": float(row["eta_c"])}
        | bar(row, "loss")
        for row in read(NUMBERS / "figure-5d.csv")
        if row["width"] == "128"
    ]
    title = "Under uniform rates deeper networks\nlearn best at higher rates"
    return panel(title, rows, "eta_c", "training loss, nats", kind="semilogarithmic")


def pictures() -> dict[str, str]:
    """SVG by name."""
    numbers = json.loads(verdicts.NUMBERS.read_text(encoding="utf-8"))
    return {
        "coverage": svg(covered(coverage.read()), SCALE),
        "benchmarks": svg(faster(Result.read(BASELINE)), SCALE),
        "verdicts": svg(wrong(numbers["situations"]), SCALE),
        "transformers": svg(ladders(), SCALE),
        "wide-gpt": svg(wide(), SCALE),
        "million": svg(million(), SCALE),
        "figure-5d": svg(rates(), SCALE),
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        print(write_text(OUT / f"{name}.svg", picture).relative_to(ROOT))
