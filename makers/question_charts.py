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

from makers.pictures import FONT, svg
from nfd.core.files import write_text
from nfd.core.findings import Axes, Finding
from nfd.core.tables import Row
from nfd.report import look
from nfd.report.charts import chart_of
from studies import lora_ranks
from studies.embedding_rate import WIDTHS

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
RULES = {"complete-p": "1/L", "depth-mup": "1/√L"}
BRANCHES = {
    "linear-1": "linear, 1 step",
    "sgd-1": "SGD, 1 step",
    "sgd-40": "SGD, 40 steps",
    "muon-1": "Muon, 1 step",
}
LORA_FACTORS = {"alpha/r": "alpha/r", "alpha/sqrt(r)": "alpha/√r", "none": "no factor"}
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


def beside(*panels: Any) -> Any:
    """Put panels side by side, each with its legend."""
    return alt.hconcat(*panels, spacing=28).resolve_scale(
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


def lora(numbers: Any) -> Any:
    """Draw how the best rate of a frozen Transformer's adapters follows the rank."""
    panels = []
    answers = lora_ranks.answers(numbers)
    for optimizer, label in (("adamw", "AdamW"), ("muon", "Muon")):
        rates = list[Row]()
        for factor, name in LORA_FACTORS.items():
            table = answers[f"{optimizer}, rank, {factor}"].of(lora_ranks.RULE).table
            rates += cells(name, table, "width", "best lr")
        panels.append(panel(f"{label}: one rate for A and B", rates, "rank r", "best rate"))
    return beside(*panels)


# Learning rates and losses that both panels of the hero show, and the rates that are named.
HERO_RATES = (1e-4, 1.2e-1)
HERO_LOSSES = (2.55, 3.2)
HERO_TICKS = (2e-4, 1e-3, 5e-3, 2e-2, 1e-1)


def hero(numbers: Any) -> Any:
    """Draw losses of the smallest and the largest GPT by learning rate, under each recipe.

    A bar shows what the small one's best learning rate costs the large one.
    """
    return beside(*(hero_panel(title, numbers[name]) for name, title in HERO.items()))


def hero_panel(title: str, recipe: Any) -> Any:
    """Draw one recipe: losses by learning rate, and what tuning the small network costs."""
    table = recipe["table"]
    best_rates = {row["width"]: row for row in table if row["quantity"] == "best lr"}
    layers = [
        *best_rate_layers(best_rates[min(WIDTHS)]),
        *curve_layers(recipe["grid"]),
        *cost_layers(recipe, best_rates),
    ]
    return alt.layer(*layers).properties(width=300, height=300, title=title)


def hero_points(rows: Sequence[Row], **encoding: Any) -> alt.Chart:
    """Rows on the axes of the hero, without a mark yet."""
    across = look.x_log("x", "learning rate", HERO_RATES, values=HERO_TICKS)
    up = look.y_linear("y", "loss on unseen text (nats)", HERO_LOSSES, tickCount=4)
    return look.points(rows, x=across, y=up, **encoding)


def best_rate_layers(best: Mapping[str, Any]) -> list[Any]:
    """The small network's best learning rate: a grey band, a dashed line, and its name above."""
    low, high = HERO_LOSSES
    row = {"x": best["low"], "x2": best["high"], "y": low, "y2": high}
    band = hero_points([row]).mark_rect(color=look.BAND, opacity=0.6)
    line = {"x": best["value"], "y": low, "y2": high}
    dashed = hero_points([line]).mark_rule(color=look.SOFT, strokeDash=[3, 3])
    name = {"x": best["value"], "y": high, "text": f"best at width {min(WIDTHS)}"}
    above = hero_points([name], text="text:N").mark_text(dy=-7, color=look.SOFT, fontSize=FONT)
    return [band.encode(x2="x2:Q", y2="y2:Q"), dashed.encode(y2="y2:Q"), above]


def curve_layers(grid: Mapping[str, Any]) -> list[Any]:
    """Losses of the smallest and the largest network: lines with points."""
    small_curve, *_, large_curve = grid.values()
    small = f"width {min(WIDTHS):,}"
    large = f"width {max(WIDTHS):,}"
    rows = [*curve_rows(small, small_curve), *curve_rows(large, large_curve)]
    scale = alt.Scale(domain=[small, large], range=[look.RAMP[1], look.RAMP[3]])
    legend = alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3)
    colour = alt.Color("series:N", scale=scale, legend=legend)
    base = hero_points(rows, color=colour)
    line = base.mark_line(strokeWidth=2, clip=True)
    return [line, base.mark_point(filled=True, size=40, opacity=1, clip=True)]


