"""Charts of the pages that answer a question: ``python -m makers.question_charts``.

They are drawn from stored numbers. Bars are 95 % intervals over seeds; grey lines are what a theory says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from makers.pictures import svg
from nfd.core.files import write_text
from nfd.core.findings import Axes, Finding
from nfd.core.tables import Row
from nfd.report.charts import chart_of
from studies.embedding_rate import WIDTHS

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies"
IMAGES = ROOT / "docs/images"
RULES = {"complete-p": "1/L", "depth-mup": "1/√L"}
BRANCHES = {
    "linear-1": "linear, 1 step",
    "sgd-1": "SGD, 1 step",
    "sgd-40": "SGD, 40 steps",
    "muon-1": "Muon, 1 step",
}
HERO = {
    "standard": "PyTorch's defaults: tuned small, the large one loses",
    "mup": "A plan: tuned small, it fits",
}
RECIPES = {
    "standard": "one rate",
    "standard-decay": "one rate, decay",
    "embedding": "lr/m but embeddings",
    "mup": "muP",
}


def panel(
    title: str,
    rows: Sequence[Row],
    x: str,
    y: str,
    grey: Sequence[Row] = (),
    kind: Any = "logarithmic",
) -> Any:
    """Draw series over x as points with bars, and theory as grey lines behind them."""
    finding = Finding(
        "", "", "", list(rows), Axes("x", "y", x, y, kind, zero=False), "", references=list(grey)
    )
    return chart_of(finding).properties(width=270, height=220, title=alt.Title(title.split("\n")))


def beside(left: Any, right: Any) -> Any:
    """Put two panels side by side, each with its legend."""
    return alt.hconcat(left, right, spacing=28).resolve_scale(
        color="independent", strokeDash="independent"
    )


def power(name: str, places: Sequence[float], start: float, exponent: float) -> list[Row]:
    """A power law from the first place on."""
    return [{"series": name, "x": x, "y": start * (x / places[0]) ** exponent} for x in places]


def point(series: str, x: float, interval: Mapping[str, Any]) -> Row:
    """A point of a series, on the bar of its interval."""
    return {
        "series": series,
        "x": x,
        "y": interval["value"],
        "low": interval["low"],
        "high": interval["high"],
    }


def cells(series: str, table: Iterable[Mapping[str, Any]], x: str, quantity: str) -> list[Row]:
    """A quantity in a transfer's table as points with their intervals."""
    return [
        point(series, row[x], row)
        for row in table
        if row["quantity"] == quantity and row["value"] is not None
    ]


def two_limits(numbers: Any) -> Any:
    """Draw how both networks differ at depth L, and what one layer and all layers answer."""
    depths = [4, 8, 16, 32, 64, 128, 256, 512]
    main = numbers["main"]

    def rows(names: Mapping[str, str]) -> list[Row]:
        points = list[Row]()
        for name, label in names.items():
            for L, bar in zip(depths, main[name]["bars"], strict=True):
                points.append(point(label, L, bar))
        return points

    steps = rows({"step 1": "after 1 step", "step 5": "after 5 steps", "step 40": "after 40 steps"})
    parts = rows({"all layers": "all layers", "one layer": "one layer"})
    claimed = power("claimed: 1/L or below", depths, main["step 1"]["sizes"][0], -1)
    formula_sizes = main["all by Appendix F"]["sizes"]
    formula = [
        {"series": "all, by Appendix F", "x": L, "y": size}
        for L, size in zip(depths, formula_sizes, strict=True)
    ]
    left = panel(
        "Standard and decoupled networks\nstay apart as depth grows",
        steps,
        "depth L",
        "RMS difference of outputs",
        claimed,
    )
    right = panel(
        "One layer answers 1/L,\nall together 1",
        parts,
        "depth L",
        "coupling over the rate",
        formula,
    )
    return beside(left, right)


def rate_in_width(numbers: Any) -> Any:
    """Draw how far best learning rates are from the best one of the widest networks.

    On the left the best learning rate of the mean loss, on the right that of one network.
    """
    bias = list[Row]()
    luck = list[Row]()
    for name, label in BRANCHES.items():
        cases = numbers[name]["widths"]
        p = numbers[name]["mean"]["p"]["value"]
        means = [case["log2 rate"] for case in cases]
        halves = [(mean["high"] - mean["low"]) / 2 for mean in means]
        powers = [case["width"] ** -p for case in cases]
        values = [mean["value"] for mean in means]
        limit = np.polyfit(powers, values, 1, w=[1 / half for half in halves])[1]
        for case, value, half in zip(cases, values, halves, strict=True):
            off = abs(value - limit)
            interval = {"value": off, "low": off - half, "high": off + half}
            if off > half:
                bias.append(point(label, case["width"], interval))
            luck.append({"series": label, "x": case["width"], "y": case["sd"]})
    widths = sorted({row["x"] for row in luck})
    left = panel(
        "Mean loss: as 1/n under SGD",
        bias,
        "width n",
        "doublings from the limit of the fit",
        power("1/n", widths[:5], 0.9, -1),
    )
    right = panel(
        "One network: as 1/√n",
        luck,
        "width n",
        "standard deviation, doublings",
        power("1/√n", widths, 1.2, -0.5),
    )
    return beside(left, right)


