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
    """Return panels a to d."""
    return [*_curves(runs["horizon"], data), *_both(runs["both"], data)]


def scores(runs: Runs, metric: str = "test_loss") -> dict[float, Tensor]:
    """Return final losses ``[seeds]`` by horizon, infinite where a network diverged."""
    return sizes(runs, "horizon", lambda some: some.metric(metric))


def best(runs: Runs, metric: str = "test_loss") -> float:
    """Return the horizon with the lowest mean, or not-a-number where networks diverged at all."""
    means = _means(runs, metric)
    lowest = min(means, key=lambda T: means[T])
    return lowest if math.isfinite(means[lowest]) else math.nan


def _means(runs: Runs, metric: str) -> dict[float, float]:
    """Return the mean final loss by horizon."""
    return {T: float(losses.mean()) for T, losses in scores(runs, metric).items()}


def gain(
    runs: Runs, first: float, second: float, classes: int, metric: str = "test_loss"
) -> Interval:
    """Return the loss at the second horizon minus the loss at the first, paired by seed.

    Networks that diverged count as log C.
    """
    losses = scores(runs, metric)
    highest = math.log(classes)
    return difference(losses[first].clamp(max=highest), losses[second].clamp(max=highest))


def _curves(runs: Runs, data: DataSummary) -> list[Finding]:
    losses = list[Row]()
    tests = list[Row]()
    for T, some in sorted(runs.by("horizon").items()):
        steps, values = epoch_losses(some)
        losses += curve_rows(f"T = {T:g}", steps, "loss", values, horizon=T)
        steps, values = tested(some, "test_loss")
        tests += curve_rows(f"T = {T:g}", steps, "loss", values, horizon=T)
    text = caption(runs, data, BANDS)
    ended = diverged(runs, "horizon", "T =")
    return [
        panel(
            "figure-2",
            "a",
            "Training loss at one depth",
            headline=_headline(runs, "train_loss"),
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
            headline=_headline(runs, "test_loss"),
            rows=tests,
            axes=Axes("step", "loss", "step", "test loss (nats)", "logcurves", colour="horizon"),
            caption=text,
            details=ended,
        ),
    ]


def _headline(runs: Runs, metric: str) -> str:
    score = metric.replace("_", " ")
    lowest = best(runs, metric)
    if math.isnan(lowest):
        return "Networks diverged at every T."
    numbers: list[str] = []
    for T, loss in _means(runs, metric).items():
        numbers.append(f"{T:g}: {loss:.3f}" if math.isfinite(loss) else f"{T:g}: diverged")
    return f"The final {score} is lowest at T = {lowest:g}. By T: {', '.join(numbers)}."


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
            best_horizon = best(some, metric)
            shown = "no T" if math.isnan(best_horizon) else f"T = {best_horizon:g}"
            lowest.append(f"{shown} at depth {depth}")
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
