"""What was run for every panel of the paper's figures, beside what its caption says.

A caption is the settings that it states: single values, or the ends of a range. What it leaves open is named so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nfd.core import Row
from nfd.paper.figures.panels import shown
from nfd.paper.figures.selection import Runs

_NAMES = {
    "width": "width",
    "depth": "depth",
    "horizon": "T",
    "eta_c": "LR",
    "batch": "batch",
    "epochs": "epochs",
    "steps": "steps",
    "seed": "seeds",
}
_FEW = 3  # values that are listed; of more, the ends are


@dataclass(frozen=True)
class Span:
    """The ends of what a caption says was varied."""

    low: float
    high: float


Stated = Mapping[str, float | Span]


@dataclass(frozen=True)
class Caption:
    """Panels that one part of a figure's runs makes, and the settings that their caption states.

    ``open_`` are settings that decide the panels and that the caption leaves open.
    """

    panels: str
    stated: Stated
    open_: Sequence[str]


_FIGURE_4 = {"eta_c": 0.1, "batch": 128}

CAPTIONS: dict[str, dict[str, Caption]] = {
    "1": {
        "start": Caption("a", {}, ("width", "depth", "seed")),
        "training": Caption(
            "b, c", {"width": 128, "depth": 64, "eta_c": 0.01, "batch": 128}, ("epochs", "seed")
        ),
    },
    "2": {
        "horizon": Caption(
            "a, b", {"width": 128, "depth": 5, "horizon": Span(2, 32), "eta_c": 0.1, "batch": 128, "seed": 3},
            ("epochs",),
        ),
        "both": Caption(
            "c, d", {"width": 128, "eta_c": 0.1, "batch": 128, "seed": 3}, ("depth", "horizon", "epochs")
        ),
    },
    "3": {
        "start": Caption("a, b", {"width": Span(32, 1024), "depth": Span(4, 128)}, ("seed",)),
        "real": Caption(
            "c, d", {"width": Span(32, 1024), "depth": Span(4, 128), "eta_c": 0.01, "batch": 128, "epochs": 30},
            ("seed",),
        ),
    },
    "4": {
        name: Caption(letter, {"width": 128, **_FIGURE_4}, ("depth", "epochs", "seed"))
        for letter, name in zip("abc", ("dnn", "mup", "depth-mup"), strict=True)
    },
    "5": {
        "collapse": Caption(
            "row 1 (a, b)", {"width": 128, "eta_c": 0.1, "batch": 128, "steps": 300}, ("depth", "seed")
        ),
        "transfer": Caption("row 2 (d to g)", {"depth": Span(3, 9)}, ("width", "eta_c", "batch", "epochs", "seed")),
        "deep": Caption("row 3 (h to j)", {"width": 128, "depth": 64}, ("eta_c", "batch", "epochs", "seed")),
    },
    "6": {
        "online": Caption(
            "a to f", {"width": Span(512, 4096), "depth": 4, "eta_c": 0.1, "batch": 1, "seed": 5}, ("steps",)
        ),
    },
    "7": {
        name: Caption(letter, {"width": 256, **_FIGURE_4}, ("depth", "epochs", "seed"))
        for letter, name in zip("abc", ("dnn", "mup", "depth-mup"), strict=True)
    },
}  # fmt: skip


def beside_captions(runs: Mapping[str, Mapping[str, Runs]], images: int) -> list[Row]:
    """A row for the panels of every part: what the caption states, what ran, and what is apart.

    Runs of "claims" that stand for a whole part, as ``4-depth-mup``, have rows of their own at the end.

    Args:
        runs: by figure and part, as ``Evidence.runs``. images: of the training part, by which epochs are counted.
    """
    figures = [figure for figure in CAPTIONS if figure in runs]
    parts = [(figure, part, caption) for figure in figures for part, caption in CAPTIONS[figure].items()]
    parts = [part for part in parts if part[1] in runs[part[0]]]
    more = runs.get("claims", {})
    return [row(figure, caption, runs[figure][part], images) for figure, part, caption in parts] + [
        row(figure, replace(caption, panels=f"{caption.panels}, for claims"), more[name], images)
        for figure, part, caption in parts
        if (name := f"{figure}-{part}") in more
    ]


def row(figure: str, caption: Caption, runs: Runs, images: int) -> Row:
    """The same for one part."""
    ran = {name: _ran(runs, name, images) for name in (*caption.stated, *caption.open_)}
    apart = [_NAMES[name] for name, stated in caption.stated.items() if not _same(stated, ran[name])]
    return {
        "panel": f"{figure} {caption.panels}",
        "caption": _listed({name: _said(value) for name, value in caption.stated.items()}) or "nothing",
        "left open": ", ".join(_NAMES[name] for name in caption.open_) or "nothing",
        "ran": _listed({name: _values(name, values) for name, values in ran.items()}),
        "apart": ", ".join(apart) or "nothing that is stated",
    }


def _ran(runs: Runs, name: str, images: int) -> list[float]:
    """The values of a setting; epochs are samples over images, seeds are counted."""
    if name == "seed":
        return [len(runs.values(name))]
    if name == "epochs":
        return sorted({steps * batch / images for steps in runs.values("steps") for batch in runs.values("batch")})
    return sorted(runs.values(name))


def _same(stated: float | Span, ran: Sequence[float]) -> bool:
    if isinstance(stated, Span):
        return ran[0] <= stated.low and ran[-1] >= stated.high
    return list(ran) == [stated]


def _listed(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{_NAMES[name]} {text}" for name, text in texts.items())


def _said(stated: float | Span) -> str:
    return f"{stated.low:g} to {stated.high:g}" if isinstance(stated, Span) else f"{stated:g}"


def _values(name: str, values: Sequence[float]) -> str:
    if len(values) > _FEW:
        return f"{values[0]:.3g} to {values[-1]:.3g} ({len(values)} values)"
    return ", ".join(f"{value:.2g}" if name == "epochs" else shown(value) for value in values)
