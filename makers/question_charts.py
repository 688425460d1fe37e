"""Charts of the pages that answer a question: ``python -m makers.question_charts`` draws them from
stored numbers.

Bars are 95 % intervals over seeds; grey lines are what a theory says.
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
    """Series over x as points with bars, theory as grey lines behind."""
    finding = Finding(
        "", "", "", list(rows), Axes("x", "y", x, y, kind, zero=False), "", references=list(grey)
    )
    return chart_of(finding).properties(width=270, height=220, title=alt.Title(title.split("\n")))


def beside(left: Any, right: Any) -> Any:
    """Two panels with legends of their own."""
    return alt.hconcat(left, right, spacing=28).resolve_scale(
        color="independent", strokeDash="independent"
    )


def power(name: str, places: Sequence[float], start: float, exponent: float) -> list[Row]:
    """A power law from the first place on."""
    return [{"series": name, "x": x, "y": start * (x / places[0]) ** exponent} for x in places]


def cells(series: str, table: Iterable[Mapping[str, Any]], x: str, quantity: str) -> list[Row]:
    """Rows of a transfer's table, with their intervals."""
    return [
        {"series": series, "x": row[x], "y": row["value"], "low": row["low"], "high": row["high"]}
        for row in table
        if row["quantity"] == quantity and row["value"] is not None
    ]


def two_limits(numbers: Any) -> Any:
    """What is left of the difference of both networks at depth L; what one layer and all layers
    answer.
    """
    depths = [4, 8, 16, 32, 64, 128, 256, 512]
    main = numbers["main"]

    def rows(names: Mapping[str, str]) -> list[Row]:
        return [
            {"series": label, "x": L, "y": bar["value"], "low": bar["low"], "high": bar["high"]}
            for name, label in names.items()
            for L, bar in zip(depths, main[name]["bars"], strict=True)
        ]

    steps = rows({f"step {k}": f"after {k} step{'s' * (k > 1)}" for k in (1, 5, 40)})
    parts = rows({"all layers": "all layers", "one layer": "one layer"})
    claimed = power("claimed: 1/L or below", depths, main["step 1"]["sizes"][0], -1)
    of = main["all by Appendix F"]["sizes"]
    formula = [
        {"series": "all, by Appendix F", "x": L, "y": size}
        for L, size in zip(depths, of, strict=True)
    ]
    left = panel(
        "Standard and decoupled networks\nstay apart as depth grows",
        steps,
        "depth L",
        "RMS difference of outputs",
        claimed,
    )
    return beside(
        left,
        panel(
            "One layer answers 1/L,\nall together 1",
            parts,
            "depth L",
            "coupling over the rate",
            formula,
        ),
    )


def rate_in_width(numbers: Any) -> Any:
    """How far the best rate of the mean loss, and of one network, is from that of the widest
    networks.
    """
    bias = list[Row]()
    luck = list[Row]()
    for name, label in BRANCHES.items():
        cases = numbers[name]["widths"]
        p = numbers[name]["mean"]["p"]["value"]
        means = [case["log2 rate"] for case in cases]
        halves = [(mean["high"] - mean["low"]) / 2 for mean in means]
        powers = [case["width"] ** -p for case in cases]
        limit = np.polyfit(
            powers, [mean["value"] for mean in means], 1, w=[1 / half for half in halves]
        )[1]
        for case, mean, half in zip(cases, means, halves, strict=True):
            off = abs(mean["value"] - limit)
            if off > half:
                bias.append(
                    {
                        "series": label,
                        "x": case["width"],
                        "y": off,
                        "low": off - half,
                        "high": off + half,
                    }
                )
            luck.append({"series": label, "x": case["width"], "y": case["sd"]})
    widths = sorted({row["x"] for row in luck})
    left = panel(
        "Mean loss: as 1/n under SGD",
        bias,
        "width n",
        "doublings from the limit of the fit",
        power("1/n", widths[:5], 0.9, -1),
    )
    return beside(
        left,
        panel(
            "One network: as 1/√n",
            luck,
            "width n",
            "standard deviation, doublings",
            power("1/√n", widths, 1.2, -0.5),
        ),
    )


def muon_depth(numbers: Any) -> Any:
    """Best rates of a GPT by depth, and what the larger power loses."""
    gpt = numbers["gpt"]
    rates = [
        row
        for rule, label in RULES.items()
        for row in cells(label, gpt["added"][rule], "depth", "best lr")
    ]
    lost = [
        {
            "series": "1/√L",
            "x": int(L),
            "y": cost["value"],
            "low": cost["low"],
            "high": cost["high"],
        }
        for L, cost in gpt["1/sqrt(L) over 1/L"].items()
    ]
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
    """Best rates and lowest losses by width."""

    def of(quantity: str) -> list[Row]:
        return [
            row
            for name, label in RECIPES.items()
            for row in cells(label, numbers[name]["table"], "width", quantity)
        ]

    left = panel(
        "One rate for all falls with width", of("best lr"), "width", "best rate, of the base"
    )
    return beside(
        left,
        panel(
            "At its best rate every recipe gains",
            of("best loss"),
            "width",
            "loss at its best rate",
            kind="semilogarithmic",
        ),
    )


def hero(numbers: Any) -> Any:
    """Losses of the smallest and the largest GPT by rate, and what the small one's best rate costs
    the large one.
    """
    axes = Axes(
        "x", "y", "learning rate", "loss on unseen text, nats", "semilogarithmic", False, 3.2
    )
    findings = []
    for name, title in HERO.items():
        small, *_, large = numbers[name]["grid"].values()
        table = numbers[name]["table"]
        sizes = [f"width {int(n):,}" for n in (min(WIDTHS), max(WIDTHS))]
        rows = [
            {"series": size, "x": float(f"{2.0**rate:.2g}"), "y": loss}
            for size, curve in zip(sizes, (small, large), strict=True)
            for rate, loss in sorted(zip(*curve, strict=True))
        ]
        ends = (
            row
            for row in table
            if row["quantity"] == "best lr" and row["width"] in (min(WIDTHS), max(WIDTHS))
        )
        best = [
            {"series": size, "x": row["value"], "low": row["low"], "high": row["high"]}
            for size, row in zip(sizes, ends, strict=True)
        ]
        (cost,) = (row["value"] for row in table if row["quantity"] == "regret (nats)")
        carried = numbers[name]["carried"]["value"]
        mark = {
            "series": sizes[1],
            "x": best[0]["x"],
            "y": carried,
            "low": carried - cost,
            "high": carried,
            "text": f"{cost:+.2f} nats",
        }
        findings.append(Finding("", title, "", rows, axes, "", marks=[mark], best=best))
    every = [row for finding in findings for row in [*finding.rows, *finding.marks]]
    charts = [chart_of(one, every).properties(width=300, title=one.title) for one in findings]
    return beside(*charts)


CHARTS = {
    "two-limits": ("two_limits_depth", two_limits),
    "best-rate-in-width": ("rate_in_width", rate_in_width),
    "muon-depth": ("muon_depth", muon_depth),
    "embedding-rate": ("embedding_rate", embedding_rate),
    "hero": ("embedding_rate", hero),
}


def pictures() -> dict[str, str]:
    """SVGs by page."""
    return {
        page: svg(draw(json.loads((STUDIES / f"{stored}.json").read_text())))
        for page, (stored, draw) in CHARTS.items()
    }


if __name__ == "__main__":
    for page, picture in pictures().items():
        write_text(IMAGES / f"{page}.svg", picture)