def cost_layers(recipe: Any, best_rates: Mapping[int, Any]) -> list[Any]:
    """What the small network's best learning rate costs the large one, between two diamonds.

    They stand where the large network was trained: at its best learning rate, and at the small
    one's. A cost that the interval does not tell from zero is said to be none, without a bar.
    """
    (cost,) = (row for row in recipe["table"] if row["quantity"] == "regret (nats)")
    carried = recipe["carried"]["value"]
    best = carried - cost["value"]
    rate = best_rates[min(WIDTHS)]["value"]
    at_carried = {"x": rate, "y": carried}
    if cost["low"] <= 0 <= cost["high"]:
        words = {"x": rate, "y": HERO_LOSSES[0], "text": "costs nothing measurable"}
        text = hero_points([words], text="text:N")
        diamond = hero_points([at_carried]).mark_point(**diamond_of(look.BLUE))
        beside_line: Any = {"align": "right", "dx": -8, "dy": -14, "fontSize": FONT}
        return [diamond, text.mark_text(color=look.BLUE, fontWeight=600, **beside_line)]
    own_rate = best_rates[max(WIDTHS)]["value"]
    at_best = {"x": own_rate, "x2": rate, "y": best}
    across = hero_points([at_best]).mark_rule(color=look.ORANGE, strokeDash=[2, 3])
    bar = {"x": rate, "y": best, "y2": carried}
    up = hero_points([bar]).mark_rule(color=look.ORANGE, strokeWidth=5)
    ends = hero_points([at_best, at_carried]).mark_point(**diamond_of(look.ORANGE))
    # Below the small network's losses, to the right of the bar, there is nothing.
    words = {"x": rate, "y": best + 0.3 * cost["value"]}
    text = hero_points([words | {"text": f"costs {cost['value']:.2f} nats"}], text="text:N")
    beside_bar: Any = {"align": "left", "dx": 8, "fontSize": FONT}
    named = text.mark_text(color=look.ORANGE, fontWeight=600, **beside_bar)
    return [across.encode(x2="x2:Q"), up.encode(y2="y2:Q"), ends, named]


def diamond_of(colour: str) -> dict[str, Any]:
    """A diamond whose inside is the page."""
    return {"shape": "diamond", "size": 70, "fill": look.PAPER, "stroke": colour, "opacity": 1}


def curve_rows(series: str, curve: Any) -> list[Row]:
    """Losses by learning rate, from a pair of lists: log2 of learning rates, and losses."""
    return [
        {"series": series, "x": 2.0**log_rate, "y": loss}
        for log_rate, loss in sorted(zip(*curve, strict=True))
    ]


def kernels_in_training(numbers: Any) -> Any:
    """Draw the angles of kernels in training: features of both limits, other kernels, and a
    Transformer's features.
    """
    networks = {"shared": "standard", "independent": "decoupled"}
    features = list[Row]()
    others = list[Row]()
    for row in numbers["turning"]:
        if row["step"] == 0 or row["feedback"] not in networks:
            continue
        network = networks[row["feedback"]]
        if row["quantity"] == "features":
            features.append(point(network, row["step"], row))
        else:
            others.append(point(f"{row['quantity']}, {network}", row["step"], row))
    left = panel(
        "Features turn further\nin the standard network",
        features,
        "updates",
        "angle, degrees",
        kind="semilogarithmic",
    )
    right = panel(
        "The tangent kernel turns\nmore than gradients",
        others,
        "updates",
        "angle, degrees",
        kind="semilogarithmic",
    )
    modules = {"blocks.0": "block 1", "blocks.1": "block 2", "norm": "last norm"}
    stream = list[Row]()
    for row in numbers["transformer"]:
        if row["step"] > 0 and row["module"] in modules:
            stream.append(point(modules[row["module"]], row["step"], row))
    transformer = panel(
        "The stream of a\nTransformer turns too",
        stream,
        "updates",
        "angle, degrees",
        kind="semilogarithmic",
    )
    return beside(left, right, transformer)


# By page, the stored numbers and what draws them.
CHARTS = {
    "two-limits": ("studies/two_limits_depth", two_limits),
    "best-rate-in-width": ("studies/rate_in_width", rate_in_width),
    "muon-depth": ("studies/muon_depth", muon_depth),
    "embedding-rate": ("studies/embedding_rate", embedding_rate),
    "lora": ("studies/lora_ranks", lora),
    "hero": ("studies/embedding_rate", hero),
    "kernels-in-training": ("calibration/kernels_in_training", kernels_in_training),
}


def pictures() -> dict[str, str]:
    """SVGs by page."""
    svgs = dict[str, str]()
    for page, (place, draw) in CHARTS.items():
        numbers = json.loads((ROOT / f"{place}.json").read_text())
        svgs[page] = svg(draw(numbers))
    return svgs


if __name__ == "__main__":
    for page, picture in pictures().items():
        write_text(IMAGES / f"{page}.svg", picture)
