"""Figure 6: the smallest eigenvalues of Sigma and Theta, covariances of steps (Assumption 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from nfd.core import Axes, Finding, Row
from nfd.paper.figures.figure import DataSummary, Figure, Runs, everywhere
from nfd.paper.figures.panels import (
    BANDS,
    BARS,
    by_seed,
    caption,
    curve_rows,
    panel,
    point_rows,
    sizes,
    slope,
    slopes_in_words,
)

# What is drawn; delta, the loss-weighted Theta, is measured beside them.
MATRICES = {"sigma": "Sigma", "theta": "Theta"}
_SHARED = {"meter": "spectra", "batch": 1, "depth": 4, "eta_c": 0.1}

PARTS = everywhere(
    _SHARED,
    {
        "smoke": {"online": {"width": [16, 32], "steps": 12, "every": 4, "seeds": 3}},
        "cpu": {
            "online": {"width": [512, 1024, 2048, 4096], "steps": 500, "every": 50, "seeds": 5}
        },
        "paper": {
            "online": {"width": [512, 1024, 2048, 4096], "steps": 500, "every": 50, "seeds": 5}
        },
    },
)


def eigenvalues(runs: Runs, name: str) -> tuple[list[float], Tensor]:
    """Return steps, and smallest eigenvalues ``[seeds, steps, layers]``.

    ``name`` is ``sigma``, ``theta``, ``delta`` or one of these with ``_relative``. No eigenvalue is
    negative: what rounding says of more steps than neurons is zero.
    """
    steps = runs.curve("measured_after")[0].tolist()
    return steps, runs.curve(name).view(len(runs), len(steps), -1).clamp_min(0)


def reduce(runs: Mapping[str, Runs], data: DataSummary) -> list[Finding]:
    """Return panels a and b by layer, c and d by step, e and f by width: of Sigma and of Theta."""
    online = runs["online"]
    return [
        _layers(online, data, "a", "sigma"),
        _layers(online, data, "b", "theta"),
        _steps(online, data, "c", "sigma"),
        _steps(online, data, "d", "theta"),
        _widths(online, data, "e", "sigma"),
        _widths(online, data, "f", "theta"),
    ]


def smallest(runs: Runs, name: str, look: int = -1) -> Tensor:
    """Return the smallest over layers at one look, ``[seeds]``."""
    _, values = eigenvalues(runs, name)
    return values[:, look].amin(1)


def by_width(runs: Runs, name: str, look: int = -1) -> tuple[list[float], Tensor]:
    """Return widths and smallest eigenvalues over layers ``[seeds, widths]``."""
    return by_seed(sizes(runs, "width", lambda some: smallest(some, name, look)))


def _layers(runs: Runs, data: DataSummary, letter: str, name: str) -> Finding:
    rows = list[Row]()
    for width, some in sorted(runs.by("width").items()):
        steps, values = eigenvalues(some, name)
        by_layer = {float(k + 1): values[:, -1, k] for k in range(values.shape[2])}
        rows += point_rows(f"width {width}", "layer", "eigenvalue", by_layer, width=width)
    reading = "every width has a network that diverged"
    if rows:
        lowest = min(row["eigenvalue"] for row in rows)
        reading = f"the smallest of any width and layer is {lowest:.1e}"
    return panel(
        "figure-6",
        letter,
        f"{MATRICES[name]} by layer",
        headline=f"After {steps[-1]:.0f} steps {reading}.",
        rows=rows,
        axes=Axes("layer", "eigenvalue", "layer l", _up(name), "logarithmic", colour="width"),
        caption=caption(runs, data, _about(name), BARS),
    )


def _steps(runs: Runs, data: DataSummary, letter: str, name: str) -> Finding:
    rows = list[Row]()
    factors = list[str]()
    for width, some in sorted(runs.by("width").items()):
        steps, values = eigenvalues(some, name)
        rows += curve_rows(f"width {width}", steps, "eigenvalue", values.amin(2), width=width)
        fall = smallest(some, name, look=0).mean() / smallest(some, name, look=-1).mean()
        factors.append(f"{_factor(float(fall))} at width {width}")
    return panel(
        "figure-6",
        letter,
        f"{MATRICES[name]} by step",
        headline=f"From step {steps[0]:.0f} to step {steps[-1]:.0f} the smallest over layers falls "
        f"by factors {', '.join(factors)}.",
        rows=rows,
        axes=Axes(
            "step",
            "eigenvalue",
            "step",
            "smallest eigenvalue, any layer",
            "logcurves",
            colour="width",
        ),
        caption=caption(runs, data, _about(name), BANDS),
    )


def _widths(runs: Runs, data: DataSummary, letter: str, name: str) -> Finding:
    rows = list[Row]()
    slopes = list[Row]()
    steps, _ = eigenvalues(runs, name)
    for look in (0, len(steps) // 2, len(steps) - 1):
        widths, samples = by_width(runs, name, look)
        series = f"step {steps[look]:.0f}"
        by_size = dict(zip(widths, samples.unbind(1), strict=True))
        rows += point_rows(series, "width", "eigenvalue", by_size, step=steps[look])
        slopes.append(slope(series, widths, samples))
    return panel(
        "figure-6",
        letter,
        f"{MATRICES[name]} by width",
        headline=f"Least of the layers: {slopes_in_words('n', slopes)}.",
        rows=rows,
        slopes=slopes,
        axes=Axes(
            "width",
            "eigenvalue",
            "width n",
            "smallest eigenvalue, any layer",
            "logarithmic",
            colour="step",
        ),
        caption=caption(runs, data, _about(name), BARS),
    )


def _factor(fall: float) -> str:
    if math.isnan(fall):
        return "unknown (a network diverged)"
    return f"{fall:.3g}" if math.isfinite(fall) else "beyond rounding"


def _up(name: str) -> str:
    return f"smallest eigenvalue of {MATRICES[name]}"


def _about(name: str) -> str:
    vectors = {"sigma": "phi(h_{l-1})", "theta": "g_l of the first output"}[name]
    return (
        f"Of the matrix of inner products of {vectors} at all steps so far, over n; nothing is "
        "added to its diagonal."
    )


FIGURE = Figure(
    "figure-6", "Do the covariances stay invertible while training?", PARTS, reduce, "a"
)
