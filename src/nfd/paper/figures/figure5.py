"""Figure 5: two-layer blocks, whose inner layers stop learning with depth, and the learning rate of
Eq. 8.
"""

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
    apart_said,
    by_seed,
    caption,
    curve_rows,
    difference,
    diverged,
    epoch_losses,
    line,
    panel,
    point_rows,
    sizes,
    slope,
    slopes_said,
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
    """Row 1: panels a to c; row 2: d to g; row 3: h to j."""
    return [
        *_collapse(runs["collapse"], data),
        *_transfer(runs["transfer"], data),
        *_deep(runs["deep"], data),
    ]


def updates(collapse: Runs, rule: str, meter: str, look: int = -1) -> tuple[list[float], Tensor]:
    """Depths and a meter ``[seeds, depths]`` at one look, by default the last."""
    return by_seed(
        sizes(collapse.where(rule=rule), "depth", lambda some: some.curve(meter)[:, look])
    )


def scores(
    transfer: Runs, rule: str, width: int, depth: int, classes: int, metric: str = "train_loss"
) -> Scores:
    """Final losses of networks of one size by rate."""
    by_rate = sorted(transfer.where(rule=rule, width=width, depth=depth).by("eta_c").items())
    losses = torch.stack([some.metric(metric) for _, some in by_rate], 1)
    upset = torch.stack([torch.tensor([upset_in(r) for r in some]) for _, some in by_rate], 1)
    rates = [math.log2(eta) for eta, _ in by_rate]
    return Scores(np.array(rates), losses.double().numpy(), upset.numpy(), math.log(classes))


def by_rate(runs: Runs, rule: str, metric: str) -> tuple[list[float], Tensor]:
    """Rates and final numbers ``[seeds, rates]`` of networks of one size."""
    by_eta = sizes(runs.where(rule=rule), "eta_c", methodcaller("metric", metric))
    return list(by_eta), torch.stack(list(by_eta.values()), 1)


def best_rate(runs: Runs, rule: str) -> tuple[float, bool]:
    """The rate with the lowest mean training loss, and whether it lies at an end of the grid."""
    rates, losses = by_rate(runs, rule, "train_loss")
    index = int(losses.mean(0).argmin())
    return rates[index], index in (0, len(rates) - 1)


def tuned_advantage(runs: Runs, metric: str) -> Interval:
    """Eq. 8 minus uniform rates for networks of one size, each at the rate of its lowest mean
    training loss.

    Paired by seed; the rates are chosen again without each seed.
    """
    parts = [by_rate(runs, rule, name)[1] for rule in RULES for name in ("train_loss", metric)]
    counts = [part.shape[1] for part in parts]

    def apart(together: Tensor) -> Tensor:
        train, other, train_8, other_8 = torch.split(together, counts, dim=1)
        first, second = (int(losses.mean(0).argmin()) for losses in (train, train_8))
        return (other_8[:, second] - other[:, first]).mean()

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
        headline=f"After {steps} steps: {slopes_said('L', slopes)}.",
        rows=rows,
        axes=Axes("depth", meter, "depth L", up, "logarithmic"),
        slopes=slopes,
        caption=caption(runs, data, meaning, _NAMED, BARS),
        references=line(f"slope {exponent:g}", "depth", meter, places, exponent, at),
    )


def _transfer(runs: Runs, data: DataSummary) -> list[Finding]:
    panels = []
    for letters, metric in (("de", "train_loss"), ("fg", "test_loss")):
        for letter, (rule, name) in zip(letters, RULES.items(), strict=True):
            rows = list[Row]()
            best_rates = list[str]()
            some = runs.where(rule=rule)
            for (depth, width), part in sorted(some.by("depth", "width").items()):
                series = f"depth {depth}, width {width}"
                losses = sizes(part, "eta_c", methodcaller("metric", metric))
                rows += point_rows(series, "eta_c", "loss", losses, depth=depth, width=width)
                cell = scores(runs, rule, width, depth, data.classes, metric)
                at = _rate(cell.optimum()) if cell.has_optimum else "beyond these rates"
                best_rates.append(f"{at} ({series})")
            loss = metric.replace("_", " ").replace("train", "training")
            panels.append(
                panel(
                    "figure-5",
                    letter,
                    f"{name}: {loss}",
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
                    caption=caption(
                        some, data, _NAMED, BARS, "A rate at which a network diverged is left out."
                    ),
                )
            )
    return panels


def _rate(log2_eta: Interval) -> str:
    value, low, high = (math.pow(2, v) for v in (log2_eta.value, log2_eta.low, log2_eta.high))
    return f"{value:.2g} [{low:.2g}, {high:.2g}]"


def _deep(runs: Runs, data: DataSummary) -> list[Finding]:
    slow = runs.where(eta_c=min(runs.values("eta_c")))
    drawn = (
        ("h", "Training loss of a deep network", "train_loss", "training loss (nats)"),
        ("i", "Test loss of a deep network", "test_loss", "test loss (nats)"),
        ("j", "Test accuracy of a deep network", "test_accuracy", "test accuracy"),
    )
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
                details=[
                    f"{name[0].upper()}{name[1:]}: {sentence[0].lower()}{sentence[1:]}"
                    for rule, name in RULES.items()
                    for sentence in diverged(runs.where(rule=rule), "eta_c", "eta_c =")
                ],
            )
        )
    return panels


def advantage(runs: Runs, metric: str) -> Interval:
    """Eq. 8 minus uniform rates at the end of training, at the same eta_c, paired by seed."""
    return difference(*(runs.where(rule=rule).metric(metric) for rule in RULES))


def _compared(slow: Runs, runs: Runs, metric: str) -> str:
    least = min(runs.values("eta_c"))
    rates = ", ".join(f"{best_rate(runs, rule)[0]:g} for {name}" for rule, name in RULES.items())
    return (
        f"Eq. 8 minus uniform rates at the end: {apart_said(advantage(slow, metric))} at eta_c = "
        f"{least:g}; {apart_said(tuned_advantage(runs, metric))} each at its best rate ({rates})."
    )


FIGURE = Figure(
    "figure-5", "Do inner layers learn, and does their learning rate transfer?", PARTS, reduce, "a"
)