def muon_depth(numbers: Any) -> Any:
    """Draw best learning rates of a GPT by depth, and what the larger power loses."""
    gpt = numbers["gpt"]
    rates = list[Row]()
    for rule, label in RULES.items():
        rates += cells(label, gpt["added"][rule], "depth", "best lr")
    lost = [point("1/√L", int(L), cost) for L, cost in gpt["1/sqrt(L) over 1/L"].items()]
    left = panel("GPT: the best rate stays under 1/L", rates, "depth L", "best rate of Muon")
    right = panel(
        "1/√L loses more the deeper it is",
        lost,
        "depth L",
        "loss over 1/L, nats",
        kind="semilogarithmic",
    )
    return beside(left, right)


def embedding_rate(numbers: Any) -> Any:
    """Draw best learning rates and lowest losses by width."""
    rates = list[Row]()
    losses = list[Row]()
    for name, label in RECIPES.items():
        table = numbers[name]["table"]
        rates += cells(label, table, "width", "best lr")
        losses += cells(label, table, "width", "best loss")
    left = panel("One rate for all falls with width", rates, "width", "best rate, of the base")
    right = panel(
        "At its best rate every recipe gains",
        losses,
        "width",
        "loss at its best rate",
        kind="semilogarithmic",
    )
    return beside(left, right)


def hero(numbers: Any) -> Any:
    """Draw losses of the smallest and the largest GPT by learning rate, under each recipe.

    A mark shows what the small one's best learning rate costs the large one.
    """
    findings = [hero_finding(title, numbers[name]) for name, title in HERO.items()]
    every = list[Row]()
    for finding in findings:
        every += [*finding.rows, *finding.marks]
    charts = [chart_of(one, every).properties(width=300, title=one.title) for one in findings]
    return beside(*charts)


def hero_finding(title: str, recipe: Any) -> Finding:
    """The losses, best learning rates and the cost of one recipe, from its stored numbers."""
    small_curve, *_, large_curve = recipe["grid"].values()
    table = recipe["table"]
    small_width = min(WIDTHS)
    large_width = max(WIDTHS)
    small = f"width {small_width:,}"
    large = f"width {large_width:,}"
    rows = [*curve_rows(small, small_curve), *curve_rows(large, large_curve)]
    best_rates = {row["width"]: row for row in table if row["quantity"] == "best lr"}
    best = [
        best_row(small, best_rates[small_width]),
        best_row(large, best_rates[large_width]),
    ]
    (cost,) = (row["value"] for row in table if row["quantity"] == "regret (nats)")
    carried = recipe["carried"]["value"]
    mark = {
        "series": large,
        "x": best[0]["x"],
        "y": carried,
        "low": carried - cost,
        "high": carried,
        "text": f"{cost:+.2f} nats",
    }
    axes = Axes(
        "x", "y", "learning rate", "loss on unseen text, nats", "semilogarithmic", False, 3.2
    )
    return Finding("", title, "", rows, axes, "", marks=[mark], best=best)


def curve_rows(series: str, curve: Any) -> list[Row]:
    """Losses by learning rate, from a pair of lists: log2 of learning rates, and losses."""
    return [
        {"series": series, "x": float(f"{2.0**log_rate:.2g}"), "y": loss}
        for log_rate, loss in sorted(zip(*curve, strict=True))
    ]


def best_row(series: str, row: Mapping[str, Any]) -> Row:
    """The best learning rate of a series, with its interval."""
    return {"series": series, "x": row["value"], "low": row["low"], "high": row["high"]}


CHARTS = {
    "two-limits": ("two_limits_depth", two_limits),
    "best-rate-in-width": ("rate_in_width", rate_in_width),
    "muon-depth": ("muon_depth", muon_depth),
    "embedding-rate": ("embedding_rate", embedding_rate),
    "hero": ("embedding_rate", hero),
}


def pictures() -> dict[str, str]:
    """SVGs by page."""
    svgs = dict[str, str]()
    for page, (study, draw) in CHARTS.items():
        numbers = json.loads((STUDIES / f"{study}.json").read_text())
        svgs[page] = svg(draw(numbers))
    return svgs


if __name__ == "__main__":
    for page, picture in pictures().items():
        write_text(IMAGES / f"{page}.svg", picture)
