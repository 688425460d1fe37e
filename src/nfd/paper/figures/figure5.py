"""Figure 5: two-layer blocks, whose inner layers stop learning with depth, and Eq. 8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import methodcaller

import numpy as np
import torch
from torch import Tensor

from nfd.core import Axes, Finding, Interval, Row, interval
from nfd.laws import Scores
from nfd.paper.figures.figure import DataSummary, Figure, Runs, everywhere
from nfd.paper.figures.panels import (
    BANDS,
    BARS,
    by_seed,
    caption,
    curve_rows,
    difference,
    difference_in_words,
    diverged,
    epoch_losses,
    line,
    panel,
    point_rows,
    sizes,
    slope,
    slopes_in_words,
    tested,
)
from nfd.runs import upset_in

RULES = {"depth-mup": "uniform rates", "depth-mup-inner": "rates of Eq. 8"}
_NAMED = "Uniform rates are the rule depth-mup, the rates of Eq. 8 depth-mup-inner."
_BOTH = {"block": "two-layer", "rule": list(RULES)}
_RATES = [0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0, 1.414, 2.0, 2.828, 4.0]
_UPDATES = {"meter": "updates", "eta_c": 0.1}

PARTS = everywhere(
    _BOTH,
    {
        "smoke": {
            "collapse": {
                **_UPDATES,
                "depth": [2, 4],
                "width": 12,
                "steps": 6,
                "every": 3,
                "seeds": 3,
            },
            "transfer": {
                "depth": [2, 4],
                "width": [12, 16],
                "eta_c": [0.25, 0.5, 1.0],
                "steps": 6,
                "seeds": 3,
            },
            "deep": {
                "depth": 6,
                "width": 12,
                "eta_c": [0.1, 0.4],
                "steps": 6,
                "looks": 2,
                "seeds": 3,
            },
        },
        "cpu": {
            "collapse": {
                **_UPDATES,
                "depth": [4, 8, 16, 32, 64, 128],
                "width": 128,
                "batch": 128,
                "steps": 300,
                "every": 100,
                "seeds": 3,
            },
            "transfer": {
                "depth": [3, 6, 9],
                "width": [64, 128],
                "batch": 128,
                "eta_c": _RATES,
                "steps": 390,
                "seeds": 4,
            },
            "deep": {
                "depth": 64,
                "width": 128,
                "batch": 128,
                "eta_c": [0.1, 0.4, 0.8, 1.6, 3.2],
                "steps": 780,
                "looks": 13,
                "seeds": 3,
            },
        },
        "paper": {
            "collapse": {
                **_UPDATES,
                "depth": [4, 8, 16, 32, 64, 128],
                "width": 128,
                "batch": 128,
                "steps": 300,
                "every": 30,
                "seeds": 5,
            },
            "transfer": {
                "depth": [3, 6, 9],
                "width": [64, 128, 256],
                "batch": 128,
                "eta_c": _RATES,
                "epochs": 30,
                "seeds": 5,
            },
            "deep": {
                "depth": 64,
                "width": 128,
                "batch": 128,
                "eta_c": [0.1, 0.4, 0.8, 1.6, 3.2],
                "epochs": 30,
                "looks": 30,
                "seeds": 5,
            },
        },
    },
)


def reduce(runs: Mapping[str, Runs], data: DataSummary) -> list[Finding]:
    """Return panels a to c of row 1, d to g of row 2, and h to j of row 3."""
    return [
        *_collapse(runs["collapse"], data),
        *_transfer(runs["transfer"], data),
        *_deep(runs["deep"], data),
    ]


def updates(collapse: Runs, rule: str, meter: str, look: int = -1) -> tuple[list[float], Tensor]:
    """Return depths and a meter ``[seeds, depths]`` at one look, by default the last."""
    some = collapse.where(rule=rule)
    return by_seed(sizes(some, "depth", lambda of_depth: of_depth.curve(meter)[:, look]))


def scores(
    transfer: Runs, rule: str, width: int, depth: int, classes: int, metric: str = "train_loss"
) -> Scores:
    """Return final losses of networks of one size by learning rate."""
    some = transfer.where(rule=rule, width=width, depth=depth)
    rates: list[float] = []
    losses: list[Tensor] = []
    upset: list[Tensor] = []
    for eta_c, of_rate in sorted(some.by("eta_c").items()):
        rates.append(math.log2(eta_c))
        losses.append(of_rate.metric(metric))
        upset.append(torch.tensor([upset_in(record) for record in of_rate]))
    return Scores(
        np.array(rates),
        torch.stack(losses, 1).double().numpy(),
        torch.stack(upset, 1).numpy(),
        math.log(classes),
    )


def by_rate(runs: Runs, rule: str, metric: str) -> tuple[list[float], Tensor]:
    """Return learning rates and final numbers ``[seeds, rates]`` of networks of one size."""
    by_eta = sizes(runs.where(rule=rule), "eta_c", methodcaller("metric", metric))
    return list(by_eta), torch.stack(list(by_eta.values()), 1)


def best_rate(runs: Runs, rule: str) -> tuple[float, bool]:
    """Return the learning rate with the lowest mean training loss, and whether it ends the grid."""
    rates, losses = by_rate(runs, rule, "train_loss")
    index = int(losses.mean(0).argmin())
    return rates[index], index in (0, len(rates) - 1)


def tuned_advantage(runs: Runs, metric: str) -> Interval:
    """Return Eq. 8 minus uniform learning rates for networks of one size, each at its best rate.

    That is the rate of the lowest mean training loss. Networks are paired by seed; the jackknife
    chooses the rates again without each seed.
    """
    parts: list[Tensor] = []
    for rule in RULES:
        for name in ("train_loss", metric):
            _, values = by_rate(runs, rule, name)
            parts.append(values)
    counts = [part.shape[1] for part in parts]

    def apart(together: Tensor) -> Tensor:
        train, values, train_8, values_8 = torch.split(together, counts, dim=1)
        best = int(train.mean(0).argmin())
        best_8 = int(train_8.mean(0).argmin())
        return (values_8[:, best_8] - values[:, best]).mean()

    return interval(apart, torch.cat(parts, 1))


def _collapse(runs: Runs, data: DataSummary) -> list[Finding]:
    drawn = (
        (
            "a",
            "inner_update",
            "How far inner layers move features",
            "RMS of x_l beyond initial weights",
            -0.5,
            "Of x_l minus what it would be with the initial inner weights (Eqs. 7, 27); the grey "
            "line is Eq. 7.",
        ),
        (
            "b",
            "stream_update",
            "How far outer layers move the stream",
            "RMS of dh/dt beyond initial weights",
            0.0,
            "Of L (h_l - h_{l-1}) minus what it would be with the initial outer weights (Eqs. 7, "
            "33, 34); the grey line is Eq. 7.",
        ),
        (
            "c",
            "function_update_inner",
            "What inner layers do to the function",
            "RMS change of f by inner layers",
            0.5,
            "Of f minus what it would be with the initial inner weights: ours, not in the paper; "
            "the grey line is what updates of size one that add up make.",
        ),
    )
    return [_against_depth(runs, data, *chart) for chart in drawn]


def _against_depth(
    runs: Runs,
    data: DataSummary,
    letter: str,
    meter: str,
    title: str,
    up: str,
    exponent: float,
    meaning: str,
) -> Finding:
    rows = list[Row]()
    slopes = list[Row]()
    for rule, name in RULES.items():
        depths, samples = updates(runs, rule, meter)
        rows += point_rows(name, "depth", meter, dict(zip(depths, samples.unbind(1), strict=True)))
        slopes.append(slope(name, depths, samples))
    steps = runs.values("steps")[0]
    uniform = [row for row in rows if row["series"] == RULES["depth-mup"]]
    places = [row["depth"] for row in uniform]
    at = uniform[0][meter] if uniform else 1.0
    return panel(
        "figure-5",
        letter,
        title,
        headline=f"After {steps} steps: {slopes_in_words('L', slopes)}.",
        rows=rows,
        axes=Axes("depth", meter, "depth L", up, "logarithmic"),
        slopes=slopes,
        caption=caption(runs, data, meaning, _NAMED, BARS),
        references=line(f"slope {exponent:g}", "depth", meter, places, exponent, at),
    )


def _transfer(runs: Runs, data: DataSummary) -> list[Finding]:
    uniform, eq8 = RULES
    return [
        _against_rate(runs, data, "d", uniform, "train_loss"),
        _against_rate(runs, data, "e", eq8, "train_loss"),
        _against_rate(runs, data, "f", uniform, "test_loss"),
        _against_rate(runs, data, "g", eq8, "test_loss"),
    ]


def _against_rate(runs: Runs, data: DataSummary, letter: str, rule: str, metric: str) -> Finding:
    rows = list[Row]()
    best_rates = list[str]()
    some = runs.where(rule=rule)
    for (depth, width), part in sorted(some.by("depth", "width").items()):
        series = f"depth {depth}, width {width}"
        losses = sizes(part, "eta_c", methodcaller("metric", metric))
        rows += point_rows(series, "eta_c", "loss", losses, depth=depth, width=width)
        cell = scores(runs, rule, width, depth, data.classes, metric)
        best = _rate(cell.optimum()) if cell.has_optimum else "beyond these rates"
        best_rates.append(f"{best} ({series})")
    loss = metric.replace("_", " ").replace("train", "training")
    diverged_rates = "A rate at which a network diverged is left out."
    return panel(
        "figure-5",
        letter,
        f"{RULES[rule]}: {loss}",
        headline=f"The best eta_c for the {loss} is {'; '.join(best_rates)}.",
        rows=rows,
        axes=Axes(
            "eta_c",
            "loss",
            "eta_c",
            f"{loss} (nats)",
            "semilogarithmic",
            zero=False,
            colour="depth",
            dash="width",
        ),
        caption=caption(some, data, _NAMED, BARS, diverged_rates),
    )


def _rate(log2_eta: Interval) -> str:
    """Show a learning rate with its interval, given its log2."""
    value = math.pow(2, log2_eta.value)
    low = math.pow(2, log2_eta.low)
    high = math.pow(2, log2_eta.high)
    return f"{value:.2g} [{low:.2g}, {high:.2g}]"


def _deep(runs: Runs, data: DataSummary) -> list[Finding]:
    slow = runs.where(eta_c=min(runs.values("eta_c")))
    drawn = (
        ("h", "Training loss of a deep network", "train_loss", "training loss (nats)"),
        ("i", "Test loss of a deep network", "test_loss", "test loss (nats)"),
        ("j", "Test accuracy of a deep network", "test_accuracy", "test accuracy"),
    )
    details = list[str]()
    for rule, name in RULES.items():
        for sentence in diverged(runs.where(rule=rule), "eta_c", "eta_c ="):
            details.append(f"{name[0].upper()}{name[1:]}: {sentence[0].lower()}{sentence[1:]}")
    panels = []
    for letter, title, metric, up in drawn:
        rows = list[Row]()
        for rule, name in RULES.items():
            some = slow.where(rule=rule)
            steps, values = epoch_losses(some) if metric == "train_loss" else tested(some, metric)
            rows += curve_rows(name, steps, metric, values)
        panels.append(
            panel(
                "figure-5",
                letter,
                title,
                headline=_compared(slow, runs, metric),
                rows=rows,
                axes=Axes("step", metric, "step", up, "curves"),
                caption=caption(slow, data, _NAMED, BANDS, "Differences are paired by seed."),
                details=details,
            )
        )
    return panels


def advantage(runs: Runs, metric: str) -> Interval:
    """Return Eq. 8 minus uniform learning rates after training, at one eta_c, paired by seed."""
    uniform, eq8 = RULES
    return difference(runs.where(rule=uniform).metric(metric), runs.where(rule=eq8).metric(metric))


def _compared(slow: Runs, runs: Runs, metric: str) -> str:
    least = min(runs.values("eta_c"))
    best_rates: list[str] = []
    for rule, name in RULES.items():
        eta_c, _ = best_rate(runs, rule)
        best_rates.append(f"{eta_c:g} for {name}")
    return (
        "Eq. 8 minus uniform rates at the end: "
        f"{difference_in_words(advantage(slow, metric))} at eta_c = {least:g}; "
        f"{difference_in_words(tuned_advantage(runs, metric))} each at its best rate "
        f"({', '.join(best_rates)})."
    )


FIGURE = Figure(
    "figure-5", "Do inner layers learn, and does their learning rate transfer?", PARTS, reduce, "a"
)
