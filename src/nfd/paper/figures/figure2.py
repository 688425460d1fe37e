"""Figure 2: what the time horizon T does to training."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from nfd.core import Axes, Finding, Interval, Row
from nfd.paper.figures.figure import DataSummary, Figure, Runs, everywhere
from nfd.paper.figures.panels import (
    BANDS,
    BARS,
    caption,
    curve_rows,
    difference,
    diverged,
    epoch_losses,
    panel,
    point_rows,
    sizes,
    tested,
)

_HORIZONS = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]

PARTS = everywhere(
    {"eta_c": 0.1},
    {
        "smoke": {
            "horizon": {
                "horizon": [1.0, 4.0, 32.0],
                "depth": 3,
                "width": 16,
                "steps": 6,
                "looks": 2,
                "seeds": 3,
            },
            "both": {"horizon": [1.0, 32.0], "depth": [2, 4], "width": 16, "steps": 6, "seeds": 3},
        },
        "cpu": {
            "horizon": {
                "horizon": _HORIZONS,
                "depth": 5,
                "width": 128,
                "batch": 128,
                "steps": 780,
                "looks": 13,
                "seeds": 3,
            },
            "both": {
                "horizon": _HORIZONS,
                "depth": [5, 10, 20, 40],
                "width": 128,
                "batch": 128,
                "steps": 390,
                "seeds": 3,
            },
        },
        "paper": {
            "horizon": {
                "horizon": _HORIZONS,
                "depth": 5,
                "width": 128,
                "batch": 128,
                "epochs": 30,
                "looks": 30,
                "seeds": 3,
            },
            "both": {
                "horizon": _HORIZONS,
                "depth": [5, 10, 20, 40],
                "width": 128,
                "batch": 128,
                "epochs": 30,
                "seeds": 3,
            },
        },
    },
)


def reduce(runs: Mapping[str, Runs], data: DataSummary) -> list[Finding]:
    """Panels a to d."""
    return [*_curves(runs["horizon"], data), *_both(runs["both"], data)]


def scores(runs: Runs, metric: str = "test_loss") -> dict[float, Tensor]:
    """Final losses ``[seeds]`` by horizon, infinite where a network diverged."""
    return sizes(runs, "horizon", lambda some: some.metric(metric))


def best(runs: Runs, metric: str = "test_loss") -> float:
    """The horizon with the lowest mean; not-a-number where networks of every one diverged."""
    means = {T: float(s.mean()) for T, s in scores(runs, metric).items()}
    lowest = min(means, key=lambda T: means[T])
    return lowest if math.isfinite(means[lowest]) else math.nan


def gain(
    runs: Runs, first: float, second: float, classes: int, metric: str = "test_loss"
) -> Interval:
    """The loss at the second horizon minus that at the first, paired by seed; networks that
    diverged count as log C.
    """
    losses = scores(runs, metric)
    return difference(*(losses[T].clamp(max=math.log(classes)) for T in (first, second)))


def _curves(runs: Runs, data: DataSummary) -> list[Finding]:
    losses = list[Row]()
    tests = list[Row]()
    for T, some in sorted(runs.by("horizon").items()):
        losses += curve_rows(f"T = {T:g}", (e := epoch_losses(some))[0], "loss", e[1], horizon=T)
        tests += curve_rows(
            f"T = {T:g}", (t := tested(some, "test_loss"))[0], "loss", t[1], horizon=T
        )
    text = caption(runs, data, BANDS)
    ended = diverged(runs, "horizon", "T =")
    return [
        panel(
            "figure-2",
            "a",
            "Training loss at one depth",
            headline=_told(runs, "train_loss"),
            rows=losses,
            axes=Axes(
                "step", "loss", "step", "training loss (nats)", "logcurves", colour="horizon"
            ),
            caption=text,
            details=ended,
        ),
        panel(
            "figure-2",
            "b",
            "Test loss at one depth",
            headline=_told(runs, "test_loss"),
            rows=tests,
            axes=Axes("step", "loss", "step", "test loss (nats)", "logcurves", colour="horizon"),
            caption=text,
            details=ended,
        ),
    ]


def _told(runs: Runs, metric: str) -> str:
    score = metric.replace("_", " ")
    chosen = best(runs, metric)
    means = {T: float(s.mean()) for T, s in scores(runs, metric).items()}
    numbers = ", ".join(
        f"{T:g}: {m:.3f}" if math.isfinite(m) else f"{T:g}: diverged" for T, m in means.items()
    )
    if math.isnan(chosen):
        return "Networks diverged at every T."
    return f"The final {score} is lowest at T = {chosen:g}. By T: {numbers}."


def _both(runs: Runs, data: DataSummary) -> list[Finding]:
    panels = []
    for letter, metric, part in (("c", "train_loss", "Training"), ("d", "test_loss", "Test")):
        rows = list[Row]()
        lowest = list[str]()
        ended = list[str]()
        for depth, some in sorted(runs.by("depth").items()):
            rows += point_rows(
                f"depth {depth}", "horizon", "loss", scores(some, metric), depth=depth
            )
            chosen = best(some, metric)
            lowest.append(f"{'no T' if math.isnan(chosen) else f'T = {chosen:g}'} at depth {depth}")
            ended += [
                f"Depth {depth}: {sentence[0].lower()}{sentence[1:]}"
                for sentence in diverged(some, "horizon", "T =")
            ]
        panels.append(
            panel(
                "figure-2",
                letter,
                f"{part} loss against T and depth",
                headline=f"The lowest final {part.lower()} loss is at {', '.join(lowest)}.",
                rows=rows,
                axes=Axes(
                    "horizon",
                    "loss",
                    "horizon T",
                    f"{part.lower()} loss (nats)",
                    "semilogarithmic",
                    zero=False,
                    colour="depth",
                ),
                caption=caption(runs, data, BARS, "A network that diverged is left out."),
                details=ended,
            )
        )
    return panels


FIGURE = Figure("figure-2", "How long a horizon?", PARTS, reduce, "c")
