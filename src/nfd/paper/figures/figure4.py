"""Figures 4 and 7: does training with independent backward weights come to be the same, as depth
grows?
"""

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
_TOP = 1.2  # times the loss of a uniform guess: the highest that is drawn
MEMBERS = {"shared": "standard", "independent": "decoupled"}


def parts(width: int, seeds: int) -> dict[Preset, dict[str, Settings]]:
    """The three architectures at each size of run."""
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
    return {
        size: {name: {**shared, **form, **own} for name, form in ARCHITECTURES.items()}
        for size, own in settings.items()
    }


def losses(runs: Runs, depth: int, feedback: str) -> Tensor:
    """Training losses ``[seeds, steps]``, not-a-number where a network diverged."""
    return runs.where(depth=depth, feedback=feedback).curve("loss")


def gap(runs: Runs, depth: int) -> Interval:
    """Decoupled minus standard training loss, mean over the second half of training, paired by
    seed.
    """
    return difference(*late(runs, depth).unbind(1))


def test_gap(runs: Runs, depth: int) -> Interval:
    """Decoupled minus standard test loss after training, paired by seed."""
    return difference(
        *(
            runs.where(depth=depth, feedback=f).metric("test_loss")
            for f in ("shared", "independent")
        )
    )


def late(runs: Runs, depth: int) -> Tensor:
    """Training losses over the second half, standard and decoupled, ``[seeds, 2]``."""
    both = [losses(runs, depth, feedback) for feedback in MEMBERS]
    return torch.stack([values[:, values.shape[1] // 2 :].mean(1) for values in both], 1)


def made(runs: Runs, depth: int, classes: int) -> Tensor:
    """What standard networks learn: log C minus their training loss over the second half,
    ``[seeds]``.
    """
    return math.log(classes) - late(runs, depth)[:, 0]


def gap_over_progress(pair: Tensor, classes: int) -> Tensor:
    """Decoupled minus standard loss over what the standard network learns, of ``late``."""
    standard, decoupled = pair.mean(0)
    relative: Tensor = (decoupled - standard) / (math.log(classes) - standard)
    return relative


def relative_gap(runs: Runs, depth: int, classes: int) -> Interval:
    """The gap over the progress of the standard network."""
    return interval(lambda pair: gap_over_progress(pair, classes), late(runs, depth))


def reduce(runs: Mapping[str, Runs], data: DataSummary, figure: str = "figure-4") -> list[Finding]:
    """Panels a to c, each for the training and for the test loss."""
    panels = []
    for letter, name in zip("abc", ARCHITECTURES, strict=True):
        panels += [
            _panel(runs[name], data, figure, f"{letter}-{kind}", name, kind)
            for kind in ("train", "test")
        ]
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
        headline=_told(runs, kind),
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


def _told(runs: Runs, kind: str) -> str:
    depths = sorted(runs.values("depth"))
    gaps = {L: gap(runs, L) if kind == "train" else test_gap(runs, L) for L in depths}
    known = [f"{apart} at depth {L}" for L, apart in gaps.items() if math.isfinite(apart.value)]
    loss = "training loss, over the second half" if kind == "train" else "test loss at the end"
    return (
        f"Decoupled minus standard {loss}: {'; '.join(known)}."
        if known
        else "Networks diverged at every depth."
    )


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
