"""Figures 4 and 7: does depth make training with independent backward weights the same?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nfd.core import Axes, Finding, Interval, Row, interval
from nfd.paper.figures.figure import DataSummary, Figure, Runs, Settings
from nfd.paper.figures.panels import (
    BANDS,
    caption,
    curve_rows,
    difference,
    diverged,
    epoch_losses,
    panel,
    tested,
)
from nfd.paper.settings import Preset

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "dnn": {"network": "mlp", "rule": "mup"},
    "mup": {"rule": "mup"},
    "depth-mup": {"rule": "depth-mup"},
}
TITLES = {
    "dnn": "vanilla network",
    "mup": "residual network, muP",
    "depth-mup": "residual network, depth-muP",
}
# The highest loss that is drawn, over the loss of a uniform guess.
_TOP = 1.2
MEMBERS = {"shared": "standard", "independent": "decoupled"}


def parts(width: int, seeds: int) -> dict[Preset, dict[str, Settings]]:
    """Return the three architectures at each size of run."""
    shared = {"feedback": ["shared", "independent"], "eta_c": 0.1}
    settings: dict[Preset, Settings] = {
        "smoke": {"width": width // 8, "depth": [2, 4], "steps": 8, "looks": 2, "seeds": 3},
        "cpu": {
            "width": width,
            "depth": [4, 8, 16, 32],
            "batch": 128,
            "steps": 390,
            "looks": 13,
            "seeds": seeds,
        },
        "paper": {
            "width": width,
            "depth": [4, 8, 16, 32],
            "batch": 128,
            "epochs": 30,
            "looks": 30,
            "seeds": 5,
        },
    }
    parts_by_size: dict[Preset, dict[str, Settings]] = {}
    for size, of_size in settings.items():
        parts_by_size[size] = {
            name: {**shared, **architecture, **of_size}
            for name, architecture in ARCHITECTURES.items()
        }
    return parts_by_size


def losses(runs: Runs, depth: int, feedback: str) -> Tensor:
    """Return training losses ``[seeds, steps]``, not-a-number where a network diverged."""
    return runs.where(depth=depth, feedback=feedback).curve("loss")


def gap(runs: Runs, depth: int) -> Interval:
    """Return decoupled minus standard training loss, paired by seed.

    It is a mean over the second half of training.
    """
    return difference(*late(runs, depth).unbind(1))


def test_gap(runs: Runs, depth: int) -> Interval:
    """Return decoupled minus standard test loss after training, paired by seed."""
    standard = runs.where(depth=depth, feedback="shared").metric("test_loss")
    decoupled = runs.where(depth=depth, feedback="independent").metric("test_loss")
    return difference(standard, decoupled)


def late(runs: Runs, depth: int) -> Tensor:
    """Return training losses over the second half, standard and decoupled, ``[seeds, 2]``."""
    both = [losses(runs, depth, feedback) for feedback in MEMBERS]
    return torch.stack([values[:, values.shape[1] // 2 :].mean(1) for values in both], 1)


def progress(runs: Runs, depth: int, classes: int) -> Tensor:
    """Return the progress of standard networks, ``[seeds]``.

    It is log C minus their training loss over the second half.
    """
    return math.log(classes) - late(runs, depth)[:, 0]


def gap_over_progress(pair: Tensor, classes: int) -> Tensor:
    """Return decoupled minus standard loss over the standard network's progress, of ``late``."""
    standard, decoupled = pair.mean(0)
    relative: Tensor = (decoupled - standard) / (math.log(classes) - standard)
    return relative


def relative_gap(runs: Runs, depth: int, classes: int) -> Interval:
    """Return the gap over the progress of the standard network."""
    return interval(lambda pair: gap_over_progress(pair, classes), late(runs, depth))


def reduce(runs: Mapping[str, Runs], data: DataSummary, figure: str = "figure-4") -> list[Finding]:
    """Return panels a to c, each for the training and for the test loss."""
    panels: list[Finding] = []
    for letter, name in zip("abc", ARCHITECTURES, strict=True):
        for kind in ("train", "test"):
            panels.append(_panel(runs[name], data, figure, f"{letter}-{kind}", name, kind))
    return panels


def _panel(
    runs: Runs, data: DataSummary, figure: str, letter: str, name: str, kind: str
) -> Finding:
    rows = list[Row]()
    ended = list[str]()
    for depth in sorted(runs.values("depth")):
        for feedback, member in MEMBERS.items():
            some = runs.where(depth=depth, feedback=feedback)
            steps, values = epoch_losses(some) if kind == "train" else tested(some, "test_loss")
            series = f"depth {depth}, {member}"
            rows += curve_rows(series, steps, "loss", values, depth=depth, feedback=feedback)
    for feedback, member in MEMBERS.items():
        ended += [
            f"{member.capitalize()}: {sentence}"
            for sentence in diverged(runs.where(feedback=feedback), "depth", "depth")
        ]
    part = {"train": "training", "test": "test"}[kind]
    top = _TOP * math.log(data.classes)
    return panel(
        figure,
        letter,
        f"{TITLES[name]}: {part} loss",
        headline=_headline(runs, kind),
        details=ended,
        rows=rows,
        axes=Axes(
            "step",
            "loss",
            "step",
            f"{part} loss (nats)",
            "curves",
            top=top,
            colour="depth",
            dash="feedback",
        ),
        caption=caption(runs, data, BANDS, f"Losses above {top:.2g} are beyond the axis."),
    )


def _headline(runs: Runs, kind: str) -> str:
    gap_of = gap
    loss = "training loss, over the second half"
    if kind == "test":
        gap_of = test_gap
        loss = "test loss at the end"
    gaps: list[str] = []
    for L in sorted(runs.values("depth")):
        apart = gap_of(runs, L)
        if math.isfinite(apart.value):
            gaps.append(f"{apart} at depth {L}")
    if not gaps:
        return "Networks diverged at every depth."
    return f"Decoupled minus standard {loss}: {'; '.join(gaps)}."


FIGURE_4 = Figure(
    "figure-4", "Does it matter which weights carry the gradient?", parts(128, 5), reduce, "c-train"
)
FIGURE_7 = Figure(
    "figure-7",
    "Does it matter less in wider networks?",
    parts(256, 3),
    partial(reduce, figure="figure-7"),
    "c-train",
)
