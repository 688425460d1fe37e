"""Figure 1: pre- and post-activation residual networks under the branch multiplier 1/sqrt(L)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from scipy import stats

from nfd.core import Axes, Finding, Interval, Row
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

_NAMES = {"pre": "pre-activation", "post": "post-activation"}

PARTS = everywhere(
    {"order": ["pre", "post"], "eta_c": 0.01},
    {
        "smoke": {
            "start": {"depth": [4, 8, 16], "width": 16, "steps": 1, "meter": "start", "seeds": 3},
            "training": {"depth": 8, "width": 16, "steps": 6, "looks": 2, "seeds": 3},
        },
        "cpu": {
            "start": {
                "depth": [4, 8, 16, 32, 64, 128, 256],
                "width": 128,
                "steps": 1,
                "meter": "start",
                "seeds": 8,
            },
            "training": {
                "depth": 64,
                "width": 128,
                "batch": 128,
                "steps": 390,
                "looks": 13,
                "seeds": 5,
            },
        },
        "paper": {
            "start": {
                "depth": [4, 8, 16, 32, 64, 128, 256],
                "width": 128,
                "steps": 1,
                "meter": "start",
                "seeds": 8,
            },
            "training": {
                "depth": 64,
                "width": 128,
                "batch": 128,
                "epochs": 30,
                "looks": 30,
                "seeds": 5,
            },
        },
    },
)


def reduce(runs: Mapping[str, Runs], data: DataSummary) -> list[Finding]:
    """Return panels a to c."""
    return [_features(runs["start"], data), *_training(runs["training"], data)]


def end_rms(runs: Runs) -> torch.Tensor:
    """Return the RMS of h_L before training, ``[runs]``."""
    return runs.curve("h_rms")[:, -1]


def advantage(training: Runs, metric: str = "test_loss") -> Interval:
    """Return post- minus pre-activation, at the end of training."""
    apart = training.by("order")
    return difference(apart["pre"].metric(metric), apart["post"].metric(metric))


def variance_ratio(training: Runs) -> Interval:
    """Return ``variances`` of the test loss after training."""
    return variances(training, training.metric("test_loss"))


def variances(training: Runs, values: torch.Tensor) -> Interval:
    """Return log of the variance over seeds of a number of the runs, post- over pre-activation.

    The interval is by the F distribution; ``values`` are ``[runs]``.
    """
    is_post = torch.tensor([run.config["order"] == "post" for run in training])
    post = values[is_post]
    pre = values[~is_post]
    ratio = float((post.var(0) / pre.var(0)).log())
    freedom = len(pre) - 1
    half = math.log(float(stats.f.ppf(0.975, freedom, freedom)))
    return Interval(ratio, 2 / math.sqrt(freedom), ratio - half, ratio + half)


def _features(start: Runs, data: DataSummary) -> Finding:
    rows = list[Row]()
    slopes = list[Row]()
    for order, some in start.by("order").items():
        sizes_of_h = sizes(some, "depth", end_rms)
        rows += point_rows(_NAMES[order], "depth", "rms", sizes_of_h)
        slopes.append(slope(_NAMES[order], *by_seed(sizes_of_h)))
    depths = sorted({row["depth"] for row in rows})
    flat = line("slope 0", "depth", "rms", depths, 0.0, rows[0]["rms"] if rows else 1.0)
    return panel(
        "figure-1",
        "a",
        "Do features stay at their scale?",
        rows=rows,
        slopes=slopes,
        references=flat,
        headline=f"RMS of h_L before training goes as {slopes_in_words('L', slopes)}.",
        axes=Axes("depth", "rms", "depth L", "RMS of h_L", "logarithmic"),
        caption=caption(start, data, BARS),
    )


def _training(training: Runs, data: DataSummary) -> list[Finding]:
    losses = list[Row]()
    tests = list[Row]()
    for order, some in training.by("order").items():
        steps, values = epoch_losses(some)
        losses += curve_rows(_NAMES[order], steps, "loss", values)
        steps, values = tested(some, "test_loss")
        tests += curve_rows(_NAMES[order], steps, "loss", values)
    text = caption(training, data, BANDS)
    ended = diverged(training, "order", "")
    train = advantage(training, "train_loss")
    return [
        panel(
            "figure-1",
            "b",
            "Training loss",
            headline="Post-activation minus pre-activation at the end: "
            f"{difference_in_words(train)} nats.",
            rows=losses,
            axes=Axes("step", "loss", "step", "training loss (nats)", "curves"),
            caption=text,
            details=ended,
        ),
        panel(
            "figure-1",
            "c",
            "Test loss",
            headline="Post-activation minus pre-activation at the end: "
            f"{difference_in_words(advantage(training))} nats.",
            rows=tests,
            axes=Axes("step", "loss", "step", "test loss (nats)", "curves"),
            caption=text,
            details=ended,
        ),
    ]


FIGURE = Figure("figure-1", "Pre- or post-activation?", PARTS, reduce, "a")
